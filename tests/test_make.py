"""`make test` and `make test-all`: every stage says what it does, and nothing is stopped unsaid."""

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest
from share_of_full import falls_to, share

TESTS = Path(__file__).parent


def recipe(root, target):
    "The lines of a target of the Makefile"
    text = (root / "Makefile").read_text(encoding="utf-8")
    return re.search(rf"^{target}:.*\n((?:\t.*\n)+)", text, re.M)[1].splitlines()


@pytest.mark.parametrize("target", ("test", "test-all", "test-slow"))
def test_a_stage_says_how_long_it_takes_and_has_a_limit(root, target):
    lines = [line.strip() for line in recipe(root, target)]
    stages = [i for i, line in enumerate(lines) if not line.startswith("@echo")]
    assert stages
    for i in stages:
        assert lines[i].startswith("@$(LIMITED) ")
        assert re.match(r"@echo '.*\(about .* on two quiet cores\)'", lines[i - 1]), lines[i]


def test_ci_runs_everything(root):
    "Of the tests marked `full` a fifth with each commit, and all of them on Mondays"
    assert "make test-all" in (root / ".ci/run").read_text(encoding="utf-8")
    weekly = (root / ".github/workflows/test.yml").read_text(encoding="utf-8")
    assert (
        "cron: '0 5 * * 1'" in weekly and "- run: .venv/bin/python -m pytest -q tests\n" in weekly
    )
    text = "\n".join(recipe(root, "test-all"))
    assert "-m " not in text and "NOT_LATER" not in text and "--skip" not in text


def missing_tests(root, text):
    "Test files that a text names and the repository does not have"
    return [name for name in re.findall(r"\btests/\w+\.py", text) if not (root / name).is_file()]


def test_every_test_file_that_a_command_names_is_there(root):
    named = []
    for pattern in (".github/workflows/*.yml", "Makefile", ".ci/*", "scripts/*", "*.md"):
        for path in root.glob(pattern):
            text = path.read_text(encoding="utf-8")
            assert not missing_tests(root, text), path
            named += re.findall(r"\btests/\w+\.py", text)
    assert len(named) > 8, "nothing was looked at"
    assert missing_tests(root, "pytest tests/test_make.py tests/test_gone.py") == [
        "tests/test_gone.py"
    ]


def test_the_shares_of_full_are_all_of_them():
    names = [f"tests/test_a.py::test_b[{n}]" for n in range(400)]
    shares = [{n for n in names if falls_to(n, k, 5)} for k in range(1, 6)]
    assert sum(map(len, shares)) == len(set().union(*shares)) == 400
    assert all(60 <= len(one) <= 100 for one in shares)
    assert share("5/5") == (5, 5)
    for wrong in ("0/5", "6/5", "2", "a/5"):
        with pytest.raises(pytest.UsageError, match=f"--full {wrong}"):
            share(wrong)


@pytest.mark.parametrize("wanted", ("1/2", "2/2"))
def test_a_share_leaves_every_day_tests_alone(tmp_path, wanted):
    shutil.copy(TESTS / "share_of_full.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    full\n")
    (tmp_path / "test_a.py").write_text(
        "import pytest\n"
        "def test_daily(): pass\n"
        "@pytest.mark.parametrize('n', range(8))\n"
        "@pytest.mark.full\n"
        "def test_later(n): pass\n"
    )
    argv = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "share_of_full"]
    done = subprocess.run(
        [*argv, "--full", wanted, "test_a.py"], cwd=tmp_path, capture_output=True, text=True
    )
    asked = [line for line in done.stdout.splitlines() if "::" in line]
    number, shares = share(wanted)
    all_later = [f"test_a.py::test_later[{n}]" for n in range(8)]
    assert asked == [
        "test_a.py::test_daily",
        *(t for t in all_later if falls_to(t, number, shares)),
    ]


def test_notebooks_that_only_test_all_runs_exist(root):
    text = (root / "Makefile").read_text(encoding="utf-8")
    names = re.findall(r"\w\w+", re.search(r"^LATER := (.+)", text, re.M)[1])
    stems = {p.stem for p in (root / "nbs").rglob("*.ipynb")}
    assert names and not set(names) - stems


def full_marks(tree):
    "(name of a test, its decorator) where the whole test is marked `full`"
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            for mark in node.decorator_list:
                if ast.unparse(mark).startswith("pytest.mark.full"):
                    yield node.name, mark


@cache
def parsed(path):
    "A file of tests, which is read once"
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def names_in(path):
    "Names of the tests in a file that are not left to `make test-all`"
    tree = parsed(path)
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return {name for name in names if name.startswith("test_")} - {n for n, _ in full_marks(tree)}


def is_there(test, path):
    "Whether there is such a test: of the same file, or FILE::NAME"
    file, _, name = test.rpartition("::")
    path = path.parent / file if file else path
    return path.is_file() and name in names_in(path)


def without_representative(folder):
    "Whole tests marked `full` that do not name the test which `make test` runs in their place"
    found = []
    for path in sorted(folder.glob("test_*.py")):
        for name, mark in full_marks(parsed(path)):
            named = [k.value.value for k in getattr(mark, "keywords", []) if k.arg == "instead"]
            if not named or not is_there(named[0], path):
                found.append(f"{path.name}::{name}")
    return found


def test_each_property_has_a_test_that_make_test_runs(tmp_path):
    assert not without_representative(TESTS)
    test = "def test_{}():\n    pass\n"
    (tmp_path / "test_a.py").write_text(
        test.format("now") + "@pytest.mark.full\n" + test.format("later")
    )
    other = "@pytest.mark.full(instead='test_a.py::test_{}')\n" + test.format("{}")
    named = ["now", "gone", "later"]
    text = "".join(other.format(name, f"by_{name}") for name in named)
    (tmp_path / "test_e.py").write_text(text)
    wrong = ["test_a.py::test_later", "test_e.py::test_by_gone", "test_e.py::test_by_later"]
    assert without_representative(tmp_path) == wrong


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no Ctrl-C for another process")
@pytest.mark.parametrize("workers", (pytest.param(0, marks=pytest.mark.full), 2))
def test_an_interrupted_test_is_named(tmp_path, workers):
    "Also from workers, for which pytest waits before it says anything"
    (tmp_path / "test_a.py").write_text(
        "import time\ndef test_short(): pass\ndef test_long(): time.sleep(300)\n"
    )
    # who is interrupted is who has been told, by its workers, that the test has begun
    (tmp_path / "conftest.py").write_text(
        "import os, pathlib, pytest\n"
        "@pytest.hookimpl(trylast=True)\n"
        "def pytest_runtest_logstart(nodeid):\n"
        "    if 'PYTEST_XDIST_WORKER' not in os.environ and 'test_long' in nodeid:\n"
        "        pathlib.Path('begun').touch()\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "interrupted", "-n", str(workers)]
    shell = "import signal, sys, os; signal.signal(signal.SIGINT, signal.default_int_handler); "
    argv = [sys.executable, "-c", shell + "os.execv(sys.argv[1], sys.argv[1:])", *argv]
    ours = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")}
    env = {**ours, "PYTHONPATH": str(TESTS), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        argv, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        while not (tmp_path / "begun").exists():
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said = []
        for line in process.stdout:
            said.append(line)
            if line == "interrupted: test_a.py::test_long\n":
                break
        else:
            pytest.fail("its name was not said: " + "".join(said))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait()
