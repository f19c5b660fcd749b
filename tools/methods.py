"""Ways to learn from answers, side by side: one student, one optimizer, as many answers judged, and
the probability of every right answer known"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpub.chat.packing import PackedBatches
from gpub.chat.sums import (
    ANSWER_TOKENS,
    PROMPT_TOKENS,
    SumTeacher,
    carries_of,
    draw_pairs,
)
from gpub.core import write_atomic
from gpub.device import machine, use_threads
from gpub.model.llama import Llama
from gpub.train.config import TrainConfig
from gpub.train.loop import Objective, TrainStep, train
from gpub.tune.dpo import DpoConfig, DpoObjective, PreferencePair, sampled_pairs
from gpub.tune.grpo import GrpoConfig, GrpoObjective, Questions
from gpub.tune.losses import preferred_end
from gpub.tune.on_policy import (
    ClippedConfig,
    ClippedObjective,
    DistillationObjective,
    OnlineDpoObjective,
    RejectionObjective,
)
from gpub.tune.sft import SftObjective
from gpub.tune.sums_world import SumsRecipe, SumsWorld, Trained
from tools.pass_at_k import pass_at

FILED = "data/methods.json"
SUMS = 500  # held out
GROUP = 8  # answers to a question
BETA = 0.1  # of DPO, IPO and online DPO
PAIRS = 64  # a step, of DPO and IPO
UPDATES = 4  # of a rollout, where there are several
RATE = 1e-3  # of AdamW, for every method
_DRAWN_AT_ONCE = 1024  # questions, where pairs are drawn before training

MakeObjective = Callable[[Llama], Objective]


@dataclass(frozen=True)
class Method:
    "How one method trains on from a student"

    name: str
    make: MakeObjective
    steps: int
    judged: int  # answers that the rule judges
    uses_teacher: bool = False


class _Seed:
    "The models that a seed starts from, and the methods that train them on"

    def __init__(self, world: SumsWorld, seed: int, steps: int, questions: int):
        self.world = world
        self.seed = seed
        self.steps = steps
        self.questions = questions
        self.judged = steps * questions * GROUP

    def student(self) -> Trained:
        "The base after fine-tuning on answers of the teacher who forgets, with replay of plays"
        return self._fine_tuned("methods-student", self.world.teacher)

    def teacher(self) -> Trained:
        "The same, on answers of somebody who forgets nothing"
        return self._fine_tuned("methods-teacher", SumTeacher(forget=0))

    def _fine_tuned(self, name: str, teacher: SumTeacher) -> Trained:
        world = self.world
        recipe = world.recipe
        chats = world.chats(recipe.sft_steps * recipe.chats, 300 + self.seed, teacher)

        def imitate(model: Llama) -> Iterator[TrainStep]:
            length = world.cfg.context_length
            rows = max(1, recipe.chats // (length // (PROMPT_TOKENS + ANSWER_TOKENS)))
            batches = PackedBatches(chats, length, rows)
            objective = SftObjective(model, batches, replay=world.pages(2, seed=1))
            return train(model, objective, recipe.config(recipe.sft_steps, recipe.sft_rate))

        settings = recipe.told() | dict(seed=self.seed)
        return world.trained(name, world.base().model, settings, imitate)

    def methods(self) -> list[Method]:
        "All methods, as much judged as can be where a rule is asked"
        cfg = dict(questions_per_step=self.questions, group=GROUP, longest=ANSWER_TOKENS)
        cfg |= dict(seed=self.seed)
        plain = GrpoConfig(**cfg)
        scaled = GrpoConfig(**cfg, scale_rewards=True)
        clipped = ClippedConfig(**cfg, updates=UPDATES)
        pair = GrpoConfig(**cfg | dict(group=2, questions_per_step=self.questions * GROUP // 2))
        world, end, ask, judged = self.world, self.world.end, self._ask, self.judged

        def dpo(**how) -> MakeObjective:
            return lambda model: DpoObjective(
                model, self._pairs(model), DpoConfig(beta=BETA, pairs_per_step=PAIRS, **how)
            )

        def grpo(cfg: GrpoConfig, ask: Callable[[int], Questions]) -> MakeObjective:
            return lambda model: GrpoObjective(model, ask, end, cfg)

        def clip(model: Llama) -> Objective:
            return ClippedObjective(model, ask, end, clipped)

        def imitate(model: Llama) -> Objective:
            chats = world.chats(judged, seed=200 + self.seed)
            rows = PROMPT_TOKENS + ANSWER_TOKENS
            return SftObjective(model, PackedBatches(chats, rows, self.questions * GROUP))

        def reject(model: Llama) -> Objective:
            return RejectionObjective(model, ask, end, plain)

        def prefer(model: Llama) -> Objective:
            reference = self.student().model.eval()
            return OnlineDpoObjective(model, self._ask_for_pairs, end, reference, pair, BETA)

        def distil(model: Llama) -> Objective:
            return DistillationObjective(model, ask, end, self.teacher().model.eval(), plain)

        steps = self.steps
        return [
            Method("grpo", grpo(plain, ask), steps, judged),
            Method("rejection", reject, steps, judged),
            Method("imitation", imitate, steps, 0),
            Method("online_dpo", prefer, steps, judged),
            Method("dpo", dpo(), steps, judged),
            Method("distillation", distil, steps, 0, uses_teacher=True),
            Method("grpo_clipped", clip, steps * UPDATES, judged),
            Method("ipo", dpo(loss="ipo"), steps, judged),
            Method("grpo_scaled", grpo(scaled, ask), steps, judged),
            Method("dpo_nll", dpo(nll_weight=1.0), steps, judged),
            Method("grpo_clipped_quarter", clip, steps, judged // UPDATES),
            Method("coin", grpo(plain, self._tossed), steps, 0),
        ]

    def trained(self, method: Method) -> Trained:
        "Train the student with a method"
        student = self.student()  # and what the method needs, before the clock runs
        if method.uses_teacher:
            self.teacher()

        def learn(model: Llama) -> Iterator[TrainStep]:
            cfg = TrainConfig(
                steps=method.steps, optimizer="adamw", lr=RATE, warmup=min(5, self.steps), clip=1.0
            )
            yield from train(model, method.make(model), cfg)

        settings = dict(seed=self.seed, steps=method.steps, rate=RATE, questions=self.questions)
        settings |= dict(recipe=self.world.recipe.told(), group=GROUP, beta=BETA, pairs=PAIRS)
        return self.world.trained(f"methods-{method.name}", student.model, settings, learn)

    def possible(self, name: str) -> float | None:
        "Where a method is best, by computation; None where nothing is asked of it"
        if name in ("student", "imitation"):
            return float((0.5 ** carries_of(*_exam())).mean())
        if name == "coin":
            return None
        if name == "distillation":
            return float(self.world.right_probs(self.teacher().model, SUMS).mean())
        if name == "ipo":
            # each pair is to be 1 / (2 beta) nats a token apart
            p_n = self.world.right_probs(self.student().model, SUMS).double().numpy()
            return float(np.mean(preferred_end(p_n, 2 * BETA / ANSWER_TOKENS)))
        return 1.0

    def row(self, name: str, trained: Trained, **more) -> dict:
        "What is filed of a model"
        p_n = self.world.right_probs(trained.model, SUMS).double().numpy()
        row = dict(seed=self.seed, method=name, pass_1=pass_at(p_n, 1), pass_8=pass_at(p_n, 8))
        row |= dict(possible=self.possible(name), least=float(p_n.min()))
        row |= dict(plays=self.world.text_loss(trained.model), cpu=trained.cpu)
        clip_shares = [step["clip_share"] for step in trained.log if "clip_share" in step]
        if clip_shares:
            row["clip_share"] = np.reshape(clip_shares, (-1, UPDATES)).mean(0).tolist()
        return row | more

    def _ask(self, step: int) -> Questions:
        return self.world.questions(self.questions, seed=[7 + self.seed, step])

    def _ask_for_pairs(self, step: int) -> Questions:
        return self.world.questions(self.questions * GROUP // 2, seed=[7 + self.seed, step])

    def _tossed(self, step: int) -> Questions:
        coin = np.random.default_rng([self.seed, step])
        return Questions(self._ask(step).prompts, lambda number, answer: float(coin.random() < 0.5))

    def _pairs(self, model: Llama) -> list[PreferencePair]:
        "Pairs of a right and a wrong answer that the student has written, before training"
        left = self.judged // 2
        pairs = []
        for part in range(0, left, _DRAWN_AT_ONCE):
            n = min(_DRAWN_AT_ONCE, left - part)
            asked = self.world.questions(n, seed=[9 + self.seed, part])
            pairs += sampled_pairs(
                model.eval(),
                asked.prompts,
                asked.reward,
                ANSWER_TOKENS,
                self.world.end,
                seed=self.seed * self.judged + part,
                always_right=True,
            )
        return pairs


def _exam() -> tuple[np.ndarray, np.ndarray]:
    "The sums that `right_probs` asks"
    return draw_pairs(SUMS, np.random.default_rng(6), held_out=True)


def measure_methods(
    file: Path | str | None = FILED,  # of the receipt; None: only train
    folder: Path | str = "runs",  # that keeps trained models
    recipe: SumsRecipe = SumsRecipe(sft_steps=600),  # of the students and teachers
    steps: int = 40,  # of each method
    questions: int = 16,  # a step, eight answers to each
    seeds: Sequence[int] = (0, 1, 2),  # each has a student, a teacher, questions and dice
) -> dict:  # the receipt
    "Train with each method from each student; the receipt is written again after each of them"
    use_threads(1)
    world = SumsWorld(folder, recipe)
    receipt = dict(
        sums=SUMS,
        seeds=list(seeds),
        steps=steps,
        judged=steps * questions * GROUP,
        group=GROUP,
        updates=UPDATES,
        beta=BETA,
        sft_steps=recipe.sft_steps,
        rate=RATE,
        base_plays=world.text_loss(world.base().model),
        rows=[],
        machine=machine("cpu"),
    )

    def add(row: dict) -> None:
        receipt["rows"].append(row)
        if file is not None:
            write_atomic(Path(file), json.dumps(receipt) + "\n")

    of_seed = {seed: _Seed(world, seed, steps, questions) for seed in seeds}
    for one in of_seed.values():
        add(one.row("student", one.student()))
        add(one.row("teacher", one.teacher()))
    for methods in zip(*(one.methods() for one in of_seed.values())):
        for one, method in zip(of_seed.values(), methods):
            add(one.row(method.name, one.trained(method), judged=method.judged))
    return receipt


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=int, help="only train the models of this seed")
    train_only = parser.parse_args().train
    if train_only is None:
        measure_methods()
    else:
        measure_methods(None, seeds=[train_only])
