"""Each way to learn from a model's own answers against its formula, or against the library or the
method that it has to equal."""

import numpy as np
import pytest
import torch

from gpub.chat.packing import PackedBatches, packed_logits
from gpub.chat.sums import digits_of, draw_pairs, right_answers, sum_ids, sums_tokenizer
from gpub.chat.template import chat_marks
from gpub.core import GpubError
from gpub.data.batch import IGNORED
from gpub.model.llama import Llama, LlamaConfig
from gpub.train.config import TrainConfig
from gpub.train.loop import train
from gpub.train.memory import MicroBatcher, forward_backward
from gpub.tune.grpo import GrpoConfig, GrpoObjective, Questions
from gpub.tune.on_policy import (
    ClippedConfig,
    ClippedObjective,
    DistillationObjective,
    OnlineDpoObjective,
    RejectionObjective,
)
from gpub.tune.rollouts import answer_logprobs, one_per_row
from gpub.tune.sft import SftObjective

TOK = sums_tokenizer()
END = chat_marks(TOK).end
SIZES = dict(questions_per_step=6, longest=5)
FOUR = GrpoConfig(group=4, **SIZES)


def small_model(seed=0, vocab_size=TOK.vocab_size):
    torch.manual_seed(seed)
    shape = dict(context_length=16, d_model=16, n_layers=1, n_heads=2, n_kv_heads=2, d_ff=32)
    model = Llama(LlamaConfig(vocab_size=vocab_size, **shape))
    with torch.no_grad():
        model.tok.weight.mul_(10)  # so that nothing is nearly uniform
    return model


def ask(step, judge=None):
    "Six sums; half of the answers are liked: those whose first digit is even"
    a, b = draw_pairs(6, np.random.default_rng([7, step]))
    right = right_answers(TOK, a, b)
    prompts = list(sum_ids(TOK, a, b, digits_of(a + b, 4))[:, :9])
    return Questions(prompts, judge or (lambda n, answer: float((answer[0] + right[n][0]) % 2)))


def never(step):
    return ask(step, lambda n, answer: 1.0)


def online_dpo(model, questions=ask, beta=0.3):
    cfg = GrpoConfig(group=2, **SIZES)
    return OnlineDpoObjective(model, questions, END, small_model(1), cfg, beta)


OBJECTIVES = dict(
    rejection=lambda model: RejectionObjective(model, ask, END, FOUR),
    online_dpo=online_dpo,
    clipped=lambda model: ClippedObjective(model, ask, END, ClippedConfig(group=4, **SIZES)),
    distillation=lambda model: DistillationObjective(model, ask, END, small_model(1), FOUR),
)


def gradient_of(objective, batch=None):
    "The loss of step 0, and its gradients"
    objective.model.zero_grad()
    loss, _ = objective.loss(batch or objective.batch(0))
    loss.backward()
    return loss.item(), [p.grad.clone() for p in objective.model.parameters()]


def same(mine, wanted, atol=1e-6):
    return all(torch.allclose(a, b, atol=atol, rtol=1e-4) for a, b in zip(mine, wanted))


def test_rejection_is_sft_on_the_right_answers():
    model = small_model()
    objective = OBJECTIVES["rejection"](model)
    batch = objective.batch(0)
    right = [chat for chat, reward in zip(batch.chats, batch.rewards_b) if reward == 1]
    assert 0 < len(right) < len(batch.chats)
    _, mine = gradient_of(objective, batch)
    sft = SftObjective(model, PackedBatches(right, 16, len(right)))
    _, theirs = gradient_of(sft)
    learned = sum(int(chat.learned.sum()) for chat in right)  # SFT's mean is over tokens
    assert max(grad.abs().max() for grad in mine) > 1e-3
    assert same(mine, [grad * learned / len(batch.chats) for grad in theirs])


def test_online_dpo_is_its_formula_and_equal_pairs_teach_nothing():
    "-log sigmoid(beta * (gain of the better - gain of the other)), the mean over all pairs"
    model = small_model()
    objective = online_dpo(model)
    batch = objective.batch(0)
    with torch.no_grad():
        rows = one_per_row(batch.chats)
        now_b, before_b = (answer_logprobs(m, rows).sum(1) for m in (model, small_model(1)))
    wanted = []
    for n in range(0, len(batch.chats), 2):
        first, second = (float(now_b[i] - before_b[i]) for i in (n, n + 1))
        order = np.sign(float(batch.rewards_b[n] - batch.rewards_b[n + 1]))
        wanted.append(np.log1p(np.exp(-0.3 * order * (first - second))) if order else 0.0)
    assert 0 < np.count_nonzero(wanted) < len(wanted)
    assert gradient_of(objective, batch)[0] == pytest.approx(np.mean(wanted), rel=1e-5)
    loss, gradient = gradient_of(online_dpo(model, never))
    assert loss == 0 and all((grad == 0).all() for grad in gradient)


def test_online_dpo_raises_the_better_answer():
    model = small_model()
    objective = online_dpo(model)
    batch = objective.batch(0)
    gradient_of(objective, batch)
    rows = one_per_row(batch.chats)

    def lead():
        with torch.no_grad():
            logprobs_n2 = answer_logprobs(model, rows).sum(1).view(-1, 2)
        order_n = (batch.rewards_b.view(-1, 2) @ torch.tensor([1.0, -1.0])).sign()
        return float((order_n * (logprobs_n2[:, 0] - logprobs_n2[:, 1])).sum())

    before = lead()
    with torch.no_grad():
        for p in model.parameters():
            p.sub_(0.01 * p.grad)
    assert lead() > before


def weights_after(objective_of, steps=3):
    model = small_model()
    recipe = TrainConfig(steps=steps, optimizer="adamw", lr=0.01, warmup=1)
    rows = [step.row() for step in train(model, objective_of(model), recipe)]
    return rows, [p.detach() for p in model.parameters()]


def test_clipped_with_one_update_is_grpo():
    once = ClippedConfig(group=4, updates=1, **SIZES)
    rows, mine = weights_after(lambda model: ClippedObjective(model, ask, END, once))
    _, plain = weights_after(lambda model: GrpoObjective(model, ask, END, FOUR))
    assert same(mine, plain, atol=1e-5)
    assert all(row["clip_share"] == 0 for row in rows)


def test_a_rollout_is_learned_from_four_times_and_clipped_from_the_second_on():
    rows, _ = weights_after(OBJECTIVES["clipped"], steps=8)
    shares = np.reshape([row["clip_share"] for row in rows], (2, 4))
    rewards = np.reshape([row["reward"] for row in rows], (2, 4))
    assert (shares[:, 0] == 0).all() and (shares[:, 2:] > 0).all() and (shares <= 1).all()
    assert (rewards == rewards[:, :1]).all() and rewards[0, 0] != rewards[1, 0]


def test_the_clipped_gradient_is_ppos():
    "Token by token: advantage times ratio, and nothing where the ratio has gone far enough"
    model = small_model()
    objective = OBJECTIVES["clipped"](model)
    batch = objective.batch(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn_like(p))
    rewards_ng = batch.rewards_b.view(-1, 4)
    to_others_ng = (4 * rewards_ng - rewards_ng.sum(1, keepdim=True)) / 3
    _, mine = gradient_of(objective, batch)
    model.zero_grad()
    cut, asked, goal = 0, 0, 0.0
    for chat, old_t, gain in zip(batch.chats, batch.old_logprobs, to_others_ng.flatten()):
        now_t = answer_logprobs(model, one_per_row([chat]))[0]
        for now, old, learned in zip(now_t, old_t, chat.learned[1:]):
            ratio = (now - old).exp()
            counts = ratio <= 1.2 if gain > 0 else ratio >= 0.8
            asked += bool(learned)
            if learned and (counts or gain == 0):
                goal = goal + gain * ratio
            elif learned:
                cut += 1
    (-goal / len(batch.chats)).backward()
    assert same(mine, [p.grad for p in model.parameters()])
    assert 0 < cut < asked
    assert float(objective.loss(batch)[1]["clip_share"]) == pytest.approx(cut / asked)


def test_a_run_goes_on_where_a_rollout_begins():
    objective = OBJECTIVES["clipped"](small_model())
    with pytest.raises(GpubError, match="step 6 learns .* the weights of step 4 wrote: go on from"):
        objective.batch(6)
    objective.batch(4)
    objective.batch(6)
    with pytest.raises(GpubError, match="the weights of step 0 wrote"):
        objective.batch(3)


def test_distillation_is_zero_at_the_teacher_and_its_formula_elsewhere():
    loss, gradient = gradient_of(
        DistillationObjective(small_model(1), ask, END, small_model(1), FOUR)
    )
    assert loss == pytest.approx(0, abs=1e-6) and max(g.abs().max() for g in gradient) < 1e-6
    objective = OBJECTIVES["distillation"](small_model())
    batch = objective.batch(0)
    wanted = 0.0
    for chat in batch.chats:
        ids = torch.from_numpy(chat.ids)[None, :-1]
        with torch.no_grad():
            p_tv, q_tv = (m(ids)[0].double().softmax(-1) for m in (objective.model, small_model(1)))
        wanted += float((p_tv * (p_tv / q_tv).log()).sum(1)[chat.learned[1:]].sum())
    assert gradient_of(objective, batch)[0] == pytest.approx(wanted / len(batch.chats), rel=1e-5)


@pytest.mark.full(instead="test_distillation_is_zero_at_the_teacher_and_its_formula_elsewhere")
@pytest.mark.filterwarnings("ignore")
def test_distillation_equals_trls_gkd():
    gkd = pytest.importorskip("trl.experimental.gkd")
    model, teacher = small_model(), small_model(1)
    cfg = GrpoConfig(group=4, temperature=0.7, **SIZES)
    objective = DistillationObjective(model, ask, END, teacher, cfg)
    batch = objective.batch(0)
    loss, mine = gradient_of(objective, batch)
    rows = one_per_row(batch.chats)
    model.zero_grad()
    with torch.no_grad():
        teacher_btv = packed_logits(teacher, rows)
    theirs = gkd.GKDTrainer.generalized_jsd_loss(
        packed_logits(model, rows), teacher_btv, rows.targets, beta=1, temperature=0.7
    )
    theirs.backward()
    # theirs is the mean over tokens, ours the sum over an answer and the mean over answers
    scale = int((rows.targets != IGNORED).sum()) / len(batch.chats)
    assert loss == pytest.approx(theirs.item() * scale, rel=1e-5)
    assert same(mine, [p.grad * scale for p in model.parameters()])


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_step_in_pieces_is_the_step(name):
    def step_of(rows):
        model = small_model()
        objective = OBJECTIVES[name](model)
        batch = objective.batch(0)
        with torch.no_grad():  # so that there is something to clip
            for p in model.parameters():
                p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(3)))
        batcher = MicroBatcher(model, TrainConfig(steps=1, micro_batch=rows))
        loss, metrics = forward_backward(objective.loss, batch, batcher)
        row = dict(loss=float(loss)) | {key: float(value) for key, value in metrics.items()}
        return len(batch.split(rows)), row, [p.grad for p in model.parameters()]

    _, whole, gradient = step_of(None)
    pieces, row, of_pieces = step_of(4)
    assert pieces == (3 if name == "online_dpo" else 6)
    assert row == pytest.approx(whole, rel=1e-5, abs=1e-6)
    assert same(of_pieces, gradient) and max(g.abs().max() for g in gradient) > 1e-4


def test_what_does_not_fit_is_refused():
    model, penal = small_model(), GrpoConfig(group=4, penalty="k3", beta=0.1)
    with pytest.raises(GpubError, match="penalty k3 belongs to GRPO"):
        RejectionObjective(model, ask, END, penal)
    with pytest.raises(GpubError, match="set group to 2, it is 4"):
        OnlineDpoObjective(model, ask, END, model, FOUR)
    with pytest.raises(GpubError, match="updates must be a whole number from 1 to 64"):
        ClippedConfig(updates=0)
    with pytest.raises(GpubError, match="clip must be a number above 0"):
        ClippedConfig(clip=0.0)
    other = small_model(vocab_size=TOK.vocab_size + 1)
    with pytest.raises(GpubError, match="they need one vocabulary"):
        DistillationObjective(model, ask, END, other, FOUR)
