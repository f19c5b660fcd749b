"""What people type, put in the way, or are sent: each is met in one line, without a traceback, a
hang or silence"""

import json
import os
import shutil
import signal
import stat
import time
from pathlib import Path

import pytest
from commands import gpub
from kill import start
from test_run import TINY, one_line, same_run

from gpub.record.checkpoint import load_checkpoint

NAME = r"$\frac{$ 100% <b>{0}"  # of a folder: mathematics, a tag, and what formats text
SHORT = [*TINY, "--steps", "4", "--save-every", "2"]
posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no such files and signals")


@pytest.fixture(scope="module")
def run(text, tmp_path_factory):
    "A finished run under a name that nobody should choose, made by a user whose files all may read"
    out = tmp_path_factory.mktemp("runs") / NAME
    before = os.umask(0o022)
    try:
        assert gpub("train", "shakespeare", "--data", text, "--out", out, *SHORT) == 0
        assert gpub("export", out, out.with_name("hf")) == 0
    finally:
        os.umask(before)
    return out


@pytest.fixture
def copied(run, tmp_path):
    "That run, to be changed"
    return Path(shutil.copytree(run, tmp_path / "run"))


@pytest.fixture
def patience():
    "A command that waits for ever is a failure"
    if not hasattr(signal, "SIGALRM"):
        yield
        return

    def hang(*_):
        pytest.fail("it hangs")

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_a_name_that_others_take_for_mathematics(run, tmp_path, capsys):
    "In pictures, pages, cards and tables"
    page = (run / "report.html").read_text(encoding="utf-8")
    assert r"$\frac{$ 100% &lt;b&gt;{0}" in page and "<b>{0}" not in page
    for command in ("bill", "verify", "doctor"):
        gpub(command, run)
        assert "Traceback" not in capsys.readouterr().err
    assert gpub("sample", run, "-n", 3) == 0, capsys.readouterr().err
    assert gpub("demo", run, "--html", tmp_path / "demo.html") == 0


@posix
def test_what_is_made_can_be_read_by_others_if_the_user_wants_it(run):
    "0644 and 0755 under the usual umask: also what is written aside and renamed"
    places = [*run.parent.rglob("*")]
    odd = {
        str(path.relative_to(run.parent)): oct(stat.S_IMODE(path.stat().st_mode))
        for path in places
        if stat.S_IMODE(path.stat().st_mode) != (0o755 if path.is_dir() else 0o644)
    }
    assert len(places) > 15 and not odd


def test_nothing_is_left_beside_a_run(run):
    left = [path.name for path in run.parent.rglob(".*") if path.name != ".lock"]
    assert not left and not [*run.parent.rglob("*.part")] + [*run.parent.rglob("*.tmp")]


LONG = "x" * 5000


@pytest.mark.parametrize(
    "argv, parts",
    [
        (["bench", "rates", "--seconds", "nan"], ["--seconds", "nan"]),
        (["bench", "rates", "--seconds", "inf"], ["--seconds", "inf"]),
        (["train", "shakespeare", "--usd-per-hour", "nan"], ["nan"]),
        (["train", "shakespeare", "--usd-per-hour", "inf"], ["inf"]),
        (["run", "burn-toy", "--usd-per-hour", "1", "--max-usd", "nan"], ["--max-usd", "nan"]),
        (["train", "shakespeare", "--set", "lr=nan"], ["lr", "nan"]),
        (["train", "shakespeare", "--set", "d_model=1000000"], ["GB of memory"]),
        (
            ["train", "shakespeare", "--set", "d_model=1000000", "--set", "n_layers=99"],
            ["GB of memory"],
        ),
        (["train", "shakespeare", "--set", "batch_tokens=" + "9" * 30], ["batch_tokens"]),
        (["train", "shakespeare", "--set", "context_length=" + "9" * 30], ["context_length"]),
        (["train", "shakespeare", "--steps", "9" * 30], ["steps"]),
        (["train", "shakespeare", "--set", f"{LONG}=1"], ["xxx ... xxx"]),
        (["train", "shakespeare", "--out", LONG], ["xxx"]),
        (["train", LONG], ["xxx"]),
        ([LONG], ["xxx"]),
        (["verify", LONG], ["xxx"]),
        (["plan", LONG, "--compare", "--tokens", "1B"], ["xxx"]),
        (["plan", "burn-1b", "--compare", "--tokens", "nan"], ["nan"]),
        (["plan", "burn-1b", "--tokens", "1B", "--gpu", LONG], ["xxx"]),
        (["prep", "--source", f"{LONG}=play.txt", "--out", "o"], ["xxx"]),
        (["prep", "--recipe", "deep.json", "--out", "o"], ["deep.json"]),
        (["run", "deep.json"], ["deep.json"]),
        (["prep", "--source", "a=play.txt", "--out", "o", "--sample-mb", "nan"], ["nan"]),
        (["prep", "--source", "a=play.txt", "--out", "o", "--workers", "0"], ["workers"]),
    ],
)
def test_numbers_and_names_beyond_reason(
    argv, parts, text, tmp_path, capsys, monkeypatch, patience
):
    monkeypatch.chdir(tmp_path)
    shutil.copy(text, "play.txt")
    Path("deep.json").write_text("[" * 100_000)
    assert gpub(*argv) in (1, 2)  # 2: what was typed is wrong, as click sees it
    one_line(capsys, *parts)


@posix
@pytest.mark.parametrize(
    "argv",
    [
        ["train", "shakespeare", "--data", "pipe"],
        ["run", "pipe"],
        ["run", "burn-toy", "--usd-per-hour", "1", "--data", "pipe"],
        ["prep", "--source", "a=pipe", "--out", "o"],
        ["prep", "--recipe", "pipe", "--out", "o"],
        ["prep", "--source", "a=play.txt", "--out", "o", "--tokenizer", "pipe"],
        ["verify", "pipe"],
        ["sample", "pipe"],
        ["import", "pipe", "r"],
    ],
)
def test_a_pipe_that_nobody_fills(argv, text, tmp_path, capsys, monkeypatch, patience):
    monkeypatch.chdir(tmp_path)
    shutil.copy(text, "play.txt")
    os.mkfifo("pipe")
    assert gpub(*argv) == 1
    one_line(capsys, "pipe")


@pytest.mark.parametrize("command", ["sample", "export", "doctor", "demo", "verify"])
def test_a_config_of_ten_million_layers(copied, tmp_path, capsys, command, patience):
    path = copied / "config.json"
    config = json.loads(path.read_text())
    config["model"]["n_layers"] = 10**7
    path.write_text(json.dumps(config))
    more = dict(export=[tmp_path / "hf"], demo=["--html", tmp_path / "demo.html"])
    assert gpub(command, copied, *more.get(command, [])) == 1
    told = capsys.readouterr()
    said = told.err + told.out
    assert "Traceback" not in said
    assert any(words in said for words in ("config.json", "no machine holds", "parameters"))


def test_a_bomb_in_an_upload(text, tmp_path, capsys, patience):
    "What unpacks to a thousand times its size stops at the size that the manifest says"
    zstandard = pytest.importorskip("zstandard")
    out = tmp_path / "o"
    how = ["--vocab", "300", "--workers", "1", "--no-scan", "--compress"]
    assert gpub("prep", "--source", f"a={text}:1", "--out", out, *how) == 0
    for name in ("train-00000.bin.zst", "train-00000.docs.zst"):
        packed = tmp_path / "o-zst" / name
        whole = packed.read_bytes()
        packed.write_bytes(zstandard.compress(bytes(50_000_000)))
        capsys.readouterr()
        assert gpub("prep", "--unpack", tmp_path / "o-zst") == 1
        one_line(capsys, name, "more than the")
        assert not [*(tmp_path / "o-zst").glob("*.part")]
        packed.write_bytes(whole)
    assert gpub("prep", "--unpack", tmp_path / "o-zst") == 0


@pytest.mark.full(instead="test_run.py::test_a_lost_connection")
@posix
def test_a_storm_of_signals(run, text, tmp_path):
    "A machine that is taken away says so more than once"
    argv = ["train", "shakespeare", "--data", text, "--out", tmp_path / "run", *SHORT]
    process = start(*argv)
    log = tmp_path / "run" / "log.jsonl"
    while process.poll() is None and not log.exists():
        time.sleep(0.01)
    told = 0
    while process.poll() is None:
        process.send_signal(signal.SIGTERM)
        told += 1
        time.sleep(0.001)  # the process has to get on, too
    err = process.communicate()[1]
    assert told > 1 and "Traceback" not in err, err
    assert process.returncode in (0, 130, -signal.SIGTERM)
    assert load_checkpoint(tmp_path / "run").step <= 4
    assert gpub(*argv) == 0
    same_run(tmp_path / "run", run)
