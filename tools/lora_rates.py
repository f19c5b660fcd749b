"""Every rank at every rate: fine-tuning and GRPO through adapters and with all weights, three
students each, for chapter 3 of season 3"""

import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from gpub.chat.packing import PackedBatches
from gpub.chat.sums import SumTeacher
from gpub.core import write_atomic
from gpub.device import machine, seed_everything, use_threads
from gpub.model.llama import Llama
from gpub.train.config import TrainConfig
from gpub.train.loop import Objective, TrainStep, train
from gpub.tune.grpo import GrpoConfig, GrpoObjective, Questions
from gpub.tune.lora import LoraConfig, add_lora
from gpub.tune.sft import SftObjective
from gpub.tune.sums_world import SumsRecipe, SumsWorld, Trained
from tools.kl_ends import student_of

FILED = "data/lora_rates.json"
SFT_STEPS = 60
GRPO_STEPS = 80
ADAPTER_RATES = (0.001, 0.003, 0.01, 0.03, 0.1)
GRPO_RATES = ADAPTER_RATES[1:4]  # it takes longer
ALL = 0  # in the place of a rank: every weight learns, at a tenth of the rates


class _Sweep:
    "Trainings of one student"

    def __init__(self, world: SumsWorld, seed: int):
        self.world = world
        self.seed = seed

    def sft(self, rank: int, rate: float) -> Trained:
        "Learn from a teacher who forgets nothing"
        chats_a_step = self.world.recipe.chats
        teacher = SumTeacher(0.0)
        chats = self.world.chats(SFT_STEPS * chats_a_step, seed=[3, self.seed], teacher=teacher)

        def learn(model: Llama) -> Iterator[TrainStep]:
            objective = SftObjective(model, PackedBatches(chats, 14, chats_a_step, self.seed))
            yield from self._train(model, objective, SFT_STEPS, rate)

        return self._trained("sft", rank, rate, learn)

    def grpo(self, rank: int, rate: float) -> Trained:
        "Learn from a rule that says right or wrong"
        cfg = GrpoConfig(questions_per_step=16, group=8, longest=5, seed=self.seed)

        def ask(step: int) -> Questions:
            return self.world.questions(cfg.questions_per_step, seed=[7 + self.seed, step])

        def learn(model: Llama) -> Iterator[TrainStep]:
            objective = GrpoObjective(model, ask, self.world.end, cfg)
            yield from self._train(model, objective, GRPO_STEPS, rate)

        return self._trained("grpo", rank, rate, learn)

    def _train(
        self, model: Llama, objective: Objective, steps: int, rate: float
    ) -> Iterator[TrainStep]:
        recipe = TrainConfig(steps=steps, optimizer="adamw", lr=rate, warmup=5, clip=1.0)
        yield from train(model, objective, recipe)

    def _trained(self, method: str, rank: int, rate: float, learn) -> Trained:
        model = student_of(self.world, self.seed).model
        seed_everything(self.seed)
        if rank != ALL:
            add_lora(model, LoraConfig(rank=rank, alpha=2.0 * rank))
        settings = dict(rank=rank, rate=rate, seed=self.seed)
        return self.world.trained(f"lora-{method}", model, settings, learn)


def _row(world: SumsWorld, method: str, rank: int, rate: float, seed: int, run: Trained) -> dict:
    score = world.score(run.model)
    trained = sum(p.numel() for p in run.model.parameters() if p.requires_grad)
    return dict(
        method=method,
        rank=rank,
        rate=rate,
        seed=seed,
        trained=trained,
        right=score.right,
        plays=score.text,
        cpu=run.cpu,
    )


def measure_lora_rates(
    file: Path | str = FILED,  # of the receipt
    folder: Path | str = "runs",  # that keeps trained models
    recipe: SumsRecipe = SumsRecipe(),  # of the students
    seeds: Sequence[int] = (0, 1, 2),  # each has a student, data and an adapter of its own
    sft_ranks: Sequence[int] = (1, 4, 16, ALL),
    grpo_ranks: Sequence[int] = (1, ALL),
) -> dict:  # the receipt
    "Train each rank at each rate, and write how right it became"
    use_threads(1)
    world = SumsWorld(folder, recipe)
    rows = []
    sweeps = (("sft", sft_ranks, ADAPTER_RATES), ("grpo", grpo_ranks, GRPO_RATES))
    for method, ranks, rates in sweeps:
        for seed in seeds:
            sweep = _Sweep(world, seed)
            for rank, adapter_rate in product(ranks, rates):
                rate = adapter_rate / 10 if rank == ALL else adapter_rate
                run = getattr(sweep, method)(rank, rate)
                rows.append(_row(world, method, rank, rate, seed, run))
                print(method, seed, rank, rate, f"{rows[-1]['right']:.3f}", flush=True)
    students = [
        dict(seed=seed, right=world.score(student_of(world, seed).model).right) for seed in seeds
    ]
    receipt = dict(
        sft_steps=SFT_STEPS,
        grpo_steps=GRPO_STEPS,
        students=students,
        rows=rows,
        machine=machine("cpu"),
    )
    write_atomic(Path(file), json.dumps(receipt) + "\n")
    return receipt


if __name__ == "__main__":
    measure_lora_rates()
