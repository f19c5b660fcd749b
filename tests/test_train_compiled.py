"Compiled block by block: one graph for all blocks, none lost at the ninth shape, the same losses"

from dataclasses import replace

import pytest
import torch
from torch._dynamo.utils import counters

import gpub.model.head as head
from gpub.device import seed_everything
from gpub.model.gpt import GPT, GPTConfig
from gpub.model.head import chunked_loss
from gpub.model.llama import Llama, LlamaConfig
from gpub.model.sizes import MODES
from gpub.train.compiled import CompiledBlocks, choose_loss, compiled_loss, compiles_by_block
from gpub.train.config import TrainConfig
from gpub.data.borders import borders_at_ends
from gpub.train.documents import ByDocument
from gpub.train.loop import TrainParts, train
from gpub.train.memory import MicroBatcher

SMALL = dict(vocab_size=40, context_length=16, d_model=16, n_layers=9, n_heads=2)
CONFIGS = [GPTConfig(**SMALL), LlamaConfig(**SMALL, n_kv_heads=1, d_ff=32)]


def build(cfg):
    "The same model each time"
    seed_everything(0)
    return (GPT if isinstance(cfg, GPTConfig) else Llama)(cfg)


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
@pytest.mark.parametrize("cfg", CONFIGS, ids=lambda c: type(c).__name__)
def test_one_graph_for_all_blocks_and_the_same_gradients(cfg, mode):
    found = {}
    for compiled in False, True:
        model = build(cfg)
        fit = MicroBatcher(model, TrainConfig(steps=1, grad_checkpoint=mode))
        before = graphs()
        fit.backward(CompiledBlocks(fit) if compiled else model.loss, *batch())
        found[compiled] = torch.cat([p.grad.flatten() for p in model.parameters()])
        assert graphs() - before == compiled
    assert torch.allclose(found[True], found[False], atol=1e-6)


def documents_in_a_row(seed):
    "Rows of three documents each, the end token 0 before every one, and the documents apart"
    numbers = torch.Generator().manual_seed(seed)
    rows, apart = [], []
    for cuts in ((5, 4), (2, 9), (7, 1)):
        sizes = [*cuts, 16 - sum(cuts)]
        documents = [torch.randint(1, 40, (n,), generator=numbers) for n in sizes]
        for d in documents:
            d[0] = 0
        rows.append(torch.cat([*documents, torch.zeros(1, dtype=torch.int64)]))
        apart += [torch.cat([d, torch.zeros(1, dtype=torch.int64)])[None] for d in documents]
    row = torch.stack(rows)
    return (row[:, :-1], row[:, 1:]), [(d[:, :-1], d[:, 1:]) for d in apart]


WAYS = [("eager", mode) for mode in MODES] + [("blocks", "off")]
WAYS += [
    pytest.param(*way, marks=pytest.mark.full)
    for way in (("blocks", "full"), ("whole", "selective"))
]


@pytest.mark.parametrize("how, mode", WAYS)
@pytest.mark.parametrize("cfg", CONFIGS, ids=lambda c: type(c).__name__)
def test_documents_of_a_row_are_learned_as_if_apart(cfg, how, mode):
    "With gradient checkpointing and compiled, and no graph anew for other borders"
    model = build(replace(cfg, n_layers=2, init_std=0.2))
    fit = MicroBatcher(model, TrainConfig(steps=1, grad_checkpoint=mode))
    by = ByDocument(model)
    ways = dict(eager=lambda: by.loss, blocks=lambda: CompiledBlocks(fit, by))
    fn = ways.get(how, lambda: compiled_loss(by))()
    seen = []
    for seed in (0, 1):
        together, apart = documents_in_a_row(seed)
        model.zero_grad()
        loss = fit.backward(fn, *(borders_at_ends(t, 0) for t in together))
        found = torch.cat([p.grad.flatten() for p in model.parameters()])
        seen.append(graphs())
        model.zero_grad()
        parts = [model.loss(x, y) * x.numel() / together[0].numel() for x, y in apart]
        sum(parts).backward()
        want = torch.cat([p.grad.flatten() for p in model.parameters()])
        assert abs(loss - sum(parts)) < 1e-5 and torch.allclose(found, want, atol=1e-5)
        assert abs(model.loss(*together) - sum(parts)) > 1e-4
    assert seen[0] == seen[1]


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


def test_a_smaller_step_and_another_mode_are_compiled_too():
    model, said = build(CONFIGS[0]), []
    cfg = TrainConfig(steps=1, compile="yes")
    fit = MicroBatcher(model, cfg, log=said.append)
    fn = choose_loss(fit, batch(), cfg, 1)
    assert isinstance(fn, CompiledBlocks)
    full = [True]

    def cramped(x, y):
        if fit.mode == "off" and full:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return fn(x, y)

    before = graphs()
    fit.backward(cramped, *batch())
    assert fit.state() == dict(mode="selective", micro=1)
    assert graphs() == before + 1 and len(said) == 5


def test_training_gives_the_losses_of_eager_mode():
    cfg = TrainConfig(steps=6, batch_tokens=96, depths=((0.0, 1), (0.5, 9)), clip=1.0)
    losses = {}
    for compiled in False, True:
        model = build(CONFIGS[1])
        fit = MicroBatcher(model, cfg)
        parts = TrainParts(CompiledBlocks(fit) if compiled else None, fit=fit)
        steps = train(model, lambda n, context_length: batch(6), cfg, parts=parts)
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
