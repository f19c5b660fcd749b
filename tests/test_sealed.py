"""Sealed forecasts: each grade names the commit of its forecast, the forecast came before the run,
and a forecast of something that had been measured says so."""

import json
import re
import shutil
import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from gpub.core import GpubError
from gpub.plans.ladder import read_forecast
from tools.sealed import refuse_known

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "data/runs"
CHAPTER = ROOT / "nbs/season2/05_chinchilla.ipynb"


def read(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))


def moment(stamp: str) -> datetime:
    return datetime.fromisoformat(stamp.replace("Z", "+00:00"))


def configuration(home: Path) -> tuple:
    "Width, tokens, seed and both rates of a receipt"
    result, train = read(home / "result.json"), read(home / "config.json")["train"]
    return (*(result[k] for k in ("width", "tokens", "seed")), train["muon_lr"], train["lr"])


def git(*args: str) -> subprocess.CompletedProcess:
    return subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True)


def has_commit(commit: str) -> bool:
    return git("cat-file", "-e", f"{commit}^{{commit}}").returncode == 0


def faults_of_history(grade: dict, runs: Path) -> list[str]:
    "What git says against a grade, where its history reaches back so far"
    commit, faults = grade["commit"], []
    if not has_commit(commit):
        return []
    when = int(git("show", "-s", "--format=%ct", commit).stdout)
    if when != moment(grade["committed"]).timestamp():
        faults.append(f"git dates {commit} otherwise than {grade['committed']}")
    then = git("show", f"{commit}:{grade['committed_as']}").stdout
    if then != (runs / grade["forecast"]).read_bytes():
        faults.append(f"{commit} holds another {grade['forecast']}")
    return faults


def faults_of(grade: dict, runs: Path) -> list[str]:
    "What is wrong with one grade"
    if not re.fullmatch(r"[0-9a-f]{40}", grade["commit"]):
        return [f"{grade['commit']!r} is no full hash of a commit"]
    faults = faults_of_history(grade, runs)
    home, forecast = runs / grade["run"], read_forecast(runs / grade["forecast"])
    result = read(home / "result.json")
    began = moment(result["began"])
    if any(forecast[k] != result[k] for k in ("params", "tokens")):
        faults.append(f"{grade['forecast']} is about another run than {grade['run']}")
    if not moment(forecast["written"]) <= moment(grade["committed"]) < began:
        faults.append(f"{grade['forecast']} was not committed before {grade['run']} began")
    older = sorted(
        p.parent.relative_to(runs).as_posix()
        for p in runs.rglob("result.json")
        if configuration(p.parent) == configuration(home) and moment(read(p)["began"]) < began
    )
    if older != sorted(grade["informed_by"]):
        faults.append(f"{grade['run']}: older receipts {older}, named {grade['informed_by']}")
    return faults


def faults_of_grades(runs: Path) -> list[str]:
    grades = read(runs / "ladder-forecast/grades.json")
    sealed = {
        p.relative_to(runs).as_posix()
        for p in (runs / "ladder-forecast").rglob("*.json")
        if p.parent.name in ("ladder-forecast", "first") and p.name != "grades.json"
    }
    faults = [f"{x} has no grade" for x in sealed - {g["forecast"] for g in grades}]
    return faults + [fault for grade in grades for fault in faults_of(grade, runs)]


def test_every_grade_names_a_forecast_that_came_first():
    assert faults_of_grades(RUNS) == []


def test_in_a_full_clone_git_bears_the_grades_out():
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != b"false":
        pytest.skip("no full clone: the dates in the receipts are asked all the same")
    for grade in read(RUNS / "ladder-forecast/grades.json"):
        assert has_commit(grade["commit"])


def test_the_page_reads_every_grade_and_says_which_are_informed():
    source = "\n".join("".join(cell["source"]) for cell in read(CHAPTER)["cells"])
    assert 'read_json(data / "runs/ladder-forecast/grades.json")' in source
    assert '"informed" if entry["informed_by"] else "blind"' in source
    assert "The first forecast of width 96 failed" in source
    assert "The second forecast of width 96 was informed" in source


def test_the_stored_page_shows_every_grade_in_order():
    "The rows of the table, as the page was run: commit, figures, informed or blind"
    cells = read(CHAPTER)["cells"]
    (table,) = [c for c in cells if "sealed_row(*graded)" in "".join(c["source"])]
    rows = [x for x in "".join(table["outputs"][0]["data"]["text/markdown"]).splitlines()[3:] if x]
    for row, grade in zip(rows, read(RUNS / "ladder-forecast/grades.json"), strict=True):
        forecast = read(RUNS / grade["forecast"])
        assert f"{forecast['middle']:.4f}" in row and grade["commit"][:10] in row
        assert ("| informed |" in row) is bool(grade["informed_by"])


PLANTED = {
    "short hash": (lambda g: g.update(commit=g["commit"][:7]), "no full hash"),
    "another commit": (
        lambda g: g.update(commit="7fb847681ca0d85081d3d148ca593e63b0a12f90"),
        "7fb8476",
    ),
    "committed afterwards": (
        lambda g: g.update(commit="0" * 40, committed="2026-11-21T15:00:00Z"),
        "was not committed before",
    ),
    "not said to be informed": (lambda g: g.update(informed_by=[]), "older receipts"),
    "informed by nothing": (
        lambda g: g.update(informed_by=["ladder-rates/w96-2048k-muon_lr0.04-lr0.02"]),
        "older receipts",
    ),
    "another run": (lambda g: g.update(run="ladder-forecast/w64-3072k"), "about another run"),
}


@pytest.fixture
def runs(tmp_path):
    logs = shutil.ignore_patterns("evals-*", "shakespeare*", "*.jsonl")
    return Path(shutil.copytree(RUNS, tmp_path / "runs", ignore=logs))


@pytest.mark.parametrize("name", PLANTED)
def test_a_false_grade_is_found(runs, name):
    file, (change, words) = runs / "ladder-forecast/grades.json", PLANTED[name]
    grades = read(file)
    change(grades[2])
    file.write_text(json.dumps(grades), encoding="utf-8")
    if name == "another commit" and not has_commit(grades[2]["commit"]):
        pytest.skip("only git knows what a commit holds, and its history is cut off")
    assert any(words in fault for fault in faults_of_grades(runs))


def test_an_older_receipt_and_a_forecast_without_a_grade_are_found(runs):
    ahead = runs / "ladder-forecast"
    shutil.copytree(ahead / "w64-3072k", runs / "elsewhere/again")
    result = read(runs / "elsewhere/again/result.json") | dict(began="2026-11-21T11:00:00Z")
    (runs / "elsewhere/again/result.json").write_text(json.dumps(result), encoding="utf-8")
    shutil.copy(ahead / "w64-3072k.json", ahead / "w64-9999k.json")
    faults = "\n".join(faults_of_grades(runs))
    assert "elsewhere/again" in faults and "w64-9999k.json has no grade" in faults


def test_an_open_forecast_is_sealed_and_has_no_run():
    for path in (RUNS / "ladder-forecast/open").glob("*.json"):
        forecast = read_forecast(path)
        run = RUNS / "ladder-forecast" / path.stem.removesuffix(f"-{forecast['role']}")
        assert not (run / "result.json").exists(), f"{path.name} is to be graded"


def test_only_a_width_that_nobody_has_trained_is_sealed():
    with pytest.raises(GpubError, match="a run of width 64: nobody can forecast it"):
        refuse_known(64)
