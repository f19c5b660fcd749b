"The chunked head of a large vocabulary: the loss, the gradients and the files of the plain one"

from dataclasses import replace

import pytest
import torch

import gpub.model.head as head
from gpub.data.batch import IGNORED
from gpub.device import seed_everything
from gpub.model.architectures import build_model
from gpub.model.generate import generate_ids
from gpub.model.gpt import GPT, GPTConfig, count_params
from gpub.model.head import chunked_loss, padded_size, pick_head, tokens_at_once
from gpub.model.llama import LlamaConfig
from gpub.model.step_memory import memory_forecast, peak_memory
from gpub.train.config import TrainConfig
from gpub.train.optim import make_optimizers
from gpub.train.step_batch import backward

SMALL = dict(vocab_size=261, context_length=16, d_model=32, n_layers=2, n_heads=4)
CONFIGS = [GPTConfig(**SMALL), LlamaConfig(**SMALL, n_kv_heads=2, d_ff=64)]
CONFIGS += [replace(cfg, tied=False) for cfg in CONFIGS]


def build(cfg, chunked):
    "The same model each time, with either loss"
    seed_everything(0)
    model = build_model(cfg)
    model.head_loss = chunked_loss if chunked else None
    return model


def batch(masked=False):
    "Six rows of ids and targets; masked ones ask for 16, 3, 0, ... targets"
    g = torch.Generator().manual_seed(3)
    x, y = torch.randint(261, (2, 6, 16), generator=g)
    if masked:
        for row, asked in enumerate((16, 3, 0, 0, 9, 0)):
            y[row, asked:] = IGNORED
    return x, y


def gradients(model):
    "By name"
    return {name: p.grad for name, p in model.named_parameters()}


@pytest.fixture(autouse=True)
def several_pieces(monkeypatch):
    "So few scores at once that a small batch has several pieces, the last one shorter"
    monkeypatch.setattr(head, "SCORES_AT_ONCE", 384 * 20)
    assert tokens_at_once(261) == 16


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("micro", [None, 4, 1])
@pytest.mark.parametrize("cfg", CONFIGS, ids=lambda c: f"{type(c).__name__} tied={c.tied}")
def test_loss_and_gradients_are_those_of_the_plain_head(cfg, micro, masked):
    plain, pieces = build(cfg, False), build(cfg, True)
    want = backward(plain.loss, *batch(masked), micro)
    got = backward(pieces.loss, *batch(masked), micro)
    assert abs(got / want - 1) < 1e-6
    for name, gradient in gradients(plain).items():
        far = (gradients(pieces)[name] - gradient).abs().max()
        assert far <= 1e-6 * max(1, gradient.abs().max()), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_no_further_from_the_truth_than_the_plain_head(dtype):
    truth = build(CONFIGS[1], False)
    truth.loss(*batch()).backward()
    far = {}
    for chunked in False, True:
        model = build(CONFIGS[1], chunked)
        with torch.autocast("cpu", dtype):
            loss = model.loss(*batch())
        (1024 * loss).backward()  # as fp16's scaler does
        assert loss.dtype == torch.float32
        found = gradients(model)
        off = [(found[n] / 1024 - g).norm() for n, g in gradients(truth).items()]
        far[chunked] = torch.stack(off).norm()
    assert far[True] < 1.2 * far[False]


@pytest.mark.parametrize("cfg", CONFIGS, ids=lambda c: f"{type(c).__name__} tied={c.tied}")
def test_the_padding_is_nowhere_but_in_the_matmul(cfg):
    plain, pieces = build(cfg, False), build(cfg, True)
    assert padded_size(261) == 384
    names = plain.state_dict()
    assert {n: t.shape for n, t in pieces.state_dict().items()} == {
        n: t.shape for n, t in names.items()
    }
    pieces.load_state_dict(names)  # a checkpoint of before
    assert count_params(pieces) == count_params(plain)
    assert pieces(batch()[0]).shape[-1] == 261
    optimizers = make_optimizers(pieces, TrainConfig(steps=1))
    pieces.loss(*batch()).backward()
    for o in optimizers:
        o.step()
    # every id that is drawn is one of the vocabulary's, however flat the odds
    ids = generate_ids(pieces, [1, 2, 3], 12, temperature=100.0, seed=1)
    assert len(ids) == 15 and max(ids) < 261


def test_targets_that_are_all_masked_teach_nothing():
    model = build(CONFIGS[0], True)
    x, y = batch()
    got = backward(model.loss, x, torch.full_like(y, IGNORED), 2)
    assert got == 0
    assert not any(g.any() for g in gradients(model).values())


def test_the_backward_pass_runs_once():
    loss = build(CONFIGS[0], True).loss(*batch())
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="differentiated once"):
        loss.backward()


def test_without_gradients_there_are_none():
    model = build(CONFIGS[0], True)
    with torch.no_grad():
        assert model.loss(*batch()) == pytest.approx(
            float(build(CONFIGS[0], False).loss(*batch()).detach()), abs=1e-5
        )


def test_who_gets_it():
    large = GPT(GPTConfig(**SMALL | dict(vocab_size=9000)))
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert pick_head(large, cuda).head_loss is chunked_loss
    assert pick_head(large, cpu).head_loss is None  # a CPU keeps its bits
    assert pick_head(build(CONFIGS[0], True), cuda).head_loss is None


MANY = GPTConfig(
    vocab_size=8000, context_length=128, d_model=128, n_layers=2, n_heads=4, tied=False
)


@pytest.mark.parametrize("micro", [1, pytest.param(2, marks=pytest.mark.full)])
@pytest.mark.parametrize("tied", [True, False])
def test_the_forecast_knows_the_pieces(tied, micro, monkeypatch):
    monkeypatch.setattr(head, "SCORES_AT_ONCE", 1 << 19)
    cfg = replace(MANY, tied=tied)

    def steps():
        model = build(cfg, True)
        optimizers = make_optimizers(model, TrainConfig(steps=2, optimizer="adamw"))
        for _ in range(2):
            for _ in range(micro):
                model.loss(*torch.randint(8000, (2, 4, 128))).backward()
            for o in optimizers:
                o.step()
                o.zero_grad()

    how = dict(optimizer="adamw", accumulate=micro > 1)
    want = memory_forecast(cfg, 4, chunked=True, **how)["peak"]
    assert want < 0.8 * memory_forecast(cfg, 4, **how)["peak"]
    assert abs(want / peak_memory(steps) - 1) < 0.05
