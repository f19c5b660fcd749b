"""Every write, fsync, rename and open of five small commands fails, one at a time: what went wrong
is said in one line, logs are never behind a checkpoint, and the same command goes on to the same
end. `tools/faults/sweep.py` does it; all of it runs at night."""

import json
import sys
from pathlib import Path

import pytest

from gpub.files import shipped

TOOLS = Path(__file__).resolve().parent.parent / "tools" / "faults"
sys.path.insert(0, str(TOOLS))
from sweep import CALLS, compiler, faults_of, sweep  # noqa: E402

linux = pytest.mark.skipif(
    sys.platform != "linux" or compiler() is None,
    reason="a fault is injected by a library in front of libc: Linux with a C compiler",
)


def broken(cases):
    "What broke, in words"
    named = ("job", "call", "number", "error", "lasts")
    return [([case[k] for k in named], case["wrong"]) for case in cases if case["wrong"]]


@linux
def test_a_few_faults():
    "Every 20th of each job's: the sweep itself works"
    cases = sweep(["train", "export", "prep"], quick=True, every=20)
    assert {case["job"] for case in cases} == {"train", "export", "prep"}
    assert {case["code"] for case in cases} >= {0, 1}, "no fault was met, or none was absorbed"
    assert not broken(cases)


@linux
@pytest.mark.full(instead="test_a_few_faults")
@pytest.mark.parametrize("job", ["train", "prep", "export", "eval", "run"])
def test_every_call_fails_once(job):
    cases = sweep([job], quick=True)
    assert len(cases) > 25
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
    "Every error, once and for good, of all five commands; its receipt is kept"
    night = (root / ".github/workflows/faults.yml").read_text(encoding="utf-8")
    [line] = [line for line in night.splitlines() if "sweep.py" in line]
    assert "cron:" in night and "--receipt" in line
    assert not {"--quick", "--jobs", "--kinds", "--every"} & {*line.split()}
    counts = dict.fromkeys(CALLS, 40)
    few, many = ([*faults_of("train", counts, quick)] for quick in (True, False))
    assert {*few} < {*many} and len(many) > 1.5 * len(few)


# a power cut


@linux
@pytest.mark.full(instead="test_a_few_faults")
def test_no_power_cut_loses_what_a_checkpoint_says(tmp_path, monkeypatch):
    """At every fsync and rename of a small run the power goes: what was synced is a folder in which
    the same command goes on to the same end, and no log is behind a checkpoint"""
    import jobs
    from power import put_back, watched

    import gpub.train.trainer as trainer
    from gpub.train.trainer import Trainer

    text = tmp_path / "play.txt"
    jobs.write_play(tmp_path)
    monkeypatch.setattr(trainer, "write_report", lambda out: Path(out) / "report.html")
    monkeypatch.setattr(trainer, "matmul_peak", lambda *given: 1e12)
    small = dict(steps=4, d_model=8, n_layers=1, n_heads=1, context_length=8, batch_tokens=16)
    small |= dict(precision="fp32", compile="no", log_every=1, stages=((0.0, 8),))
    small |= dict(depths=((0.0, 1),))

    def train(out):
        return Trainer("shakespeare", out, text, small, "cpu", save_every=2, log=print).go()

    wanted = jobs.run_folder(train(tmp_path / "undisturbed"))
    (tmp_path / "watched").mkdir()
    with watched(tmp_path / "watched") as disk:
        train(tmp_path / "watched" / "run")
    assert len(disk.states) > 10, "nothing was watched"
    ahead = 0
    for digest, state in disk.states.items():
        place = tmp_path / digest[:12]
        put_back(state, place)
        if (place / "run" / "checkpoints").is_dir():
            ahead += 1
            assert not jobs.record_not_behind(place / "run"), sorted(state)
        if (place / "run" / "config.json").is_file() and not state["run/config.json"]:
            continue  # names without content: what a journal of names alone may leave
        assert not (jobs.run_folder(train(place / "run")).items() ^ wanted.items()), sorted(state)
    assert ahead, "the power never went after a checkpoint"


# no memory


@pytest.mark.parametrize("nth", range(1, 9))
def test_no_memory_while_saving(tmp_path, monkeypatch, nth):
    "The n-th copy of a tensor finds no memory: the earlier checkpoint is whole, and it is said"
    import torch

    import gpub.record.checkpoint as checkpoint
    from gpub.record.checkpoint import Saver, load_checkpoint, save_checkpoint

    tensors = {str(i): torch.full((8,), float(i)) for i in range(3)}
    save_checkpoint(tmp_path, 1, tensors, tensors, {})
    real, calls = checkpoint._host, []

    def host(tensor):
        calls.append(1)
        if len(calls) == nth:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: 96 bytes")
        return real(tensor)

    monkeypatch.setattr(checkpoint, "_host", host)
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
