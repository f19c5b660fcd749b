"""The course as a whole: terms that are used where the glossary says, pages that show what is on
file, headers that are true."""

import json
import re
import sys
from pathlib import Path

import pytest
from cells import chapters, course_pages, deeper_pages, defined_here
from test_laws import exports_to, imports, room
from test_leaves import TRUNK

from gpub.data.text import load_shakespeare

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from drawings.course import CHAPTERS


def cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def source(path):
    return "\n".join("".join(c["source"]) for c in cells(path))


def shown(path):
    return "\n".join(
        "".join(
            o.get("data", {}).get("text/markdown")
            or o.get("data", {}).get("text/plain")
            or o.get("text", "")
        )
        for c in cells(path)
        for o in c.get("outputs", [])
    )


def entries(root):
    "(term, meaning, link) of the glossary"
    return re.findall(
        r"^\| ([^|]+?) \| ([^|]+?) \| \[[^\]]+\]\(([^)]+)\) \|$",
        source(root / "nbs/glossary.ipynb"),
        re.M,
    )


def test_terms_are_used_where_the_glossary_says(root):
    lost = [
        f"{term}: not on {link}"
        for term, _, link in entries(root)
        if not re.search(rf"(?<!\w){re.escape(term)}", source(root / "nbs" / link), re.I)
    ]
    assert len(entries(root)) > 40 and not lost, lost


def test_glossary_is_in_order_and_says_each_once(root):
    terms = [t.lower() for t, *_ in entries(root)]
    assert terms == sorted(set(terms))


def test_a_term_that_is_nowhere_is_found(tmp_path):
    (tmp_path / "nbs").mkdir()

    def page(text):
        return json.dumps(dict(cells=[dict(cell_type="markdown", source=text)]))

    (tmp_path / "nbs/glossary.ipynb").write_text(
        page(
            "".join(
                f"| {t} | x | [a](a.ipynb) |\n" for t in [*(f"word{i}" for i in range(41)), "xyzzy"]
            )
        )
    )
    (tmp_path / "nbs/a.ipynb").write_text(page(" ".join(f"word{i}" for i in range(41))))
    with pytest.raises(AssertionError, match="xyzzy: not on a.ipynb"):
        test_terms_are_used_where_the_glossary_says(tmp_path)


def test_performance_page_shows_every_receipt(root):
    page = shown(root / "nbs/performance.ipynb")
    files = {p.name for p in (root / "data/bench").glob("*.json")}
    runs = {
        p.parent.name
        for p in (root / "data/runs").glob("*/bill.json")
        if (p.parent / "log.jsonl").is_file()
    }
    assert set(re.findall(r"data/bench/([\w.-]+\.json)", page)) == files and all(
        f"| {r} |" in page for r in runs
    ), "stale: make run NB=nbs/performance.ipynb"


def test_every_exhibit_is_on_the_page_of_symptoms(root):
    from gpub.lab.museum.bugs import EXHIBITS
    from gpub.lab.museum.machines import INFRA

    page = shown(root / "nbs/something_went_wrong.ipynb")
    every = EXHIBITS + INFRA
    assert [e.name for e in every if e.symptom[:20] not in page] == [] and page.count(
        "](lib/lab/museum_"
    ) == len(every)


def close(minutes, measured):
    """Whether a time somebody wrote down is still about the measured one: machines and their load
    differ"""
    return (
        minutes is None
        or measured is not None
        and int(minutes) / 3 - 1 <= measured["seconds"] / 60 <= 3 * int(minutes) + 1
    )


def test_cards_tell_the_measured_time(root):
    measured = json.loads((root / "data/chapters.json").read_text(encoding="utf-8"))
    for path in course_pages(root):
        card = next(
            ("".join(c["source"]) for c in cells(path) if c.get("id") == "chapter-card"), ""
        )
        assert card, f"{path.name} has no card"
        name = path.relative_to(root / "nbs").with_suffix("").as_posix()
        said = re.search(r"\*\*time\*\* (?:(\d+) minutes?|not measured yet)", card)
        assert said and close(said[1], measured.get(name)), (
            f"{name}: the card says {said and said[0]}, data/chapters.json {measured.get(name)}"
        )
        assert card.count("\n- ") >= 3 and f"/nbs/{name}.ipynb" in card


def test_the_map_in_the_readme_tells_it_too(root):
    measured = json.loads((root / "data/chapters.json").read_text(encoding="utf-8"))
    text = (root / "README.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| \[[^\]]+\]\(nbs/(\S+)\.ipynb\) \| .* \| (?:(\d+)|not measured yet) \|$", text, re.M
    )
    there = {p.relative_to(root / "nbs").with_suffix("").as_posix() for p in course_pages(root)}
    assert {p for p, _ in rows} == there and [
        (p, m, measured.get(p)) for p, m in rows if not close(m or None, measured.get(p))
    ] == []


def links_of(page):
    "The notebooks that the text of a page links to"
    prose = "\n".join("".join(c["source"]) for c in cells(page) if c["cell_type"] == "markdown")
    targets = re.findall(r"\]\(([^)#\s]+\.ipynb)", prose)
    return {(page.parent / target).resolve() for target in targets if "://" not in target}


def off_the_path(root):
    "Deeper pages that no chapter of their season leads to, or that do not lead back to one"
    wrong = []
    for page in deeper_pages(root):
        name = page.relative_to(root / "nbs").as_posix()
        own = [c for c in chapters(root) if c.parent == page.parent.parent]
        leading = [c for c in own if page.resolve() in links_of(c)]
        if not leading:
            wrong.append(f"{name}: no chapter links to it, so no reader finds it")
        elif not links_of(page) & {c.resolve() for c in leading}:
            wrong.append(f"{name}: does not link back to {leading[0].name}")
    return wrong


def test_a_chapter_leads_to_every_deeper_page(root):
    assert off_the_path(root) == []


def test_the_front_page_lists_every_deeper_page(root):
    listed = re.findall(
        r"^- \[[^\]]+\]\((season\d/deeper/[^)]+)\)", shown(root / "nbs/index.ipynb"), re.M
    )
    there = [p.relative_to(root / "nbs").as_posix() for p in deeper_pages(root)]
    assert listed == there, "stale: make run NB=nbs/index.ipynb"


def test_pages_lie_where_they_are_looked_for(root):
    "A page in another folder, or a chapter without a number, would be asked nothing"
    every = {p for p in (root / "nbs").glob("season*/**/*.ipynb")}
    every = {p for p in every if ".ipynb_checkpoints" not in p.parts}
    assert every == {*course_pages(root)}


def test_a_deeper_page_off_the_path_is_found(tmp_path):
    def page(name, text):
        path = tmp_path / "nbs" / f"{name}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dict(cells=[dict(cell_type="markdown", source=text)])))

    page("season1/01_a", "more [here](deeper/more.ipynb#idea-1), not `deeper/lost.ipynb`")
    page("season2/01_b", "of another season: [lost](../season1/deeper/lost.ipynb)")
    page("season1/deeper/more", "[back](../01_a.ipynb)")
    assert off_the_path(tmp_path) == []
    page("season1/deeper/lost", "[back](../01_a.ipynb)")
    page("season1/deeper/more", "no way back")
    assert off_the_path(tmp_path) == [
        "season1/deeper/lost.ipynb: no chapter links to it, so no reader finds it",
        "season1/deeper/more.ipynb: does not link back to 01_a.ipynb",
    ]


def without_the_library(root):
    """Chapters that neither own a module which the library runs nor end, between the takeaways and
    the exercises, with a link to the library's version"""
    graph, wrong = imports(root), []
    for page in chapters(root):
        module = exports_to(page)
        if module and any(module in used for used in graph.values()):
            continue
        prose = "\n".join("".join(c["source"]) for c in cells(page) if c["cell_type"] == "markdown")
        closing = prose.partition("## Takeaways")[2].partition("## Exercises")[0]
        targets = re.findall(r"\]\((\.\./lib/[^)#\s]+\.ipynb)", closing)
        if not any((page.parent / target).is_file() for target in targets):
            wrong.append(page.relative_to(root / "nbs").as_posix())
    return wrong


def test_a_chapter_owns_what_the_library_runs_or_ends_with_a_link_to_it(root):
    assert without_the_library(root) == []


def test_twelve_chapters_own_a_module_of_the_trunk(root):
    "Their cells are what the trunk itself runs"
    graph = imports(root)
    owned = {exports_to(page) for page in chapters(root)} - {None}
    users = [graph[name] for name in graph if room(name) in TRUNK and name not in owned]
    trunk = {name for name in owned if room(name) in TRUNK and any(name in u for u in users)}
    assert len(trunk) >= 12, sorted(trunk)


def test_a_chapter_without_the_library_is_found(tmp_path):
    page = tmp_path / "nbs/season1/01_a.ipynb"
    library = tmp_path / "nbs/lib/model/gpt.ipynb"
    user = tmp_path / "gpub/low/user.py"
    for path in (page, library, user):
        path.parent.mkdir(parents=True)
    library.write_text(json.dumps(dict(cells=[])))
    user.write_text("x = 1\n")
    (user.parent / "own.py").write_text("thing = 1\n")

    def has(text, code="x = 1"):
        written = [dict(cell_type="markdown", source=text), dict(cell_type="code", source=code)]
        page.write_text(json.dumps(dict(cells=written)))
        return without_the_library(tmp_path) == []

    link = "[model.gpt](../lib/model/gpt.ipynb)"
    assert has(f"## Takeaways\nIt stands in {link}.\n## Exercises")
    assert not has(f"{link}\n## Takeaways\nNothing.\n## Exercises\n{link}")
    assert not has("## Takeaways\n[none](../lib/model/none.ipynb)\n## Exercises")
    assert not has("## Takeaways\n## Exercises", "#| default_exp low.own")
    user.write_text("from .own import thing\n")
    assert has("## Takeaways\n## Exercises", "#| default_exp low.own")


def test_chat_data_reads_those_of_its_sets_that_are_there(root, tmp_path, monkeypatch):
    "One of the six, and a file that is none of them"
    (tmp_path / "sft").mkdir()
    row = dict(question="1 + 1?", answer="2")
    (tmp_path / "sft/gsm8k_train.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "sft/another.jsonl").write_text("no json\n")
    monkeypatch.setenv("GPUB_DATA", str(tmp_path))
    page = root / "nbs/season3/01_chat_data.ipynb"
    _, read_sets = defined_here(page, "LICENCES", "read_sets")
    assert [(t.source, t.messages[1].content) for t in read_sets()] == [("gsm8k_train", "2")]


def test_the_map_of_the_front_page_names_the_chapters_as_their_pages_do(root):
    pages = {
        season: sorted((root / f"nbs/season{season}").glob("[0-9]*.ipynb")) for season in (1, 2, 3)
    }
    pages[2].append(root / "nbs/train_1b.ipynb")
    pages[3].append(root / "nbs/train_chat.ipynb")
    for season, boxes in CHAPTERS.items():
        drawn = [
            " ".join(f"{number} {first} {second}".split()) for number, first, second, _ in boxes
        ]
        titles = []
        for page in pages[season]:
            number = str(int(page.stem[:2])) if page.stem[:2].isdigit() else ""
            title = re.match("# (.+)", "".join(cells(page)[0]["source"]))[1]
            titles.append(f"{number} {title}".strip())
        assert drawn == titles


def folded(cell):
    "Whether what a cell prints is opened by the reader, on the site and in JupyterLab"
    hidden = cell["metadata"].get("jupyter", {}).get("outputs_hidden") is True
    return "#| output-fold: true\n" in "".join(cell["source"]) and hidden


def answered_at_once(page):
    """Guesses of a page whose answer can be read before it is opened: it neither follows in a fold
    of the text, nor is the next output folded (a frame moves only when it is touched, and the bar
    of a training run tells no more than that it runs)"""
    wrong, waiting = [], None
    for cell in cells(page):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            asked = text.rsplit("*Guess", 1)[1:]
            if asked:
                waiting = None if "<details" in asked[0] else cell["id"]
        elif waiting and cell["outputs"]:
            shown = [json.dumps(output) for output in cell["outputs"]]
            if all("<iframe" in text or "gpub-training" in text for text in shown):
                continue
            if not folded(cell):
                wrong.append(f"{waiting}: answered by {cell['id']}")
            waiting = None
    return wrong


def test_a_guess_is_not_answered_at_once(root):
    pages = sorted((root / "nbs/season1").glob("0*.ipynb"))
    asked = sum(source(page).count("*Guess") for page in pages)
    wrong = {page.name: answered_at_once(page) for page in pages}
    assert asked > 40 and not any(wrong.values()), wrong


def test_a_guess_that_is_answered_at_once_is_found(tmp_path):
    def page(*parts):
        page = tmp_path / "page.ipynb"
        page.write_text(json.dumps(dict(cells=parts)))
        return answered_at_once(page)

    def prose(text):
        return dict(cell_type="markdown", id="ask", source=text)

    def code(text, hidden=False, output="4"):
        metadata = {"jupyter": {"outputs_hidden": True}} if hidden else {}
        outputs = [{"text": output}] if output else []
        return dict(cell_type="code", id="say", source=text, outputs=outputs, metadata=metadata)

    ask, fold = prose("*Guess: how many?*"), "#| output-fold: true\nprint(4)"
    frame, silent = code("f()", output="<div><iframe src='a'>"), code("n = 4", output="")
    assert page(ask, code(fold, hidden=True)) == []
    assert page(prose("*Guess* <details>4</details>"), code("print(4)")) == []
    assert page(code("print(4)"), ask) == []
    assert page(ask, frame, silent, code(fold, hidden=True), code("print(4)")) == []
    said = ["ask: answered by say"]
    assert page(ask, silent, code("print(4)")) == said
    assert page(ask, code(fold)) == said, "open in JupyterLab"
    assert page(ask, code("print(4)", hidden=True)) == said, "open on the site"
    assert page(prose("<details>5</details> *Guess*"), code("print(4)")) == said
    assert page(ask, frame, prose("Now look."), code("print(4)")) == said


NOTE_WITHOUT_TEXT = "the built-in plays stand in for Shakespeare"


def read_other_texts(root):
    "Pages that were executed without Shakespeare: their outputs are not those that the words mean"
    return [path.name for path in course_pages(root) if NOTE_WITHOUT_TEXT in shown(path)]


def test_no_page_was_executed_without_its_text(root):
    assert read_other_texts(root) == []


def test_a_page_executed_without_its_text_is_found(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("gpub.data.text.find_shakespeare", lambda: None)
    load_shakespeare("file:///nowhere")
    output = dict(output_type="stream", name="stdout", text=capsys.readouterr().out)
    cell = dict(cell_type="code", id="a", metadata={}, source="", outputs=[output])
    folder = tmp_path / "nbs" / "season1"
    folder.mkdir(parents=True)
    (folder / "01_a.ipynb").write_text(json.dumps(dict(cells=[cell])))
    assert read_other_texts(tmp_path) == ["01_a.ipynb"]
