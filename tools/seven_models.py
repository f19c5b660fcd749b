"""The seven models that chapter 6 of season 3 compares, with three seeds: the base, SFT without
replay and with it, and DPO and GRPO from either. Filed as data/seven_models.json.

python tools/seven_models.py     about 5 minutes of one quiet core
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gpub.chat.packing import PackedBatches
from gpub.core import write_atomic
from gpub.device import machine, use_threads
from gpub.model.llama import Llama
from gpub.train.config import TrainConfig
from gpub.train.loop import TrainStep, train
from gpub.tune.dpo import DpoConfig, DpoObjective, sampled_pairs
from gpub.tune.grpo import GrpoConfig, GrpoObjective
from gpub.tune.sft import SftObjective
from gpub.tune.sums_world import SumsRecipe, SumsWorld

SEEDS = (0, 1, 2)
FILED = Path(__file__).resolve().parent.parent / "data/seven_models.json"


def imitate(world: SumsWorld, model: Llama, replayed: bool, seed: int) -> Iterator[TrainStep]:
    "Learn from the teacher's answers, as in chapter 2"
    steps = world.recipe.sft_steps
    chats = world.chats(steps * world.recipe.chats, seed)
    if not replayed:
        yield from world.tuned(model, chats, steps)
        return
    rows = world.recipe.chats // 9  # a row of 128 tokens holds nine sums of 14
    batches = PackedBatches(chats, world.cfg.context_length, rows)
    objective = SftObjective(model, batches, replay=world.pages(2, seed=seed + 1))
    yield from train(model, objective, world.recipe.config(steps, world.recipe.sft_rate))


def prefer(
    world: SumsWorld, model: Llama, seed: int, questions: int, steps: int
) -> Iterator[TrainStep]:
    "Learn from pairs of the model's own answers, the right one's surprise added: chapter 4"
    asked = world.questions(questions, seed=seed + 4)
    pairs = sampled_pairs(
        model, asked.prompts, asked.reward, 5, world.end, seed + 4, always_right=True
    )
    objective = DpoObjective(model, pairs, DpoConfig(beta=0.1, nll_weight=1.0))
    config = TrainConfig(steps=steps, optimizer="adamw", lr=5e-4, warmup=min(5, steps))
    yield from train(model, objective, config)


def earn(world: SumsWorld, model: Llama, seed: int, steps: int) -> Iterator[TrainStep]:
    "Learn from rewards for groups of eight answers: chapter 5"
    objective = GrpoObjective(
        model,
        lambda step: world.questions(16, seed=[seed + 7, step]),
        world.end,
        GrpoConfig(questions_per_step=16, group=8, longest=5, seed=seed),
    )
    config = TrainConfig(steps=steps, optimizer="adamw", lr=1e-3, warmup=min(5, steps), clip=1.0)
    yield from train(model, objective, config)


def measure_seven(
    file: Path | str = FILED,  # of the receipt
    folder: Path | str = "runs",  # where the base is kept
    recipe: SumsRecipe = SumsRecipe(),  # of the base and of SFT
    steps: int = 80,  # of DPO and of GRPO
    questions: int = 6000,  # of which DPO makes its pairs
    seeds: tuple[int, ...] = SEEDS,  # of all that follows the base
) -> dict:  # the receipt
    "Train all of them with each seed, and write what each reached, forgot and cost"
    use_threads(1)
    world = SumsWorld(folder, recipe)
    rows = []

    def take(name: str, seed: int, model: Llama, training: Callable[[], Iterator]) -> None:
        began = time.process_time()
        for _ in training():
            pass
        seconds = time.process_time() - began
        score = world.score(model)
        rows.append(
            dict(model=name, seed=seed, right=score.right, text=score.text, seconds=seconds)
        )
        print(rows[-1], flush=True)

    base = world.base()
    weights = {key: value.clone() for key, value in base.model.state_dict().items()}
    before = world.score(base.model)
    rows.append(dict(model="base", seed=0, right=before.right, text=before.text, seconds=base.cpu))

    def copy_of(weights: dict) -> Llama:
        model = Llama(world.cfg)
        model.load_state_dict(weights)
        return model

    for seed in seeds:
        for name, replayed in (("SFT", False), ("SFT + replay", True)):
            student = copy_of(weights)
            take(name, seed, student, lambda: imitate(world, student, replayed, seed))
            learned = {key: value.clone() for key, value in student.state_dict().items()}
            after = " after replay" if replayed else ""
            model = copy_of(learned)
            take(f"DPO{after}", seed, model, lambda: prefer(world, model, seed, questions, steps))
            model = copy_of(learned)
            take(f"GRPO{after}", seed, model, lambda: earn(world, model, seed, steps))
    told = dict(steps=steps, questions=questions, sft_steps=recipe.sft_steps)
    receipt = dict(told, seeds=list(seeds), rows=rows, machine=machine("cpu"))
    write_atomic(Path(file), json.dumps(receipt, indent=1) + "\n")
    return receipt


if __name__ == "__main__":
    measure_seven(folder="nbs/season3/runs")
