"""Every exercise of every chapter and deeper page: its check fails on the unsolved cell and passes
on the folded solution.

In a notebook a cell `# exercise: name` holds the stub, a cell `# check: name` (after `#| eval:
false`) the check, and a markdown cell a fence that opens with `# solution: name`. Checks see the
chapter's imports and what its module exports, nothing else.
"""

import ast
import importlib
import json
import re
from pathlib import Path

import nbformat
import pytest
from cells import course_pages, python
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
CHAPTERS = course_pages(ROOT)


def sources(path, kind):
    return [
        "".join(c["source"])
        for c in json.loads(path.read_text(encoding="utf-8"))["cells"]
        if c["cell_type"] == kind
    ]


def marked(cells, mark):
    "name -> source of the cells (or fences) that carry the line `# mark: name`"
    return {m[1]: s for s in cells if (m := re.search(rf"^# {mark}: (\w+)$", s, re.M))}


def exercises(path):
    "(stubs, checks, solutions) by name"
    fences = [
        f
        for md in sources(path, "markdown")
        for f in re.findall(r"^```python\n(.*?)^```", md, re.M | re.S)
    ]
    return (
        marked(sources(path, "code"), "exercise"),
        marked(sources(path, "code"), "check"),
        marked(fences, "solution"),
    )


def imports_only(src):
    body = python(src).body
    return bool(body) and all(isinstance(n, (ast.Import, ast.ImportFrom)) for n in body)


def namespace(path):
    "What a check may use: the chapter's import cells, then the names its module exports, if any"
    code = sources(path, "code")
    names = (re.search(r"^#\|\s*default_exp\s+(\S+)", s, re.M) for s in code)
    module = next((m[1] for m in names if m), None)
    ns = {}
    for src in code:
        if imports_only(src):
            exec(src, ns)
    if module is None:
        return ns
    module = importlib.import_module(f"gpub.{module}")
    return ns | {k: getattr(module, k) for k in module.__all__}


ALL = [pytest.param(p, name, id=f"{p.stem}-{name}") for p in CHAPTERS for name in exercises(p)[0]]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.stem)
def test_every_exercise_has_a_check_and_a_solution(path):
    stubs, checks, solutions = exercises(path)
    assert 2 <= len(stubs) <= 6 and stubs.keys() == checks.keys() == solutions.keys()
    for name, src in checks.items():
        assert re.search(r"^#\|\s*eval:\s*false$", src, re.M), (
            f"{name}: the check must be skipped when the chapter runs by itself"
        )


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda p: p.stem)
def test_run_all_goes_on_behind_an_unsolved_exercise(path):
    "Jupyter stops at an error unless the cell says that one is expected"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    checks = [c for c in cells if re.search(r"^# check: ", "".join(c["source"]), re.M)]
    stops = [c for c in checks if "raises-exception" not in c["metadata"].get("tags", [])]
    assert checks and not stops


LISTED = [path for path in CHAPTERS if path.stem[:2] not in ("00", "01", "02", "03", "04")]
LISTED += [path for path in CHAPTERS if path.parts[-2] in ("season2", "season3")]


@pytest.mark.parametrize("path", sorted({*LISTED}), ids=lambda p: p.stem)
def test_a_page_ends_with_the_exercises_that_are_open(path):
    "Behind its last check, in a cell that a run of the page by itself leaves out"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    lists = [n for n, c in enumerate(cells) if "show_open_exercises()" in "".join(c["source"])]
    checks = [
        n for n, c in enumerate(cells) if re.search(r"^# check: ", "".join(c["source"]), re.M)
    ]
    assert len(lists) == 1 and lists[0] > checks[-1]
    assert "".join(cells[lists[0]]["source"]).startswith("#| eval: false\n")


def test_open_exercises_are_listed_by_a_kernel():
    "With checks that failed and one that passes, in one Run All"
    first = "# check: first\nassert first() == 1, 'no answer yet'"
    second = "# check: second\nassert second() == 2\nprint('passed')"
    cells = [
        "from gpub.lab.grade import show_open_exercises",
        "def first(): return None\ndef second(): return 2",
        first,
        second,
        "show_open_exercises()",
        "def first(): return 1",
        "show_open_exercises()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, cells)])
    notebook.cells[2].metadata["tags"] = ["raises-exception"]
    NotebookClient(notebook, kernel_name="python3").execute()
    said = [cell.outputs[-1].text for cell in notebook.cells if cell.source.startswith("show_")]
    assert said == ["1 of 2 exercises are open: first\n", "all 2 exercises pass\n"]


@pytest.mark.parametrize("path, name", ALL)
def test_check_fails_until_solved(path, name):
    stubs, checks, _ = exercises(path)
    ns = namespace(path)
    exec(stubs[name], ns)
    with pytest.raises(AssertionError):
        exec(checks[name], ns)


@pytest.mark.parametrize("path, name", ALL)
def test_solution_passes_the_check(path, name):
    _, checks, solutions = exercises(path)
    ns = namespace(path)
    exec(solutions[name], ns)
    exec(checks[name], ns)
