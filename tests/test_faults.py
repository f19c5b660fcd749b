"""Every write, fsync, rename and open of every command in `tools/faults/jobs.py` fails, one at a
time, or is the last one before a kill or a power cut: what went wrong is said in one line, logs are
never behind a checkpoint, and the same command goes on to the same end. `tools/faults/sweep.py`
does it; every n-th call runs in `make test-all`, a few of each job in `test_goes_on.py`."""

import json
from pathlib import Path

import pytest
from contracts import JOBS, broken, linux
from sweep import CALLS, KINDS, faults_of, sweep

from gpub.files import shipped


@pytest.mark.full(instead="test_goes_on.py::test_goes_on")
@linux
def test_a_few_faults():
    "Every 40th of one: the sweep itself works"
    cases = sweep(["train"], quick=True, processes=1, every=40)
    assert len(cases) > 5
    assert {case["code"] for case in cases} >= {0, 1}, "no fault was met, or none was absorbed"
    assert not broken(cases)


# every n-th call here; `tools/faults/sweep.py` tries them all
EVERY = dict(train=5, run=6, mirror=16, ddp=240, fsdp=240, grow=8)
EVERY |= dict(sft=6, dpo=6, grpo=6, lora=12) | {"chat-plan": 90}


@linux
@pytest.mark.full(instead="test_goes_on.py::test_goes_on")
@pytest.mark.parametrize("job", JOBS)
def test_every_call_fails_once(job):
    """The twin's calls with every error, once and for good; those of the others with one of each.
    Kills and power cuts of all"""
    cases = sweep([job], quick=job != "train", every=EVERY.get(job, 1))
    kinds = {*KINDS} if JOBS[job].has_checkpoints else {*KINDS} - {"damaged"}
    assert {case["kind"] for case in cases} == kinds
    assert not broken(cases)


def promises():
    "Each cell of the page's table that promises something: row, column, words, tests"
    table = json.loads(shipped("survives.json").read_text(encoding="utf-8"))
    for row in table["rows"]:
        assert len(row["cells"]) == len(table["columns"])
        for column, cell in zip(table["columns"], row["cells"]):
            if cell:
                yield row["what"], column, cell["holds"], cell["tests"]


def missing_tests(tests):
    "Those of `file.py::test_name` that are in no file of tests"
    pairs = [name.partition("::")[::2] for name in tests]
    here = Path(__file__).parent
    files = {file: here / file for file, _ in pairs}
    sources = {n: p.read_text(encoding="utf-8") if p.is_file() else "" for n, p in files.items()}
    return [f"{n}::{test}" for n, test in pairs if f"\ndef {test}(" not in sources[n]]


def test_each_promise_of_the_page_has_its_test():
    found = [*promises()]
    assert len(found) > 20
    assert not [(row, column) for row, column, holds, tests in found if not (holds and tests)]
    named = sorted({name for _, _, _, tests in found for name in tests})
    assert missing_tests(named) == []
    assert missing_tests(["test_faults.py::test_no", "test_none.py::test_a"]) == [
        "test_faults.py::test_no",
        "test_none.py::test_a",
    ]


def test_the_night_sweeps_more_than_a_push(root):
    "Every error, once and for good, of all commands; its receipt is kept"
    night = (root / ".github/workflows/faults.yml").read_text(encoding="utf-8")
    [line] = [line for line in night.splitlines() if "sweep.py" in line]
    assert "cron:" in night and "--receipt" in line
    assert not {"--quick", "--jobs", "--kinds", "--every"} & {*line.split()}
    counts = dict.fromkeys(CALLS, 40)
    few, many = ([*faults_of("train", counts, quick)] for quick in (True, False))
    assert {*few} < {*many} and len(many) > 1.5 * len(few)


# no memory


@pytest.mark.parametrize("nth", range(1, 9))
def test_no_memory_while_saving(tmp_path, monkeypatch, nth):
    "The n-th copy of a tensor finds no memory: the earlier checkpoint is whole, and it is said"
    import torch

    import gpub.record.checkpoint_draft as draft
    from gpub.record.checkpoint import load_checkpoint, save_checkpoint
    from gpub.record.saver import Saver

    tensors = {str(i): torch.full((8,), float(i)) for i in range(3)}
    save_checkpoint(tmp_path, 1, tensors, tensors, {})
    real, calls = draft._to_host, []

    def host(tensor):
        calls.append(1)
        if len(calls) == nth:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: 96 bytes")
        return real(tensor)

    monkeypatch.setattr(draft, "_to_host", host)
    saver = Saver(tmp_path)
    saver.save(2, tensors, tensors, {})
    if nth <= 6:
        with pytest.raises(ValueError, match="could not save step 2.*can't allocate memory"):
            saver.wait()
    else:
        saver.wait()
    monkeypatch.undo()
    assert load_checkpoint(tmp_path).step == (1 if nth <= 6 else 2)
    assert not [*(tmp_path / "checkpoints").glob(".*")]
    saver.save(3, tensors, tensors, {})
    saver.wait()
    assert load_checkpoint(tmp_path).step == 3


def test_no_memory_while_loading_is_no_damage(tmp_path, monkeypatch):
    "It is said as what it is; nothing is passed over for an older checkpoint"
    import torch

    import gpub.record.checkpoint as checkpoint
    from gpub.record.checkpoint import load_checkpoint, save_checkpoint

    for step in (1, 2):
        save_checkpoint(tmp_path, step, {"w": torch.zeros(8)}, {}, {})

    def full(path):
        raise MemoryError

    monkeypatch.setattr(checkpoint, "load_file", full)
    with pytest.raises(MemoryError):
        load_checkpoint(tmp_path, log=pytest.fail)
    monkeypatch.undo()
    assert load_checkpoint(tmp_path).step == 2
