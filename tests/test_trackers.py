"Guests of the log: what they are told, where they write, and that none of them can stop a run"

import json
import os
import struct
import subprocess
import sys
import types
from pathlib import Path

import pytest
from contracts import refuses

from gpub.core import GpubError
from gpub.train.options import RunOptions
from gpub.train.trackers import tracker
from gpub.train.trainer import Trainer


def rows(first, last):
    return [
        dict(step=n, tokens=100 * n, loss=4 - n / 100, val_loss=None, note="x")
        for n in range(first, last + 1)
    ]


def test_missing_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert "pip install 'gpub[wandb]'" in refuses(
        "--track wandb needs", tracker, "wandb", tmp_path, {}, "id"
    )


def test_a_package_that_is_not_there_is_said_before_all_else(tmp_path, monkeypatch):
    "Before a text is read or a model built"
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setattr("gpub.train.trackers.find_spec", lambda name: None)
    with pytest.raises(GpubError, match=r"pip install 'gpub\[wandb\]'"):
        Trainer(
            RunOptions("shakespeare", tmp_path / "run", tmp_path / "no.txt", track="wandb")
        ).go()
    assert not (tmp_path / "run").exists()


@pytest.fixture
def fake(monkeypatch):
    "A wandb that notes what it is told"
    calls = []
    run = types.SimpleNamespace(
        log=lambda row, step: calls.append((step, row)), finish=lambda: calls.append("finish")
    )
    module = types.SimpleNamespace(
        init=lambda **kw: calls.append(kw) or run,
        Html=lambda text: ("html", text),
        Settings=dict,
        calls=calls,
        run=run,
    )
    monkeypatch.setitem(sys.modules, "wandb", module)
    for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, "elsewhere")  # and as it was, afterwards
    return module


def test_wandb_is_told_the_id_the_axis_and_the_numbers(fake, tmp_path):
    t = tracker("wandb", tmp_path, {"lr": 0.1}, "a1b2")
    t.log(rows(3, 3)[0])
    t.sample(3, "To", "To be")
    t.close()
    t.log(rows(4, 4)[0])
    opened, *rest = fake.calls
    assert opened["dir"] == str(tmp_path) and opened["config"] == {"lr": 0.1}
    assert (opened["id"], opened["resume"]) == ("a1b2", "allow")
    assert rest == [
        (3, dict(tokens=300, loss=3.97)),
        (3, {"sample": ("html", "<pre>To be</pre>")}),
        "finish",
    ]


@pytest.mark.parametrize("where", ["log", "finish"])
def test_a_guest_that_fails_is_silenced_not_fatal(fake, tmp_path, where):
    said, asked = [], []

    def down(*a, **k):
        asked.append(1)
        raise ConnectionError("503\nService Unavailable")

    setattr(fake.run, where, down)
    t = tracker("wandb", tmp_path, {}, "id", said.append)
    for r in rows(1, 5):
        t.log(r)
    t.sample(5, "a", "b")
    t.close()
    assert (
        len(said) == len(asked) == 1
        and "log.jsonl has every row" in said[0]
        and "503" in said[0]
        and "\n" not in said[0]
    )


def test_a_guest_that_does_not_start_is_refused(fake, tmp_path):
    def no(**kw):
        raise RuntimeError("no project\nfor you")

    fake.init = no
    refuses("wandb did not start", tracker, "wandb", tmp_path, {}, "id")


def test_interrupts_pass(fake, tmp_path):
    def ctrl_c(*a, **k):
        raise KeyboardInterrupt

    fake.run.log = ctrl_c
    with pytest.raises(KeyboardInterrupt):
        tracker("wandb", tmp_path, {}, "id").log(rows(1, 1)[0])


WANDB = """
import json, socket, sys
real = socket.socket.connect
def connect(self, to): # its own service on this machine, and nothing else
    if self.family == socket.AF_INET and to[0] not in ('127.0.0.1', 'localhost'):
        raise SystemExit(f'NETWORK {to}')
    return real(self, to)
socket.socket.connect = connect
from gpub.train.trackers import tracker
out, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
t = tracker('wandb', out, {'lr': .1}, 'a1b2c3d4')
for n in range(first, last + 1): t.log(dict(step=n, loss=4 - n/100, val_loss=None))
t.sample(last, 'To', 'To <be>'); t.close()
assert t.run is None
"""


@pytest.mark.full(instead="test_wandb_is_told_the_id_the_axis_and_the_numbers")
def test_wandb_offline_for_real(tmp_path):
    "Two processes, one run id; every file inside the run folder, the home folder untouched"
    pytest.importorskip("wandb", reason="needs gpub[wandb]")
    run, home, cwd, tmp = (tmp_path / n for n in ("run", "home", "cwd", "tmp"))
    for d in (run, home, cwd, tmp):
        d.mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("WANDB", "XDG"))} | dict(
        HOME=str(home),
        TMPDIR=str(tmp),
        WANDB_MODE="offline",
        PYTHONPATH=str(Path(__file__).parent.parent),
    )
    for first, last in ((1, 10), (7, 12)):
        done = subprocess.run(
            [sys.executable, "-c", WANDB, run, str(first), str(last)],
            cwd=cwd,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0 and done.stdout == "", done.stdout + done.stderr
    folders = sorted(p.name for p in (run / "wandb").glob("offline-run-*"))
    assert len(folders) == 2 and all(f.endswith("-a1b2c3d4") for f in folders)
    assert not [p for d in (home, cwd, tmp) for p in d.rglob("*") if p.is_file()]
    losses = [l for f in folders for l in wandb_losses(run / "wandb" / f)]
    # wandb's server, not its files, joins the two by id and step
    assert losses == [(n, 4 - n / 100) for n in [*range(1, 11), *range(7, 13)]]
    assert any("To &lt;be&gt;" in p.read_text() for p in (run / "wandb").rglob("*.html"))


def wandb_losses(folder):
    """The rows in an offline run's own file: a log in the format of LevelDB, records of Protocol
    Buffers"""
    from wandb.proto import wandb_internal_pb2 as pb

    # behind the header
    data, at, out, piece = (
        next(folder.glob("*.wandb")).read_bytes(),
        7,
        [],
        b"",
    )
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue  # the rest of a block too small for a record's head
        size, kind = struct.unpack_from("<HB", data, at + 4)
        piece += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind not in (1, 4):
            continue  # a first or middle part
        (record := pb.Record()).ParseFromString(piece)
        piece = b""
        row = {
            i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in record.history.item
        }
        if "loss" in row:
            out.append((row["_step"], row["loss"]))
    return out
