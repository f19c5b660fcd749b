"""ARCHITECTURE.md and the front pages of the rooms: what they name exists, what they draw is
drawn from its source."""

import importlib, json, re, sys
from pathlib import Path
import pytest
from test_laws import ROWS, module_files

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import diagrams

ROOMS = [name for row in ROWS[1:-1] for name in row]


def wrong_names(root, text):
    "Paths, links and modules in a text that do not exist"
    code = re.findall(r"`([^`\n]+)`", text)
    paths = [c for c in code if re.fullmatch(r"(nbs|gpub|tests|tools|data)/[\w./-]*", c)]
    paths += [u for u in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in u]
    modules = [
        c for c in code if (m := re.fullmatch(r"([a-z]+)\.[a-z]+(\.[a-z]+)?", c)) and m[1] in ROOMS
    ]
    return [p for p in paths if not (root / p).exists()] + [
        m for m in modules if m not in module_files(root)
    ]


def test_architecture_names_what_exists(root):
    text = (root / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert wrong_names(root, text) == []
    for name in set(re.findall(r"`((?:%s)\.\w+)`" % "|".join(ROOMS), text)):
        importlib.import_module(f"gpub.{name}")


def test_wrong_names_are_found(root):
    text = "`nbs/none.ipynb` `model.none` `model.gpt` [a](no.md) [b](README.md) `manifest.json`"
    assert wrong_names(root, text) == ["nbs/none.ipynb", "no.md", "model.none"]


def test_architecture_draws_the_rows(root):
    text = (root / "ARCHITECTURE.md").read_text(encoding="utf-8")
    drawn = re.search(r"^```\n(.*?)^```", text, re.M | re.S)[1].splitlines()
    assert [re.split(r"\s{2,}", line)[: len(row)] for line, row in zip(drawn, ROWS)] == ROWS[:-1]


def test_architecture_names_real_objects(root):
    "Classes, functions and tables in backquotes are public names of a module"
    text = (root / "ARCHITECTURE.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`([A-Z]+|[A-Z][a-z]+[A-Za-z]*|[a-z]+_[a-z]+)`", text))
    known = "\n".join(p.read_text(encoding="utf-8") for p in module_files(root).values())
    public = set(re.findall(r"^(?:class |def )?(\w+)", known, re.M))
    assert names - public - {"ROWS", "LATEST"} == set()


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_a_front_page(root, room):
    folder = root / "nbs/lib" / room
    page = json.loads((folder / f"{room}_room.ipynb").read_text(encoding="utf-8"))
    text = "\n".join("".join(c["source"]) for c in page["cells"])
    alt, file = re.search(r"!\[([^\]]+)\]\(([^)]+)\)", text).groups()
    assert alt == diagrams.ROOMS[room].alt
    assert (folder / file).read_text(encoding="utf-8") == diagrams.draw(diagrams.ROOMS[room])
    assert f"lib/{room}/{room}_room.ipynb" in (root / "_quarto.yml").read_text(encoding="utf-8")


def test_a_front_page_lists_its_modules(root):
    for room in ROOMS:
        page = (root / f"nbs/lib/{room}/{room}_room.ipynb").read_text(encoding="utf-8")
        own = {m for m in module_files(root) if m.startswith(f"{room}.")}
        assert {m for m in own if f"[{m}](" not in page} == set(), f"run {room}_room.ipynb again"


def test_diagrams_name_modules_that_exist(root):
    modules = module_files(root)
    packages = {m.rpartition(".")[0] for m in modules}
    gone = [(r, m) for r, m in diagrams.modules_named() if m not in modules and m not in packages]
    assert gone == []


def test_words_fit_their_boxes():
    "About 8.4 and 6.4 pixels a letter in the widest of the fonts"
    for diagram in diagrams.ROOMS.values():
        for b in diagram.boxes:
            assert 8.4 * len(b.name) <= diagrams.BOX_WIDTH - 8, b.name
            assert 6.4 * len(b.note) <= diagrams.BOX_WIDTH - 8, b.note
