"""Fine-tuning from nothing with the mask and without it, on the same sums with three seeds, for
chapter 2 of season 3. Filed as data/masks.json.

python tools/masks.py     about 5 minutes of one quiet core
"""

import json
from pathlib import Path

import numpy as np
import torch

from gpub.chat.packing import PackedBatches
from gpub.chat.template import EncodedChat
from gpub.core import write_atomic
from gpub.device import machine, use_threads
from gpub.model.llama import Llama
from gpub.train.loop import train
from gpub.tune.sft import SftObjective
from gpub.tune.sums_world import SumsRecipe, SumsWorld

SEEDS = (0, 1, 2)
FILED = Path(__file__).resolve().parent.parent / "data/masks.json"


def train_from_nothing(
    world: SumsWorld,  # whose teacher answers
    masked: bool,  # ask for the answers alone, or for the questions too
    seed: int,  # of the weights and of the sums
    steps: int,  # of `recipe.chats` sums
) -> Llama:
    "A model that has read nothing, after these steps"
    chats = world.chats(steps * world.recipe.chats, seed=seed)
    if not masked:
        chats = [EncodedChat(ids, np.ones(len(ids), bool)) for ids, _ in chats]
    torch.manual_seed(seed)
    model = Llama(world.cfg)
    objective = SftObjective(model, PackedBatches(chats, 14, world.recipe.chats))
    for _ in train(model, objective, world.recipe.config(steps, world.recipe.base_rate)):
        pass
    return model


def measure_masks(
    file: Path | str = FILED,  # of the receipt
    recipe: SumsRecipe = SumsRecipe(),  # rows, rate and clip of the training
    steps: int = 300,  # of each training
    seeds: tuple[int, ...] = SEEDS,  # each with the mask and without
) -> dict:  # the receipt
    "Train both ways with each seed, and write what was reached"
    use_threads(1)
    world = SumsWorld("runs", recipe)
    rows = []
    for seed in seeds:
        for masked in (True, False):
            score = world.score(train_from_nothing(world, masked, seed, steps))
            rows.append(dict(seed=seed, masked=masked, loss=score.loss, right=score.right))
    told = dict(steps=steps, chats=recipe.chats, rate=recipe.base_rate, clip=recipe.clip)
    receipt = dict(told, rows=rows, machine=machine("cpu"))
    write_atomic(Path(file), json.dumps(receipt, indent=1) + "\n")
    return receipt


if __name__ == "__main__":
    measure_masks()
