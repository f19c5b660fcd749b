"How a loop is fed, and how seldom it waits: rows ahead of time, no number read between log rows"

import json
import threading
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gpub.train.trainer as trainer
from gpub.core import GpubError
from gpub.data.prefetch import Prefetcher
from gpub.device import seed_everything
from gpub.model.gpt import GPT, GPTConfig
from gpub.train.config import TrainConfig
from gpub.train.loop import train
from gpub.train.trainer import Trainer

CPU = torch.device("cpu")
SETTINGS = dict(
    steps=12,
    batch_tokens=128,
    d_model=16,
    n_layers=1,
    n_heads=2,
    context_length=32,
    stages=((0.0, 16), (0.5, 32)),
    log_every=4,
    precision="fp32",
)


def rows(step, context_length):
    "Rows that tell which they are"
    return torch.full((2, context_length + 1), 100 * step + context_length)


def test_every_step_gets_its_own_rows_however_they_are_asked_for():
    feed = Prefetcher(rows, CPU)
    for step, length in [(0, 4), (1, 4), (2, 8), (3, 8), (3, 8), (9, 4), (0, 4)]:
        x, y = feed(step, length)
        assert x.shape == y.shape == (2, length)
        assert (x == 100 * step + length).all() and (y == x).all()
    feed.close()


def test_the_next_rows_are_read_before_they_are_asked_for():
    read, done = [], threading.Event()

    def watched(step, context_length):
        read.append((step, threading.get_ident()))
        if step == 1:
            done.set()
        return rows(step, context_length)

    feed = Prefetcher(watched, CPU)
    feed(0, 4)
    assert done.wait(20)
    assert [step for step, _ in read] == [0, 1]
    feed(1, 4)
    feed.close()
    assert [step for step, _ in read][:2] == [0, 1]  # not read again
    assert {who for _, who in read} == {read[0][1]} != {threading.get_ident()}


def test_what_goes_wrong_in_the_thread_is_raised_where_it_is_asked_for():
    def torn(step, context_length):
        if step == 1:
            raise GpubError("train-00000.bin is torn")
        return rows(step, context_length)

    feed = Prefetcher(torn, CPU)
    feed(0, 4)  # step 1 fails meanwhile
    with pytest.raises(GpubError, match="torn"):
        feed(1, 4)
    assert (feed(2, 4)[0] == 204).all()
    feed.close()


def go(out, text, steps=None, **options):
    "A small run, or a part of it"
    run = Trainer(
        "shakespeare", out, text, SETTINGS, "cpu", log=lambda line: None, eval_tokens=200, **options
    )
    if not steps:
        run.go()
        return
    loop = run.steps()
    for _ in range(steps):
        step = next(loop)
    run.save(step, wait=True)
    loop.close()


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("To be, or not to be, that is the question:\n" * 60)
    return path


def losses(out):
    "By step"
    lines = (Path(out) / "log.jsonl").read_text().splitlines()
    return {row["step"]: row["loss"] for row in map(json.loads, lines)}


def test_a_run_reads_the_same_rows_ahead_of_time_and_after_a_resume(text, tmp_path, monkeypatch):
    go(tmp_path / "plain", text)
    asked, began = [], []

    class Fed(trainer.TrainingLoop):
        def __init__(self, run, *rest):
            super().__init__(run, *rest)
            assert self.prefetcher is None  # a CPU has nobody to read meanwhile
            self.prefetcher = Prefetcher(run.tokens, run.device)
            began.append(self.prefetcher)

    monkeypatch.setattr(trainer, "TrainingLoop", Fed)
    go(tmp_path / "fed", text, 7, before_batch=lambda step, length: asked.append((step, length)))
    go(tmp_path / "fed", text)
    assert losses(tmp_path / "fed") == losses(tmp_path / "plain")
    assert (5, 16) in asked and (6, 32) in asked and (7, 32) not in asked
    assert len(began) == 2 and all(feed.pool._shutdown for feed in began)


class Reads(TorchDispatchMode):
    "Counts numbers that the host reads from a tensor: on a GPU it would stop for each"

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        waits = torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default
        self.count += func in waits
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_no_number_is_read_back_between_log_rows(optimizer):
    seed_everything(0)
    model = GPT(GPTConfig(vocab_size=11, context_length=8, d_model=16, n_layers=2, n_heads=2))
    cfg = TrainConfig(
        steps=6, batch_tokens=64, optimizer=optimizer, clip=1.0, micro_batch=3, weight_decay=0.1
    )
    ids = torch.randint(11, (2, 8, 8))
    counts = []
    with Reads() as reads:
        for s in train(model, lambda n, context_length: ids, cfg):
            counts.append(reads.count)
            if s.n == 4:
                s.row()
    assert counts[:4] == [0, 0, 0, 0]  # four steps, clipped, accumulated and decayed
    assert counts[4] == counts[5] > 0  # and what the one row has read
