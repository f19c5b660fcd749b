"Two processes of one small model agree about gradients, values and errors; torchrun starts it."

import os
import sys
from contextlib import nullcontext

import torch

from gpub.core import GpubError
from gpub.device import seed_everything
from gpub.model.gpt import GPT, GPTConfig
from gpub.train.parallel import (
    Relayed,
    World,
    local_gradients,
    shard,
    share_gradients,
    to_full_tensor,
)


def tell(line):
    os.write(1, (line + chr(10)).encode())  # in one piece: two processes write to one pipe


def new_model():
    seed_everything(0)
    return GPT(GPTConfig(vocab_size=11, context_length=8, d_model=16, n_layers=2, n_heads=2))


def refuse():
    raise GpubError("this folder is taken")


how = sys.argv[1]
world = World.from_env()
device = torch.device("cpu")
x, y = torch.randint(11, (2, 4, 8), generator=torch.Generator().manual_seed(0))
with world.joined(device):
    model = new_model()
    model.register_buffer("own", torch.zeros(()))
    if how == "fsdp":
        shard(model, world, device)
    fn = share_gradients(model, model.loss, world, how)
    model.own.fill_(world.rank)
    first = 2 * world.rank
    for row in (first, first + 1):  # two micro-batches; DDP shares gradients with the last one
        last = row == first + 1
        with nullcontext() if last else local_gradients(fn):
            (fn(x[row : row + 1], y[row : row + 1]) / 2).backward()
    got = {n: to_full_tensor(p.grad) for n, p in model.named_parameters()}
    alone = new_model()
    alone.loss(x, y).backward()
    gap = 0.0
    if world.main:
        gap = max((got[n] - p.grad).abs().max().item() for n, p in alone.named_parameters())
    assert float(model.own) == world.rank  # buffers are tables: nobody sends them around
    found = {"step": 3, "gap": gap}
    assert world.broadcast(found) == world.on_main(lambda: found)
    assert world.any(world.rank == 1) and not world.any(False)
    assert world.mean(torch.tensor(float(world.rank))) == 0.5
    try:
        world.on_main(refuse)
    except Relayed as e:
        heard = f"process {world.rank} heard: {e}"
    except GpubError as e:
        heard = f"process {world.rank} said: {e}"
    if world.main:
        tell(f"{how}: largest difference of a gradient {gap:.0e}")
    tell(heard)
os._exit(0)  # as the command does, see main
