"""What a run writes down survives full disks, kills and power cuts, and is read only where it
belongs."""

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from contracts import refuses

import gpub.record.folder as folder_module
import gpub.share.hub as hub
from gpub.core import GpubError, write_atomic
from gpub.data.char import CharTokenizer
from gpub.data.plays import plays
from gpub.guards.verify import verify
from gpub.model.architectures import build_model
from gpub.model.gpt import GPT, GPTConfig
from gpub.model.llama import LlamaConfig
from gpub.progress import Progress
from gpub.record.checkpoint import load_checkpoint, save_checkpoint
from gpub.record.checkpoint_folder import _seal
from gpub.record.folder import append_row, changed_rows, cut_log, disk_errors
from gpub.record.ledger import Ledger, account, read_ledger
from gpub.record.mirror import mirror_run, restore_from_mirror
from gpub.record.run import load_run
from gpub.record.saver import Saver
from gpub.share.hub import export_model, export_run
from gpub.train.options import RunOptions
from gpub.train.trainer import Trainer

SETTINGS = dict(
    steps=6,
    d_model=16,
    n_layers=1,
    n_heads=2,
    context_length=32,
    batch_tokens=256,
    precision="fp32",
    compile="no",
)
# what the run writes, in the order of its steps
RECORD = ("log.jsonl", "samples.jsonl", "ledger.jsonl")
LETTERS = CharTokenizer.from_text("abcdefgh")


def quiet(text):
    "Nobody is told"


def start_run(text, out, **how):
    "A small run that is not begun yet"
    settings = dict(stages=((0.0, 32),), depths=((0.0, 1),)) | SETTINGS
    nowhere = Progress(settings["steps"], out=open(os.devnull, "w"))
    options = dict(save_every=3, log=quiet, progress=nowhere) | how
    return Trainer(RunOptions("shakespeare", out, text, settings, "cpu", **options))


@pytest.fixture(scope="module")
def finished(text, tmp_path_factory):
    "A run that nobody disturbed"
    return start_run(text, tmp_path_factory.mktemp("finished") / "run").go()


@pytest.fixture
def copied(finished, tmp_path):
    "A copy of it to spoil"
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def rows(path):
    "Its rows"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class FullDisk:
    """The n-th `os.write` in `gpub.record.folder` fails as on a full disk, after a few bytes were
    written"""

    def __init__(self, monkeypatch, nth, room):
        self.nth, self.room, self.calls, self.write = nth, room, 0, os.write
        monkeypatch.setattr(folder_module.os, "write", self)

    def __call__(self, fd, data):
        self.calls += 1
        if self.calls != self.nth:
            return self.write(fd, data)
        if self.room:
            return self.write(fd, data[: self.room])
        raise OSError(errno.ENOSPC, "No space left on device")


posix = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has no limit for the size of a file"
)


class SmallDisk:
    """The kernel itself cuts the n-th row that is appended after a few bytes; then there is room
    again"""

    def __init__(self, monkeypatch, nth, room):
        self.nth, self.room, self.calls = nth, room, 0
        for module in ("gpub.record.ledger", "gpub.train.journal"):
            monkeypatch.setattr(f"{module}.append_row", self)

    def __call__(self, path, row):
        import resource

        self.calls += 1
        if self.calls != self.nth:
            return append_row(path, row)
        size = Path(path).stat().st_size if Path(path).exists() else 0
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + self.room, hard))
        try:
            append_row(path, row)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# one append


@pytest.mark.parametrize("room", [0, 1, 9, 17])
def test_a_row_is_written_whole_or_not_at_all(tmp_path, monkeypatch, room):
    path = tmp_path / "log.jsonl"
    append_row(path, dict(step=1, text="é"))
    before = path.read_bytes()
    FullDisk(monkeypatch, 1, room)
    with pytest.raises(OSError) as e:
        append_row(path, dict(step=2, text="é"))
    assert e.value.errno == errno.ENOSPC
    assert path.read_bytes() == before
    append_row(path, dict(step=2, text="é"))
    assert [row["step"] for row in rows(path)] == [1, 2]


@posix
def test_a_row_that_the_system_cuts(tmp_path, monkeypatch):
    path = tmp_path / "log.jsonl"
    append_row(path, dict(step=1))
    before = path.read_bytes()
    with pytest.raises(OSError):
        SmallDisk(monkeypatch, 1, 5)(path, dict(step=2))
    assert path.read_bytes() == before
    append_row(path, dict(step=2))
    assert [row["step"] for row in rows(path)] == [1, 2]


@pytest.mark.parametrize("half", ["{", '{"step": 2, "te', '{"step": 2}', "\0" * 9000])
def test_half_a_row_of_a_dead_process_goes(tmp_path, half):
    path = tmp_path / "phases.jsonl"
    append_row(path, dict(step=1))
    with open(path, "a") as file:
        file.write(half)
    append_row(path, dict(step=3))
    assert [row["step"] for row in rows(path)] == [1, 3]


def test_half_a_first_row_goes_too(tmp_path):
    path = tmp_path / "phases.jsonl"
    path.write_text('{"wo')
    append_row(path, dict(step=3))
    assert rows(path) == [dict(step=3)]


def test_a_row_that_is_there_twice(tmp_path):
    path = tmp_path / "samples.jsonl"
    for step in (0, 0, 5, 5, 9):
        append_row(path, dict(step=step))
    cut_log(path, 5)
    assert [row["step"] for row in rows(path)] == [0, 5]


# the ledger


def book(folder, now, steps):
    "A process that pays a second for each step and writes a row for it"
    hands = dict(wall=lambda: 1.7e9 + now[0], steady=lambda: now[0])
    with Ledger(folder, 3600.0, **hands) as ledger:
        ledger.switch("train")
        for step in range(1, steps + 1):
            now[0] += 1
            ledger.step = step
            ledger.flush()


@posix
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
@pytest.mark.parametrize("room", [1, 11, 60])
def test_a_disk_that_was_full_for_a_moment(tmp_path, monkeypatch, nth, room):
    """The row that could not be written comes once, with all its seconds, and the next process goes
    on"""
    now = [0.0]
    SmallDisk(monkeypatch, nth, room)
    with pytest.raises(OSError):
        book(tmp_path, now, 3)
    paid = sum(span.seconds for span in account(read_ledger(tmp_path)))
    assert paid == now[0]
    book(tmp_path, now, 3)
    assert sum(span.seconds for span in account(read_ledger(tmp_path))) == now[0]
    assert [row["n"] for row in read_ledger(tmp_path)] == [*range(len(read_ledger(tmp_path)))]


@pytest.mark.parametrize(
    "half", ["", '{"n"', '{"n": 3, "at": 17', '{"n": 3, "at": 1.7, "start": 1']
)
def test_a_last_row_that_was_tried_again(tmp_path, half):
    "As a ledger was left before: the row once cut or once whole, and once more behind it"
    now = [0.0]
    book(tmp_path, now, 3)
    path = tmp_path / "ledger.jsonl"
    *before, last = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*before, half or last, last]))
    assert sum(span.seconds for span in account(read_ledger(tmp_path))) == 3
    book(tmp_path, now, 1)
    assert path.read_text().startswith("".join([*before, last]))
    assert [row["n"] for row in rows(path)] == [*range(8)]


CUT = [1, *(pytest.param(nth, marks=pytest.mark.full) for nth in (2, 3, 5, 8))]


@pytest.mark.full(instead="test_goes_on.py::test_goes_on")
@posix
@pytest.mark.parametrize("nth", CUT)
def test_a_run_goes_on_after_a_cut_write(text, finished, tmp_path, monkeypatch, nth):
    "Whichever row a full disk cuts, in whichever file: the same command goes on to the same end"
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        SmallDisk(patch, nth, 7)
        with pytest.raises((GpubError, OSError), match="the disk is full"):
            start_run(text, out).go()
    start_run(text, out).go()
    assert (out / "samples.jsonl").read_text() == (finished / "samples.jsonl").read_text()
    assert [r["loss"] for r in rows(out / "log.jsonl")] == [
        r["loss"] for r in rows(finished / "log.jsonl")
    ]
    a, b = load_checkpoint(out).model, load_checkpoint(finished).model
    assert all(torch.equal(a[name], b[name]) for name in b)


# a kill before the first checkpoint


def test_the_first_sample_is_there_once(text, finished, tmp_path):
    """A process that dies before anything was saved has drawn the sample of step 0, and so does the
    next"""
    with start_run(text, tmp_path / "run").opened() as run:
        next(run.steps())
        shutil.copytree(tmp_path / "run", tmp_path / "killed")  # as a kill would leave it
    assert rows(tmp_path / "killed" / "samples.jsonl")[0]["step"] == 0
    assert not (tmp_path / "killed" / "LATEST").exists()
    start_run(text, tmp_path / "killed").go()
    again = (tmp_path / "killed" / "samples.jsonl").read_text()
    assert again == (finished / "samples.jsonl").read_text()


# a power cut


class Power:
    "Remembers what was forced to the disk; `cut` is what a folder would hold without the rest"

    def __init__(self, monkeypatch):
        self.files, self.folders, self.sync = {}, {}, os.fsync
        monkeypatch.setattr(os, "fsync", self)

    def __call__(self, fd):
        self.sync(fd)
        info = os.fstat(fd)
        key = info.st_dev, info.st_ino
        if stat.S_ISDIR(info.st_mode):
            self.folders[key] = {
                entry.name: self.key(entry.path) for entry in os.scandir(fd_path(fd))
            }
        else:
            self.files[key] = os.pread(fd, info.st_size, 0)

    @staticmethod
    def key(path):
        info = os.stat(path, follow_symlinks=False)
        return info.st_dev, info.st_ino

    def cut(self, folder):
        "Name -> content; an empty one where the name was kept and nothing else"
        names = self.folders.get(self.key(folder), {})
        return {name: self.files.get(key, b"") for name, key in names.items()}


def fd_path(fd):
    "The folder that is open there"
    return os.readlink(f"/proc/self/fd/{fd}")


linux = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc which folder is synced")


@linux
@pytest.mark.parametrize("mirrored", [False, pytest.param(True, marks=pytest.mark.full)])
def test_no_power_cut_leaves_a_checkpoint_ahead_of_its_log(text, tmp_path, monkeypatch, mirrored):
    power, left = Power(monkeypatch), []
    out = tmp_path / ("drive" if mirrored else "run")
    rename = Path.rename

    def renamed(path, to):
        "The moment from which on a checkpoint may be there"
        if path.parent == out / "checkpoints" and Path(to).name.startswith("step-"):
            left.append((int(Path(to).name.removeprefix("step-")), power.cut(out)))
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", renamed)
    start_run(text, tmp_path / "run", mirror=tmp_path / "drive").go()
    assert {step for step, _ in left} == {3, 6} or mirrored and left
    for step, found in left:
        assert {*RECORD, "config.json", "tokenizer.json"} <= found.keys()
        there = {
            name: [json.loads(line)["step"] for line in found[name].decode().splitlines()]
            for name in RECORD
        }
        # not every step is logged: what has to be there is what the whole run has up to here
        for name in ("log.jsonl", "samples.jsonl"):
            wanted = [row["step"] for row in rows(out / name) if row["step"] <= step]
            assert wanted and there[name][: len(wanted)] == wanted, (name, step)
        assert step in there["ledger.jsonl"]
        assert json.loads(found["config.json"])


@pytest.mark.full(instead="test_no_power_cut_leaves_a_checkpoint_ahead_of_its_log")
def test_a_save_begins_when_its_steps_are_in_the_ledger(text, tmp_path, monkeypatch):
    """The checkpoint is written behind the training's back: what is paid for it has to be there
    before"""
    save, seen = Saver.save, []

    def watched(self, step, *args, **how):
        paid = [row["step"] for row in rows(tmp_path / "run" / "ledger.jsonl")]
        seen.append((step, max(paid)))
        return save(self, step, *args, **how)

    monkeypatch.setattr(Saver, "save", watched)
    start_run(text, tmp_path / "run").go()
    assert seen == [(3, 3), (6, 6)]


@linux
def test_no_power_cut_empties_an_export(finished, tmp_path, monkeypatch):
    power = Power(monkeypatch)
    folder = export_run(finished, tmp_path / "hf")
    there = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert "model.safetensors" in there and "loss.png" in there
    assert power.cut(folder) == there
    assert power.cut(tmp_path).keys() >= {"hf"}


def test_a_mirror_is_never_ahead_of_its_log(tmp_path, monkeypatch):
    "A checkpoint that is finished while the mirror copies the logs waits for the next copy"
    run, mirror = tmp_path / "run", tmp_path / "mirror"
    (run / "checkpoints").mkdir(parents=True)

    def step(n):
        append_row(run / "log.jsonl", dict(step=n))
        save_checkpoint(run, n, {"w": torch.ones(3)}, {}, {})

    step(1)
    import gpub.record.mirror as mirrors

    copy = mirrors.copy_small_files

    def slow(source, to):
        copy(source, to)
        step(2)

    with monkeypatch.context() as patch:
        patch.setattr(mirrors, "copy_small_files", slow)
        mirror_run(run, mirror)
    newest = load_checkpoint(mirror).step
    assert max(row["step"] for row in rows(mirror / "log.jsonl")) >= newest


# the sealed copy of config.json


def edit(run, part, **changes):
    "Change settings in config.json by hand"
    path = run / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config[part] |= changes
    path.write_text(json.dumps(config), encoding="utf-8")


@pytest.mark.parametrize(
    "part, name, value, then",
    [
        ("model", "n_layers", 2, 1),
        ("model", "n_heads", 4, 2),
        ("model", "init_std", 0.5, 0.02),
        ("model", "context_length", 31, 32),
        ("data", "val", 1, None),
    ],
)
def test_a_config_edited_by_hand(copied, part, name, value, then):
    was = json.loads((copied / "config.json").read_text())[part][name]
    assert then in (None, was)
    edit(copied, part, **{name: value})
    with pytest.raises(GpubError) as e:
        load_run(copied, device="cpu")
    said = str(e.value)
    assert f"{part}.{name}: config.json {value!r}, step-00000006 {was!r}" in said
    assert "restore it" in said and "\n" not in said


def test_another_rotation_gives_other_logits_and_is_refused(tmp_path):
    "Nothing in the weights shows which base their positions were turned with"
    cfg = LlamaConfig(
        vocab_size=8, context_length=16, d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, d_ff=32
    )
    config = dict(
        format=3,
        architecture="llama",
        model=cfg.to_dict(),
        data=dict(tokenizer=LETTERS.fingerprint),
    )
    state = dict(config=config, run_id="a1")
    LETTERS.save(tmp_path)
    save_checkpoint(tmp_path, 1, build_model(cfg).state_dict(), {}, state)
    written = config | dict(run_id="a1")
    (tmp_path / "config.json").write_text(json.dumps(written))
    ids = torch.arange(8)[None]
    before = load_run(tmp_path, device="cpu")[0](ids)
    edit(tmp_path, "model", rope_base=20_000.0)
    with pytest.raises(GpubError, match=r"model.rope_base: config.json 20000.0, step-00000001 "):
        load_run(tmp_path, device="cpu")
    other = json.loads((tmp_path / "config.json").read_text())["model"]
    theirs = build_model(LlamaConfig.from_dict(other))
    theirs.load_state_dict(load_checkpoint(tmp_path).model)
    assert not torch.equal(theirs(ids), before)
    (tmp_path / "config.json").write_text(json.dumps(written | dict(run_id="b2")))
    refuses("run_id: config.json 'b2', step-00000001 'a1'", load_run, tmp_path, device="cpu")


def test_what_may_be_another_is_read(copied):
    "Data that was moved, a schedule that changed on the way, words about the run"
    edit(copied, "data", source="moved.txt")
    edit(copied, "train", log_every=7, muon_lr=0.5)
    path = copied / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | dict(note="mine", prompt="To")))
    assert load_run(copied, device="cpu")[2]["prompt"] == "To"


def test_a_checkpoint_without_the_copy_is_read(tmp_path):
    cfg = GPTConfig(vocab_size=8, context_length=16, d_model=16, n_layers=1, n_heads=2)
    LETTERS.save(tmp_path)
    save_checkpoint(tmp_path, 1, GPT(cfg).state_dict(), {}, {})
    config = dict(
        format=3, architecture="gpt2", model=cfg.to_dict(), data=dict(tokenizer=LETTERS.fingerprint)
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_run(tmp_path, device="cpu")[0].cfg == cfg


# two exports at once


def small_model(seed):
    "Another model for each seed"
    torch.manual_seed(seed)
    return GPT(GPTConfig(vocab_size=8, context_length=16, d_model=16, n_layers=1, n_heads=2)).eval()


def test_two_exports_at_once(tmp_path, monkeypatch):
    "While one is writing, a second into the same folder is told so; the first is whole"
    said, write = [], hub.write_weights

    def second():
        try:
            export_model(small_model(2), LETTERS, tmp_path / "hf")
        except GpubError as e:
            said.append(str(e))

    def slowly(*args):
        names = write(*args)
        monkeypatch.setattr(hub, "write_weights", write)
        other = threading.Thread(target=second)
        other.start()
        other.join()
        return names

    monkeypatch.setattr(hub, "write_weights", slowly)
    export_model(small_model(1), LETTERS, tmp_path / "hf")
    assert len(said) == 1 and f"process {os.getpid()}" in said[0] and "\n" not in said[0]
    assert str(tmp_path / "hf") in said[0] and ".tmp" not in said[0] and "--out" not in said[0]
    model, _ = hub.import_folder(tmp_path / "hf")
    assert torch.equal(model.tok.weight, small_model(1).tok.weight)
    alone = export_model(small_model(1), LETTERS, tmp_path / "alone")
    assert {p.name for p in alone.iterdir()} == {p.name for p in (tmp_path / "hf").iterdir()}
    assert {p.name for p in tmp_path.iterdir()} == {"hf", "alone"}


def test_an_export_after_one_that_was_killed(tmp_path):
    "What it left is no obstacle and gets into no folder"
    for name in (".hf.tmp", ".hf.tmp/hf"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "old.safetensors").write_text("half")
    export_model(small_model(1), LETTERS, tmp_path / "hf")
    assert [p.name for p in tmp_path.iterdir()] == ["hf"]
    assert not (tmp_path / "hf" / "old.safetensors").exists()


def test_an_export_that_came_second(tmp_path, monkeypatch):
    "Where the file system knows no locks, the rename decides: one folder, whole, and one line"

    def unsupported(file):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(folder_module, "_grab", unsupported)
    write = hub.write_weights

    def slowly(tensors, folder, limit):
        names = write(tensors, folder, limit)
        (tmp_path / "hf").mkdir()
        (tmp_path / "hf" / "theirs").write_text("x")
        return names

    monkeypatch.setattr(hub, "write_weights", slowly)
    refuses("there already and not empty", export_model, small_model(1), LETTERS, tmp_path / "hf")
    assert [p.name for p in (tmp_path / "hf").iterdir()] == ["theirs"]


# files of others, and in the way


def test_a_lock_that_is_a_link_leaves_its_target_alone(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(GpubError, match="cannot write in"):
        with folder_module.lock_folder(tmp_path / "run"):
            pass
    assert (tmp_path / "precious").read_text() == "mine"


def test_half_a_file_of_a_killed_writer_is_swept(tmp_path):
    (tmp_path / ".config.json.0a1b2c3d.part").write_text("{")
    with folder_module.lock_folder(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@posix
def test_halves_of_dead_writers_are_swept_where_nobody_locks(tmp_path):
    "What a killed gpub eval left goes with the next one; what another one is writing stays"
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    for writer in (ended.pid, os.getpid()):
        (tmp_path / f".evals.json.{writer}.0a1b2c3d.part").write_text("{")
    (tmp_path / f".other.json.{ended.pid}.0a1b2c3d.part").write_text("{")
    folder_module.sweep_halves(tmp_path / "evals.json")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [
        f".evals.json.{os.getpid()}.0a1b2c3d.part",
        f".other.json.{ended.pid}.0a1b2c3d.part",
    ]


@posix
def test_files_have_the_modes_that_the_user_wants(tmp_path):
    "A run that others must not read is not opened to them"
    before = os.umask(0o077)
    try:
        write_atomic(tmp_path / "mine.json", "{}")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "mine.json").stat().st_mode) == 0o600


def test_a_mirror_names_the_checkpoint_that_a_failed_copy_left_unnamed(tmp_path):
    run, mirror = tmp_path / "run", tmp_path / "drive"
    save_checkpoint(run, 1, {"w": torch.zeros(2)}, {}, {})
    mirror_run(run, mirror)
    (mirror / "LATEST").write_text("step-00000000\n")
    mirror_run(run, mirror)
    assert (mirror / "LATEST").read_text() == "step-00000001\n"


def test_links_in_a_mirror_are_not_followed(tmp_path):
    (tmp_path / "secret").write_text("of another folder")
    for name in ("drive", "run"):
        (tmp_path / name).mkdir()
    save_checkpoint(tmp_path / "drive", 1, {"w": torch.zeros(2)}, {}, {})
    (tmp_path / "drive" / "notes.txt").symlink_to(tmp_path / "secret")
    restore_from_mirror(tmp_path / "run", tmp_path / "drive", log=quiet)
    assert not (tmp_path / "run" / "notes.txt").exists()
    assert load_checkpoint(tmp_path / "run").step == 1


DEEP = "[" * 100_000


@pytest.mark.parametrize("name", ["log.jsonl", "samples.jsonl", "ledger.jsonl", "config.json"])
def test_deep_json_is_one_line(copied, name):
    path = copied / name
    path.write_text(DEEP + "\n" + path.read_text())
    with pytest.raises(GpubError, match=name):
        if name == "ledger.jsonl":
            read_ledger(copied)
        elif name == "config.json":
            load_run(copied, device="cpu")
        else:
            folder_module.cut_log(path, 3)


def test_a_deep_state_is_skipped_like_any_damage(copied):
    newest = load_checkpoint(copied)
    (newest.path / "state.json").write_text(DEEP)
    said = []
    assert load_checkpoint(copied, log=said.append).step < newest.step
    assert len(said) == 1 and "not JSON" in said[0]


def test_each_row_of_a_log_is_sealed(copied):
    "One digit of a loss, changed long ago, is found"
    rows_of = load_checkpoint(copied).rows
    assert {*RECORD} <= rows_of.keys() and not changed_rows(copied, rows_of)
    lines = (copied / "log.jsonl").read_text().splitlines(keepends=True)
    digit = lines[1].index('"loss": ') + len('"loss": ')
    lines[1] = lines[1][:digit] + str((int(lines[1][digit]) + 1) % 10) + lines[1][digit + 1 :]
    (copied / "log.jsonl").write_text("".join(lines))
    assert changed_rows(copied, rows_of) == ["log.jsonl line 2"]


# what exact needs


def resumed(out, text, **how):
    "What is said when the run goes on"
    said = []
    run = start_run(text, out, log=said.append, **how)
    run.go()
    return run, [line for line in said if "last bits" in line]


@pytest.fixture
def stopped(text, tmp_path):
    "A run stopped at step 3, and its newest checkpoint"
    with start_run(text, tmp_path / "run").opened() as run:
        for step in run.steps():
            if step.n == 4:
                break
    return tmp_path / "run"


def test_a_checkpoint_says_what_decides_the_last_bits(stopped, text):
    exact = load_checkpoint(stopped).state["exact"]
    assert exact == dict(
        precision="fp32",
        compiled=False,
        threads=torch.get_num_threads(),
        machine=exact["machine"],
        torch=torch.__version__,
    )
    assert resumed(stopped, text)[1] == []


def other_exact(run_dir, **change):
    "A checkpoint that was written under other conditions"
    folder = load_checkpoint(run_dir).path
    record = json.loads((folder / "state.json").read_text())
    record["state"]["exact"] |= change
    del record["seal"]
    (folder / "state.json").write_text(json.dumps(record | {"seal": _seal(record)}))


def test_a_changed_row_is_said_when_the_run_goes_on(stopped, finished, text):
    "The weights do not depend on it, and are those of the undisturbed run"
    path = stopped / "log.jsonl"
    before = path.read_text()
    at = before.index('"loss": ') + len('"loss": ')
    path.write_text(before[:at] + str((int(before[at]) + 1) % 10) + before[at + 1 :])
    said = []
    start_run(text, stopped, log=said.append).go()
    [line] = [line for line in said if "changed after it was written" in line]
    assert line.startswith("log.jsonl line 1 in") and "gpub verify" in line
    ours, theirs = load_checkpoint(stopped).model, load_checkpoint(finished).model
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.full(instead="test_a_checkpoint_says_what_decides_the_last_bits")
def test_threads_are_as_many_as_before(stopped, text, monkeypatch):
    other_exact(stopped, threads=2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("gpub.train.resume.usable_cores", lambda: 2)
    now = torch.get_num_threads()
    try:
        assert resumed(stopped, text)[1] == [] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(now)


def test_what_cannot_be_as_before_is_one_line(stopped, text, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    other_exact(stopped, threads=64, machine="another CPU")
    [line] = resumed(stopped, text)[1]
    assert "threads 64, now 1" in line and "machine another CPU, now" in line


def test_compiled_or_not_is_decided_once(stopped, text, monkeypatch):
    "A resume does not time it again"
    other_exact(stopped, compiled=True)
    asked = []
    choose = "gpub.train.learner.choose_loss"
    monkeypatch.setattr(
        choose, lambda fit, xy, cfg, *more: asked.append(cfg.compile) or fit.model.loss
    )
    settings = SETTINGS | dict(compile="auto", stages=((0.0, 32),), depths=((0.0, 1),))
    config = json.loads((stopped / "config.json").read_text())
    config["train"]["compile"] = "auto"
    (stopped / "config.json").write_text(json.dumps(config))
    Trainer(RunOptions("shakespeare", stopped, text, settings, "cpu", save_every=3, log=quiet)).go()
    assert asked == ["yes"]


def test_the_stopwatch_is_asked_once_for_a_machine(text, tmp_path, monkeypatch):
    "Two undisturbed runs have one precision, however busy the machine was at the second"
    monkeypatch.setenv("GPUB_CACHE", str(tmp_path / "cache"))
    for module in ("gpub.device", "gpub.train.kernels"):
        monkeypatch.setattr(f"{module}.cpu_has_bf16", lambda: True)
    names = []
    for share in (0.5, 0.99):
        times = {torch.float32: 1.0, torch.bfloat16: share}
        clock = "gpub.train.kernels.forward_backward_seconds"
        monkeypatch.setattr(clock, lambda model, x, y, dtype, cfg: times[dtype])
        settings = SETTINGS | dict(precision="auto", stages=((0.0, 32),), depths=((0.0, 1),))
        out = tmp_path / f"run-{share}"
        options = RunOptions("shakespeare", out, text, settings | dict(steps=1), "cpu", log=quiet)
        with Trainer(options).opened() as run:
            names.append(run.config["precision"]["name"])
    assert names == ["bf16", "bf16"]


def test_a_run_that_is_asked_again_bills_each_second_once(text, tmp_path):
    "The hour before the first call is not counted again by a second call of the same object"
    an_hour_ago = time.perf_counter() - 3600
    run = start_run(text, tmp_path, save_every=2, usd_per_hour=2.0, started_at=an_hour_ago)
    with run.opened() as opened:
        steps = opened.steps()
        next(steps)
        next(steps)
        steps.close()
    run.go()
    ledger = read_ledger(tmp_path)
    assert [row["step"] for row in ledger if row.get("open")] == [0, 2]
    paid_usd = sum(span.usd for span in account(ledger))
    assert 2.0 <= paid_usd < 2.5  # dollars: an hour and some seconds


# every byte


def damaged(folder):
    "Names of the parts that are not what was written"
    return {part.question for part in verify(folder) if not part.ok}


@pytest.mark.parametrize(
    "name, part",
    [
        ("config.json", "config.json"),
        ("tokenizer.json", "tokenizer.json"),
        ("log.jsonl", "log.jsonl"),
        ("samples.jsonl", "samples.jsonl"),
        ("ledger.jsonl", "ledger.jsonl"),
        ("checkpoints/step-00000003/model.safetensors", "checkpoints/step-00000003"),
        ("checkpoints/step-00000006/optimizer.safetensors", "checkpoints/step-00000006"),
    ],
)
def test_verify_names_what_is_damaged_and_nothing_else(copied, name, part):
    assert not damaged(copied)
    path = copied / name
    content = bytearray(path.read_bytes())
    if name == "config.json":
        path.write_text(path.read_text().replace('"n_heads": 2', '"n_heads": 1'))
    elif name == "tokenizer.json":
        path.write_text(path.read_text().replace("e", "%", 1))
    else:
        digits = [i for i, byte in enumerate(content) if 0x30 <= byte <= 0x38]
        content[digits[len(digits) // 4]] += 1
        path.write_bytes(bytes(content))
    assert damaged(copied) == {part}
    for check in verify(copied):
        assert check.ok or check.remedy


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_changed_export_is_not_imported(finished, tmp_path, name):
    "Before, 197 of 200 flipped bits came in unseen"
    folder = export_run(finished, tmp_path / "hf")
    assert not damaged(folder)
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(bytes(content))
    refuses(f"{name} is not what SHA256SUMS says", hub.import_folder, folder)
    assert "SHA256SUMS" in damaged(folder)


def test_a_card_may_be_rewritten(finished, tmp_path):
    folder = export_run(finished, tmp_path / "hf")
    (folder / "README.md").write_text("my own words")
    hub.import_folder(folder)


def test_an_index_names_files_of_its_own_folder_only(finished, tmp_path):
    folder = export_run(finished, tmp_path / "hf")
    for name in ("SHA256SUMS", "model.safetensors"):
        (folder / name).unlink()
    index = dict(weight_map={"a": "../../secret.safetensors"})
    (folder / hub.INDEX).write_text(json.dumps(index))
    refuses("outside its folder", hub.import_folder, folder)


def flip_middle_bit(path):
    "As an old disk does"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def test_verify_reads_shards_and_counts_what_holds(tmp_path):
    from gpub.prep.config import PrepConfig
    from gpub.prep.pipeline import prepare

    for seed in range(4):
        (tmp_path / f"{seed}.txt").write_text(plays(2000, seed=seed))
    sources = (f"a={tmp_path}/*.txt:1",)
    cfg = PrepConfig(sources=sources, vocab_size=300, scan=False, shard_tokens=500)
    prepare(cfg, tmp_path / "shards", workers=1, log=quiet)
    assert not damaged(tmp_path / "shards")
    for name in ("train-00000.docs", "train-00001.bin"):
        flip_middle_bit(tmp_path / "shards" / name)
    assert damaged(tmp_path / "shards") == {"train-00000.bin", "train-00001.bin"}
    parts = verify(tmp_path / "shards")
    shards = len([*(tmp_path / "shards").glob("*.bin")])
    [whole] = [part.finding for part in parts if part.question == "shards"]
    assert whole.startswith(f"{shards - 2:,} of {shards:,} shards") and shards > 2
    assert any("train-00000.docs" in part.finding for part in parts)
    assert all("gpub prep" in part.remedy for part in parts if not part.ok)


@pytest.mark.parametrize("name", ["train.safetensors", "val.safetensors", "tokenizer.json"])
def test_verify_looks_into_chats(tmp_path, name):
    from gpub.chat.conversations import ChatCounts, write_chats
    from gpub.chat.sums import sum_chats, sums_tokenizer

    tok = sums_tokenizer()
    chats = sum_chats(tok, 40, np.random.default_rng(0))
    write_chats(tmp_path, chats, ChatCounts(), tok, longest=14)
    assert not damaged(tmp_path)
    if name == "tokenizer.json":
        type(LETTERS)("another").save(tmp_path)
    else:
        flip_middle_bit(tmp_path / name)
    assert damaged(tmp_path) == {name}


def test_verify_looks_into_a_mirror(finished, tmp_path):
    "It is a run like the first place: what is damaged there is named before it is needed"
    mirror_run(finished, tmp_path / "drive", 3)
    assert not damaged(tmp_path / "drive")
    newest = load_checkpoint(tmp_path / "drive").path
    flip_middle_bit(newest / "model.safetensors")
    assert damaged(tmp_path / "drive") == {f"checkpoints/{newest.name}"}


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("free", [0, 10**12])
def test_a_quota_that_is_used_up_is_told_from_a_full_disk(error, free, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr("gpub.record.folder.shutil.disk_usage", lambda folder: usage)
    with pytest.raises(GpubError, match="the disk is full") as e, disk_errors(tmp_path):
        raise OSError(error, "no room")
    assert ("it shows 1,000 GB free: the quota of the volume is used up" in str(e.value)) == (
        free > 0
    )
