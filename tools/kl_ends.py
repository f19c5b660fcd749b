"""How near GRPO comes to the end that its KL penalty allows, from a student whose probabilities are
known"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from gpub.chat.sums import (
    ANSWER_TOKENS,
    PROMPT_TOKENS,
    carries_of,
    digits_of,
    draw_pairs,
    sum_ids,
)
from gpub.chat.template import EncodedChat
from gpub.core import write_atomic
from gpub.device import machine, use_threads
from gpub.model.llama import Llama
from gpub.train.config import TrainConfig
from gpub.train.loop import TrainStep, train
from gpub.tune.grpo import GrpoConfig, GrpoObjective
from gpub.tune.losses import Penalty
from gpub.tune.rollouts import answer_logprobs, one_per_row
from gpub.tune.sums_world import SumsRecipe, SumsWorld, Trained


def _asked(n: int) -> tuple[np.ndarray, np.ndarray]:
    "The two numbers of each of n sums that no training asked"
    return draw_pairs(n, np.random.default_rng(6), held_out=True)


@torch.no_grad()
def _right_path(
    world: SumsWorld,  # whose held-out sums are asked
    model: Llama,  # that answers
    n: int,  # sums
) -> torch.Tensor:  # (n, 5) probability of each token of the right answer, those before it given
    "How sure a model is of the right answer, token by token"
    a, b = _asked(n)
    ids = sum_ids(world.tok, a, b, digits_of(a + b, 4))
    learned = np.arange(PROMPT_TOKENS + ANSWER_TOKENS) >= PROMPT_TOKENS
    logprobs_nt = answer_logprobs(model.eval(), one_per_row([EncodedChat(r, learned) for r in ids]))
    first = PROMPT_TOKENS - 1
    return logprobs_nt[:, first : first + ANSWER_TOKENS].exp()


class _TossedChain:
    "Chains of tosses that end with the first wrong one: outcome k has k right ones before it"

    def __init__(
        self,
        tosses: int,  # at most; the last outcome has them all right
    ):
        outcome = torch.arange(tosses + 1)[:, None]
        toss = torch.arange(tosses)[None]
        self.seen = toss <= outcome
        self.wrong = toss == outcome
        self.reward_k = (outcome[:, 0] == tosses).double()

    def logprobs(
        self,
        logits_nt: torch.Tensor,  # of a right toss, those before it right
    ) -> torch.Tensor:  # (n, outcomes, t), 0 for a toss that an outcome does not come to
        "How likely each toss of each outcome is"
        right_n1t = F.logsigmoid(logits_nt)[:, None]
        miss_n1t = F.logsigmoid(-logits_nt)[:, None]
        return torch.where(self.wrong, miss_n1t, right_n1t) * self.seen

    def goal(
        self,
        logprobs_nkt: torch.Tensor,  # of the model that learns
        reference_nkt: torch.Tensor,  # of the one before
        penalty: Penalty,  # which one is written
        beta: float,  # price of a nat of distance
    ) -> torch.Tensor:  # a scalar whose gradient is the one that GRPO samples
        "The policy gradient over all outcomes, each as often as it comes"
        weight_nk = logprobs_nkt.sum(2).exp().detach()
        d_nkt = reference_nkt - logprobs_nkt
        score_nk = self.reward_k + beta * d_nkt.sum(2).detach() * (penalty == "reward")
        advantage_nk = score_nk - (weight_nk * score_nk).sum(1, keepdim=True)
        goal = (weight_nk * advantage_nk * logprobs_nkt.sum(2)).sum()
        if penalty not in ("k3", "k3_ratio"):
            return goal
        k3_nkt = (d_nkt.exp() - d_nkt - 1) * self.seen
        if penalty == "k3_ratio":
            k3_nkt = k3_nkt * (logprobs_nkt - logprobs_nkt.detach()).exp()
        return goal - beta * (weight_nk * k3_nkt.sum(2)).sum()


def chain_ends(
    penalty: Penalty,  # which one is written
    beta: float,  # price of a nat of distance
    start_nt: torch.Tensor,  # (n, t) probability of each right token before training
    steps: int = 3000,  # of Adam on exact gradients
) -> torch.Tensor:  # (n,) probability that all are right, where training ends
    "The end of rewarded learning, computed over all outcomes of a chain of tosses"
    chain = _TossedChain(start_nt.shape[1])
    before_nt = torch.logit(start_nt.double().clamp(1e-6, 1 - 1e-6))
    reference_nkt = chain.logprobs(before_nt)
    logits_nt = before_nt.clone().requires_grad_()
    optimizer = torch.optim.Adam([logits_nt], 0.03)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 0.03 * min(1.0, 2 * (1 - step / steps))
        goal = chain.goal(chain.logprobs(logits_nt), reference_nkt, penalty, beta)
        optimizer.zero_grad()
        (-goal).backward()
        optimizer.step()
    return torch.sigmoid(logits_nt.detach()).prod(1)


def shared_ends(
    penalty: Penalty,  # which one is written
    beta: float,  # price of a nat of distance
    start_nt: torch.Tensor,  # (n, t) probability of each right token before training
) -> torch.Tensor:  # (n,) probability that all are right, where training ends
    """The end where a model can only move all log-odds by one shift, as one that shares its weights

    It pays for every token, also for those after a wrong one: there it cannot be another model."""
    before_nt = start_nt.double().clamp(1e-6, 1 - 1e-6)
    logits_nt = torch.logit(before_nt)

    def climbs(shift: float) -> bool:
        p_nt = torch.sigmoid(logits_nt + shift)
        gain = (p_nt.prod(1) * (1 - p_nt).sum(1)).mean()
        pull_nt = p_nt - before_nt if penalty == "k3" else shift * p_nt * (1 - p_nt)
        return bool(gain > beta * pull_nt.sum(1).mean())

    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if climbs(middle) else (low, middle)
    return torch.sigmoid(logits_nt + low).prod(1)


_PENALTIES = ("reward", "k3", "k3_ratio")


def measure_ends(
    file: Path | str,  # of the receipt
    folder: Path | str = "runs",  # that keeps trained models
    recipe: SumsRecipe = SumsRecipe(sft_steps=600),  # of the students
    steps: int = 160,  # of GRPO, with each penalty
    questions: int = 64,  # a step, eight answers to each
    beta: float = 0.25,  # price of a nat
    seeds: Sequence[int] = (0, 1, 2),  # each has a student, questions and dice of its own
    exact_steps: int = 3000,  # on exact gradients, to where training ends
) -> dict:  # the receipt
    "Train with each penalty from each student, and write what was possible and what was reached"
    use_threads(1)
    world = SumsWorld(folder, recipe)
    lengths = dict(questions_per_step=questions, group=8, longest=5)
    rows = [
        _measure_end(
            world,
            GrpoConfig(**lengths, penalty=penalty, beta=beta, seed=seed),
            steps,
            exact_steps,
        )
        for seed in seeds
        for penalty in _PENALTIES
    ]
    receipt = dict(
        beta=beta,
        steps=steps,
        answers=8 * questions,
        sft_steps=recipe.sft_steps,
        rows=rows,
        machine=machine("cpu"),
    )
    write_atomic(Path(file), json.dumps(receipt, indent=1) + "\n")
    return receipt


def _measure_end(world: SumsWorld, cfg: GrpoConfig, steps: int, exact_steps: int) -> dict:
    "A row of the receipt: one student, one penalty"
    student = student_of(world, cfg.seed).model
    settings = dict(steps=steps, rate=1e-3, sft=world.recipe.sft_steps, **cfg.to_dict())
    learner = student_of(world, cfg.seed).model
    steps_of = _reinforced(world, student, cfg, steps)
    run = world.trained("grpo-long", learner, settings, steps_of, _right_now(world), 25)
    before_nt = _right_path(world, student, 500)
    ends_n = chain_ends(cfg.penalty, cfg.beta, before_nt, exact_steps)
    shared_n = shared_ends(cfg.penalty, cfg.beta, before_nt)
    reached_n = _right_path(world, run.model, 500).prod(1)
    carries_n = carries_of(*_asked(500))
    by_carries = {
        name: [float(x_n[carries_n == k].mean()) for k in range(4)]
        for name, x_n in (("possible", ends_n), ("shared", shared_n), ("reached", reached_n))
    }
    return dict(
        seed=cfg.seed,
        penalty=cfg.penalty,
        start=float(world.right_probs(student, 500).mean()),
        possible=float(ends_n.mean()),
        shared=float(shared_n.mean()),
        reached=float(world.right_probs(run.model, 500).mean()),
        by_carries=by_carries,
        kl=float(np.mean([row["kl"] for row in run.log[-10:]])),
        plays=world.text_loss(run.model),
        cpu=run.cpu,
        log=[{k: row[k] for k in ("step", "right")} for row in run.log if "right" in row],
    )


def student_of(world: SumsWorld, seed: int) -> Trained:
    "The base after fine-tuning, on other examples for each seed"
    if seed == 0:
        return world.sft()
    steps = world.recipe.sft_steps
    chats = world.chats(steps * world.recipe.chats, seed=100 + seed)

    def imitate(model: Llama) -> Iterator[TrainStep]:
        return world.tuned(model, chats, steps)

    settings = world.recipe.told() | dict(seed=seed)
    return world.trained("sft-seed", world.base().model, settings, imitate)


def _reinforced(
    world: SumsWorld, student: Llama, cfg: GrpoConfig, steps: int
) -> Callable[[Llama], Iterator[TrainStep]]:
    "The steps of GRPO from a student"

    def ask(step: int):
        return world.questions(cfg.questions_per_step, seed=[7 + cfg.seed, step])

    def reinforce(model: Llama) -> Iterator[TrainStep]:
        objective = GrpoObjective(model, ask, world.end, cfg, student.eval())
        recipe = TrainConfig(steps=steps, optimizer="adamw", lr=1e-3, warmup=5, clip=1.0)
        yield from train(model, objective, recipe)

    return reinforce


def _right_now(world: SumsWorld) -> Callable[[Llama], dict[str, float]]:
    return lambda model: dict(right=float(world.right_probs(model, 500).mean()))


if __name__ == "__main__":
    measure_ends("data/grpo_ends.json", "runs")
