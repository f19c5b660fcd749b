"Compiled block by block: one graph for all blocks, none lost at the ninth shape, the same losses"

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch._dynamo.utils import counters

import gpub.model.head as head
from gpub.data.batch import Batch
from gpub.device import seed_everything
from gpub.model.architecture import MODES
from gpub.model.architectures import build_model
from gpub.model.gpt import GPTConfig
from gpub.model.head import chunked_loss
from gpub.model.llama import LlamaConfig
from gpub.train.compiled import CompiledBlocks, choose_loss, compiled_loss, compiles_by_block
from gpub.train.config import TrainConfig
from gpub.train.loop import LoopSettings, NextToken, train
from gpub.train.memory import Cut, MicroBatcher, forward_backward
from gpub.train.step_batch import TokenBatch, next_token_loss

SMALL = dict(vocab_size=40, context_length=16, d_model=16, n_layers=9, n_heads=2)
CONFIGS = [GPTConfig(**SMALL), LlamaConfig(**SMALL, n_kv_heads=1, d_ff=32)]


def build(cfg):
    "The same model each time"
    seed_everything(0)
    return build_model(cfg)


def batch(rows=12, length=16):
    "Ids and targets of random text"
    return torch.randint(40, (2, rows, length), generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def no_code(monkeypatch):
    "Graphs are traced and differentiated, but no compiler is called"
    real = torch.compile
    torch._dynamo.reset()
    monkeypatch.setattr(
        torch, "compile", lambda f, **how: real(f, **how | dict(backend="aot_eager"))
    )
    yield
    torch._dynamo.reset()


def graphs():
    "How many were traced so far"
    return counters["stats"]["unique_graphs"]


@pytest.mark.parametrize(
    "mode", [MODES[0], *(pytest.param(mode, marks=pytest.mark.full) for mode in MODES[1:])]
)
@pytest.mark.parametrize(
    "cfg",
    [CONFIGS[0], *(pytest.param(cfg, marks=pytest.mark.full) for cfg in CONFIGS[1:])],
    ids=lambda c: type(c).__name__,
)
def test_one_graph_for_all_blocks_and_the_same_gradients(cfg, mode):
    found = {}
    for compiled in False, True:
        model = build(cfg)
        fit = MicroBatcher(model, TrainConfig(steps=1, grad_checkpoint=mode))
        before = graphs()
        forward_backward(
            partial(next_token_loss, CompiledBlocks(fit) if compiled else model.loss),
            TokenBatch.whole(*batch()),
            fit,
        )
        found[compiled] = torch.cat([p.grad.flatten() for p in model.parameters()])
        assert graphs() - before == compiled
    assert torch.allclose(found[True], found[False], atol=1e-6)


@pytest.mark.parametrize("whole", [pytest.param(True), False])
@pytest.mark.full(instead="test_one_graph_for_all_blocks_and_the_same_gradients")
def test_a_ninth_shape_is_compiled_like_the_first(whole):
    model = build(replace(CONFIGS[0], n_layers=2))
    fit = MicroBatcher(model, TrainConfig(steps=1))
    fn = compiled_loss(model) if whole else CompiledBlocks(fit)
    before = graphs()
    for again in False, True:
        for rows in range(1, 11):
            fn(*batch(rows)).backward()
            assert graphs() - before == (10 if again else rows)


def test_evaluation_and_generation_stay_eager():
    model = build(CONFIGS[0])
    fit = MicroBatcher(model, TrainConfig(steps=1))
    fn = CompiledBlocks(fit)
    fn(*batch())
    before = graphs()
    model.loss(*batch(3))
    model(batch(1, 5)[0])
    assert graphs() == before


@pytest.mark.full(instead="test_train.py::test_a_step_shrinks_whatever_says_that_memory_is_full")
def test_a_smaller_step_and_another_mode_are_compiled_too():
    model, said = build(CONFIGS[0]), []
    cfg = TrainConfig(steps=1, compile="yes")
    fit = MicroBatcher(model, cfg, log=said.append)
    fn = choose_loss(fit, batch(), cfg)
    assert isinstance(fn, CompiledBlocks)
    full = [True]

    def cramped(x, y):
        if fit.cut.mode == "off" and full:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return fn(x, y)

    before = graphs()
    forward_backward(partial(next_token_loss, cramped), TokenBatch.whole(*batch()), fit)
    assert fit.cut == Cut(mode="selective", micro=1)
    assert graphs() == before + 1 and len(said) == 5


def test_training_gives_the_losses_of_eager_mode():
    cfg = TrainConfig(steps=6, batch_tokens=96, depths=((0.0, 1), (0.5, 9)), clip=1.0)
    losses = {}
    for compiled in False, True:
        model = build(CONFIGS[1])
        fit = MicroBatcher(model, cfg)
        objective = NextToken(
            CompiledBlocks(fit) if compiled else model.loss,
            lambda n, context_length: Batch(*batch(6)),
            cfg,
            model.cfg.context_length,
            torch.device("cpu"),
        )
        steps = train(model, objective, cfg, settings=LoopSettings(micro_batcher=fit))
        losses[compiled] = [s.row()["loss"] for s in steps]
    assert losses[True] == pytest.approx(losses[False], abs=1e-5)


def test_a_chunked_head_is_compiled_beside_its_blocks(monkeypatch):
    monkeypatch.setattr(head, "SCORES_AT_ONCE", 128 * 64)
    model = build(replace(CONFIGS[0], n_layers=2))
    assert not compiles_by_block(model)
    want = model.loss(*batch())
    model.head_loss = chunked_loss
    assert compiles_by_block(model)
    fit = MicroBatcher(model, TrainConfig(steps=1))
    fn, before = CompiledBlocks(fit), graphs()
    got = fn(*batch())
    assert graphs() - before == 2  # the block, and the pieces of 64 tokens, three of them
    got.backward()
    found = [p.grad.clone() for p in model.parameters()]
    assert abs(got - want) < 1e-5 and model.head_loss is chunked_loss
    model.zero_grad()
    want.backward()
    assert all(torch.allclose(p.grad, g, atol=1e-6) for p, g in zip(model.parameters(), found))
