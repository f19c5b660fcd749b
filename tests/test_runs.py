"""Runs as objects, as a user meets them: listed, shown, resumed by name, compared, started from a
file; and the names that a shell completes."""

import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from commands import output_of

from gpub.progress import Progress
from gpub.record.checkpoint import find_newest
from gpub.record.folder import lock_folder
from gpub.record.log import read_log
from gpub.record.runs import find_runs, summarise_run
from gpub.train.options import RunOptions, kept_options

pytestmark = pytest.mark.usefixtures("short_texts")

TINY = dict(d_model=16, n_layers=1, n_heads=2, context_length=32, batch_tokens=64, log_every=1)
TINY |= dict(precision="fp32", compile="no")
TEXT = "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer\n" * 40
SETTINGS = [f"--set={name}={value}" for name, value in TINY.items()]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    "Two small runs that differ in one setting"
    place = tmp_path_factory.mktemp("runs")
    (place / "text.txt").write_text(TEXT)
    for name, lr in (("low", "0.001"), ("high", "0.01")):
        data = "--data", place / "text.txt"
        lr = f"--set=lr={lr}"
        output_of("train", "shakespeare", "--steps", 3, "--out", place / name, *data, lr, *SETTINGS)
    return place


def test_ls_names_every_run_and_its_state(runs, tmp_path):
    said = output_of("ls", runs, "--json", tmp_path / "ls.json")
    assert "low" in said and "high" in said and said.count("finished") == 2
    rows = json.loads((tmp_path / "ls.json").read_text())
    assert {Path(row["path"]).name for row in rows} == {"low", "high"}
    assert all(row["step"] == row["steps"] == 3 for row in rows)
    with lock_folder(runs / "low"):
        assert summarise_run(runs / "low").state == "running"
    assert summarise_run(runs / "low").state == "finished"


def test_ls_names_a_damaged_run_and_goes_on(runs, tmp_path):
    broken = tmp_path / "runs" / "broken"
    (broken / "checkpoints").mkdir(parents=True)
    (broken / "config.json").write_text("{")
    (run,) = find_runs(tmp_path / "runs")
    assert run.state == "damaged" and "not valid JSON" in run.trouble
    assert "damaged" in output_of("ls", tmp_path / "runs")
    assert "there is no folder" in output_of("ls", tmp_path / "none", code=1)


def test_show_tells_the_command(runs):
    said = output_of("show", runs / "low")
    assert "gpub train shakespeare --steps 3" in said and "step 3" in said


def test_quiet_is_quiet(runs, tmp_path):
    place = "--data", runs / "text.txt", "--out", tmp_path / "quiet"
    said = output_of("train", "shakespeare", "--steps=1", "--quiet", *place, *SETTINGS)
    assert said == ""


def test_resume_needs_only_the_name(runs, tmp_path, monkeypatch):
    "Stopped after one step, from another folder: the same losses as a run that never stopped"
    from gpub.train.trainer import Trainer

    settings = dict(TINY, steps=3, lr=0.001)
    options = RunOptions("shakespeare", tmp_path / "cut", runs / "text.txt", settings)
    trainer = Trainer(options)
    with trainer.opened() as run:
        step = next(run.steps())
        run.save(step, wait=True)
    assert summarise_run(tmp_path / "cut").state == "stopped"
    monkeypatch.chdir(tmp_path)
    output_of("resume", tmp_path / "cut")
    assert find_newest(tmp_path / "cut").path.name == "step-00000003"
    losses = [[row["loss"] for row in read_log(run)] for run in (runs / "low", tmp_path / "cut")]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    "change, why",
    [
        (dict(options=None), "keeps no options"),
        (dict(options=dict(preset="shakespeare", speed=9)), "no option 'speed'"),
        (dict(options=dict(preset="hamlet")), "no preset 'hamlet'"),
    ],
)
def test_resume_refuses_in_one_line(runs, tmp_path, change, why):
    config = json.loads((runs / "low" / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = output_of("resume", tmp_path, code=1)
    assert why in said and said.count("\n") == 1


def test_kept_options_are_plain_and_whole():
    options = RunOptions("shakespeare", data="my.txt", mirror="~/second", keep=5)
    kept = kept_options(options)
    assert json.loads(json.dumps(kept)) == kept
    assert Path(kept["data"]).is_absolute() and kept["mirror"] == str(Path.home() / "second")
    assert RunOptions(**kept).keep == 5 and "device" not in kept


def test_compare_shows_what_differs_and_draws(runs, tmp_path):
    said = output_of("compare", runs / "low", runs / "high", "--out", tmp_path / "both.png")
    assert "train.lr" in said and "0.001" in said and "train.steps" not in said
    assert "--- low, step 3" in said and "--- high, step 3" in said
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    assert "at least two" in output_of("compare", runs / "low", code=2)


@pytest.mark.parametrize(
    "words, has",
    [
        (["show", "RUN"], ["step", "command"]),
        (["bill", "RUN"], ["usd", "seconds"]),
        (["doctor", "RUN"], ["question", "finding"]),
        (["plan", "shakespeare", "--gpu", "A100-40", "--tokens", "1M"], ["flops_per_token"]),
    ],
    ids=lambda words: words[0],
)
def test_a_program_reads_the_answer_too(runs, tmp_path, words, has):
    "--json FILE, beside what a person reads"
    words = [runs / "low" if word == "RUN" else word for word in words]
    said = output_of(*words, "--json", tmp_path / "answer.json")
    answer = (tmp_path / "answer.json").read_text()
    assert json.loads(answer) and said
    assert [word for word in has if f'{word}"' not in answer] == []


@pytest.mark.parametrize(
    "words, why",
    [
        (["trian"], "trian"),
        (["train", "shakespeare", "--steps", "many"], "many"),
        (["train", "shakespeare", "--speed", "9"], "--speed"),
        (["show"], "RUN"),
        (["resume"], "RUN"),
        (["compare", "one"], "at least two"),
        (["compare", "a", "b", "--over", "hope"], "hope"),
        (["plan", "burn-1b", "--tokens"], "--tokens"),
        (["bench", "nothing"], "nothing"),
    ],
    ids=" ".join,
)
def test_words_a_command_does_not_know_end_with_2(words, why):
    said = output_of(*words, code=2)
    assert why in said and said.count("\n") == 1 and said.startswith("gpub: ")


class Terminal(StringIO):
    "A stream that says it is a terminal"

    encoding = "utf-8"

    def isatty(self):
        return True


ROW = dict(step=30, loss=2.5, tok_s=31_000, seconds=61, usd=0.25)


@pytest.mark.parametrize("columns", [60, 80, 100, 140])
def test_a_bar_fits_its_terminal(columns, monkeypatch):
    """With how long it still takes; a line that breaks could not be written over, and one that
    leaves no room to a bar does without speed and price"""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    Progress(120, out=out)(ROW, val=2.6, eta=183)
    line = out.getvalue().removeprefix("\r\x1b[K")
    assert "\n" not in line and "\x1b" not in line and len(line) < columns
    assert columns < 80 or "3:03 left" in line
    done, left = line.count("━"), line.count("─")
    assert (done + left > 0) == (columns >= 80)
    assert abs(done - (done + left) / 4) <= 0.5
    assert ("31.0K tok/s" in line) == (columns >= 100)


def test_colour_only_where_it_is_seen(monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    bright, plain, file = Terminal(), Terminal(), StringIO()
    Progress(120, out=bright)(ROW)
    monkeypatch.setenv("NO_COLOR", "1")
    Progress(120, out=plain)(ROW)
    Progress(120, out=file)(ROW)
    assert "\x1b[32m━" in bright.getvalue() and "\x1b[3" not in plain.getvalue()
    assert "\x1b" not in file.getvalue() and "━" not in file.getvalue()
    latin = Terminal()
    latin.encoding = "latin-1"
    Progress(120, out=latin)(ROW)
    assert "━" not in latin.getvalue() and "step    30/120" in latin.getvalue()


def test_train_alone_lists_the_presets():
    said = output_of("train")
    assert (
        "burn-1b" in said
        and "1,038,692,352" in said
        and said.endswith("\nTrain one: gpub train shakespeare\n")
        and said == output_of("presets")
    )


def completed(*words, **env):
    "What a shell would offer"
    line = " ".join(map(str, words))
    asked = dict(
        _GPUB_COMPLETE="bash_complete", COMP_WORDS=f"gpub {line}", COMP_CWORD=str(len(words))
    )
    code = "from gpub.cli.main import cli; cli(prog_name='gpub')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | asked | env
    )
    return [item.partition(",")[2] for item in done.stdout.splitlines()]


def test_the_shell_completes_names(runs):
    assert completed("train", "burn") == ["burn-toy", "burn-1b", "burn-2b", "burn-3b"]
    assert completed("train", "--track", "w") == ["wandb"]
    offered = completed("show", "", GPUB_RUNS=str(runs))
    assert [Path(run).name for run in offered] == ["high", "low"]
    assert "compare" in completed("com") and "completion" not in completed("com")
    assert "_GPUB_COMPLETE=bash_source" in output_of("--help").replace("\n  ", " ")


def test_completion_of_names_needs_no_torch(runs):
    code = (
        "import sys; from gpub.cli.options import RUN, preset_names; preset_names(); "
        "RUN.shell_complete(None, None, ''); print('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert again.stdout.strip() == "False"
