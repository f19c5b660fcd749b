"""Takeaways: each has a row in data/takeaways.json that names what it rests on and how many seeds
are behind it, and none that compares two trained things on one seed hides that it does."""

import json
import re
from pathlib import Path
from typing import Annotated

import pytest
from cells import chapters
from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass

SAYS_ONE = r"(?i)\bone (run|seed)\b|\banother seed\b"
DURATION = r"(?i)this page (took|ran)\b"


@dataclass(frozen=True)
class Row:
    """One takeaway: words that only it has on its page, what it rests on (cells of the page, files
    of the repository), and the seeds behind it, or none where nothing of ours was trained"""

    page: str
    says: Annotated[str, Field(min_length=5)]
    receipts: Annotated[list[str], Field(min_length=1)]
    seeds: Annotated[int, Field(ge=1)] | None
    compares: bool = False  # it holds two trained things against each other
    counted_in: str | None = None  # more than one seed: a file, or "cell ID: words of its source"


def read(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))


def rows_of(root: Path) -> list[Row]:
    filed = read(root / "data/takeaways.json")
    assert filed["schema"] == "gpub-takeaways/1"
    return TypeAdapter(list[Row]).validate_python(filed["rows"])


def markdown_of(cell: dict) -> str:
    "What a reader of the stored page sees of a cell: its text, or its output"
    if cell["cell_type"] == "markdown":
        return "".join(cell["source"])
    shown = [o["data"].get("text/markdown", "") for o in cell["outputs"] if "data" in o]
    return "\n".join("".join(text) for text in shown)


def takeaways(page: Path) -> list[str]:
    "The points below the heading Takeaways, each in one line; how long the page took is none"
    text = "\n\n".join(map(markdown_of, read(page)["cells"]))
    below = re.split(r"^## ", text.partition("## Takeaways")[2], flags=re.M)[0]
    points = re.findall(r"^[-*] (.*?)(?=^[-*] |\n\n|\Z)", below, re.M | re.S)
    lines = [" ".join(point.split()) for point in points]
    return [line for line in lines if not re.match(DURATION, line)]


def seeds_in(value) -> set:
    "Every value under a key `seed`, however deep"
    if isinstance(value, dict):
        own = {value["seed"]} if "seed" in value else set()
        return own.union(*map(seeds_in, value.values()))
    return set().union(*map(seeds_in, value)) if isinstance(value, list) else set()


def faults_of_receipt(receipt: str, root: Path, cells: dict) -> list[str]:
    kind, _, name = receipt.partition(" ")
    if kind != "cell":
        return [] if (root / receipt).exists() else [f"there is no {receipt}"]
    if name not in cells:
        return [f"there is no cell {name}"]
    return []


def faults_of_count(row: Row, root: Path, cells: dict) -> list[str]:
    "More than one seed: the file has as many, or the cell has the words that make them"
    if row.seeds is None or row.seeds == 1:
        return [] if row.counted_in is None else ["one seed needs no count"]
    if row.counted_in is None:
        return [f"nothing shows its {row.seeds} seeds"]
    kind, _, words = row.counted_in.partition(" ")
    if kind == "cell":
        name, _, words = words.partition(": ")
        return [] if words in cells.get(name, "") else [f"cell {name} does not say {words!r}"]
    counted = len(seeds_in(read(root / row.counted_in)))
    right = counted == row.seeds
    return [] if right else [f"{row.counted_in} has {counted} seeds, not {row.seeds}"]


def faults_of_row(row: Row, point: str, root: Path, cells: dict) -> list[str]:
    faults = [f for r in row.receipts for f in faults_of_receipt(r, root, cells)]
    if row.seeds is None and (row.compares or any(r.startswith("data/runs") for r in row.receipts)):
        faults.append("rests on trained models and names no seeds")
    if row.compares and row.seeds == 1 and not re.search(SAYS_ONE, point):
        faults.append("compares on one seed and does not say so")
    return faults + faults_of_count(row, root, cells)


def faults_of_page(page: Path, rows: list[Row], root: Path) -> list[str]:
    points, faults = takeaways(page), []
    code = [c for c in read(page)["cells"] if c["cell_type"] == "code"]
    cells = {c["id"]: "".join(c["source"]) for c in code}
    for point in points:
        told = [row for row in rows if row.says in point]
        if len(told) != 1:
            faults.append(f"{len(told)} rows for the takeaway {point[:60]!r}")
    for row in rows:
        said = [point for point in points if row.says in point]
        if len(said) != 1:
            faults.append(f"the row {row.says!r} fits {len(said)} takeaways")
        else:
            faults += [f"{row.says!r}: {f}" for f in faults_of_row(row, said[0], root, cells)]
    return faults


def name_of(page: Path, root: Path) -> str:
    return page.relative_to(root / "nbs").with_suffix("").as_posix()


def faults_of_takeaways(root: Path) -> list[str]:
    rows, pages = rows_of(root), chapters(root)
    names = {name_of(page, root) for page in pages}
    faults = [f"there is no page {name}" for name in {row.page for row in rows} - names]
    for page in pages:
        name = name_of(page, root)
        own = [row for row in rows if row.page == name]
        faults += [f"{name}: {fault}" for fault in faults_of_page(page, own, root)]
    return faults


def test_every_takeaway_has_a_receipt_and_its_seeds(root):
    assert faults_of_takeaways(root) == []


def test_every_chapter_has_takeaways(root):
    few = [name_of(page, root) for page in chapters(root) if len(takeaways(page)) < 4]
    assert few == []


@pytest.fixture
def small(tmp_path):
    "A course of one chapter with two takeaways, and their rows"
    page = tmp_path / "nbs/season2/01_a.ipynb"
    page.parent.mkdir(parents=True)
    shown = "* The wide model is 0.2 nats better (one seed).\n* A token has 8 bytes.\n"
    cells = [
        dict(cell_type="code", id="runs1", source="losses = fit(0)", outputs=[]),
        dict(cell_type="markdown", id="m", source="## Takeaways"),
        dict(
            cell_type="code",
            id="last",
            source="x",
            outputs=[dict(data={"text/markdown": shown + "* This page took 3 s."})],
        ),
        dict(cell_type="markdown", id="e", source="## Exercises\n* one"),
    ]
    page.write_text(json.dumps(dict(cells=cells)))
    (tmp_path / "data").mkdir()
    (tmp_path / "data/three.json").write_text(json.dumps([dict(seed=n) for n in (0, 1, 2)]))
    own = dict(page="season2/01_a")
    filed = [
        own | dict(says="The wide model", receipts=["cell runs1"], seeds=1, compares=True),
        own | dict(says="A token has", receipts=["data/three.json"], seeds=None),
    ]
    write(tmp_path, filed)
    return tmp_path


def write(root, rows):
    filed = dict(schema="gpub-takeaways/1", rows=rows)
    (root / "data/takeaways.json").write_text(json.dumps(filed))


def changed(root, number, **fields):
    rows = read(root / "data/takeaways.json")["rows"]
    rows[number] |= fields
    write(root, rows)
    return faults_of_takeaways(root)


def test_a_whole_table_passes(small):
    assert faults_of_takeaways(small) == []
    assert changed(small, 0, seeds=3, counted_in="data/three.json") == []
    assert changed(small, 0, counted_in="cell runs1: fit(0)") == []


@pytest.mark.parametrize(
    "number, fields, fault",
    [
        (0, dict(receipts=["cell runs2"]), "there is no cell runs2"),
        (1, dict(receipts=["data/two.json"]), "there is no data/two.json"),
        (0, dict(says="The narrow model"), "0 rows for the takeaway 'The wide model"),
        (1, dict(says="one token"), "fits 0 takeaways"),
        (0, dict(seeds=2, counted_in="data/three.json"), "has 3 seeds, not 2"),
        (0, dict(seeds=3), "nothing shows its 3 seeds"),
        (0, dict(seeds=3, counted_in="cell runs1: range(3)"), "does not say 'range(3)'"),
        (0, dict(seeds=None), "names no seeds"),
        (1, dict(page="season2/09_z"), "there is no page season2/09_z"),
    ],
)
def test_a_row_that_does_not_hold_is_found(small, number, fields, fault):
    assert any(fault in said for said in changed(small, number, **fields))


def test_a_comparison_on_one_seed_that_hides_it_is_found(small):
    page = small / "nbs/season2/01_a.ipynb"
    page.write_text(page.read_text().replace(" (one seed)", ""))
    assert faults_of_takeaways(small) == [
        "season2/01_a: 'The wide model': compares on one seed and does not say so"
    ]
