"""Several processes, started as torchrun starts them: the same loss, the same files, one clear line
when one dies."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import forked
import psutil
import pytest
import torch.distributed as dist
from commands import gpub, log_rows
from kill import same_weights, start, wait_for
from safetensors.torch import load_file
from test_run import TINY

from gpub.core import GpubError
from gpub.record.checkpoint import load_checkpoint, verify_checkpoint
from gpub.record.checkpoint_folder import MODEL, OPTIMIZER, checkpoints, step_of
from gpub.record.mirror import mirror_run
from gpub.record.slices import SlicedSaver
from gpub.train import parallel
from gpub.train.config import TrainConfig
from gpub.train.memory import Cut, MemoryFull
from gpub.train.parallel import World
from gpub.train.resume import keep_smaller_cut, smaller_cut

# clip is below every gradient norm of this run: all of them are cut
ARGS = [*TINY, "--set", "compile=no", "--set", "clip=0.2"]
SHORT = Path(__file__).parent / "short_texts.py"
# each way of dividing the work counts once in `make test`, and all do in `make test-all`
FULL_FSDP = pytest.param("fsdp", marks=pytest.mark.full)


@pytest.fixture(scope="module")
def alone(text, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "alone"
    assert gpub("train", "shakespeare", "--data", text, "--out", out, *ARGS) == 0
    return out


def forks(words, n, **how):
    "torchrun whose processes are forks; what runs draw is short"
    return forked.torchrun([SHORT, *words], n, **how)


def torchrun(*argv, n=2, launch=forks):
    "The command in so many processes"
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return launch(
        argv,
        n,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**env, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def from_a_shell(words, n, restarts=0, **how):
    "torchrun as a user starts it, from nothing"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launch += [f"--max-restarts={restarts}"]
    words = [f"--nproc_per_node={n}", "-m", "gpub", *map(str, words)]
    return subprocess.Popen([*launch, *words], **how)


def same_curve(a, b):
    "Equal within the rounding of sums in another order"
    x, y = log_rows(a), log_rows(b)
    assert [r["step"] for r in x] == [r["step"] for r in y] and len(x) > 5
    for r, s in zip(x, y):
        assert s["grad_norm"] > 0.2
        assert abs(r["grad_norm"] - s["grad_norm"]) < 1e-3 * s["grad_norm"], (r, s)
        assert (
            abs(r["loss"] - s["loss"]) < 2e-4
            and abs(r.get("val_loss", 0) - s.get("val_loss", 0)) < 2e-4
            and r["tokens"] == s["tokens"]
        ), (r, s)
    p, q = load_checkpoint(a), load_checkpoint(b)
    assert (
        p.model.keys() == q.model.keys()
        and p.optimizer.keys() == q.optimizer.keys()
        and p.step == q.step
    )
    assert all((p.model[k] - q.model[k]).abs().max() < 5e-3 for k in p.model)


def learned(how, text, out, n=2, launch=forks):
    "A run of several processes, to its end"
    argv = ["train", "shakespeare", "--data", text, "--out", out, "--parallel", how, *ARGS]
    p = torchrun(*argv, n=n, launch=launch)
    said, err = p.communicate(timeout=300)
    assert p.returncode == 0, err
    assert said.count("done:") == 1
    assert json.loads((out / "config.json").read_text())["processes"] == n
    return out


@pytest.fixture(scope="module")
def sliced(text, tmp_path_factory):
    "What two processes learned that hold a slice of the model each"
    return learned("fsdp", text, tmp_path_factory.mktemp("runs") / "sliced")


@pytest.mark.full(instead="test_two_processes_with_slices_learn_what_one_learns")
def test_two_processes_learn_what_one_learns(alone, text, tmp_path):
    same_curve(learned("ddp", text, tmp_path / "run", launch=from_a_shell), alone)


def test_two_processes_with_slices_learn_what_one_learns(alone, sliced):
    same_curve(sliced, alone)


@pytest.mark.full(instead="test_initial.py::test_another_text_from_these_weights")
def test_two_processes_begin_with_the_same_weights(alone, text, tmp_path):
    "`--init RUN` in two processes, held whole or in slices: the curve of one process"

    def words(out, *more):
        begin = ["--init", alone, "--data", text, "--out", out, "--steps", 8, "--device", "cpu"]
        return ["train", *begin, "--set", "lr=0.002", "--set", "log_every=1", *more]

    assert gpub(*words(tmp_path / "one")) == 0
    for how in ("ddp", "fsdp"):
        p = torchrun(*words(tmp_path / how, "--parallel", how))
        said, err = p.communicate(timeout=300)
        assert p.returncode == 0, err
        assert said.count("begins with the weights") == 1
        same_curve(tmp_path / how, tmp_path / "one")
    config = json.loads((tmp_path / "fsdp/config.json").read_text())
    assert config["processes"] == 2 and config["init"]["source"].endswith("alone")


@pytest.mark.full(instead="test_two_processes_with_slices_learn_what_one_learns")
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_four_processes_learn_what_one_learns(how, alone, text, tmp_path):
    same_curve(learned(how, text, tmp_path / "run", n=4), alone)


@pytest.mark.full(instead="test_two_processes_with_slices_learn_what_one_learns")
@pytest.mark.compiler
def test_compiled_slices_learn_what_one_learns(alone, text, tmp_path):
    argv = ["train", "shakespeare", "--data", text, "--out", tmp_path / "run", *ARGS]
    p = torchrun(*argv, "--parallel", "fsdp", "--set", "compile=yes")
    _, err = p.communicate(timeout=300)
    assert p.returncode == 0 and "compile failed" not in err, err
    same_curve(tmp_path / "run", alone)


def test_each_process_writes_its_slices(sliced):
    "The last checkpoint has its weights in one file, the others none that is whole"
    last, *earlier = checkpoints(sliced)
    assert {p.name for p in last.iterdir()} == {
        MODEL,
        "shard-00001-model-00002-of-00002.safetensors",
        "shard-00002-model-00002-of-00002.safetensors",
        "state.json",
    }
    assert load_file(last / MODEL).keys() <= load_checkpoint(last).model.keys()
    middle = next(p for p in earlier if not json.loads((p / "state.json").read_text())["milestone"])
    names = {p.name for p in middle.iterdir()}
    assert len(names) == 5 and not {MODEL, OPTIMIZER} & names
    assert load_checkpoint(middle).step == step_of(middle)


def test_a_mirror_has_the_slices_too(sliced, tmp_path):
    shutil.copytree(sliced, tmp_path / "run")
    mirror_run(tmp_path / "run", tmp_path / "mirror")
    assert (
        verify_checkpoint(checkpoints(tmp_path / "mirror")[0]).path.parent.parent.name == "mirror"
    )
    same_weights(tmp_path / "mirror", sliced)
    there = [p for p in checkpoints(tmp_path / "mirror") if not (p / MODEL).exists()]
    middle = str(step_of(there[0]))
    assert gpub("sample", tmp_path / "mirror", "--tokens", "5", "--step", middle) == 0


def test_a_damaged_slice_is_named_and_passed_over(sliced, text, tmp_path, capsys):
    run = shutil.copytree(sliced, tmp_path / "run")
    last, before, *_ = checkpoints(run)
    slice_of_two = last / "shard-00002-model-00002-of-00002.safetensors"
    slice_of_two.write_bytes(slice_of_two.read_bytes()[:-1])
    assert gpub("train", "shakespeare", "--data", text, "--out", run, *ARGS) == 0
    said = capsys.readouterr().out
    assert f"skipped a damaged checkpoint: {slice_of_two} has" in said
    assert f"loaded the checkpoint of step {step_of(before)} of" in said
    same_curve(run, sliced)


PLAIN = """
import json, sys
import torch
from torch.distributed.checkpoint import HuggingFaceStorageReader, load
from safetensors.torch import save_file

folder, out = sys.argv[1:]
known = HuggingFaceStorageReader(folder).read_metadata().state_dict_metadata
found = {k: torch.empty(m.size, dtype=m.properties.dtype) for k, m in known.items()}
load(found, storage_reader=HuggingFaceStorageReader(folder), no_dist=True)
save_file(found, out)
assert not any(name.startswith("gpub") for name in sys.modules)
"""


@pytest.mark.full(instead="test_each_process_writes_its_slices")
def test_plain_torch_opens_the_slices(sliced, tmp_path):
    "DCP's own reader, in a process that knows nothing of gpub"
    script, out = tmp_path / "plain.py", tmp_path / "all.safetensors"
    script.write_text(PLAIN)
    folder = next(p for p in checkpoints(sliced) if not (p / MODEL).exists())
    command = [sys.executable, script, folder, out]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    found, ours = load_file(out), load_checkpoint(folder)
    ours = ours.optimizer | {n: t for n, t in ours.model.items() if n in found}
    assert found.keys() == ours.keys()
    assert all((found[name] == tensor).all() for name, tensor in ours.items())


MASKED = """
import json, os, sys
import torch
from gpub.device import seed_everything
from gpub.model.gpt import GPT, GPTConfig
from gpub.train.parallel import World, to_full_tensor, share_gradients, shard
from gpub.train.config import TrainConfig
from gpub.data.batch import Batch
from gpub.train.loop import NextToken, LoopSettings, train
from gpub.data.batch import IGNORED

CPU = torch.device('cpu')
# targets that each of eight rows asks for, step by step: unequal ones; none for process 1;
# none for process 0; a single one; none at all; all of them
ASKED = [
    [8, 1, 0, 3, 0, 5, 0, 0],
    [8, 7, 1, 2, 0, 0, 0, 0],
    [0, 0, 0, 0, 0, 1, 8, 2],
    [0]*7 + [1],
    [0]*8,
    [8]*8,
]


def learn(world, how, micro):
    "Six steps of to_full_tensor gradient descent: the logged rows, and the gradient of each step"
    seed_everything(0)
    model = GPT(GPTConfig(vocab_size=11, context_length=8, d_model=16, n_layers=2, n_heads=2))
    if how == 'fsdp':
        shard(model, world, CPU)
    share = len(ASKED[0])//world.size
    mine = slice(share*world.rank, share*(world.rank + 1))

    def batches(n, ctx):
        x, y = torch.randint(11, (2, 8, 8), generator=torch.Generator().manual_seed(n))
        for row, asked in enumerate(ASKED[n]):
            y[row, asked:] = IGNORED
        return Batch(x[mine], y[mine])

    params, grads = [*model.parameters()], []
    opt = torch.optim.SGD(params, lr=.1)
    opt.param_groups[0]['initial_lr'] = .1

    def keep(*_):
        grads.append(torch.cat([to_full_tensor(p.grad).flatten() for p in params]))

    opt.register_step_pre_hook(keep)
    cfg = TrainConfig(steps=6, batch_tokens=64, warmup=0, schedule='constant', micro_batch=micro)
    objective = NextToken(model.loss, batches, cfg, 8, CPU, world)
    shared = share_gradients(model, objective.loss, world, how)
    settings = LoopSettings(world=world, shared_loss=shared)
    rows = [s.row() for s in train(model, objective, cfg, [opt], settings=settings)]
    return rows, torch.stack(grads)


world = World.from_env()
with world.joined(CPU):
    for micro in (None, 1, 3):
        if micro is None:
            rows, alone = learn(World(), 'ddp', None)
        found, grads = learn(world, sys.argv[1], micro)
        far = float((grads - alone).abs().max())
        off = max(abs(a[k] - b[k]) for a, b in zip(found, rows) for k in ('loss', 'grad_norm'))
        if world.main:
            line = json.dumps([micro, far, off, [r['loss'] for r in found]])
            os.write(1, (line + chr(10)).encode())
os._exit(0) # as the command does
"""


@pytest.mark.parametrize("how", ["ddp", FULL_FSDP])
def test_masked_targets_count_the_same_in_two_processes(how, tmp_path):
    script = tmp_path / "masked.py"
    script.write_text(MASKED)
    pipes = dict(text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process = forked.torchrun([script, how], 2, **pipes)
    said, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    found = [json.loads(line) for line in said.splitlines()]
    assert [micro for micro, *_ in found] == [None, 1, 3]
    for _, far, off, losses in found:
        assert far < 1e-6 and off < 1e-6, found
        assert losses[4] == 0 and losses[3] > 0


@pytest.mark.full(instead="test_run.py::test_kill_9")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot send Ctrl-C to one process")
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_one_process_goes_on_where_two_stopped_and_back(how, alone, text, tmp_path):
    argv = ["train", "shakespeare", "--data", text, "--out", tmp_path / "run", *ARGS]
    p = torchrun(*argv, "--parallel", how)
    wait_for(tmp_path / "run", 10, p)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=120)
    assert (
        "go on with: torchrun --nproc_per_node=2 -m gpub train" in err
        and err.count("gpub: stopped at step") == 1
    )
    assert 10 <= load_checkpoint(tmp_path / "run").step < 30
    assert gpub(*argv) == 0
    same_curve(tmp_path / "run", alone)


@pytest.mark.full(instead="test_run.py::test_kill_9")
def test_two_go_on_where_one_stopped(alone, text, tmp_path):
    argv = ["train", "shakespeare", "--data", text, "--out", tmp_path / "run", *ARGS]
    p = start(*argv)
    wait_for(tmp_path / "run", 10, p)
    p.terminate()
    p.communicate(timeout=120)
    p = torchrun(*argv, "--parallel", "fsdp")
    out, err = p.communicate(timeout=300)
    assert p.returncode == 0, err
    same_curve(tmp_path / "run", alone)


def kill_process(out, p, is_first=False):
    "kill -9 for one of torchrun's processes, when the run has done some steps"
    wait_for(out, 10, p)
    below = psutil.Process(p.pid).children(recursive=True)
    workers = [c for c in below if c.status() != psutil.STATUS_ZOMBIE and not c.children()]
    first = int((out / ".lock").read_text())
    assert first in {c.pid for c in workers}
    next(c for c in workers if (c.pid == first) == is_first).kill()


def kill_one(out, p):
    "The same, not for the first process; what the others say"
    kill_process(out, p)
    _, err = p.communicate(timeout=120)
    said = {l for l in err.splitlines() if l.startswith("gpub: ")}
    # torchrun adds its own traceback, none of ours
    assert p.returncode not in (0, None) and "gpub/train/trainer.py" not in err, err
    assert said and all(re.search(r"lost contact|stopped at step|are gone", l) for l in said), said


@pytest.mark.full(instead="test_run.py::test_kill_9")
def test_a_killed_process_ends_the_run_with_one_line(alone, text, tmp_path):
    argv = ["train", "shakespeare", "--data", text, "--out", tmp_path / "run", *ARGS]
    kill_one(tmp_path / "run", torchrun(*argv, launch=from_a_shell))
    assert gpub(*argv) == 0
    same_curve(tmp_path / "run", alone)


@pytest.mark.full(instead="test_run.py::test_kill_9")
def test_killed_among_slices_two_go_on_to_the_bit(alone, sliced, text, tmp_path):
    "And one goes on alone, to what two learn"
    argv = ["train", "shakespeare", "--data", text, *ARGS, "--parallel", "fsdp", "--out"]
    kill_one(tmp_path / "run", torchrun(*argv, tmp_path / "run", launch=from_a_shell))
    one = shutil.copytree(tmp_path / "run", tmp_path / "one")
    assert gpub(*argv, one) == 0
    same_curve(one, alone)
    p = torchrun(*argv, tmp_path / "run")
    _, err = p.communicate(timeout=300)
    assert p.returncode == 0, err
    same_weights(tmp_path / "run", sliced)


def test_a_save_that_outlives_its_group_is_one_line(tmp_path):
    "This process has left the others, because one was lost, while its thread still saves"
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    saver = SlicedSaver(tmp_path)
    dist.destroy_process_group()
    saver._job = saver._pool.submit(dist.get_rank, saver.group)
    with pytest.raises(GpubError, match="the other processes are gone"):
        saver.await_last_write()


@pytest.mark.full(instead="test_run.py::test_kill_9")
def test_killed_among_four_slices_any_number_goes_on(alone, text, tmp_path):
    argv = ["train", "shakespeare", "--data", text, *ARGS, "--parallel", "fsdp", "--out"]
    kill_one(tmp_path / "run", torchrun(*argv, tmp_path / "run", n=4, launch=from_a_shell))
    for n in (1, 2, 4):
        run = shutil.copytree(tmp_path / "run", tmp_path / f"with_{n}")
        p = torchrun(*argv, run, n=n)
        said, err = p.communicate(timeout=300)
        assert p.returncode == 0 and "loaded the checkpoint of step" in said, err
        same_curve(run, alone)


@pytest.mark.full(instead="test_a_restarted_process_hears_nothing_of_the_dead")
@pytest.mark.parametrize("how, is_first", [("ddp", False), ("fsdp", True)])
def test_torchrun_brings_a_lost_process_back(how, is_first, alone, text, tmp_path):
    "Nobody types a word: the same command goes on from the last checkpoint, at the first restart"
    argv = ["train", "shakespeare", "--data", text, *ARGS, "--parallel", how]
    launch = partial(from_a_shell, restarts=1)
    p = torchrun(*argv, "--out", tmp_path / "run", launch=launch)
    kill_process(tmp_path / "run", p, is_first)
    said, err = p.communicate(timeout=300)
    assert p.returncode == 0, err
    assert said.count("loaded the checkpoint of step") == 1 and said.count("done:") == 1
    same_curve(tmp_path / "run", alone)


def cramped(words, n, **how):
    "torchrun whose process 1 has little memory; it starts all of them again, up to three times"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=3"]
    words = [f"--nproc_per_node={n}", Path(__file__).parent / "cramped.py", *map(str, words)]
    return subprocess.Popen([*launch, *words], **how)


@pytest.mark.full(instead="test_a_smaller_cut_is_left_for_the_next_start")
def test_slices_shrink_by_a_restart(alone, text, tmp_path):
    "Memory is full in one process in the middle of a step: nobody types a word, all take less"
    argv = ["train", "shakespeare", "--data", text, *ARGS, "--parallel", "fsdp"]
    p = torchrun(*argv, "--out", tmp_path / "run", launch=cramped)
    said, err = p.communicate(timeout=300)
    assert p.returncode == 0, err
    full = re.findall(r"out of memory on process 1 with (\d) .* it takes (\d) at once", err)
    assert full == [("8", "4"), ("4", "2")], err
    assert said.count("loaded the checkpoint of step") == 2 and said.count("done:") == 1
    assert load_checkpoint(tmp_path / "run").state["fit"] == dict(mode="off", micro=2)
    same_curve(tmp_path / "run", alone)


def test_a_smaller_cut_is_left_for_the_next_start(tmp_path):
    "And taken as long as the same is asked for"
    cfg = TrainConfig(steps=1)
    assert smaller_cut(tmp_path, cfg) is None
    cut = Cut(micro=2)
    with pytest.raises(MemoryFull, match="process 1 with 4 sequences"):
        with keep_smaller_cut(tmp_path, cfg):
            raise MemoryFull(1, 4, cut)
    assert (
        smaller_cut(tmp_path, cfg) == smaller_cut(tmp_path, replace(cfg, lr=1.0)) == cut.to_dict()
    )
    assert smaller_cut(tmp_path, replace(cfg, micro_batch=8)) is None
    assert smaller_cut(tmp_path, replace(cfg, grad_checkpoint="full")) is None


def test_a_restarted_process_hears_nothing_of_the_dead(monkeypatch):
    "torchrun keeps its store when it restarts processes; each life has an empty part of it"
    store = dist.HashStore()
    monkeypatch.setattr(parallel, "rendezvous", lambda *_, **__: iter([(store, 0, 2)]))
    parts = []
    for life in range(3):
        with ThreadPoolExecutor(2) as both:
            found = both.map(parallel._fresh_store, (World(0, 2), World(1, 2)))
            first, second = found
        assert not first.check(["word"]) and not second.check(["word"])
        first.set("word", f"of life {life}")
        assert second.get("word") == f"of life {life}".encode()
        parts.append((first, second))
    assert [a.get("word") for a, _ in parts] == [f"of life {life}".encode() for life in range(3)]


def test_a_process_that_never_comes_is_named(monkeypatch):
    "Those who were here before do not count"
    store = dist.HashStore()
    store.set("gpub/word of 1", "of the dead")
    monkeypatch.setattr(parallel, "rendezvous", lambda *_, **__: iter([(store, 0, 3)]))
    monkeypatch.setattr(parallel, "PATIENCE", timedelta(milliseconds=50))
    with pytest.raises(GpubError, match=r"processes \[1, 2\] of 3 did not come"):
        parallel._fresh_store(World(0, 3))


SHARES = pytest.param(
    ("--set", "batch_tokens=32", "--set", "stages=[]"),
    "cannot be shared equally",
    marks=pytest.mark.full,
    id="batch",
)


@pytest.mark.parametrize("extra, part", [(("--set", "lr=0.5"), "holds another run"), SHARES])
def test_refusals_are_said_once(alone, text, extra, part):
    argv = ["train", "shakespeare", "--data", text, "--out", alone, *ARGS, *extra]
    p = torchrun(*argv)
    _, err = p.communicate(timeout=120)
    said = [l for l in err.splitlines() if l.startswith("gpub: ")]
    assert p.returncode == 1 and said and all(part in l for l in said), err
    if "lr=0.5" in extra:
        assert len(said) == 1
