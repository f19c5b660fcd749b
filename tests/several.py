"""Four processes on two machines of two, for test_several.py: each part prints one line of JSON."""

import json
import os
from dataclasses import replace

import torch
import torch.distributed as dist

from gpub.data.batch import Batch
from gpub.device import Precision, seed_everything
from gpub.guards.meters import MemoryMeter
from gpub.model.gpt import GPT, GPTConfig
from gpub.train import optim
from gpub.train.config import TrainConfig
from gpub.train.learner import Learner, Placement
from gpub.train.loop import NextToken
from gpub.train.parallel import World, device_mesh, share_gradients, to_full_tensor
from gpub.train.pretraining import build_on_device

CPU = torch.device("cpu")
SHAPE = GPTConfig(vocab_size=13, context_length=8, d_model=32, n_layers=4, n_heads=2)
RECIPE = TrainConfig(
    steps=3,
    batch_tokens=64,
    micro_batch=1,  # two passes for each of four
    warmup=0,
    schedule="constant",
    clip=0.5,
    compile="no",
    lr=0.01,
)


def tell(**found):
    "One line, from process 0"
    if world.main:
        os.write(1, (json.dumps(found) + "\n").encode())


def from_all(value):
    "What every process has, in the order of their ranks"
    found = [None] * world.size
    dist.all_gather_object(found, value)
    return found


def built(world, how):
    "As a run builds what it trains: the model, and what this process had in memory for it"
    seed_everything(0)
    place = Placement(CPU, Precision("fp32", False, ""), world, how)
    with MemoryMeter("cpu") as meter:
        model = build_on_device(SHAPE, CPU, world, place.sliced)
        learner = Learner(model, RECIPE, place, lambda text: None)
    return learner, meter.peak


def weights(learner):
    "The whole tensors"
    named = learner.model.named_parameters()
    return {name: to_full_tensor(p.detach()).clone() for name, p in named}


def learned(world, how):
    "Some steps: rows of the log, the weights before and after, bytes in memory, the slices"
    learner, peak = built(world, how)
    begin = weights(learner)
    rows = 8 // world.size
    mine = slice(rows * world.rank, rows * (world.rank + 1))

    def batches(n, context_length):
        ids = torch.randint(13, (8, context_length + 1), generator=torch.Generator().manual_seed(n))
        return Batch.from_windows(ids[mine])

    first = batches(0, 8)
    token_loss = learner.token_loss(first.ids, first.targets)
    objective = NextToken(token_loss, batches, RECIPE, 8, CPU, world)
    log = [s.row() for s in learner.take_steps(objective)]
    matrix = learner.model.blocks[0].attn.proj.weight
    slices = [str(p) for p in getattr(matrix, "placements", [])]
    here = getattr(matrix, "_local_tensor", matrix).numel() / matrix.numel()
    return log, begin, weights(learner), peak, (slices, here)


def far(a, b):
    "The largest difference of two sets of weights"
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def ways_of_sharing():
    log, begin, end, whole, _ = learned(World(), "ddp")
    for how in ("ddp", "fsdp", "hsdp"):
        found, first, last, peak, (slices, here) = learned(world, how)
        apart = {
            key: max(abs(a[key] - b[key]) / b[key] for a, b in zip(found, log))
            for key in ("loss", "grad_norm")
        }
        shape = list(device_mesh(world, CPU, how).shape)
        same = all(from_all(all(torch.equal(first[name], begin[name]) for name in begin)))
        tell(
            part=how,
            **apart,
            steps=len(found),
            clipped=all(row["grad_norm"] > RECIPE.clip for row in log),
            moved=far(begin, end),
            far=far(last, end),
            mesh=shape,
            slices=slices,
            here=from_all(here),
            same_start=same,
            memory=[peak / whole for peak in from_all(peak)],
        )


def cramped():
    "Process 1 has room for one row at once, all others for both of theirs"
    recipe = replace(RECIPE, micro_batch=None)
    seed_everything(0)
    model = GPT(SHAPE)
    said = []
    learner = Learner(
        model, recipe, Placement(CPU, Precision("fp32", False, ""), world), said.append
    )

    def loss_fn(ids, targets):
        if world.rank == 1 and len(ids) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return model.loss(ids, targets)

    rows = slice(2 * world.rank, 2 * world.rank + 2)

    def batches(n, context_length):
        ids = torch.randint(13, (8, context_length + 1), generator=torch.Generator().manual_seed(n))
        return Batch.from_windows(ids[rows])

    objective = NextToken(loss_fn, batches, recipe, 8, CPU, world)
    log = [s.row() for s in learner.take_steps(objective)]
    alone, _, end, _, _ = learned(World(), "ddp")
    tell(
        part="cramped",
        micro=from_all(learner.micro_batcher.cut.micro),
        said=from_all(said),
        loss=max(abs(a["loss"] - b["loss"]) for a, b in zip(log, alone, strict=True)),
        far=far(weights(learner), end),
    )


def buffers():
    "Every process goes on with its own: they are tables, the same everywhere anyway"
    learner, _ = built(world, "ddp")
    learner.model.register_buffer("table", torch.zeros(3))
    ids = torch.zeros(2, 8, dtype=torch.int64)
    loss_fn = share_gradients(learner.model, learner.token_loss(ids, ids), world, "ddp")
    learner.model.table.fill_(world.rank)
    loss_fn(ids, ids).backward()
    tell(part="buffers", found=from_all(learner.model.table.tolist()))


def muon():
    "Stacks that divide, that do not, and that are smaller than the number of processes"
    turned = []
    orthogonalize = optim.orthogonalize

    def noted(stack, *how, **more):
        turned.append(len(stack))
        return orthogonalize(stack, *how, **more)

    optim.orthogonalize = noted

    def stepped(world):
        seed_everything(1)
        model = GPT(replace(SHAPE, n_layers=3))
        opts = optim.make_optimizers(model, RECIPE, world=world)
        turned.clear()
        for n in range(3):
            new = torch.Generator().manual_seed(n)
            for p in model.parameters():
                p.grad = torch.randn(p.shape, generator=new)
            opts[1].step()
        return {n: p.detach() for n, p in model.named_parameters()}, sum(turned)

    alone, all_of_them = stepped(World())
    divided, mine = stepped(world)
    tell(part="muon", far=far(divided, alone), all=all_of_them, each=from_all(mine))
    optim.orthogonalize = orthogonalize


world = replace(World.from_env(), per_machine=2)
with world.joined(CPU):
    ways_of_sharing()
    cramped()
    buffers()
    muon()
os._exit(0)  # as the command does
