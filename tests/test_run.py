"Runs through the command line: bad input, interruptions, resuming bit for bit"

import functools
import http.server
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import torch
from commands import gpub
from kill import same_weights, start, wait_for

import gpub.data.corpus as gpub_corpus
import gpub.record.saver as gpub_saver
import gpub.train.journal as gpub_journal
import gpub.train.kernels as kernels
import gpub.train.learner as learner
from gpub.data.char import CharTokenizer
from gpub.data.plays import plays
from gpub.data.text import load_shakespeare
from gpub.device import use_threads
from gpub.files import cache_dir
from gpub.record.checkpoint import load_checkpoint
from gpub.record.folder import stop_flag
from gpub.train.options import RunOptions
from gpub.train.trainer import OpenRun, Trainer

# runs are compared: none may time for itself which precision is faster
TINY = [
    "--set",
    "precision=fp32",
    "--set",
    "d_model=32",
    "--set",
    "context_length=32",
    "--set",
    "stages=[[0,16],[0.5,32]]",
    "--set",
    "depths=[[0,1],[0.4,2]]",
    "--set",
    "batch_tokens=256",
    "--steps",
    "30",
    "--save-every",
    "5",
]


def train(text, out, *more):
    "A run of the smallest preset, in this process: exit code"
    return gpub("train", "shakespeare", "--data", text, "--out", out, *more)


def start_train(text, out, *more, **around):
    "The same in a process of its own"
    return start("train", "shakespeare", "--data", text, "--out", out, *more, **around)


def clockless(out):
    return [
        {k: v for k, v in json.loads(l).items() if k not in ("seconds", "tok_s", "mfu", "usd")}
        for l in (Path(out) / "log.jsonl").read_text().splitlines()
    ]


def same_run(a, b):
    same_weights(a, b)
    assert (
        clockless(a) == clockless(b)
        and (Path(a) / "samples.jsonl").read_text() == (Path(b) / "samples.jsonl").read_text()
    )


@pytest.fixture(scope="module")
def straight(text, tmp_path_factory):
    "An undisturbed run, the measure of all others"
    out = tmp_path_factory.mktemp("runs") / "straight"
    assert train(text, out, *TINY) == 0
    return out


def one_line(capsys, *parts):
    err = capsys.readouterr().err.strip()
    assert len(err) <= 620, "nobody reads a message of this length"
    assert err.count("\n") == 0 and err.startswith("gpub: ") and "Traceback" not in err, err
    for p in parts:
        assert str(p) in err, (p, err)
    return err


def test_folder_and_report(straight, capsys):
    for f in (
        "config.json",
        "log.jsonl",
        "samples.jsonl",
        "bill.json",
        "report.html",
        "loss.png",
        "LATEST",
        "tokenizer.json",
    ):
        assert (straight / f).is_file()
    rows = clockless(straight)
    assert (
        rows[-1]["step"] == 30
        and rows[-1]["val_loss"] < rows[0]["loss"]
        and rows[-1]["val_bpb"] > 0
    )
    assert {"step", "tokens", "loss", "lr", "grad_norm"} <= rows[0].keys() and rows[-1][
        "tokens"
    ] == 30 * 256
    config = json.loads((straight / "config.json").read_text())
    assert {"model", "train", "data", "machine", "reference", "precision"} <= config.keys()
    page = (straight / "report.html").read_text()
    assert "xz" in page and "uniform" in page and not re.search(r'(?:src|href)="https?:', page)
    assert json.loads((straight / "bill.json").read_text())["usd"] == 0
    assert not [p for p in straight.rglob("*") if p.suffix in (".pt", ".pth", ".pkl", ".bin")]


def test_again_is_done_at_once(straight, text, capsys):
    before = (straight / "log.jsonl").read_text()
    assert train(text, straight, *TINY) == 0
    assert (straight / "log.jsonl").read_text() == before and "done" in capsys.readouterr().out


def test_sample(straight, capsys):
    assert gpub("sample", straight, "--prompt", "The ", "-n", "30", "--seed", "4") == 0
    a = capsys.readouterr().out
    assert gpub("sample", straight, "--prompt", "The ", "-n", "30", "--seed", "4") == 0
    assert capsys.readouterr().out == a
    assert a.startswith("The ") and len(a) == 35
    assert gpub("sample", straight, "--prompt", "naïve ☃") == 1
    one_line(capsys, "ï", "☃")


@pytest.mark.parametrize(
    "argv, parts",
    [
        (["train", "shakespere"], ["shakespere", "shakespeare"]),
        (["train", "shakespeare", "--set", "learning_rate=3"], ["learning_rate"]),
        (["train", "shakespeare", "--set", "n_heads=5"], ["n_heads", "5"]),
        (["train", "shakespeare", "--set", "lr=fast"], ["lr", "fast"]),
        (["train", "shakespeare", "--set", "lr"], ["key=value"]),
        *[
            (["train", "shakespeare", "--set", f"{k}={v}"], [k, said])
            for k, v, said in [
                ("betas", 5, "5"),
                ("betas", "[1]", "1"),
                ("betas", "[2,0.9]", "2"),
                ("betas", '["a","b"]', "a"),
                ("muon_momentum", "much", "much"),
                ("muon_momentum", 1, "1"),
                ("seed", 1.5, "1.5"),
                ("seed", 2**64, 2**64),
                ("stages", 5, "5"),
                ("stages", "[[0,16,3]]", "16"),
                ("depths", "[[0]]", "0"),
                ("stages", '[["a",16]]', "a"),
                ("decay", "late", "late"),
                ("floor", "null", "None"),
            ]
        ],
        (["train", "shakespeare", "--keep", "0"], ["--keep", "0"]),
        (["train", "shakespeare", "--save-every", "0"], ["--save-every", "0"]),
        (["train", "shakespeare", "--device", "cpu:x"], ["cpu:x"]),
        (["train", "shakespeare", "--data", "a" * 300], ["aaa", "too long"]),
        (["sample", "a" * 300], ["aaa", "too long"]),
        (["train", "shakespeare", "--steps", "0"], ["steps", "0"]),
        (["train", "shakespeare", "--set", "batch_tokens=100"], ["batch_tokens", "100", "256"]),
        (["train", "shakespeare", "--device", "tpu"], ["tpu", "cpu"]),
        (["train", "shakespeare", "--parallel", "magic"], ["magic", "fsdp"]),
        (["train", "shakespeare", "--track", "excel"], ["excel", "wandb"]),
        (["preflight", "shakespeare", "--gpu", "Voodoo"], ["Voodoo", "A100-40"]),
        (["train", "shakespeare", "--set", "grad_checkpoint=some"], ["some", "selective"]),
        (["train", "gpt2-134m"], ["32,000", "gpub prep"]),
        (["train", "shakespeare", "--usd-per-hour", "-1"], ["-1"]),
        (["train", "shakespeare", "--data", "no/such.txt"], ["no/such.txt"]),
        (["sample", "no/such/run"], ["no/such/run"]),
        (["serve", "runs/x", "--port", "99999"], ["99999", "65535"]),
        (["data", "what", "shards", "--step", 10**30], [10**30]),
        (["train", "shakespeare", "--set", "d_model=1000000000"], ["this machine has"]),
        (["train", "shakespeare", "--set", "n_layers=10000000"], ["this machine has"]),
        (["train", "shakespeare", "--set", "init_std=1e300"], ["init_std", "at most 10"]),
        (["train", "shakespeare", "--set", "stages=" + "[" * 50_000], ["stages"]),
        (["train", "shakespeare", "--data", "/dev/null"], ["no file of text"]),
        (["sample", "runs/x", "-n", 9 * 10**18], ["-n", "10000000"]),
        (["fly"], ["fly"]),
        (["sample"], ["RUN"]),
    ],
)
def test_refusals(argv, parts, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    unknown_words = gpub(*argv) == 2
    said = one_line(capsys, *parts)
    assert unknown_words == said.endswith("--help)")
    assert not list(tmp_path.rglob("checkpoints"))


@pytest.mark.parametrize(
    "content, parts",
    [
        (b"", ["0 characters"]),
        (b"a", ["1 characters"]),
        (b"aaaa", ["distinct"]),
        (b"to be or not to be", ["18", "33"]),
        (b"caf\xe9 noir", ["UTF-8", "byte 3"]),
    ],
)
def test_unusable_texts(content, parts, tmp_path, capsys):
    p = tmp_path / "text.txt"
    p.write_bytes(content)
    assert train(p, tmp_path / "run", *TINY) == 1
    one_line(capsys, *parts)


def test_another_run_is_refused_and_untouched(straight, text, capsys):
    before = {p: p.read_bytes() for p in straight.rglob("*") if p.is_file()}
    assert train(text, straight, *TINY, "--set", "lr=0.5") == 1
    one_line(capsys, "train.lr", "0.008", "0.5", "--out")
    assert {
        p: p.read_bytes() for p in straight.rglob("*") if p.is_file() and p.name != ".lock"
    } == {p: b for p, b in before.items() if p.name != ".lock"}


@pytest.mark.parametrize(
    "content",
    [
        "5",
        "[]",
        '{"format": 3, "train": 5}',
        '{"format": 3, "preset": "shakespeare", "model": [], "train": {}, "data": {}}',
    ],
)
def test_a_config_that_is_none(content, straight, text, tmp_path, capsys):
    out = tmp_path / "run"
    shutil.copytree(straight, out)
    (out / "config.json").write_text(content)
    assert train(text, out, *TINY) == 1
    one_line(capsys, "config.json", "restore")
    assert load_checkpoint(out).step == 30


@pytest.mark.parametrize("odd", [None, 5, [1], "x"], ids=str)
def test_a_config_of_odd_types(odd, straight, text, tmp_path, capsys):
    """What belongs to no setting is not compared with what was asked: going on with it, or writing
    from it, is one line all the same"""
    out = tmp_path / "run"
    shutil.copytree(straight, out)
    config = json.loads((out / "config.json").read_text())
    for key in "precision", "reference", "prompt", "run_id":
        if type(odd) is type(config[key]):
            continue
        (out / "config.json").write_text(json.dumps(config | {key: odd}))
        assert train(text, out, *TINY) == 1
        one_line(capsys, "config.json", key, "restore")
    (out / "config.json").write_text(json.dumps(config | dict(precision=dict(name=odd))))
    assert train(text, out, *TINY) == 1
    one_line(capsys, "precision")
    for key in "model", "data":
        (out / "config.json").write_text(json.dumps(config | {key: odd}))
        assert gpub("sample", out, "-n", "3") == 1
        one_line(capsys, "config.json")
    if not isinstance(odd, str):
        (out / "config.json").write_text(json.dumps(config | dict(prompt=odd)))
        assert gpub("sample", out, "-n", "3") == 1
        one_line(capsys, "--prompt")
        assert gpub("sample", out, "-n", "3", "--prompt", "The ") == 0
        capsys.readouterr()


def test_a_log_without_a_validation(straight, text, tmp_path, capsys):
    out = tmp_path / "run"
    shutil.copytree(straight, out)
    log = out / "log.jsonl"
    log.write_text(
        "".join(
            json.dumps({k: v for k, v in json.loads(l).items() if k != "val_loss"}) + "\n"
            for l in log.read_text().splitlines()
        )
    )
    assert train(text, out, *TINY) == 1
    one_line(capsys, "log.jsonl", "val_loss")


def test_a_user_without_a_home(monkeypatch):
    def unknown():
        raise RuntimeError("Could not determine home directory.")

    for k in ("GPUB_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(k, raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    assert cache_dir().is_relative_to(tempfile.gettempdir())


def test_a_file_in_the_way(text, tmp_path, capsys):
    (tmp_path / "runs").write_text("not a folder")
    assert train(text, tmp_path / "runs" / "x", *TINY) == 1
    one_line(capsys, "--out")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows locks folders in another way")
def test_no_permission(text, tmp_path, capsys):
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o500)
    if os.access(folder, os.W_OK):  # root writes everywhere but to a file system that is read-only
        folder = Path("/proc/gpub")
    assert train(text, folder / "x", *TINY) == 1
    one_line(capsys, folder, "--out")


def test_disk_full_while_saving(text, tmp_path, capsys, monkeypatch):
    out, save, saved = tmp_path / "run", gpub_saver.Saver.save, []

    def full(self, step, *a, **kw):
        if step > 10:
            monkeypatch.setattr(
                shutil, "disk_usage", lambda p: shutil._ntuple_diskusage(10**6, 10**6, 1000)
            )
        saved.append(step)
        return save(self, step, *a, **kw)

    monkeypatch.setattr(gpub_saver.Saver, "save", full)
    assert train(text, out, *TINY) == 1
    one_line(capsys, "room")
    assert saved == [5, 10, 15] and load_checkpoint(out).step == 10
    monkeypatch.undo()
    assert train(text, out, *TINY) == 0  # goes on


@pytest.mark.full(instead="test_disk_full_while_saving")
def test_a_really_full_disk(text, capsys, small_disk):
    disk = small_disk(900)
    assert train(text, disk / "run", *TINY) == 1
    one_line(capsys, "room")
    assert load_checkpoint(disk / "run").step >= 5


def test_log_that_cannot_be_written(text, tmp_path, capsys, monkeypatch):
    def full(path, row):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gpub_journal, "append_row", full)
    assert train(text, tmp_path / "run", *TINY) == 1
    one_line(capsys, "disk is full")


def test_an_error_of_whoever_takes_the_steps_is_not_one_of_the_run_folder(text, tmp_path):
    settings = dict(steps=2, d_model=16, n_layers=1, context_length=16, batch_tokens=64)
    trainer = Trainer(RunOptions("shakespeare", tmp_path / "run", text, settings))
    with pytest.raises(PermissionError, match="my own file"), trainer.opened() as run:
        for _ in run.steps():
            raise PermissionError(13, "my own file")


def test_nan_keeps_the_last_good_checkpoint(text, tmp_path, capsys, monkeypatch):
    real = learner.train

    def poisoned(model, *a, **kw):
        for s in real(model, *a, **kw):
            if s.n == 12:
                model.blocks[0].ffn.up.weight.data[0, 0] = float("nan")
            yield s

    monkeypatch.setattr(learner, "train", poisoned)
    assert train(text, tmp_path / "run", *TINY) == 1
    one_line(capsys, "step 12", "step-00000010")
    c = load_checkpoint(tmp_path / "run")
    assert c.step == 10 and all(torch.isfinite(t).all() for t in c.model.values())
    assert all(torch.isfinite(torch.tensor(r["loss"])) for r in clockless(tmp_path / "run"))


def test_corrupted_download(tmp_path, capsys, monkeypatch):
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "input.txt").write_text("To be, or not to b")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path / "www")
    monkeypatch.setattr(handler.func, "log_message", lambda *a: None)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("GPUB_DATA", "")
    monkeypatch.setenv("GPUB_CACHE", str(tmp_path / "cache"))
    url = f"http://127.0.0.1:{server.server_port}/input.txt"
    monkeypatch.setattr(gpub_corpus, "load_shakespeare", lambda log: load_shakespeare(url, log))
    assert gpub("train", "shakespeare", "--out", tmp_path / "run", *TINY) == 1
    one_line(capsys, "input.txt", "18 bytes", "1,115,394")
    assert not (tmp_path / "cache").exists()
    server.shutdown()
    (tmp_path / "cache").mkdir()
    # and a damaged copy in the cache
    (tmp_path / "cache" / "tinyshakespeare.txt").write_text("To be")
    assert gpub("train", "shakespeare", "--out", tmp_path / "run", *TINY) == 1
    one_line(capsys, "tinyshakespeare.txt", "5 bytes")


def test_without_network_the_plays(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("GPUB_DATA", "")
    monkeypatch.setenv("GPUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        gpub_corpus,
        "load_shakespeare",
        lambda log: load_shakespeare("http://127.0.0.1:9/none", log),
    )
    # a shorter play: compressing a long one for the report takes a while
    monkeypatch.setattr("gpub.data.text.SHAKESPEARE_BYTES", 60_000)
    argv = [
        "train",
        "shakespeare",
        "--out",
        tmp_path / "run",
        "--set",
        "d_model=16",
        "--set",
        "context_length=128",
        "--set",
        "batch_tokens=256",
        "--steps",
        "3",
        "--set",
        "n_heads=2",
    ]
    assert gpub(*argv) == 0
    assert "no network" in capsys.readouterr().out
    assert (
        json.loads((tmp_path / "run" / "config.json").read_text())["reference"]["source entropy"]
        > 0
    )


def test_without_LATEST_it_goes_on_all_the_same(straight, text, tmp_path, capsys):
    """Copied without it, or killed before it was written: the checkpoints are there, and so is the
    log"""
    out = tmp_path / "run"
    shutil.copytree(straight, out)
    (out / "LATEST").unlink()
    assert train(text, out, *TINY) == 0
    same_run(straight, out)
    assert "--- step 0" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "how, parts",
    [
        ("tokenizer", ["tokenizer.json", "restore"]),
        ("model", ["config.json does not describe", "restore"]),
        ("nothing", ["config.json does not describe", "'architecture'"]),
    ],
)
def test_a_run_whose_parts_do_not_belong_together(how, parts, straight, tmp_path, capsys):
    out = tmp_path / "run"
    shutil.copytree(straight, out)
    config = json.loads((out / "config.json").read_text())
    if how == "tokenizer":
        CharTokenizer(json.loads((out / "tokenizer.json").read_text())["chars"][::-1]).save(out)
    else:
        (out / "config.json").write_text(
            json.dumps(
                config | dict(model=config["model"] | dict(n_layers=3))
                if how == "model"
                else dict(format=config["format"], data=config["data"])
            )
        )
    assert gpub("sample", out, "-n", "3") == 1
    one_line(capsys, *parts)


@pytest.mark.parametrize(
    "how, parts",
    [
        ("no config.json", ["no config.json", "restore"]),
        pytest.param(
            "another's",
            ["config.json does not describe", "model.d_model", "64", "32", "restore"],
            marks=pytest.mark.full,
        ),
    ],
)
def test_training_on_from_a_checkpoint_of_another_shape(
    how, parts, straight, text, tmp_path, capsys
):
    out, wide = tmp_path / "run", [*TINY, "--set", "d_model=64"]
    shutil.copytree(straight, out)
    (out / "config.json").unlink()
    if how == "another's":
        assert train(text, tmp_path / "wide", *wide) == 0
        shutil.copy(tmp_path / "wide" / "config.json", out)
    capsys.readouterr()
    before = sorted(p.name for p in (out / "checkpoints").iterdir())
    assert train(text, out, *wide) == 1
    one_line(capsys, *parts)
    assert sorted(p.name for p in (out / "checkpoints").iterdir()) == before


@pytest.mark.full(instead="test_without_a_terminal_at_all")
def test_a_terminal_that_lacks_letters(straight, tmp_path):
    """cp1252 as on Windows, ASCII as in a bare container: what cannot be shown is spelled, and
    nothing stops"""
    p = tmp_path / "text.txt"
    p.write_text(plays(6000, seed=3).replace("e", "\u2603"), encoding="utf-8")
    proc = start_train(p, tmp_path / "run", *TINY[:-4], "--steps", "3", PYTHONIOENCODING="cp1252")
    out, err = proc.communicate()
    assert proc.returncode == 0 and not err and "\\u2603" in out


def test_odd_line_ends_of_a_text(tmp_path, capsys):
    """U+2028 and U+0085 end a line for Python, not in a log; and a text without any line end has a
    prompt too"""
    p = tmp_path / "text.txt"
    p.write_text(
        plays(6000, seed=3).replace(", ", "\u2028").replace("\n", "\x85"), encoding="utf-8"
    )
    out = tmp_path / "run"
    assert (
        train(p, out, *TINY[:-4], "--steps", "4", "--save-every", "2") == 0
        and (out / "report.html").is_file()
    )
    before = (out / "samples.jsonl").read_text()
    assert "\x85" in before  # as it is, not spelled
    assert (
        train(p, out, *TINY[:-4], "--steps", "4", "--save-every", "2") == 0
        and (out / "samples.jsonl").read_text() == before
    )


@pytest.mark.parametrize(
    "said, threads", [("1", 1), ("1,2", 1), ("", None), ("many", None), ("-1", None)]
)
def test_threads_as_OpenMP_is_told(said, threads, monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    monkeypatch.setattr("gpub.device.free_cores", lambda: 2)
    try:
        assert use_threads() == (threads or 2)
    finally:
        torch.set_num_threads(before)


def test_without_a_terminal_at_all(straight, text, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)  # as under `>&-`
    assert train(text, straight, *TINY) == 0


def test_stopped_at_once_says_so(capsys, monkeypatch):
    def twice(self):
        raise KeyboardInterrupt  # a second Ctrl-C, or one before the training began

    monkeypatch.setattr(Trainer, "go", twice)
    assert gpub("train", "shakespeare") == 130
    one_line(capsys, "stopped")


@pytest.fixture(autouse=True)
def hangs_up():
    "The tests themselves may run under nohup, which every process they start would inherit"
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL) if hasattr(signal, "SIGHUP") else None
    yield
    if before is not None:
        signal.signal(signal.SIGHUP, before)


posix = pytest.mark.skipif(
    not hasattr(signal, "SIGHUP"), reason="Windows has no signals from another process, only an end"
)


@pytest.mark.full(instead="test_a_lost_connection")
@posix
@pytest.mark.parametrize(
    "sig",
    [
        "SIGINT",
        pytest.param("SIGTERM", marks=pytest.mark.full),
        pytest.param("SIGHUP", marks=pytest.mark.full),  # see test_a_lost_connection
    ],
)
def test_stop_and_go_on(sig, straight, text, tmp_path):
    argv = ["train", "shakespeare", "--data", text, "--out", tmp_path / "run", *TINY]
    p = start(*argv)
    wait_for(tmp_path / "run", 10, p)
    p.send_signal(getattr(signal, sig))
    out, err = p.communicate(timeout=120)
    assert p.returncode == 130, err
    assert "go on with: gpub train shakespeare" in err and "Traceback" not in err
    assert 10 <= load_checkpoint(tmp_path / "run").step < 30
    assert gpub(*argv) == 0
    same_run(tmp_path / "run", straight)


@posix
def test_a_lost_connection(straight, text, tmp_path):
    """What ssh leaves when it dies: a terminal that answers nothing but errors, SIGHUP from the
    system and once more from the shell"""
    import pty

    argv = ["train", "shakespeare", "--data", text, "--out", tmp_path / "run", *TINY]
    here, there = pty.openpty()
    own_terminal = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)"
    main = f"{own_terminal}; from gpub.cli.main import main; main()"
    how = dict(stdin=there, stdout=there, stderr=there, start_new_session=True)
    p = start(*argv, main=main, **how)
    os.close(there)
    seen = b""
    while b" 10/30 " not in seen:
        seen += os.read(here, 4096)
    os.close(here)
    p.send_signal(signal.SIGHUP)  # the first comes with the close
    assert p.wait(120) == 130 and 10 <= load_checkpoint(tmp_path / "run").step < 30
    assert gpub(*argv) == 0
    same_run(tmp_path / "run", straight)


@posix
@pytest.mark.parametrize(
    "error",
    [OSError(5, "Input/output error"), RuntimeError("reentrant call inside <_io.BufferedWriter>")],
)
def test_a_stop_that_nobody_can_be_told_of(error):
    "The terminal is gone, or the signal broke into a line that a stuck terminal does not take"

    def log(line):
        raise error

    with stop_flag(log) as flag:
        for _ in range(2):
            signal.raise_signal(signal.SIGHUP)
        assert flag.is_set()


@pytest.mark.full(instead="test_a_lost_connection")
@posix
def test_under_nohup_a_lost_connection_is_ignored(straight, text, tmp_path):
    p = start_train(text, tmp_path / "run", *TINY, before=["nohup"])
    wait_for(tmp_path / "run", 10, p)
    p.send_signal(signal.SIGHUP)
    out, err = p.communicate(timeout=120)
    assert p.returncode == 0 and "stopping" not in out, err
    same_run(tmp_path / "run", straight)


@pytest.mark.full(instead="test_a_lost_connection")
def test_a_reader_that_goes_does_not_stop_the_run(straight, text, tmp_path):
    "gpub train ... | head"
    p = start_train(text, tmp_path / "run", *TINY)
    wait_for(tmp_path / "run", 10, p)
    p.stdout.close()
    err = p.stderr.read()
    assert p.wait(120) == 0 and not err
    same_run(tmp_path / "run", straight)


# all of them cross an epoch's end (the text is 21 steps long) and change the context half way; bf16
# is emulated where the CPU lacks it
VARIANTS = dict(
    muon=(),
    accumulation=("--set", "micro_batch=3"),
    adamw=("--set", "optimizer=adamw", "--set", "clip=1"),
    compiled=("--set", "compile=yes"),
    checkpointing=("--set", "grad_checkpoint=selective", "--set", "micro_batch=2"),
    bf16=("--set", "precision=bf16"),
    by_path=("--set", "optimizer=torch.optim.NAdam"),
)


@pytest.fixture(scope="module")
def undisturbed(straight, text, tmp_path_factory):
    "Variant -> a run of it that nobody disturbed"

    @functools.cache
    def run(variant):
        if not VARIANTS[variant]:
            return straight
        out = tmp_path_factory.mktemp("undisturbed") / variant
        assert train(text, out, *TINY, *VARIANTS[variant]) == 0
        return out

    return run


def killed_and_resumed(undisturbed, variant, text, out, rng):
    argv = ["train", "shakespeare", "--data", text, "--out", out, *TINY, *VARIANTS[variant]]
    p = start(*argv)
    wait_for(out, rng.choice([4, 8, 10, 19, 20, 27]), p)
    time.sleep(rng.random() * 0.05)
    p.kill()
    p.communicate()
    assert gpub(*argv) == 0
    same_run(out, undisturbed(variant))


@pytest.mark.parametrize(
    "variant",
    [
        "muon",
        pytest.param("bf16", marks=pytest.mark.full),
        pytest.param("accumulation", marks=pytest.mark.full),
        pytest.param("adamw", marks=pytest.mark.full),
        pytest.param("by_path", marks=pytest.mark.full),
    ],
)
def test_kill_9(variant, undisturbed, text, tmp_path):
    killed_and_resumed(undisturbed, variant, text, tmp_path / "run", random.Random(variant))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_kill_9_often(seed, undisturbed, text, tmp_path):
    killed_and_resumed(
        undisturbed,
        [*VARIANTS][seed % len(VARIANTS)],
        text,
        tmp_path / "run",
        random.Random(100 + seed),
    )


@pytest.mark.full(
    instead="test_phases.py::test_a_phase_that_changes_checkpointing_keeps_its_micro_batch"
)
def test_what_decides_speed_may_change_on_the_way(straight, text, tmp_path, capsys):
    argv = ["train", "shakespeare", "--data", text, "--out", tmp_path / "run", *TINY]
    p = start(*argv)
    wait_for(tmp_path / "run", 10, p)
    p.terminate()
    p.communicate(timeout=120)
    capsys.readouterr()
    assert gpub(*argv, "--set", "micro_batch=2", "--set", "grad_checkpoint=full") == 0
    assert "micro_batch now 2" in capsys.readouterr().out
    a, b = load_checkpoint(tmp_path / "run"), load_checkpoint(straight)
    assert all((a.model[k] - b.model[k]).abs().max() < 1e-3 for k in a.model)
    assert a.state["fit"] == dict(mode="full", micro=2)


@pytest.mark.full(instead="test_train.py::test_a_step_shrinks_whatever_says_that_memory_is_full")
def test_out_of_memory_halves_the_micro_batch_and_a_resume_remembers(
    text, tmp_path, capsys, monkeypatch
):
    from gpub.model.gpt import GPT

    whole = GPT.loss

    def cramped(self, x, y):
        if len(x) > 3 and torch.is_grad_enabled():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return whole(self, x, y)

    monkeypatch.setattr(GPT, "loss", cramped)
    # then fp32 and bf16 are timed first, in the same cramped memory
    monkeypatch.setattr("gpub.device.cpu_has_bf16", lambda: True)
    argv = [
        "train",
        "shakespeare",
        "--data",
        text,
        "--out",
        tmp_path / "run",
        *TINY,
        "--set",
        "compile=no",
        "--set",
        "precision=auto",
    ]
    assert gpub(*argv) == 0
    out = capsys.readouterr().out
    assert (
        "out of memory with 16 sequences" in out
        and "2 from here on, 8 passes a step" in out
        and out.count("out of memory") == 3
    )
    assert load_checkpoint(tmp_path / "run").state["fit"] == dict(mode="off", micro=2)


@pytest.mark.full(instead="test_ends.py::test_from_the_mirror_too")
def test_the_mirror_brings_a_lost_machine_back(straight, text, tmp_path, capsys):
    argv = [
        "train",
        "shakespeare",
        "--data",
        text,
        "--out",
        tmp_path / "run",
        "--mirror",
        tmp_path / "drive",
        *TINY,
    ]
    p = start(*argv)
    wait_for(tmp_path / "run", 20, p)
    p.terminate()
    p.communicate(timeout=120)
    shutil.rmtree(tmp_path / "run")
    assert load_checkpoint(tmp_path / "drive").step >= 20
    assert gpub(*argv) == 0
    same_run(tmp_path / "run", straight)
    same_run(tmp_path / "drive", straight)
    for f in ("bill.json", "report.html", "loss.png"):
        assert (tmp_path / "drive" / f).read_bytes() == (tmp_path / "run" / f).read_bytes()
    (tmp_path / "drive" / "bill.json").unlink()
    # a finished run is mirrored again
    assert gpub(*argv) == 0 and (tmp_path / "drive" / "bill.json").exists()


@pytest.mark.full(instead="test_trackers.py::test_wandb_is_told_the_id_the_axis_and_the_numbers")
def test_tracked_by_wandb_offline(text, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    assert train(text, tmp_path / "run", *TINY, "--track", "wandb") == 0
    run_id = json.loads((tmp_path / "run" / "config.json").read_text())["run_id"]
    assert [p for p in (tmp_path / "run").rglob("*.wandb") if run_id in p.name]


def test_second_process_is_refused(straight, text, tmp_path, capsys):
    argv = [
        "train",
        "shakespeare",
        "--data",
        text,
        "--out",
        tmp_path / "run",
        *TINY[:-4],
        "--steps",
        "100000",
        "--set",
        "compile=no",
    ]
    p = start(*argv)
    wait_for(tmp_path / "run", 10, p)
    assert gpub(*argv) == 1
    one_line(capsys, "in use", p.pid)
    p.kill()
    p.communicate()


@pytest.mark.parametrize(
    "share, name", [(0.5, "bf16"), pytest.param(0.95, "fp32", marks=pytest.mark.full)]
)
def test_precision_is_measured_once_and_kept(share, name, text, tmp_path, monkeypatch):
    """Where a CPU multiplies bf16, a step is timed in both; the run keeps what was faster then,
    whatever is faster when it goes on"""
    monkeypatch.setattr("gpub.device.cpu_has_bf16", lambda: True)
    monkeypatch.setenv("GPUB_CACHE", str(tmp_path / "cache"))  # what this machine was once told
    asked = []

    def clock(model, x, y, dtype, cfg):
        asked.append(dtype)
        return share if dtype == torch.bfloat16 else 1.0

    monkeypatch.setattr(kernels, "forward_backward_seconds", clock)
    argv = [
        "train",
        "shakespeare",
        "--data",
        text,
        "--out",
        tmp_path / "run",
        *TINY,
        "--set",
        "precision=auto",
    ]
    whole = learner.train

    def noted(*args, **options):
        given = (*args, *options.values())
        (settings,) = (x for x in given if isinstance(x, learner.LoopSettings))
        asked.append(settings.dtype)
        return whole(*args, **options)

    monkeypatch.setattr(learner, "train", noted)
    logs = OpenRun._write_row

    def stops(run, row):
        logs(run, row)
        if row["step"] == 10:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(OpenRun, "_write_row", stops)
    assert gpub(*argv) == 130
    monkeypatch.setattr(OpenRun, "_write_row", logs)
    monkeypatch.setattr(
        kernels, "forward_backward_seconds", lambda *a: pytest.fail("measured again")
    )
    assert gpub(*argv) == 0
    used = torch.bfloat16 if name == "bf16" else torch.float32
    assert asked == [torch.float32, torch.bfloat16, used, used]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (
        config["precision"]["name"] == name
        and f"{share:.2f} of its fp32 time" in config["precision"]["why"]
    )
    first, *_, last = clockless(tmp_path / "run")
    assert last["step"] == 30 and last["val_loss"] < first["loss"]


@pytest.mark.full(instead="test_precision_is_measured_once_and_kept")
def test_bf16_learns_what_fp32_learns(text, undisturbed, tmp_path):
    a, b = (clockless(undisturbed(v)) for v in ("muon", "bf16"))
    assert a != b, "bf16 was not used"
    assert abs(a[-1]["val_loss"] - b[-1]["val_loss"]) < 0.02 and all(
        t.dtype != torch.bfloat16 for t in load_checkpoint(undisturbed("bf16")).model.values()
    )


@pytest.mark.slow
def test_compile_falls_back_without_a_compiler(text, tmp_path):
    p = start_train(
        text,
        tmp_path / "run",
        *TINY,
        "--set",
        "compile=yes",
        PATH=str(tmp_path),
        CXX="",
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"),
    )
    out, err = p.communicate(timeout=300)
    assert p.returncode == 0, err
    assert (
        out.count("going on in eager mode") == 1
        and len([l for l in out.splitlines() if "torch.compile failed" in l]) == 1
    )


@pytest.mark.slow
def test_compiled_checkpoints_are_the_same_files(straight, text, tmp_path):
    assert train(text, tmp_path / "run", *TINY, "--set", "compile=yes") == 0
    a, b = load_checkpoint(tmp_path / "run"), load_checkpoint(straight)
    assert a.model.keys() == b.model.keys() and all(
        (a.model[k] - b.model[k]).abs().max() < 0.05 for k in a.model
    )
    assert (
        abs(clockless(tmp_path / "run")[-1]["val_loss"] - clockless(straight)[-1]["val_loss"])
        < 0.02
    )


@pytest.mark.full(instead="test_hub.py::test_from_recipe_to_hugging_face")
def test_the_second_family_trains_resumes_and_leaves_for_hugging_face(text, tmp_path, capsys):
    argv = [
        "train",
        "burn-toy",
        "--data",
        text,
        "--steps",
        "30",
        "--save-every",
        "5",
        "--set",
        "context_length=32",
        "--set",
        "batch_tokens=256",
        "--set",
        "precision=fp32",
    ]
    assert gpub(*argv, "--out", tmp_path / "a") == 0
    p = start(*argv, "--out", tmp_path / "b")
    wait_for(tmp_path / "b", 10, p)
    p.kill()
    p.communicate()
    assert gpub(*argv, "--out", tmp_path / "b") == 0
    same_run(tmp_path / "a", tmp_path / "b")
    assert (
        gpub("export", tmp_path / "a", tmp_path / "hf") == 0
        and gpub("import", tmp_path / "hf", tmp_path / "back") == 0
    )
    capsys.readouterr()
    said = [
        gpub("sample", tmp_path / r, "--prompt", "The ", "-n", 30, "--top-k", 5)
        or capsys.readouterr().out
        for r in ("a", "back")
    ]
    assert said[0] == said[1] and len(said[0]) == 35
    assert (
        gpub("push", tmp_path / "hf", "me/model", "--dry-run") == 0
        and "would upload" in capsys.readouterr().out
    )


@pytest.mark.full(instead="test_hub.py::test_from_recipe_to_hugging_face")
def test_from_prep_to_a_trained_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scenes = plays(60_000, seed=5).split("SCENE. ")[1:-1]
    (tmp_path / "plays.jsonl").write_text(
        "\n".join(json.dumps(dict(text="SCENE. " + s)) for s in scenes)
    )
    assert (
        gpub(
            "prep",
            "--source",
            "plays=plays.jsonl",
            "--out",
            "shards",
            "--vocab",
            300,
            "--val",
            0.2,
            "--workers",
            1,
        )
        == 0
    )
    argv = ["train", "shakespeare", "--data", "shards", "--out", "run", *TINY]
    assert gpub(*argv) == 0
    rows = clockless("run")
    assert (
        rows[-1]["val_loss"] < rows[0]["loss"]
        and json.loads(Path("run/config.json").read_text())["unit"] == "nats/token"
    )
    assert gpub("sample", "run", "-n", 5) == 0
    capsys.readouterr()
    manifest = tmp_path / "shards" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"tokenizer": "', '"tokenizer": "0'))
    assert gpub(*argv[:-2], "--out", "other") == 1
    one_line(capsys, "tokenizer", "manifest.json")
