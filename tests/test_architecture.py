"""ARCHITECTURE.md and the front pages of the rooms: what they name exists, what they draw is
drawn from its source."""

import ast
import importlib
import json
import re
import sys
from pathlib import Path

import pytest
from test_laws import ROWS, module_files
from test_leaves import TRUNK

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import diagrams
import drawings

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


def pictures_shown(nbs):
    "(notebook, alt text, path from the root) of every SVG that a cell shows, or a card of one"
    for page in sorted(nbs.rglob("*.ipynb")):
        if ".ipynb_checkpoints" in page.parts or page.parent.name in ROOMS:
            continue
        for cell in json.loads(page.read_text(encoding="utf-8"))["cells"]:
            shown = []
            if cell["cell_type"] == "markdown":
                text = "".join(cell["source"])
                shown += re.findall(r"!\[([^\]]*)\]\(([^)\s]+\.svg)\)", text)
            for output in cell.get("outputs", []):
                text = "".join(output.get("data", {}).get("text/markdown", ""))
                found = re.findall(r'<img src="([^"]+\.svg)" alt="([^"]*)"', text)
                shown += [(alt, file) for file, alt in found]
            for alt, file in shown:
                place = (page.parent / file).resolve().relative_to(nbs.resolve().parent)
                yield page.name, alt, place


def wrong_pictures(root, drawn):
    "What is amiss with the pictures of the pages, a line each; `drawn`: path -> `Drawing`"
    found = []
    for path, drawing in drawn.items():
        file = root / path
        if not file.is_file() or file.read_text(encoding="utf-8") != drawing.svg():
            found.append(f"{path} was not drawn again: python -m tools.drawings")
    stored = {
        p.relative_to(root)
        for kind in ("pictures", "cards")
        for p in (root / "nbs").rglob(f"{kind}/*.svg")
    }
    found += [f"{p} is drawn by nobody" for p in sorted(stored - {*drawn})]
    shown = list(pictures_shown(root / "nbs"))
    found += [f"{p} is on no page" for p in sorted({*drawn} - {p for _, _, p in shown})]
    for page, alt, path in shown:
        if not (root / path).is_file():
            found.append(f"{page} shows {path}, which is missing")
        elif path in drawn and alt != drawn[path].alt:
            found.append(f"{page}: the words in the page for {path} are not those of its drawing")
        elif len(alt.split()) < 8:
            found.append(f"{page}: {path} needs a sentence that says what it shows")
    return found


def test_pictures_of_the_pages(root):
    assert wrong_pictures(root, drawings.drawings()) == []


def test_wrong_pictures_are_found(tmp_path):
    alt = "Four boxes in a row, and an arrow from each to the next"
    drawn = drawings.style.Drawing("Boxes", alt, 100, 60)
    drawn.box(10, 10, 60, 40, "a")
    folder = tmp_path / "nbs/pictures"
    folder.mkdir(parents=True)

    def wrong(words, file, text):
        page = dict(cells=[dict(cell_type="markdown", source=[f"![{words}](pictures/{file})"])])
        (tmp_path / "nbs/a.ipynb").write_text(json.dumps(page))
        (folder / "boxes.svg").write_text(text)
        return wrong_pictures(tmp_path, {Path("nbs/pictures/boxes.svg"): drawn})

    assert wrong(alt, "boxes.svg", drawn.svg()) == []
    assert "drawn again" in wrong(alt, "boxes.svg", "<svg/>")[0]
    assert "not those of its drawing" in wrong("", "boxes.svg", drawn.svg())[0]
    assert "missing" in wrong(alt, "none.svg", drawn.svg())[1]
    (folder / "old.svg").write_text("<svg/>")
    assert "drawn by nobody" in wrong(alt, "boxes.svg", drawn.svg())[0]
    assert "needs a sentence" in wrong("old", "old.svg", drawn.svg())[-1]


def test_a_drawing_refuses_words_that_do_not_fit():
    drawn = drawings.style.Drawing("Boxes", "one", 200, 60)
    with pytest.raises(ValueError, match="too wide for a box of 40"):
        drawn.box(10, 10, 40, 40, "transformer")
    with pytest.raises(ValueError, match="lies off the paper"):
        drawn.text(190, 20, "transformer")


def test_the_twenty_modules(root):
    "ARCHITECTURE.md and the page name the same modules, with the same words, and they exist"
    text = (root / "ARCHITECTURE.md").read_text(encoding="utf-8")
    told = re.findall(r"^\d+\. `([\w.]+)`: (.+)$", text, re.M)
    page = json.loads((root / "nbs/twenty_modules.ipynb").read_text(encoding="utf-8"))
    [cell] = [c for c in page["cells"] if "TRUNK = {" in "".join(c["source"])]
    listed = ast.literal_eval("".join(cell["source"]).partition("TRUNK = ")[2])
    assert told == [*listed.items()] and len(told) == 20
    assert not set(listed) - set(module_files(root))
    assert {name.partition(".")[0] for name in listed} <= TRUNK
