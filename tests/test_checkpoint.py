"Saving and loading under kill -9, full disks, damage and company"

import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import namedtuple
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from contracts import refuses
from forked import Python

from gpub.core import RUN_FORMAT, GpubError
from gpub.plans.annealing import newest_recipe, steps_reached
from gpub.record import checkpoint as ckpt
from gpub.record import checkpoint_draft as drafts
from gpub.record import checkpoint_folder as folders
from gpub.record import folder as fold
from gpub.record import mirror as mirrors
from gpub.record import saver as savers
from gpub.record.checkpoint import find_newest, load_checkpoint, save_checkpoint, verify_checkpoint
from gpub.record.checkpoint_folder import MODEL, OPTIMIZER, Damaged, checkpoints
from gpub.record.folder import Interrupted, append_row, cut_log, differences, lock_folder
from gpub.record.log import _jsonl, read_log
from gpub.record.mirror import mirror_run, restore_from_mirror
from gpub.record.run import Run
from gpub.record.saver import Saver
from gpub.train.loop import Diverged
from gpub.train.options import RunOptions
from gpub.train.trainer import Trainer
from gpub.tune.methods import SftOptions


def tensors(step, n=1000):
    return {"w": torch.full((n,), float(step)), "b": torch.arange(n) + step}


def save(run, step, n=1000, **kw):
    return save_checkpoint(
        run,
        step,
        tensors(step, n),
        {"m": torch.full((n,), -float(step))},
        {"tokens": step * 10},
        **kw,
    )


def steps(run):
    return [int(p.name[5:]) for p in checkpoints(run)]


def snapshot(run):
    return {str(p.relative_to(run)): p.read_bytes() for p in run.rglob("*") if p.is_file()}


def check_whole(run):
    ck = load_checkpoint(run)
    assert torch.equal(ck.model["w"], torch.full_like(ck.model["w"], float(ck.step)))
    assert torch.equal(
        ck.optimizer["m"], torch.full_like(ck.optimizer["m"], -float(ck.step))
    ) and ck.state == {"tokens": ck.step * 10}
    return ck.step


def forked(f):
    "Run `f` in a process of its own; its id"
    if pid := os.fork():
        return pid
    try:
        f()
    finally:
        os._exit(1)  # never back into pytest


def end(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def reseal(folder, **change):
    "Another record with a seal that fits: what only a program can write"
    f = folder / "state.json"
    record = json.loads(f.read_text()) | change
    f.write_text(json.dumps(record | {"seal": folders._seal(record)}))


def described(folder, **change):
    "The files of a record, something else said of the model's"
    files = json.loads((folder / "state.json").read_text())["files"]
    return files | {MODEL: files[MODEL] | change}


posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and kill -9")


@posix
def test_kill_9_during_save_never_loses_a_checkpoint(tmp_path):
    rng, done, halfway = random.Random(0), 0, 0

    def loop(step, pipe):
        while True:
            step += 1
            save(tmp_path, step, n=20_000, keep=2)
            os.write(pipe, step.to_bytes(4, "big"))

    for _ in range(20):
        r, w = os.pipe()
        pid = forked(lambda: loop(done, w))
        os.close(w)
        for _ in range(rng.randint(1, 3)):
            last = os.read(r, 4)  # it lives and saves
        time.sleep(rng.random() * 0.02)  # the moment of death: anywhere in a later save
        os.kill(pid, signal.SIGKILL)
        assert end(pid) == -signal.SIGKILL
        while more := os.read(r, 4):
            last = more
        os.close(r)
        reported = int.from_bytes(last, "big")
        halfway += any(x.name.startswith(".tmp") for x in (tmp_path / "checkpoints").iterdir())
        done = check_whole(tmp_path)
        assert reported <= done <= reported + 1, "a checkpoint reported as saved is gone"
    assert halfway, "no kill fell into a save: this test tested nothing"
    save(tmp_path, done + 1)
    assert not list((tmp_path / "checkpoints").glob(".*")), "the next save cleans up"


@posix
@pytest.mark.parametrize(
    "name",
    [
        "sync_to_disk",
        "save_file",
        "file_sha256",
        "write_record",
        "replace_checkpoint",
        "write_atomic",
        "rotate_checkpoints",
    ],
)
@pytest.mark.parametrize("nth", [1, 2])
def test_death_at_every_boundary(tmp_path, monkeypatch, name, nth):
    "The process ends, with no chance to clean up, at the n-th call of each part of a save"
    save(tmp_path, 1)
    save(tmp_path, 2)
    real, calls = getattr(drafts, name), []

    def dies(*a, **kw):
        calls.append(1)
        if len(calls) == nth:
            os._exit(9)
        return real(*a, **kw)

    def twice():
        monkeypatch.setattr(drafts, name, dies)
        for _ in range(2):
            save(tmp_path, 3, keep=1)  # the second replaces a folder that is there

    assert end(forked(twice)) == 9
    assert check_whole(tmp_path) in (2, 3)
    save(tmp_path, 4)
    assert check_whole(tmp_path) == 4 and not list((tmp_path / "checkpoints").glob(".*"))


def test_killed_between_the_two_renames_of_a_replacement(tmp_path, monkeypatch):
    save(tmp_path, 5)
    final = tmp_path / "checkpoints" / "step-00000005"
    final.rename(final.with_name(final.name + ".old"))  # as it stands after the first rename
    assert check_whole(tmp_path) == 5
    save(tmp_path, 6, keep=1)
    assert steps(tmp_path) == [6]


def test_a_step_that_stands_between_two_renames_is_found_by_its_number(tmp_path):
    folder = save(tmp_path, 5)
    old = folder.rename(folder.with_name(folder.name + ".old"))
    assert load_checkpoint(tmp_path, step=5).path == old
    assert load_checkpoint(old).step == 5
    refuses(r"no checkpoint of step 4; it has \[5\]", load_checkpoint, tmp_path, step=4)
    again = save(tmp_path, 5)
    assert load_checkpoint(tmp_path, step=5).path == again != old


def test_a_step_is_asked_of_a_run_folder(tmp_path):
    folder = save(tmp_path, 5)
    refuses("is one checkpoint: give its run folder for step 5", load_checkpoint, folder, step=5)


def test_an_error_of_the_reader_is_no_damage(tmp_path, monkeypatch):
    "A `KeyError` of our own code is not said of the file, and no older checkpoint is taken for it"
    save(tmp_path, 1)
    save(tmp_path, 2)
    monkeypatch.setattr(ckpt, "load_file", lambda path: {}["layer"])
    with pytest.raises(KeyError, match="layer"):
        load_checkpoint(tmp_path, log=pytest.fail)


def damage(kind, folder):
    f = folder / MODEL
    if kind == "truncated":
        f.write_bytes(f.read_bytes()[:-1])
    if kind == "bit flip":
        b = bytearray(f.read_bytes())
        b[-3] ^= 4
        f.write_bytes(b)
    if kind == "missing":
        (folder / OPTIMIZER).unlink()
    if kind == "text":
        f.write_text("To be, or not to be")
    if kind == "pickle":
        f.write_bytes(pickle.dumps({"w": 1}))
    if kind == "empty":
        f.write_bytes(b"")
    if kind == "a text file":
        shutil.rmtree(folder)
        folder.write_text("To be, or not to be")
    if kind == "no state":
        (folder / "state.json").unlink()
    if kind == "cut state":
        (folder / "state.json").write_text((folder / "state.json").read_text()[:50])
    if kind == "not utf-8":
        (folder / "state.json").write_bytes(b"\xff\xfe\x00{")
    if kind == "other json":
        (folder / "state.json").write_text("[1]")
    if kind == "edited state":
        (folder / "state.json").write_text(
            (folder / "state.json").read_text().replace('"tokens": 20', '"tokens": 21')
        )


@pytest.mark.parametrize(
    "kind",
    [
        "truncated",
        "bit flip",
        "missing",
        "text",
        "pickle",
        "empty",
        "no state",
        "cut state",
        "not utf-8",
        "other json",
        "edited state",
        "a text file",
    ],
)
def test_damage_is_skipped_and_said(tmp_path, kind):
    save(tmp_path, 1)
    damage(kind, save(tmp_path, 2))
    said = []
    assert find_newest(tmp_path, log=said.append).path.name == "step-00000001"
    assert len(said) == 1 and "step-00000002" in said[0] and "\n" not in said[0]
    assert load_checkpoint(tmp_path, log=said.append).step == 1
    with pytest.raises(Damaged):
        load_checkpoint(tmp_path, step=2)
    damage("truncated", tmp_path / "checkpoints" / "step-00000001")
    refuses("none of its 2 checkpoints is whole", find_newest, tmp_path, log=said.append)


@pytest.mark.parametrize("content", [b"To be, or not to be", pickle.dumps({"w": 1}), b""])
def test_a_file_that_only_claims_to_be_safetensors(tmp_path, content):
    "Even with matching checksums"
    folder = save(tmp_path, 1)
    (folder / MODEL).write_bytes(content)
    reseal(
        folder,
        files=described(folder, size=len(content), sha256=folders.file_sha256(folder / MODEL)),
    )
    refuses("holds no safetensors", load_checkpoint, tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        *(
            {"files": f}
            for f in (None, [], [1], 5, "model", {}, {MODEL: 5}, {MODEL: None}, {MODEL: {}})
        ),
        *({"step": s} for s in (None, "2", [2])),
        {"state": [1]},
    ],
    ids=str,
)
def test_a_sealed_record_of_odd_types(tmp_path, change):
    save(tmp_path, 1)
    folder = save(tmp_path, 2)
    reseal(folder, **change)
    said = []
    assert (
        find_newest(tmp_path, log=said.append).path.name == "step-00000001"
        and len(said) == 1
        and "step-00000002: state.json" in said[0]
    )
    for f in (lambda: verify_checkpoint(folder), lambda: load_checkpoint(tmp_path, step=2)):
        refuses("state.json (lacks its step|does not describe)", f)


@pytest.mark.parametrize(
    "change, match",
    [
        *(
            ({k: v}, "does not describe model")
            for k, v in (
                ("size", "9"),
                ("size", None),
                ("sha256", 5),
                ("tied", ["w"]),
                ("tied", None),
            )
        ),
        *(({"tied": {"second": first}}, "second name") for first in ("nowhere", 5, ["w"])),
    ],
    ids=str,
)
def test_a_sealed_file_of_odd_types(tmp_path, change, match):
    folder = save(tmp_path, 1)
    reseal(folder, files=described(folder, **change))
    refuses(match, load_checkpoint, tmp_path, log=lambda line: None)


def test_no_pickle_is_opened(tmp_path):
    (p := tmp_path / "model.pt").write_bytes(pickle.dumps({}))
    refuses("never opens pickles", load_checkpoint, p)


def test_newer_format_is_refused_not_skipped(tmp_path):
    save(tmp_path, 1)
    reseal(save(tmp_path, 2), format=RUN_FORMAT + 1)
    assert f"format {RUN_FORMAT + 1}" in refuses("upgrade gpub", find_newest, tmp_path)


def test_nothing_saved_yet(tmp_path):
    assert find_newest(tmp_path) is None and find_newest(tmp_path / "nowhere") is None
    refuses("holds no checkpoint", load_checkpoint, tmp_path)
    save(tmp_path, 1)
    assert "[1]" in refuses("no checkpoint of step 7", load_checkpoint, tmp_path, step=7)


def test_latest_names_a_folder_that_is_gone(tmp_path):
    save(tmp_path, 1)
    shutil.rmtree(save(tmp_path, 2))
    said = []
    assert (
        find_newest(tmp_path, log=said.append).path.name == "step-00000001"
        and "step-00000002" in said[0]
    )


@posix
def test_a_checkpoint_that_is_a_link_to_nowhere_hides_no_older_one(tmp_path):
    save(tmp_path, 1)
    link = tmp_path / "checkpoints" / "step-00000009"
    link.symlink_to("/nowhere/step-00000009")
    said = []
    assert load_checkpoint(tmp_path, log=said.append).step == 1
    assert len(said) == 1 and "step-00000009 is a link to /nowhere" in said[0]
    refuses("is a link to /nowhere", load_checkpoint, link)
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000001")
    with pytest.raises(Damaged, match="none of its 1 checkpoints is whole .*is a link to"):
        find_newest(tmp_path, log=lambda line: None)


def test_rotation(tmp_path):
    for s in range(1, 8):
        save(tmp_path, s, keep=2, milestone=s in (2, 4))
    assert steps(tmp_path) == [7, 6, 4, 2]
    save(tmp_path, 5, keep=1)  # went back: what lies ahead stays, the one just written too
    assert steps(tmp_path) == [7, 6, 5, 4, 2] and check_whole(tmp_path) == 7
    save(tmp_path, 7, keep=1)
    assert steps(tmp_path) == [7, 4, 2]
    refuses("at least 1, got 0", save, tmp_path, 8, keep=0)


def test_everything_comes_back(tmp_path):
    w = torch.randn(4, 6)
    model = {
        "w": w,
        "same": w,
        "T": w.T,
        "row": w[1],
        "half": w.bfloat16(),
        "scalar": torch.tensor(3),
        "none": torch.empty(0, 4),
        "nan": torch.tensor([float("nan")]),
    }
    ck = load_checkpoint(
        save_checkpoint(tmp_path, 1, model, {}, {"lr": 0.1, "rng": [2**63, "x", None]})
    )
    assert (
        ck.model.keys() == model.keys()
        and ck.model["same"] is ck.model["w"]
        and ck.state == {"lr": 0.1, "rng": [2**63, "x", None]}
    )
    assert (
        all(
            torch.equal(ck.model[k], v) and ck.model[k].dtype == v.dtype
            for k, v in model.items()
            if k != "nan"
        )
        and ck.model["nan"].isnan()
    )
    assert (ck.path / MODEL).stat().st_size < 4 * w.nbytes + 1500, "a shared tensor is written once"


def test_disk_full_is_seen_before_writing(tmp_path, monkeypatch):
    save(tmp_path, 1)
    before = snapshot(tmp_path)
    monkeypatch.setattr(
        drafts.shutil,
        "disk_usage",
        lambda p: namedtuple("U", "total used free")(10**9, 10**9, 50_000),
    )
    monkeypatch.setattr(drafts, "_write_part", lambda *a: pytest.fail("wrote without room"))
    line = refuses("no room", save, tmp_path, 2, n=100_000)
    # 100,000 x (4 + 8 + 4) bytes and change
    assert "1.7 MB" in line and "0.1 MB are free" in line, line
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    "where", ["save_file", "sync_to_disk", "file_sha256", "write_record", "replace_checkpoint"]
)
def test_disk_full_while_writing(tmp_path, monkeypatch, where):
    save(tmp_path, 1)
    before = snapshot(tmp_path)

    def full(*a):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(drafts, where, full)
    refuses("No space left on device", save, tmp_path, 2)
    assert snapshot(tmp_path) == before and not list((tmp_path / "checkpoints").glob(".tmp*"))
    monkeypatch.undo()
    save(tmp_path, 2)
    assert check_whole(tmp_path) == 2


def test_disk_full_on_a_real_small_disk(small_disk, monkeypatch):
    disk = small_disk(1024)
    save(disk, 1, n=10_000)
    before = snapshot(disk)
    refuses("no room", save, disk, 2, n=60_000)
    # somebody else fills the disk after we looked
    monkeypatch.setattr(drafts, "refuse_full_disk", lambda *a: None)
    for n in (60_000, 100_000):
        refuses("No space left", save, disk, 2, n=n)
    assert snapshot(disk) == before and check_whole(disk) == 1


def test_no_permission(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    refuses("Not a directory", save, tmp_path / "file" / "run", 1)
    refuses("cannot write in", lambda: lock_folder(tmp_path / "file" / "run").__enter__())
    save(tmp_path, 1)
    before = snapshot(tmp_path)

    def denied(*a):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(drafts, "save_file", denied)
    refuses("Permission denied", save, tmp_path, 2)
    assert snapshot(tmp_path) == before


def test_interrupted_save_leaves_nothing(tmp_path, monkeypatch):
    save(tmp_path, 1)
    before = snapshot(tmp_path)

    def ctrl_c(*a):
        raise KeyboardInterrupt

    monkeypatch.setattr(drafts, "file_sha256", ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 2)
    assert snapshot(tmp_path) == before


def test_differences():
    have = dict(
        model=dict(context_length=256, d_model=128, name="a"),
        train=dict(betas=[0.9, 0.95]),
        empty={},
    )
    assert (
        differences(have, json.loads(json.dumps(have)))
        == []
        == differences(have, have | dict(train=dict(betas=(0.9, 0.95))))
    )
    assert differences(
        have,
        dict(model=dict(context_length=512, d_model=128, name="b"), train={}, empty={}, seed=None),
    ) == [
        "model.context_length: this run 256, asked 512",
        "model.name: this run 'a', asked 'b'",
        "train.betas: this run [0.9, 0.95], asked for none",
        "train: this run has none, asked {}",
        "seed: this run has none, asked None",
    ]
    assert differences({"a": 1}, {"a": "1"}) == ["a: this run 1, asked '1'"]


HOLD = (
    "import sys, time; from gpub.record.folder import lock_folder\nwith "
    'lock_folder(sys.argv[1]): print("held", '
    "flush=True); time.sleep(60)"
)


def test_lock_across_processes_and_after_kill_9(tmp_path):
    p = Python(["-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        assert p.stdout.readline() == "held\n"
        refuses(f"in use by process {p.pid}", lock_folder(tmp_path).__enter__)
    finally:
        p.kill()
        p.wait()
        p.stdout.close()
    with lock_folder(tmp_path):
        refuses(f"in use by process {os.getpid()}", lock_folder(tmp_path).__enter__)
    with pytest.raises(RuntimeError), lock_folder(tmp_path):
        raise RuntimeError
    with lock_folder(tmp_path):
        pass


def test_a_log_is_cut_at_the_step_and_nowhere_else(tmp_path):
    """Half a last row goes; a character that only Python takes for the end of a line does not;
    damage in the middle is said, and nothing behind it is lost"""
    log = tmp_path / "log.jsonl"
    for i in range(4):
        append_row(log, dict(step=i, text="one\u2028two\x85three"))
    whole = log.read_text()
    log.write_text(whole + '{"step": 4, "te')
    cut_log(log, 2)
    assert log.read_text() == "\n".join(whole.split("\n")[:3]) + "\n" and len(_jsonl(log)) == 3
    for bad in '{"ste', "[1]", '{"loss": 1}', "5":
        log.write_text(f'{{"step": 1}}\n{bad}\n{{"step": 2}}\n')
        refuses("line 2 is no row", lambda: cut_log(log, 9))
        assert '"step": 2' in log.read_text()


def test_lock_where_the_file_system_has_none(tmp_path, monkeypatch):
    def unsupported(file):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fold, "_grab", unsupported)
    said = []
    with lock_folder(tmp_path, log=said.append):
        assert "cannot be locked" in said[0]


# The saver: the same promises, kept by a thread


def put(saver, step, n=1000, **kw):
    saver.save(
        step, tensors(step, n), {"m": torch.full((n,), -float(step))}, {"tokens": step * 10}, **kw
    )


def test_saver_writes_what_the_foreground_writes(tmp_path):
    w = torch.arange(6.0).view(2, 3)
    state = {"lr": 0.1, "deep": [1]}
    model = {
        "w": w,
        "same": w,
        "T": w.T,
        "row": w[1],
        "half": w.bfloat16(),
        "param": torch.nn.Parameter(w.clone()),
        "none": torch.empty(0, 4),
    }
    front = save_checkpoint(
        tmp_path / "a", 1, model, {"step": torch.tensor(3.0)}, state, milestone=True
    )
    with Saver(tmp_path / "b") as saver:
        saver.save(1, model, {"step": torch.tensor(3.0)}, state, milestone=True)
        w.zero_()
        state["deep"].append(2)  # after save returned everything may change
    back = tmp_path / "b" / "checkpoints" / front.name
    assert {f.name: f.read_bytes() for f in front.iterdir()} == {
        f.name: f.read_bytes() for f in back.iterdir()
    }
    assert load_checkpoint(tmp_path / "b").model["same"] is not None and verify_checkpoint(
        back
    ).files[MODEL].tied == {"same": "w"}


def test_save_returns_while_the_disk_is_busy(tmp_path, monkeypatch):
    """The order of events, not a stopwatch: `save` is back while the write stands still, and the
    next one waits for it"""
    let, events, real = threading.Event(), [], drafts.save_file

    def slow(*a):
        assert let.wait(30)
        events.append("written")
        real(*a)

    monkeypatch.setattr(drafts, "save_file", slow)
    with Saver(tmp_path) as saver:
        put(saver, 1)
        events.append("training goes on")
        assert find_newest(tmp_path) is None
        let.set()
        put(saver, 2)
        assert (
            events[:3] == ["training goes on", "written", "written"]
            and find_newest(tmp_path).path.name == "step-00000001"
        )
    assert check_whole(tmp_path) == 2 and (tmp_path / "LATEST").read_text() == "step-00000002\n"


@pytest.mark.parametrize(
    "where",
    [
        "save_file",
        "sync_to_disk",
        "file_sha256",
        "write_record",
        "replace_checkpoint",
        "write_atomic",
        "rotate_checkpoints",
    ],
)
@pytest.mark.parametrize("how", ["save", "wait", "exit"])
def test_a_failure_in_the_thread_is_raised_once(tmp_path, monkeypatch, where, how):
    save(tmp_path, 1)

    def full(*a):
        raise OSError(28, "No space left on device")

    saver = Saver(tmp_path)
    with monkeypatch.context() as m:
        m.setattr(drafts, where, full)
        put(saver, 2)
        after = where in ("write_atomic", "rotate_checkpoints")  # it has its name by then
        line = refuses(
            "step 2 is saved, but its folder" if after else "could not save step 2",
            dict(
                save=lambda: put(saver, 3),
                wait=saver.wait,
                exit=lambda: saver.__exit__(None, None, None),
            )[how],
        )
    assert "No space left on device" in line and check_whole(tmp_path) in (1, 2)
    put(saver, 3)
    saver.wait()
    assert check_whole(tmp_path) == 3 and not list((tmp_path / "checkpoints").glob(".*")), (
        "said once, and the saver works again"
    )


def test_a_step_whose_write_failed_is_not_saved_before_anybody_waits(tmp_path, monkeypatch):
    saver = Saver(tmp_path)
    put(saver, 1)
    assert saver.has(1)
    saver.wait()
    monkeypatch.setattr(drafts.CheckpointDraft, "commit", refuse_to_write)
    put(saver, 2)
    wait([saver._job])
    assert not saver.has(2)
    refuses("the disk is gone", put, saver, 2)


def test_a_bug_in_the_thread_is_not_swallowed(tmp_path, monkeypatch):
    def broken(*a):
        raise ZeroDivisionError("bug")

    monkeypatch.setattr(drafts, "_write_part", broken)
    saver = Saver(tmp_path)
    put(saver, 1)
    with pytest.raises(ZeroDivisionError):
        saver.wait()


def test_what_ended_the_block_is_what_is_raised(tmp_path, monkeypatch):
    said = []
    with pytest.raises(KeyError), Saver(tmp_path, log=said.append) as saver:
        put(saver, 1, n=100_000)
        raise KeyError("first")
    assert check_whole(tmp_path) == 1 and said == [], "the save was finished"

    def full(*a):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(drafts, "save_file", full)
    with pytest.raises(KeyError), Saver(tmp_path, log=said.append) as saver:
        put(saver, 2)
        raise KeyError("first")
    assert len(said) == 1 and "could not save step 2" in said[0]


def test_no_room_is_refused_before_the_copy(tmp_path, monkeypatch):
    save(tmp_path, 1)
    before = snapshot(tmp_path)
    saver = Saver(tmp_path)
    monkeypatch.setattr(
        drafts.shutil,
        "disk_usage",
        lambda p: namedtuple("U", "total used free")(10**9, 10**9, 50_000),
    )
    monkeypatch.setattr(savers, "_snapshot", lambda *a: pytest.fail("copied before looking"))
    assert "0.1 MB are free" in refuses("no room", put, saver, 2, n=100_000)
    refuses("at least 1, got 0", put, Saver(tmp_path, keep=0), 2)
    assert snapshot(tmp_path) == before


@posix
def test_kill_9_in_the_background_never_loses_a_checkpoint(tmp_path):
    rng, done, halfway, mirrored = random.Random(1), 0, 0, 0
    run, away = tmp_path / "run", tmp_path / "away"

    def loop(step, pipe):
        saver = Saver(run, keep=2, mirror=away)
        while True:
            step += 1
            put(saver, step, n=20_000)  # returns when step - 1 is on the disk
            os.write(pipe, (step - 1).to_bytes(4, "big"))

    for _ in range(20):
        r, w = os.pipe()
        pid = forked(lambda: loop(done, w))
        os.close(w)
        for _ in range(rng.randint(2, 4)):
            last = os.read(r, 4)
        time.sleep(rng.random() * 0.02)
        os.kill(pid, signal.SIGKILL)
        assert end(pid) == -signal.SIGKILL
        while more := os.read(r, 4):
            last = more
        os.close(r)
        reported = int.from_bytes(last, "big")
        halfway += any(x.name.startswith(".tmp") for x in (run / "checkpoints").iterdir())
        done = check_whole(run)
        assert reported <= done <= reported + 2, "a checkpoint reported as saved is gone"
        if checkpoints(away):
            assert mirrored <= (mirrored := check_whole(away)) <= done
    assert halfway and mirrored, "no kill fell into a save, or nothing was ever mirrored"
    shutil.rmtree(run)
    restore_from_mirror(run, away, log=lambda line: None)
    assert check_whole(run) == mirrored


# The mirror


def files(run, text):
    run.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "log.jsonl", "samples.jsonl", "tokenizer.json"):
        (run / name).write_text(json.dumps({"format": RUN_FORMAT, "text": text}))


@pytest.fixture
def both(tmp_path):
    "A run of steps 1 (a milestone), 2 and 3 with its mirror"
    run, away = tmp_path / "run", tmp_path / "away"
    files(run, "x")
    with Saver(run, keep=2, mirror=away) as saver:
        for step in (1, 2, 3):
            put(saver, step, milestone=step == 1)
    return run, away


def test_mirror_equals_the_run(both):
    run, away = both
    assert steps(away) == steps(run) == [3, 2, 1] and snapshot(run) == snapshot(away)
    before = {p: p.stat().st_mtime_ns for p in (away / "checkpoints").rglob("*")}
    mirror_run(run, away)
    assert before == {p: p.stat().st_mtime_ns for p in (away / "checkpoints").rglob("*")}, (
        "copied what was there"
    )
    save(run, 4, keep=1)
    mirror_run(run, away, keep=1)
    assert steps(away) == [4, 1]


def test_a_mirror_empties_what_it_deletes(tmp_path, monkeypatch):
    "A mounted Drive moves it to its trash, where it counts for 30 days; the run's own stay whole"
    sizes = []
    delete = drafts._delete

    def watched(path):
        sizes.append([f.stat().st_size for f in path.iterdir()] if path.is_dir() else [])
        delete(path)

    monkeypatch.setattr(drafts, "_delete", watched)
    drive = tmp_path / "drive" / "MyDrive"
    for home, emptied in ((tmp_path, True), (tmp_path, False), (drive, False)):
        folder = home / "step-00000001"
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(bytes(100))
        drafts.discard_checkpoint(folder, emptied)
    assert sizes == [[0], [100], [0]] and not any(drive.iterdir())


def test_restore_into_nothing_and_from_behind(both):
    run, away = both
    said, whole = [], snapshot(run)
    shutil.rmtree(run)
    assert restore_from_mirror(run, away, said.append) == find_newest(run).path
    assert check_whole(run) == 3 and said == [
        f"{run} had no checkpoint: brought step 3 back from {away}"
    ]
    assert snapshot(run) == {
        k: v for k, v in whole.items() if "step-00000003" in k or "checkpoints" not in k
    }
    shutil.rmtree(run / "checkpoints")
    save(run, 2)
    (run / "log.jsonl").write_text("old")
    restore_from_mirror(run, away, said.append)
    assert (
        "had only step 2" in said[-1]
        and check_whole(run) == 3
        and (run / "log.jsonl").read_text() == (away / "log.jsonl").read_text()
    )
    n = len(said)
    save(run, 4)
    assert (
        restore_from_mirror(run, away, said.append) is None
        and check_whole(run) == 4
        and len(said) == n
    )
    assert restore_from_mirror(run, away / "nowhere", said.append) is None


@pytest.mark.parametrize("kind", ["truncated", "bit flip", "missing", "no state", "a text file"])
def test_damage_on_either_side(both, kind):
    run, away = both
    said = []
    for folder in [*checkpoints(run)]:
        damage(kind, folder)
    restore_from_mirror(run, away, said.append)
    assert check_whole(run) == 3, "all damaged here, whole there"
    shutil.rmtree(run)
    damage(kind, checkpoints(away)[0])
    restore_from_mirror(run, away, said.append)
    assert check_whole(run) == 2, "the mirror too steps back to what is whole"
    for folder in checkpoints(away):
        shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
    shutil.rmtree(run)
    damage(kind, save(away, 9))
    refuses("none of its 1 checkpoints is whole", restore_from_mirror, run, away, said.append)
    assert not run.exists()
    save(run, 5)
    assert restore_from_mirror(run, away, said.append) is None and check_whole(run) == 5
    assert all("\n" not in line for line in said)


def test_a_copy_that_arrives_damaged_gets_no_name(both, monkeypatch):
    run, away = both
    save(run, 4, keep=2)
    real, said = shutil.copyfile, []

    def bad(a, b):
        real(a, b)
        str(b).endswith(MODEL) and os.truncate(b, 99)

    with monkeypatch.context() as m:
        m.setattr(shutil, "copyfile", bad)
        with pytest.raises(Damaged, match="99 bytes"):
            mirror_run(run, away, keep=2)
    assert steps(away) == [3, 2, 1] and check_whole(away) == 3
    mirror_run(run, away, keep=2)
    assert snapshot(run) == snapshot(away)


def test_a_mirror_that_fails_and_recovers(tmp_path):
    run, blocked, said = tmp_path / "run", tmp_path / "blocked", []
    blocked.write_text("a file where the mirror should be")
    saver = Saver(run, mirror=blocked / "away", log=said.append)
    put(saver, 1)
    put(saver, 2)  # training goes on
    line = refuses("its mirror .* is behind", saver.wait)
    assert f"the run is safe in {run}" in line
    assert (
        check_whole(run) == 2 and said and all("tries again" in s and "\n" not in s for s in said)
    )
    blocked.unlink()
    put(saver, 3)
    saver.wait()
    assert snapshot(run) == snapshot(blocked / "away") and steps(run) == [3, 2, 1]


def test_a_mirror_that_is_unplugged(both):
    run, away = both
    said = []
    saver = Saver(run, mirror=away, log=said.append)
    put(saver, 4)
    saver.wait()
    away.rename(away.with_name("pulled"))
    away.mkdir()  # the mount point stays
    put(saver, 5)
    refuses("unplugged", saver.wait)
    assert not list(away.iterdir()), "filled the empty mount point"
    away.rmdir()
    away.with_name("pulled").rename(away)
    put(saver, 6)
    saver.wait()
    assert check_whole(away) == 6


def test_mirror_full_on_a_real_small_disk(tmp_path, small_disk):
    run, away, said = tmp_path / "run", small_disk(1024), []
    saver = Saver(run, mirror=away, log=said.append)
    put(saver, 1, n=10_000)
    saver.wait()
    put(saver, 2, n=60_000)
    assert "are free" in refuses("no room for a checkpoint", saver.wait)
    assert check_whole(run) == 2 and check_whole(away) == 1 and len(said) == 1
    (away / "filler").write_bytes(bytes(700_000))
    (run / "log.jsonl").write_bytes(bytes(900_000))  # now not even the log fits
    put(saver, 3, n=100)
    refuses("No space left", saver.wait)
    assert check_whole(away) == 1
    (away / "filler").unlink()
    (run / "log.jsonl").write_text("{}")
    shutil.rmtree(run / "checkpoints" / "step-00000002")
    saver.wait()
    assert check_whole(away) == 3


def test_no_free_byte_on_a_real_disk(small_disk):
    disk = small_disk(1024)
    saver = Saver(disk)
    put(saver, 1)
    saver.wait()
    with pytest.raises(OSError), open(disk / "filler", "wb", buffering=0) as f:
        while True:
            f.write(bytes(4096))
    assert shutil.disk_usage(disk).free == 0
    before = snapshot(disk)
    for f in (save, lambda *a: put(saver, 2)):
        assert "0.0 MB are free" in refuses("no room", f, disk, 2)
    assert snapshot(disk) == before and check_whole(disk) == 1
    (disk / "filler").unlink()
    put(saver, 2)
    saver.wait()
    assert check_whole(disk) == 2, "made room, and on it goes"


def test_a_mirror_of_a_newer_gpub_is_left_alone(both):
    run, away = both
    shutil.rmtree(run)
    reseal(checkpoints(away)[0], format=RUN_FORMAT + 1)
    before = snapshot(away)
    refuses("upgrade gpub", restore_from_mirror, run, away)
    assert snapshot(away) == before and not run.exists()


def test_a_read_only_disk(small_disk):
    disk = small_disk(4096)
    saver = Saver(disk)
    put(saver, 1)
    saver.wait()
    before = snapshot(disk)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    for f in (save, lambda *a: put(saver, 2)):
        # at once, before a copy
        refuses(
            "Read-only file system. Training has stopped; earlier checkpoints are whole", f, disk, 2
        )
    assert snapshot(disk) == before and check_whole(disk) == 1


def test_a_mirror_of_another_run_is_refused(both, tmp_path):
    run, away = both
    other = tmp_path / "other"
    files(other, "y")
    before = snapshot(away)
    for f in (
        lambda: Saver(other, mirror=away),
        lambda: mirror_run(other, away),
        lambda: restore_from_mirror(other, away),
    ):
        assert "text: this run 'x', asked 'y'" in refuses("holds another run", f)
    for content in "[1]", "5", "null":
        (other / "config.json").write_text(content)
        refuses("holds another run.*config.json", mirror_run, other, away)
    for bad in (run, run / "mirror"):
        refuses("inside the run folder", Saver, run, mirror=bad)
    assert snapshot(away) == before


def test_mirrors_do_not_pile_up(tmp_path, monkeypatch):
    "A mirror slower than the saves copies the newest, not a queue of old ones"
    let, started, calls, real = threading.Event(), threading.Event(), [], mirrors.mirror_run

    def slow(*a):
        calls.append(1)
        started.set()
        assert let.wait(30)
        real(*a)

    monkeypatch.setattr(mirrors, "mirror_run", slow)
    saver = Saver(tmp_path / "run", keep=2, mirror=tmp_path / "away")
    put(saver, 1)
    assert started.wait(30)
    for step in range(2, 9):
        put(saver, step)
    saver.await_last_write()
    let.set()
    saver.wait()
    assert len(calls) == 3 and steps(tmp_path / "away") == [8, 7]


# what reached the disk


@pytest.mark.parametrize("name", [MODEL, OPTIMIZER])
def test_what_the_disk_has_is_compared_with_memory(tmp_path, monkeypatch, name):
    "A byte that was changed on its way to the disk would otherwise get a checksum that fits"
    save(tmp_path, 1)
    write = drafts.save_file

    def changed(tensors, path):
        write(tensors, path)
        if path.name == name:
            content = bytearray(path.read_bytes())
            content[-3] ^= 4
            path.write_bytes(content)

    monkeypatch.setattr(drafts, "save_file", changed)
    refuses("other bytes than were written", save, tmp_path, 2)
    monkeypatch.undo()
    assert steps(tmp_path) == [1] and check_whole(tmp_path) == 1


def test_LATEST_that_fell_behind_is_put_right(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    (tmp_path / "LATEST").write_text("step-00000001\n")
    drafts.mark_latest(tmp_path)
    assert (tmp_path / "LATEST").read_text() == "step-00000002\n"
    drafts.mark_latest(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_file_that_cannot_be_opened_at_the_second_time(tmp_path, monkeypatch):
    "safetensors says so as a RuntimeError"

    def fails(path):
        raise RuntimeError(f"unable to open file <{path}> in read-only mode: Input/output error")

    save(tmp_path, 1)
    monkeypatch.setattr(ckpt, "load_file", fails)
    refuses("cannot be read: unable to open", load_checkpoint, tmp_path)


def test_a_moment_of_trouble_while_reading_is_no_damage(tmp_path, monkeypatch):
    "An older checkpoint is not taken for a newer one that could not be read once"
    save(tmp_path, 1)
    save(tmp_path, 2)
    read, failed = type(tmp_path).read_text, []

    def fails_once(path, *args, **how):
        if path.name == "state.json" and not failed:
            failed.append(path)
            raise OSError(5, "Input/output error")
        return read(path, *args, **how)

    monkeypatch.setattr(type(tmp_path), "read_text", fails_once)
    assert load_checkpoint(tmp_path, log=pytest.fail).step == 2 and failed


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError(5, "I/O")])
def test_a_file_that_cannot_be_read_is_one_line_and_no_damage(tmp_path, monkeypatch, error):
    "An older checkpoint is not taken for one that may be whole"

    def fails(path):
        if path.parent.name == "step-00000002":
            raise error
        return read(path)

    save(tmp_path, 1)
    save(tmp_path, 2)
    read = folders.file_sha256
    monkeypatch.setattr(folders, "file_sha256", fails)
    monkeypatch.setattr(folders, "_CHECKSUMS", {})
    refuses(f"{MODEL} cannot be read: .*{error.strerror}", load_checkpoint, tmp_path)
    assert load_checkpoint(tmp_path, step=1).step == 1


@pytest.mark.parametrize("moment", ["verify", "read"])
def test_a_load_that_races_with_rotation(tmp_path, monkeypatch, moment):
    """What was chosen is rotated away before it is read: a newer one is in its place, and is taken
    before an old milestone"""
    save(tmp_path, 1, milestone=True)
    save(tmp_path, 2, keep=1)
    owner, name = dict(verify=(folders.FileEntry, "verify"), read=(ckpt, "_read_part"))[moment]
    real, saved = getattr(owner, name), []

    def overtaken(*args):
        if not saved:
            saved.append(3)
            save(tmp_path, 3, keep=1)
        return real(*args)

    monkeypatch.setattr(owner, name, overtaken)
    assert load_checkpoint(tmp_path, log=pytest.fail).step == 3


def test_a_file_that_is_rewritten_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    "However long the first reading took: its time may be that of both contents"
    path = tmp_path / MODEL
    path.write_bytes(b"old")
    written = path.stat().st_mtime_ns
    clock = iter([written, written + 10**10, written + 10**10, written + 2 * 10**10])
    monkeypatch.setattr(folders.time, "time_ns", lambda: next(clock))
    monkeypatch.setattr(folders, "_CHECKSUMS", {})
    old = folders.cached_checksum(path)
    path.write_bytes(b"new")
    os.utime(path, ns=(written, written))
    assert folders.cached_checksum(path) != old


def test_a_checkpoint_folder_without_its_state_is_named(tmp_path):
    folder = save(tmp_path, 1)
    (folder / "state.json").unlink()
    refuses("state.json is missing", load_checkpoint, folder)


def test_a_run_folder_may_be_named_almost_as_a_checkpoint(tmp_path):
    run = tmp_path / "checkpoints" / "step-1"
    save(run, 3)
    assert load_checkpoint(run).step == 3


def test_damage_is_not_taken_for_a_race(tmp_path, monkeypatch):
    "Of two checkpoints the newer is deleted while it is read, and the other is damaged"
    for step in (1, 2):
        save(tmp_path, step)
    real = ckpt.verify_checkpoint

    def gone(folder, parts):
        if folders.step_of(folder) == 2:
            shutil.rmtree(folder)
        return real(folder, parts)

    monkeypatch.setattr(ckpt, "verify_checkpoint", gone)
    (tmp_path / "checkpoints" / "step-00000001" / MODEL).write_bytes(b"half")
    with pytest.raises(Damaged, match="none of its 1 checkpoints is whole"):
        find_newest(tmp_path, log=lambda line: None)


def test_a_reader_that_is_always_too_late_gives_up(tmp_path, monkeypatch):
    def overtaken(folder, parts):
        save(tmp_path, folders.step_of(folder) + 1, keep=1)
        raise Damaged(f"{folder} is gone")

    save(tmp_path, 1)
    monkeypatch.setattr(ckpt, "verify_checkpoint", overtaken)
    refuses("deleted while they were read", load_checkpoint, tmp_path, log=pytest.fail)


def test_the_one_step_that_was_asked_for_goes_before_it_is_listed(tmp_path, monkeypatch):
    save(tmp_path, 1)

    def gone(path, log):
        save(tmp_path, 2, keep=1)

    monkeypatch.setattr(ckpt, "_warn_of_stale_latest", gone)  # called before the folders are listed
    refuses(r"no checkpoint of step 1; it has \[2\]", load_checkpoint, tmp_path, step=1)


@pytest.mark.parametrize("in_run", [True, False])
def test_a_single_checkpoint_that_goes_while_it_is_read_is_said_to_be_gone(
    tmp_path, monkeypatch, in_run
):
    folder = save(tmp_path, 1)
    if not in_run:
        folder = Path(shutil.copytree(folder, tmp_path / "copy"))

    def gone(record, part):
        shutil.rmtree(folder)
        raise Damaged(f"{part} is missing")

    monkeypatch.setattr(ckpt, "_read_part", gone)
    refuses("deleted while they were read", load_checkpoint, folder, log=pytest.fail)


def test_a_milestone_that_cannot_be_read_stays(tmp_path, monkeypatch):
    "What nobody can read now may be whole tomorrow: it is not rotated away"
    save(tmp_path, 1, milestone=True)
    save(tmp_path, 2)
    read = type(tmp_path).read_text

    def fails(path, *args, **how):
        if path.name == "state.json" and "00000001" in str(path):
            raise OSError(5, "Input/output error")
        return read(path, *args, **how)

    monkeypatch.setattr(type(tmp_path), "read_text", fails)
    save(tmp_path, 3, keep=1)
    monkeypatch.undo()
    assert steps(tmp_path) == [3, 1]


@pytest.mark.parametrize("content", ["", "[1]", '{"step": 1'])
def test_a_milestone_whose_state_is_damaged_stays(tmp_path, content):
    "Its weights may be whole: rotation leaves it to a person"
    folder = save(tmp_path, 1, milestone=True)
    (folder / "state.json").write_text(content)
    save(tmp_path, 2)
    save(tmp_path, 3, keep=1)
    assert steps(tmp_path) == [3, 1]


def test_a_mirror_keeps_no_leftovers(both):
    "What a full disk or a kill left half done goes with the next copy, and rotation catches up"
    run, away = both
    extra = away / "checkpoints" / "step-00000000"
    shutil.copytree(run / "checkpoints" / "step-00000002", extra)
    for name in (".tmp-gone-step-00000009", ".tmp-step-00000009"):
        (away / "checkpoints" / name).mkdir()
    (away / ".log.jsonl.1.0a1b.part").write_text("{")
    mirror_run(run, away, keep=2)
    assert sorted(p.name for p in away.rglob("*")) == sorted(p.name for p in run.rglob("*"))


def test_what_was_replaced_is_gone(both):
    "A damaged newest checkpoint that the mirror brings back leaves nothing beside it"
    run, away = both
    damaged = checkpoints(run)[0] / MODEL
    damaged.write_bytes(damaged.read_bytes()[:-1])
    restore_from_mirror(run, away, log=lambda line: None)
    assert check_whole(run) == 3
    assert not [p for p in (run / "checkpoints").iterdir() if p.suffix == ".old"]


def aged(run):
    "The same files, written an hour ago"
    for path in run.rglob("*.safetensors"):
        os.utime(path, (time.time() - 3600,) * 2)


def test_a_process_reads_a_checkpoint_once(tmp_path, monkeypatch):
    "However often it is asked for; a file that changed is read again"
    summed, real = [], folders.file_sha256
    save(tmp_path, 1)
    folder = save(tmp_path, 2)
    aged(tmp_path)
    monkeypatch.setattr(folders, "file_sha256", lambda path: summed.append(path.name) or real(path))
    run = Run(tmp_path)
    assert run.newest().step == run.steps == run.load().step == load_checkpoint(tmp_path).step == 2
    assert run.weights_checksum() == real(folder / MODEL)
    assert sorted(summed) == [MODEL, OPTIMIZER]
    content = bytearray((folder / MODEL).read_bytes())
    content[-1] ^= 1
    (folder / MODEL).write_bytes(content)  # as long as before
    assert find_newest(tmp_path, log=lambda line: None).step == 1
    assert len(summed) == 5 and Run.at(run) is run


def test_a_border_of_phases_reads_the_newest_checkpoint_once(tmp_path, text, monkeypatch):
    "Where it stands, under which recipe, and the trainer that goes on from it"
    settings = dict(steps=4, d_model=16, n_layers=1, n_heads=2, context_length=32, batch_tokens=256)
    settings |= dict(precision="fp32", compile="no")
    options = RunOptions(
        "shakespeare", tmp_path / "run", text, settings, "cpu", save_every=2, changeable=("steps",)
    )
    Trainer(options).go()
    aged(tmp_path)
    summed, real = [], folders.file_sha256
    monkeypatch.setattr(folders, "file_sha256", lambda path: summed.append(str(path)) or real(path))
    assert steps_reached(tmp_path / "run") == newest_recipe(tmp_path / "run")[0] == 4
    Trainer(replace(options, settings=settings | dict(steps=6))).go()
    newest = [name for name in summed if "/step-00000004/" in name]
    assert sorted(Path(name).name for name in newest) == [MODEL, OPTIMIZER]
    assert Run(tmp_path / "run").steps == 6


def test_who_asks_for_every_byte_gets_every_byte_read(tmp_path):
    "A disk that forgets a bit leaves the time of the file as it was"
    folder = save(tmp_path, 1)
    aged(tmp_path)
    assert find_newest(tmp_path).step == 1
    path, before = folder / MODEL, (folder / MODEL).stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    with open(path, "r+b") as file:
        file.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    refuses("has checksum", verify_checkpoint, folder, use_cache=False)


def test_a_run_folder_stays_one_whatever_a_tool_puts_there(tmp_path):
    save(tmp_path, 1)
    (tmp_path / "state.json").write_text("{}")
    assert load_checkpoint(tmp_path, step=1).step == 1


def test_a_damaged_step_that_was_asked_for_names_the_others(tmp_path):
    save(tmp_path, 3)
    damage("truncated", save(tmp_path, 4))
    line = refuses("other steps of", load_checkpoint, tmp_path, 4, log=lambda line: None)
    assert "[3]" in line and "start again" not in line


def test_a_step_that_is_damaged_is_found_under_its_other_name(tmp_path):
    folder = save(tmp_path, 1)
    shutil.copytree(folder, folder.with_name(folder.name + ".old"))
    damage("truncated", folder)
    for step in (None, 1):
        assert load_checkpoint(tmp_path, step, log=lambda line: None).path.suffix == ".old"


def small_run(folder, **settings):
    small = dict(steps=6, warmup=1, log_every=1, d_model=16, n_layers=1, n_heads=2)
    return Trainer(
        RunOptions(
            "shakespeare",
            folder,
            settings=small | dict(context_length=16) | settings,
            device="cpu",
            save_every=2,
            log=lambda s: None,
        )
    )


def refuse_to_write(draft, parts):
    raise GpubError("the disk is gone")


def test_what_fails_after_a_save_does_not_call_it_unsaved(tmp_path):
    (tmp_path / "LATEST").mkdir()
    line = refuses("step 3 is saved, but its folder", save, tmp_path, 3)
    assert "it and earlier checkpoints are whole" in line
    assert find_newest(tmp_path).step == 3


def test_a_stop_says_saved_only_of_what_is_saved(tmp_path, monkeypatch):
    with pytest.raises(GpubError, match="the disk is gone"):
        with small_run(tmp_path / "run").opened() as run:
            monkeypatch.setattr(drafts.CheckpointDraft, "commit", refuse_to_write)
            run.stop_requested.set()
            next(run.steps())
    monkeypatch.undo()
    with pytest.raises(Interrupted, match="stopped at step 1 of 6, saved in"):
        with small_run(tmp_path / "again").opened() as run:
            run.stop_requested.set()
            next(run.steps())
    assert find_newest(tmp_path / "again").step == 1


def test_a_divergence_is_told_though_the_last_write_failed(tmp_path, monkeypatch):
    with pytest.raises(Diverged, match="at step 3.*last good checkpoint is none yet"):
        with small_run(tmp_path / "run").opened() as run:
            monkeypatch.setattr(drafts.CheckpointDraft, "commit", refuse_to_write)
            for step in run.steps():
                if step.n == 2:
                    with torch.no_grad():
                        next(run.learner.model.parameters()).fill_(float("nan"))


def test_a_divergence_is_told_though_no_checkpoint_is_whole(tmp_path):
    with pytest.raises(Diverged, match="at step 4.*last good checkpoint is none yet"):
        with small_run(tmp_path / "run").opened() as run:
            for step in run.steps():
                if step.n == 3:
                    run.saver.wait()
                    damage("truncated", tmp_path / "run/checkpoints/step-00000002")
                    with torch.no_grad():
                        next(run.learner.model.parameters()).fill_(float("nan"))


def fail_once(monkeypatch, step):
    "The next write of this step fails in the thread; the one after it does not"
    commit = drafts.CheckpointDraft.commit
    failed = []

    def write(draft, *given):
        if draft.step == step and not failed:
            failed.append(step)
            raise GpubError("the disk is gone")
        return commit(draft, *given)

    monkeypatch.setattr(drafts.CheckpointDraft, "commit", write)


def test_a_last_checkpoint_whose_write_failed_is_written_again(tmp_path, monkeypatch):
    fail_once(monkeypatch, 6)
    with small_run(tmp_path).opened() as run:
        for step in run.steps():
            pass
        refuses("the disk is gone", run.save, step, wait=True)
        run.save(step, wait=True)
        assert find_newest(tmp_path).step == 6
    assert (tmp_path / "bill.json").is_file()


def test_a_run_whose_last_checkpoint_is_not_there_is_not_finished(tmp_path, monkeypatch):
    fail_once(monkeypatch, 6)
    with small_run(tmp_path).opened() as run:
        for step in run.steps():
            pass
        refuses("the disk is gone", run.saver.wait)
    assert find_newest(tmp_path).step == 4
    assert not (tmp_path / "bill.json").exists()
    small_run(tmp_path).go()
    assert find_newest(tmp_path).step == 6
    assert (tmp_path / "bill.json").is_file()


def test_a_run_whose_last_step_diverged_is_not_finished(tmp_path):
    with small_run(tmp_path).opened() as run:
        with pytest.raises(Diverged, match="at step 6"):
            for step in run.steps():
                if step.n == 5:
                    with torch.no_grad():
                        next(run.learner.model.parameters()).fill_(float("nan"))
    assert find_newest(tmp_path).step == 4
    assert not (tmp_path / "bill.json").exists()


def test_each_process_of_a_run_is_paid_at_its_own_price(tmp_path):
    "3,600 dollars an hour, then nothing: seconds go on, dollars do not"
    price = dict(usd_per_hour=3600.0)
    first = small_run(tmp_path / "run")
    first.options = replace(first.options, **price)
    with first.opened() as run:
        for step in run.steps():
            if step.n == 2:
                break
        run.save(step, wait=True)
    paid = read_state(tmp_path / "run/checkpoints/step-00000002")["usd"]
    small_run(tmp_path / "run").go()
    last = read_log(tmp_path / "run")[-1]
    assert 0 < paid == pytest.approx(last["usd"], abs=1e-6) and last["seconds"] > paid


def read_state(folder):
    return json.loads((folder / "state.json").read_text())["state"]


def test_pretraining_refuses_the_options_of_tuning(tmp_path):
    with pytest.raises(GpubError, match="SftOptions are no options of pretraining"):
        Trainer(SftOptions(run="run", out=str(tmp_path / "tuned"), data="chats")).task
