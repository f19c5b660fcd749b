"""Does a reward add right answers, or only make likely what was there? pass@k before and after,
from probabilities that are known, not sampled"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from gpub.core import write_atomic
from gpub.device import machine, use_threads
from gpub.model.llama import Llama
from gpub.train.config import TrainConfig
from gpub.train.loop import TrainStep, train
from gpub.tune.grpo import GrpoConfig, GrpoObjective, Questions
from gpub.tune.sums_world import SumsRecipe, SumsWorld, Trained
from tools.kl_ends import student_of

FILED = "data/pass_at_k.json"
TRIES = tuple(2**n for n in range(13))  # 1 to 4,096
SUMS = 500  # held out


def pass_at(
    p_n: np.ndarray,  # probability of a right answer to each question
    tries: int,  # k
) -> float:
    "How often at least one of k answers is right: the mean of 1 - (1 - p)^k (Chen et al. 2021)"
    return float(np.mean(-np.expm1(tries * np.log1p(-np.minimum(p_n, 1 - 1e-12)))))


class _Methods:
    "Ways to train on from a student; each returns the trained model"

    def __init__(self, world: SumsWorld, seed: int, steps: int, questions: int):
        self.world = world
        self.seed = seed
        self.steps = steps
        self.cfg = GrpoConfig(questions_per_step=questions, group=8, longest=5, seed=seed)

    def grpo(self) -> Trained:
        "A reward for each right answer, and no penalty"
        return self._reinforced("passk-grpo", self.cfg, self._sums)

    def grpo_with_penalty(self) -> Trained:
        "The same, with a price on the distance from the student"
        return self._reinforced(
            "passk-reward", replace(self.cfg, penalty="reward", beta=0.25), self._sums
        )

    def coin(self) -> Trained:
        "A reward that a coin gives, whatever the answer"
        return self._reinforced("passk-coin", self.cfg, self._tossed)

    def imitation(self) -> Trained:
        "Fine-tuning once more, on as many new sums as it has had"
        steps = self.world.recipe.sft_steps
        chats = self.world.chats(steps * self.world.recipe.chats, seed=200 + self.seed)

        def imitate(model: Llama) -> Iterator[TrainStep]:
            return self.world.tuned(model, chats, steps)

        settings = self.world.recipe.told() | dict(seed=self.seed)
        start = student_of(self.world, self.seed).model
        return self.world.trained("passk-imitation", start, settings, imitate)

    def _sums(self, step: int) -> Questions:
        return self.world.questions(self.cfg.questions_per_step, seed=[7 + self.seed, step])

    def _tossed(self, step: int) -> Questions:
        coin = np.random.default_rng([self.seed, step])
        return Questions(
            self._sums(step).prompts, lambda number, answer: float(coin.random() < 0.5)
        )

    def _reinforced(
        self, name: str, cfg: GrpoConfig, questions_at: Callable[[int], Questions]
    ) -> Trained:
        student = student_of(self.world, self.seed).model

        def reinforce(model: Llama) -> Iterator[TrainStep]:
            objective = GrpoObjective(model, questions_at, self.world.end, cfg, student.eval())
            recipe = TrainConfig(steps=self.steps, optimizer="adamw", lr=1e-3, warmup=5, clip=1.0)
            yield from train(model, objective, recipe)

        settings = dict(steps=self.steps, sft=self.world.recipe.sft_steps, **cfg.to_dict())
        start = student_of(self.world, self.seed).model
        return self.world.trained(name, start, settings, reinforce)


METHODS = dict(
    imitation=_Methods.imitation,
    grpo=_Methods.grpo,
    grpo_with_penalty=_Methods.grpo_with_penalty,
    coin=_Methods.coin,
)


def _row(world: SumsWorld, seed: int, method: str, trained: Trained) -> dict:
    p_n = world.right_probs(trained.model, SUMS).double().numpy()
    return dict(
        seed=seed,
        method=method,
        pass_at=[pass_at(p_n, k) for k in TRIES],
        p=[float(f"{p:.3g}") for p in p_n],
        plays=world.text_loss(trained.model),
        cpu=trained.cpu,
    )


def measure_pass_at_k(
    file: Path | str = FILED,  # of the receipt
    folder: Path | str = "runs",  # that keeps trained models
    recipe: SumsRecipe = SumsRecipe(sft_steps=600),  # of the students
    steps: int = 160,  # of GRPO
    questions: int = 64,  # a step, eight answers to each
    seeds: Sequence[int] = (0, 1, 2),  # each has a student, questions and dice of its own
) -> dict:  # the receipt
    "Train with each method from each student, and write the probabilities before and after"
    use_threads(1)
    world = SumsWorld(folder, recipe)
    rows = []
    for seed in seeds:
        rows.append(_row(world, seed, "student", student_of(world, seed)))
        methods = _Methods(world, seed, steps, questions)
        for name, method in METHODS.items():
            rows.append(_row(world, seed, name, method(methods)))
    receipt = dict(
        tries=list(TRIES),
        sums=SUMS,
        steps=steps,
        answers=8 * questions,
        sft_steps=recipe.sft_steps,
        rows=rows,
        machine=machine("cpu"),
    )
    write_atomic(Path(file), json.dumps(receipt) + "\n")
    return receipt


if __name__ == "__main__":
    measure_pass_at_k()
