"How a loop is fed, and how seldom it waits: rows ahead of time, no number read between log rows"

import json
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from contracts import refuses
from torch.utils._python_dispatch import TorchDispatchMode

import gpub.train.pretraining as pretraining
from gpub.core import GpubError
from gpub.data.batch import Batch
from gpub.data.batches import AnnealMix, Batches
from gpub.data.prefetch import Prefetcher
from gpub.data.shards import open_shard, read_manifest
from gpub.device import seed_everything
from gpub.model.gpt import GPT, GPTConfig
from gpub.train.config import TrainConfig
from gpub.train.loop import train_next_token
from gpub.train.options import RunOptions
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
    return Batch.from_windows(torch.full((2, context_length + 1), 100 * step + context_length))


def test_every_step_gets_its_own_rows_however_they_are_asked_for():
    feed = Prefetcher(rows, CPU)
    for step, length in [(0, 4), (1, 4), (2, 8), (3, 8), (3, 8), (9, 4), (0, 4)]:
        batch = feed(step, length)
        assert batch.ids.shape == batch.targets.shape == (2, length)
        assert (batch.ids == 100 * step + length).all()
        assert torch.equal(batch.targets, batch.ids)
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


class HostRows:
    "A batch on a machine with a GPU: what happens to it is noted"

    def __init__(self, noted):
        self.noted = noted

    def pin_memory(self):
        self.noted.append(("pinned", threading.get_ident()))
        return self

    def to(self, device):
        self.noted.append((f"sent to {device}", None))
        return self


def test_rows_for_a_gpu_are_pinned_by_the_thread_and_sent_without_waiting(monkeypatch):
    noted = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: noted.append(("joined", None)))
    feed = Prefetcher(lambda step, length: HostRows(noted), torch.device("cuda", 1))
    feed(0, 4)
    feed.close()
    words = [word for word, _ in noted]
    sent = words.index("sent to cuda:1")
    assert words[0] == "joined" and "pinned" in words[:sent]
    assert all(who != threading.get_ident() for word, who in noted if word == "pinned")


def test_what_goes_wrong_in_the_thread_is_raised_where_it_is_asked_for():
    def torn(step, context_length):
        if step == 1:
            raise GpubError("train-00000.bin is torn")
        return rows(step, context_length)

    feed = Prefetcher(torn, CPU)
    feed(0, 4)  # step 1 fails meanwhile
    with pytest.raises(GpubError, match="torn"):
        feed(1, 4)
    assert (feed(2, 4).ids == 204).all()
    feed.close()


def go(out, text, steps=None, **options):
    "A small run, or a part of it"
    run = Trainer(
        RunOptions(
            "shakespeare",
            out,
            text,
            SETTINGS,
            "cpu",
            log=lambda line: None,
            eval_tokens=200,
            **options,
        )
    )
    if not steps:
        run.go()
        return
    with run.opened() as opened:
        loop = opened.steps()
        for _ in range(steps):
            step = next(loop)
        opened.save(step, wait=True)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("To be, or not to be, that is the question:\n" * 60)
    return path


def test_what_a_caller_does_between_steps_is_not_the_pace(text, tmp_path):
    options = RunOptions("shakespeare", tmp_path / "slow", text, SETTINGS, "cpu", eval_tokens=200)
    hours = 0.0
    with Trainer(options).opened() as run:
        run.ledger.steady = lambda: time.perf_counter() + hours
        for step in run.steps():
            hours += 3600.0
    rows = [json.loads(line) for line in (run.task.out / "log.jsonl").read_text().splitlines()]
    assert len(rows) > 1 and rows[-1]["seconds"] > 3600
    assert min(row["tok_s"] for row in rows) > run.task.cfg.batch_tokens / 60


def test_what_a_caller_does_before_the_next_steps_is_not_the_pace(text, tmp_path):
    options = RunOptions("shakespeare", tmp_path / "slow", text, SETTINGS, "cpu", eval_tokens=200)
    hours = 0.0
    with Trainer(options).opened() as run:
        run.ledger.steady = lambda: time.perf_counter() + hours
        for step in run.steps():
            break
        hours += 3600.0
        for step in run.steps():
            pass
    rows = [json.loads(line) for line in (run.task.out / "log.jsonl").read_text().splitlines()]
    assert min(row["tok_s"] for row in rows) > run.task.cfg.batch_tokens / 60


def test_what_is_saved_between_steps_is_not_the_pace_and_counted_out_once(text, tmp_path):
    options = RunOptions("shakespeare", tmp_path / "run", text, SETTINGS, "cpu", eval_tokens=200)
    now = 0.0
    with Trainer(options).opened() as run:
        run.ledger.switch("setup")
        run.ledger.steady = lambda: now
        run.ledger.turned = now
        steps = run.steps()
        next(steps)
        run.clock.mark_row(0)
        with run.ledger.span("save"):
            now += 4
        run.ledger.switch("train")
        now += 2
        assert run.clock.tok_s(100) == 50
        steps.close()


def test_steps_of_two_iterators_are_refused_before_a_step_is_made(text, tmp_path):
    options = RunOptions("shakespeare", tmp_path / "run", text, SETTINGS, "cpu", eval_tokens=200)
    with Trainer(options).opened() as run:
        first = run.steps()
        next(first)
        newest = next(run.steps())
        weights = [p.clone() for p in run.learner.model.parameters()]
        refuses("step 2 was made by another `steps`", next, first)
        assert run.state.step == newest.n == 2
        assert all(torch.equal(a, b) for a, b in zip(weights, run.learner.model.parameters()))


def test_a_run_that_begins_has_nothing_saved(text, tmp_path):
    options = RunOptions("shakespeare", tmp_path / "run", text, SETTINGS, "cpu", eval_tokens=200)
    with Trainer(options).opened() as run:
        assert not run.is_saved()
        run.save(next(run.steps()), wait=True)
        assert run.is_saved()
    with Trainer(options).opened() as run:
        assert run.is_saved()


def test_steps_that_are_taken_again_make_nothing_again(text, tmp_path, monkeypatch):
    "No second compiled loss and reader"
    made = []
    real = pretraining.Pretraining.make_objective

    def make(*given):
        made.append(real(*given))
        return made[-1]

    monkeypatch.setattr(pretraining.Pretraining, "make_objective", make)
    go(tmp_path / "straight", text)
    assert len(made) == 1
    made.clear()
    options = RunOptions("shakespeare", tmp_path / "run", text, SETTINGS, "cpu", eval_tokens=200)
    with Trainer(options).opened() as run:
        for step in run.steps():
            if step.n == 3:
                break
        for step in run.steps():
            pass
    assert len(made) == 1
    assert losses(tmp_path / "run") == losses(tmp_path / "straight")


def test_a_folder_of_another_run_is_refused_before_a_model_is_built(text, tmp_path, monkeypatch):
    go(tmp_path / "run", text)
    other = RunOptions("shakespeare", tmp_path / "run", text, SETTINGS | dict(lr=0.5), "cpu")
    monkeypatch.setattr(pretraining.Pretraining, "build_model", lambda task: pytest.fail("built"))
    refuses("holds another run", Trainer(other).go)


def test_LATEST_names_the_checkpoint_that_a_run_goes_on_from(text, tmp_path):
    go(tmp_path / "run", text, steps=1)
    go(tmp_path / "run", text, steps=1)
    latest = tmp_path / "run" / "LATEST"
    newest = tmp_path / "run/checkpoints" / latest.read_text().strip()
    weights = newest / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    place = "shakespeare", tmp_path / "run", text, SETTINGS, "cpu"
    options = RunOptions(*place, log=lambda line: None, eval_tokens=200)
    with Trainer(options).opened() as run:
        assert run.state.step == 1
        assert latest.read_text() == "step-00000001\n"


def test_the_way_on_can_be_pasted(text, tmp_path):
    options = RunOptions("shakespeare", tmp_path / "my runs", text, SETTINGS, "cpu")
    assert Trainer(options).command == f"gpub resume '{tmp_path / 'my runs'}'"


def losses(out):
    "By step"
    lines = (Path(out) / "log.jsonl").read_text().splitlines()
    return {row["step"]: row["loss"] for row in map(json.loads, lines)}


@pytest.mark.full(instead="test_the_next_rows_are_read_before_they_are_asked_for")
def test_a_run_reads_the_same_rows_ahead_of_time_and_after_a_resume(text, tmp_path, monkeypatch):
    go(tmp_path / "plain", text)
    asked, began = [], []

    real = pretraining.Pretraining.make_objective
    read = Prefetcher.__call__

    def fed(task, learner, step, reading_ahead):
        objective = real(task, learner, step, reading_ahead)
        assert objective.batches == task.rows.read  # a CPU has nobody to read meanwhile
        objective.batches = Prefetcher(task.rows.read, task.device)
        reading_ahead.callback(objective.batches.close)
        began.append(objective.batches)
        return objective

    def noted(self, step, length):
        asked.append((step, length))
        return read(self, step, length)

    monkeypatch.setattr(pretraining.Pretraining, "make_objective", fed)
    with monkeypatch.context() as watched:
        watched.setattr(Prefetcher, "__call__", noted)
        go(tmp_path / "fed", text, 7)
    go(tmp_path / "fed", text)
    assert losses(tmp_path / "fed") == losses(tmp_path / "plain")
    assert (5, 16) in asked and (6, 32) in asked and (7, 32) not in asked
    assert len(began) == 2 and all(feed.thread._shutdown for feed in began)


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
    batch = Batch(*torch.randint(11, (2, 8, 8)))
    counts = []
    with Reads() as reads:
        for s in train_next_token(model, lambda n, context_length: batch, cfg):
            counts.append(reads.count)
            if s.n == 4:
                s.row()
    assert counts[:4] == [0, 0, 0, 0]  # four steps, clipped, accumulated and decayed
    assert counts[4] == counts[5] > 0  # and what the one row has read


def read_of(task, stages, tokens):
    "How often each token was an input, over so many tokens of a run"
    out, cursor = np.zeros(70_000, int), 0
    while cursor < tokens:
        step = cursor // task.cfg.batch_tokens
        ids = task.rows.read(step, stages[step % len(stages)]).ids
        out += np.bincount(ids.flatten().numpy(), minlength=len(out))
        cursor += ids.numel()
    return out


def test_a_changed_context_neither_skips_nor_repeats(tmp_path):
    "Tokens are their own places: an epoch reads each once, in rows of whatever length"
    length, size = 32, 128
    ids = np.arange(40 * size + 1, dtype=np.int64)
    options = RunOptions("shakespeare", tmp_path / "run", None, SETTINGS | dict(steps=40))
    task = Trainer(options).task
    task.rows.by_length = {
        c: Batches(ids, context_length=c, batch=size // c, seed=3) for c in (16, length)
    }
    seen = read_of(task, (16, length), 20 * size)
    assert (seen[: len(ids)] <= 1).all() and seen.sum() == 20 * size
    # as it was, rows of a step of each length's own order: some twice
    mixed = np.concatenate(
        [task.rows.by_length[c][s].ids.flatten() for s, c in enumerate((16, 32) * 10)]
    )
    assert np.bincount(mixed).max() > 1


def test_steps_of_every_batch_are_cut_from_one_order():
    "Twice the batch is two steps at once, and ranks share rows of any length"
    ids = np.arange(64 * 12 + 1)
    small = Batches(ids, context_length=12, batch=4, seed=1)
    large = Batches(ids, context_length=12, batch=8, seed=1)
    parts = [*(small[s].ids for s in range(4)), *(large[s].ids for s in (2, 3))]
    seen = torch.cat(parts).flatten()
    assert len(seen.unique()) == len(seen) == 32 * 12
    assert torch.equal(torch.cat([small[6].ids, small[7].ids]), large[3].ids)
    halves = [
        Batches(ids, context_length=12, batch=4, seed=1, rank=r, world_size=2).rows(1, 6).ids
        for r in (0, 1)
    ]
    assert torch.equal(torch.cat(halves), small.rows(1, 6).ids)


def test_weights_are_a_setting_of_a_run(two_sources, tmp_path):
    settings = SETTINGS | dict(stages=(), weights='{"edu": 0.5, "math": 0.5}')
    task = Trainer(RunOptions("shakespeare", tmp_path / "run", two_sources, settings)).task
    assert task.rows.by_length[32].mixture.shares == [0.5, 0.5]
    assert task.identity()["train"]["weights"] == dict(edu=0.5, math=0.5)
    with pytest.raises(GpubError, match="the weights are for web; the sources are edu, math"):
        Trainer(
            RunOptions(
                "shakespeare", tmp_path / "b", two_sources, settings | dict(weights='{"web": 1}')
            )
        ).go()
    assert not (tmp_path / "b").exists(), "refused before anything is written"


ANNEALED = SETTINGS | dict(
    steps=20,
    stages=(),
    schedule="linear",
    decay=0.2,
    weights='{"edu": 1}',
    anneal_weights='{"edu": 0.25, "math": 0.75}',
)


def shares_by_step(task):
    "How many windows of each source every step reads"
    steps = task.cfg.steps
    return [Counter(row.sources[0] for row in task.rows.trace(step)) for step in range(steps)]


def test_the_end_of_a_run_reads_another_mix(two_sources, tmp_path):
    def counts(**changed):
        options = RunOptions("shakespeare", tmp_path / "run", two_sources, ANNEALED | changed)
        return shares_by_step(Trainer(options).task)

    last_tenth = counts()
    rows = sum(last_tenth[0].values())
    assert all(set(step) == {"edu"} for step in last_tenth[:18])
    for step in last_tenth[18:]:
        assert sum(step.values()) == rows and abs(step["math"] - 0.75 * rows) <= 1
    # with the fall of the rate at the earliest: before it a run may still get another end
    from_the_fall = counts(anneal=0.9)
    assert [bool(step["math"]) for step in from_the_fall] == [False] * 16 + [True] * 4
    assert from_the_fall[:16] == last_tenth[:16]


def test_no_window_is_read_twice_where_the_mix_changes():
    names = dict(edu=np.arange(0, 4000), math=np.arange(10_000, 14_000))
    batches = Batches(
        {name: ids.astype(np.int64) for name, ids in names.items()},
        context_length=8,
        batch=4,
        weights=dict(edu=3, math=1),
        anneal=AnnealMix(dict(edu=1, math=3), 10),
    )
    seen = torch.cat([batches[step].ids for step in range(20)]).flatten()
    assert len(seen.unique()) == len(seen) == 20 * 32
    assert int((seen[: 10 * 32] >= 10_000).sum()) == 80
    assert int((seen[10 * 32 :] >= 10_000).sum()) == 240


@pytest.mark.parametrize(
    "changed, words",
    [
        (dict(weights=None), "give weights, too"),
        (dict(schedule="constant"), "another schedule than constant"),
        (dict(anneal_weights='{"web": 1}'), "the weights are for edu, web; the sources are"),
        (dict(anneal_weights='{"math": -1}'), "anneal_weights"),
    ],
)
def test_a_mix_of_the_end_that_makes_no_sense(changed, words, two_sources, tmp_path):
    settings = {name: x for name, x in (ANNEALED | changed).items() if x is not None}
    options = RunOptions("shakespeare", tmp_path / "run", two_sources, settings)
    with pytest.raises(GpubError, match=words):
        Trainer(options).go()
    assert not (tmp_path / "run").exists(), "refused before anything is written"


def test_reading_here_and_there_gives_the_same_ids(two_sources):
    manifest = read_manifest(two_sources)
    for shard in manifest["shards"]:
        both = [open_shard(two_sources, manifest, shard, at_random) for at_random in (False, True)]
        assert np.array_equal(*both) and len(both[0]) == shard["tokens"]
        assert not both[0].flags.writeable
