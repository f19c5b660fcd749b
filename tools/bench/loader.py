"""The loader against a Python loop, a plain copy and a training step, in turns, as ratios

The loop that everybody starts with (`slices`) draws random places and stacks slices of a
memory-mapped file, one row at a time, inputs and targets apart. Beside it a bare copy of as many
bytes as our batch holds: no loader can be faster than that. The receipt is drawn on the page
Performance.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch

from gpub.data.batches import Batches
from gpub.data.sampler import AHEAD
from gpub.device import machine
from gpub.lab.bench.race import Race, timed
from gpub.lab.museum.blog import slices
from gpub.model.architectures import SHAPES
from gpub.model.gpt import GPT, GPTConfig
from gpub.table import Table


def step_seconds(
    shape: dict,  # keywords of GPTConfig
    rows: int,  # sequences in the step
) -> float:
    """What a training step (forward, backward and AdamW, fp32) costs on this machine, after one
    that does not count"""
    torch.manual_seed(0)
    model = GPT(GPTConfig(**shape))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randint(shape["vocab_size"], (rows, shape["context_length"] + 1))

    def step():
        opt.zero_grad()
        model.loss(x[:, :-1], x[:, 1:]).backward()
        opt.step()

    return timed(step, "cpu", n=1, warmup=1)


def loader_seconds(
    ids: np.ndarray,  # the tokens, uint16
    context_length: int,  # tokens in a row
    batch: int,  # rows in a batch
    rounds: int,  # turns of every contender that count
    rows: int,  # in a batch as small as the training step's
) -> dict[str, float]:  # contender -> median seconds
    "Our loader and the others in turns, from memory and from a file"
    rng = np.random.default_rng(0)
    out = np.empty((batch, context_length + 1), np.int64)
    src = np.ones_like(out)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        file = Path(folder, "ids.bin")
        ids.tofile(file)
        disk = np.memmap(file, np.uint16, "r")
        ram = Batches(ids, batch=batch, context_length=context_length)
        mapped = Batches(disk, batch=batch, context_length=context_length)
        small = Batches(ids, batch=rows, context_length=context_length)
        order = ram.sources[0].order.starts
        contenders = dict(
            ram=ram.__getitem__,
            mmap=mapped.__getitem__,
            order=lambda n: order(n * AHEAD, (n + 1) * AHEAD),
            slices_mmap=lambda n: slices(disk, context_length, batch, rng),
            slices_ram=lambda n: slices(ids, context_length, batch, rng),
            memcpy=lambda n: np.copyto(out, src),
            rows=small.__getitem__,
        )
        seconds = Race(contenders).warm_up(3).run(rounds).each()
        del contenders, mapped, disk  # Windows deletes no file that is mapped
    # the median call finds its order computed: add its share of that
    for name, n in dict(ram=batch, mmap=batch, rows=rows).items():
        seconds[name] += seconds["order"] * n / AHEAD
    return seconds


def bench_loader(
    tokens: int = 1 << 24,  # in the file that is read
    context_length: int = 512,  # tokens in a row
    batch: int = 64,  # rows in a batch
    rounds: int = 200,  # turns of every contender that count
    # of the training step to compare with; None leaves that out
    shape: dict | None = SHAPES["gpt2-134m"].config.to_dict(),
    rows: int = 1,  # of that step; the loader is timed at as many
) -> dict:  # medians in microseconds, and ratios
    "Time `Batches` from memory and from disk against slices in a loop and against a memcpy"
    ids = np.random.default_rng(0).integers(0, 32_000, tokens, np.uint16)
    t = loader_seconds(ids, context_length, batch, rounds, rows)
    result = dict(
        machine=machine(),
        batch=[batch, context_length + 1],
        microseconds={k: round(v * 1e6, 1) for k, v in t.items()},
        faster_than_slices_mmap=t["slices_mmap"] / t["ram"],
        faster_than_slices_ram=t["slices_ram"] / t["ram"],
        times_memcpy=t["ram"] / t["memcpy"],
    )
    if shape:
        seconds = step_seconds(shape, rows)
        result |= dict(step_rows=rows, step_seconds=seconds, share_of_step=t["rows"] / seconds)
    return result


def bench_loader_table(
    r: dict,  # a receipt of `bench_loader`
) -> str:
    "The receipt in lines"
    ratios = "faster_than_slices_mmap", "faster_than_slices_ram", "times_memcpy", "share_of_step"
    rows = [[name, f"{us:,.1f} us"] for name, us in r["microseconds"].items()]
    rows += [[name, f"{r[name]:.3g}"] for name in ratios if name in r]
    return str(Table([], rows, align="lr"))
