"""Every write, fsync, rename and open of five small commands fails, one at a time: what went wrong
is said in one line, logs are never behind a checkpoint, and the same command goes on to the same
end. `tools/faults/sweep.py` does it; all of it runs at night."""

import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parent.parent / "tools" / "faults"
sys.path.insert(0, str(TOOLS))
from sweep import compiler, sweep  # noqa: E402

linux = pytest.mark.skipif(
    sys.platform != "linux" or compiler() is None,
    reason="a fault is injected by a library in front of libc: Linux with a C compiler",
)


def broken(cases):
    "What broke, in words"
    named = ("job", "kind", "number", "error", "lasts")
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
