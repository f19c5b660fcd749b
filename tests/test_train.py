"The engine where no run on a CPU would go: a resume on a GPU, a full memory, masked targets"

import json
import traceback
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from contracts import refuses
from torch._inductor.exc import InductorError
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import gpub
from gpub.core import GpubError
from gpub.data.batch import IGNORED, Batch
from gpub.data.batches import Batches
from gpub.device import seed_everything
from gpub.lab.bench.speed import head_loss
from gpub.model.gpt import GPT, GPTConfig
from gpub.train import optim, pretraining
from gpub.train.compiled import choose_loss, compiled_loss
from gpub.train.config import TrainConfig, context_length_at, context_lengths
from gpub.train.depth import set_depth
from gpub.train.learner import get_rng, set_rng
from gpub.train.loop import (
    MOST_SKIPPED,
    Diverged,
    LoopSettings,
    TrainStep,
    evaluate,
    train,
    train_next_token,
)
from gpub.train.memory import (
    Cut,
    MemoryFull,
    MicroBatcher,
    checkpoint_block,
    forward_backward,
    out_of_memory,
)
from gpub.train.optim import (
    Muon,
    make_optimizers,
    muon_format,
    optimizer_state,
    restore_optimizers,
)
from gpub.train.options import RunOptions
from gpub.train.parallel import World
from gpub.train.step_batch import TokenBatch, backward, next_token_loss
from gpub.train.trainer import Trainer

TINY = GPTConfig(vocab_size=11, context_length=8, d_model=16, n_layers=2, n_heads=2)
CFG = TrainConfig(steps=1, batch_tokens=64)


def tiny():
    "The same small model each time"
    seed_everything(0)
    return GPT(TINY)


def batch(rows=8, seed=1):
    "Ids and targets of random text"
    g = torch.Generator().manual_seed(seed)
    return torch.randint(11, (2, rows, 8), generator=g)


def gradient(model):
    "All gradients side by side"
    return torch.cat([p.grad.flatten() for p in model.parameters()])


class OneDeviceAdam(TorchDispatchMode):
    "CUDA's fused AdamW refuses a CPU scalar, a fake tensor lets it pass: so ask here"

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name.startswith("aten::_fused_adam"):
            leaves = tree_leaves((args, kwargs))
            devices = {str(t.device) for t in leaves if isinstance(t, torch.Tensor)}
            assert devices == {"cuda:0"}, devices
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_restored_optimizer_state_stands_where_its_parameter_stands(optimizer):
    cfg = TrainConfig(steps=3, optimizer=optimizer)
    model = tiny()
    opts = make_optimizers(model, cfg)
    model.loss(*batch()).backward()
    for o in opts:
        o.step()
    saved = {k: t.clone() for k, t in optimizer_state(model, opts).items()}
    assert any(k.endswith("|step") for k in saved) and all(
        t.device.type == "cpu" for t in saved.values()
    )
    # CUDA's tensors without CUDA: nothing is computed, every operation still knows its device
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        model = tiny()
        for m in model.modules():
            for k, p in [*m._parameters.items()]:
                if p is not None:
                    m._parameters[k] = torch.nn.Parameter(torch.empty(p.shape, device="cuda"))
        opts = make_optimizers(model, cfg)
        restore_optimizers(model, opts, saved)
        homes = [(p, t) for o in opts for p, s in o.state.items() for t in s.values()]
        assert len(homes) == len(saved)
        for p, t in homes:
            assert t.device == p.device and p.device.type == "cuda"
        for p in model.parameters():
            p.grad = torch.empty_like(p)
        with OneDeviceAdam():
            for o in opts:
                o.step()


FULL = [
    torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB free"
    ),
    MemoryError(),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("CUDA driver error: CUDA_ERROR_OUT_OF_MEMORY"),
    RuntimeError("NCCL error: ncclUnhandledCudaError: Cuda failure 2 'out of memory'"),
    RuntimeError("MPS backend out of memory (MPS allocated: 17.00 GB)"),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried"
    ),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
    OSError(12, "Cannot allocate memory"),
    InductorError(torch.OutOfMemoryError("CUDA out of memory."), None),
    InductorError(
        MemoryError(), None
    ),  # its text says nothing: the reason stands in `inner_exception`
]
NOT_FULL = [
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("out of resource: shared memory, Required: 147456, Hardware limit: 101376"),
    InductorError(RuntimeError("No working C++ compiler found"), None),
    GpubError(
        "out of memory with one sequence of 8 tokens: use a smaller model"
    ),  # said already, by us
    OSError(2, "No such file or directory"),
    FileNotFoundError(2, "No such file or directory", "notes/out_of_memory.txt"),
]


def test_the_random_numbers_of_a_gpu_go_back_to_the_gpu(monkeypatch):
    "What a run without a GPU never asks: CUDA's generator gets CUDA's state, not the CPU's"
    cuda, put_back = torch.tensor([7, 7]), []
    for name in ("is_available", "is_initialized"):
        monkeypatch.setattr(torch.cuda, name, lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "set_rng_state", put_back.append)
    states = get_rng()
    assert torch.equal(states["rng|cpu"], torch.get_rng_state())
    drawn = torch.rand(3)
    set_rng(states)
    assert put_back == [cuda] and torch.equal(torch.rand(3), drawn)


def caused(error):
    "Another error because of this one, as `raise ... from` makes it"
    outer = ValueError("the kernel did not come")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize("error", FULL, ids=lambda e: f"{type(e).__name__}: {e}"[:60])
def test_a_full_memory_is_recognised(error):
    assert out_of_memory(error) and out_of_memory(caused(error))


@pytest.mark.parametrize("error", NOT_FULL, ids=lambda e: f"{type(e).__name__}: {e}"[:60])
def test_what_is_no_full_memory_is_not_taken_for_one(error):
    assert not out_of_memory(error) and not out_of_memory(caused(error))


def test_reasons_that_go_in_a_circle_end():
    a, b = RuntimeError("a"), RuntimeError("b")
    a.__cause__, b.__cause__ = b, a
    assert not out_of_memory(a)


@pytest.mark.parametrize("error", FULL, ids=lambda e: f"{type(e).__name__}: {e}"[:60])
def test_a_step_shrinks_whatever_says_that_memory_is_full(error):
    model, said = tiny(), []
    x, y = batch()
    model.loss(x, y).backward()
    whole = gradient(model)
    model.zero_grad()

    def cramped(x, y):
        if len(x) > 2:
            raise error
        return model.loss(x, y)

    fit = MicroBatcher(model, CFG, log=said.append)
    forward_backward(partial(next_token_loss, cramped), TokenBatch.whole(x, y), fit)
    assert fit.cut.micro == 2 and len(said) == 2
    assert torch.allclose(gradient(model), whole, atol=1e-6)


@dataclass(frozen=True)
class OneOfTwo(World):
    "A process of two; the other has room for `rows` sequences"

    rank: int = 1
    size: int = 2
    rows: int = 2
    tried: list = field(default_factory=list)  # sequences of each trial of this process

    def any(self, flag):
        return flag or self.tried[-1] > self.rows


def test_a_process_shrinks_when_another_is_full():
    "It has room for all, and takes the pieces that fit the other; then nobody asks again"
    model, said, world = tiny(), [], OneOfTwo()
    x, y = batch()
    model.loss(x, y).backward()
    whole = gradient(model)
    model.zero_grad()

    def loss(ids, targets):
        world.tried.append(len(ids))
        return model.loss(ids, targets)

    step = partial(next_token_loss, loss), TokenBatch.whole(x, y)
    fit = MicroBatcher(model, CFG, world, said.append)
    fit.try_pieces()
    forward_backward(*step, fit)
    assert fit.cut.micro == 2 and world.tried == [8, 4, 2, 2, 2, 2, 2]
    assert [s.split(":")[0] for s in said] == [
        "out of memory with 8 sequences of 8 tokens at once",
        "out of memory with 4 sequences of 8 tokens at once",
    ]
    assert torch.allclose(gradient(model), whole, atol=1e-6)
    # the second step has full optimizers: one more trial; the third has none
    for trials in 1, 0:
        world.tried.clear()
        forward_backward(*step, fit)
        assert len(world.tried) == 4 + trials


@pytest.mark.parametrize("in_slices", [False, True])
def test_a_memory_that_is_full_in_the_middle_of_a_shared_step_says_what_comes_next(in_slices):
    "A model in slices has no trial: there every block of a process waits for all the others"
    model = tiny()
    if in_slices:
        model.reshard = None  # a method of FSDP2's, which marks such a model

    def cramped(x, y):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    step = partial(next_token_loss, cramped), TokenBatch.whole(*batch())
    ways = {None: Cut(micro=4), 1: Cut(mode="selective", micro=1)}
    for rows, smaller in ways.items():
        fit = MicroBatcher(model, replace(CFG, micro_batch=rows), OneOfTwo(), pytest.fail)
        if in_slices:
            fit.try_pieces()
        now = rows or 8
        less = f"{smaller.micro} at once and grad_checkpoint {smaller.mode}"
        with pytest.raises(MemoryFull, match=f"process 1 with {now} .*it takes {less}") as full:
            forward_backward(*step, fit)
        assert full.value.cut == smaller and fit.cut == Cut(micro=rows)
    fit = MicroBatcher(model, replace(CFG, micro_batch=1, grad_checkpoint="full"), OneOfTwo())
    with pytest.raises(GpubError, match="one sequence .* use a smaller model"):
        forward_backward(*step, fit)


def test_an_error_that_is_no_full_memory_leaves_nobody_waiting():
    world, answers = OneOfTwo(), []
    object.__setattr__(world, "any", lambda flag: answers.append(flag))
    fit = MicroBatcher(tiny(), CFG, world)
    fit.try_pieces()
    with pytest.raises(ZeroDivisionError):
        forward_backward(lambda piece: 1 / 0, TokenBatch.whole(*batch()), fit)
    assert answers == [False]


def cramped_compiler(monkeypatch, rows):
    "torch.compile with Dynamo's own wrapping of a compiler that has room for `rows` sequences"

    def backend(graph, inputs):
        ids = [t for t in inputs if isinstance(t, torch.Tensor) and t.dtype == torch.int64]
        if max(len(t) for t in ids) > rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return graph.forward

    real = torch.compile
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", lambda f, **kw: real(f, backend=backend))


@pytest.mark.full(instead="test_a_step_shrinks_whatever_says_that_memory_is_full")
def test_memory_that_ends_while_compiling_shrinks_the_step_and_stays_compiled(monkeypatch):
    cramped_compiler(monkeypatch, 2)
    model, said = tiny(), []
    cfg = TrainConfig(steps=9, compile="yes")
    fit = MicroBatcher(model, cfg, log=said.append)
    fn = choose_loss(fit, batch(), cfg)
    assert fn != model.loss and fit.cut.micro == 2
    assert [s.split(":")[0] for s in said] == [
        "out of memory with 8 sequences of 8 tokens at once",
        "out of memory with 4 sequences of 8 tokens at once",
    ]


def test_a_compiler_without_any_room_ends_the_run_with_what_to_do(monkeypatch):
    cramped_compiler(monkeypatch, 0)
    model, said = tiny(), []
    cfg = TrainConfig(steps=9, compile="yes", micro_batch=1, grad_checkpoint="full")
    with pytest.raises(GpubError, match="out of memory with one sequence of 8 tokens"):
        choose_loss(MicroBatcher(model, cfg, log=said.append), batch(), cfg)
    assert not said  # not a word about eager mode


def test_a_trial_that_runs_out_of_memory_is_no_failure_to_compile():
    said = []

    def trial(fn):
        raise RuntimeError("Triton Error [CUDA]: out of memory")

    with pytest.raises(RuntimeError, match="Triton"):
        compiled_loss(tiny(), trial, said.append)
    assert not said


def masked():
    "A batch whose rows ask for 8, 1, 0, 3 and then no tokens at all"
    x, y = batch()
    for row, asked in enumerate((8, 1, 0, 3, 0, 0, 0, 0)):
        y[row, asked:] = IGNORED
    return x, y


def means(x, y):
    "The mean over the targets that count and its gradient, from the definition"
    model = tiny()
    nats = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="none")
    loss = nats.sum() / (y != IGNORED).sum()
    loss.backward()
    return loss.detach(), gradient(model)


@pytest.mark.parametrize("micro", [None, 1, 2, 3, 4, 5, 8])
def test_masked_targets_count_however_the_batch_is_cut(micro):
    x, y = masked()
    loss, grad = means(x, y)
    model = tiny()
    got = backward(model.loss, x, y, micro)
    assert abs(got - loss) < 1e-6 and (gradient(model) - grad).abs().max() < 1e-6
    first = next(
        train_next_token(
            tiny(),
            lambda n, context_length: Batch(x, y),
            TrainConfig(steps=1, batch_tokens=128, micro_batch=micro),
        )
    )
    assert abs(first.row()["loss"] - float(loss)) < 1e-6
    assert first.tokens == x.numel()  # what was read, not what a recipe says


@pytest.mark.parametrize("micro", [None, 3])
def test_a_batch_without_targets_teaches_nothing_and_is_a_number(micro):
    x, y = batch()
    model = tiny()
    got = backward(model.loss, x, torch.full_like(y, IGNORED), micro)
    assert got == 0 and not gradient(model).any()


@pytest.mark.parametrize("micro", [None, 1, 3])
def test_without_masks_the_bits_are_those_of_shares_of_rows(micro):
    x, y = batch()
    model, total = tiny(), 0.0
    for xs, ys in zip(x.split(micro or 8), y.split(micro or 8)):
        loss = model.loss(xs, ys) * (len(xs) / len(x))
        loss.backward()
        total = total + loss.detach()
    want = gradient(model)
    model = tiny()
    assert torch.equal(backward(model.loss, x, y, micro), total) and torch.equal(
        gradient(model), want
    )


def test_evaluate_scores_the_targets_that_are_asked_for():
    model = tiny()
    ids = batch(rows=10)[0].flatten()[:77]  # nine windows and a short one
    asked = ids.clone()
    asked[5:30] = IGNORED  # whole windows without a target among them
    asked[40::3] = IGNORED
    nats = [
        torch.nn.functional.cross_entropy(
            model(ids[None, a:b])[0], asked[a + 1 : b + 1], reduction="none"
        )
        for a, b in ((n, min(n + 8, 76)) for n in range(0, 76, 8))
    ]
    want = float(torch.cat(nats).detach().double().sum()) / int((asked[1:] != IGNORED).sum())
    for rows in (None, 1, 2, 3):
        assert evaluate(model, ids, 8, rows, targets=asked) == pytest.approx(want, abs=1e-6)
    assert evaluate(model, ids, 8, targets=ids) == evaluate(model, ids, 8)
    with pytest.raises(GpubError, match="76 targets are masked"):
        evaluate(model, ids, 8, targets=torch.full_like(ids, IGNORED))
    with pytest.raises(GpubError, match="77 ids and 76 targets"):
        evaluate(model, ids, 8, targets=asked[1:])
    with pytest.raises(GpubError, match="a window has at least one token: context_length is 0"):
        evaluate(model, ids, 0)


def test_processes_that_share_no_gradients_are_refused():
    two = LoopSettings(world=World(0, 2))
    with pytest.raises(GpubError, match="2 processes that share no gradients learn apart"):
        next(train(tiny(), None, CFG, settings=two))
    with pytest.raises(GpubError, match="take the steps of a `Learner`"):
        next(train_next_token(tiny(), None, CFG, settings=two))


@pytest.mark.parametrize(
    "plan, why",
    [
        (dict(batch=4), "4 rows of 8 tokens, 32 a step, and the recipe says batch_tokens=64"),
        (dict(batch=8, world_size=2, rank=1), "for 2 processes, and this is one"),
    ],
)
def test_batches_of_another_size_than_the_recipe_are_refused(plan, why):
    ids = torch.randint(11, (500,), generator=torch.Generator().manual_seed(0)).numpy()
    fitting = Batches(ids, context_length=8, batch=8)
    assert next(train_next_token(tiny(), fitting, CFG)).tokens == CFG.batch_tokens
    refuses(why, train_next_token, tiny(), Batches(ids, context_length=8, **plan), CFG)


def test_any_block_can_be_computed_twice():
    "One that takes no context, too"
    losses = []
    for mode in ("off", "full"):
        model = tiny()
        model.blocks[1] = torch.nn.Identity()
        MicroBatcher(model, replace(CFG, grad_checkpoint=mode))
        losses.append(model.loss(*batch()))
        losses[-1].backward()
    assert losses[0] == losses[1]


def test_a_length_that_no_step_reads_is_not_asked_for():
    cfg = TrainConfig(steps=10, stages=((0, 64), (0.95, 256)))
    read = {context_length_at(step, cfg, 256) for step in range(cfg.steps)}
    assert context_lengths(cfg, 256) == [*read] == [64]
    assert context_lengths(replace(cfg, steps=20), 256) == [64, 256]


class LossOnApplesGpu:
    "Of a device that has no float64"

    device = torch.device("mps")

    def cpu(self):
        return torch.tensor(1.5)

    def double(self):
        raise TypeError("the MPS framework doesn't support float64")


def test_evaluate_adds_up_on_a_device_without_float64():
    model = tiny()
    model.loss = lambda x, y: LossOnApplesGpu()
    assert evaluate(model, torch.arange(9), 4) == 1.5


@pytest.mark.parametrize("head", ["whole", "chunked", "torch"])
def test_every_head_means_over_the_targets_that_count(head):
    if head == "torch" and not hasattr(torch.nn.functional, "linear_cross_entropy"):
        pytest.skip("this torch has no F.linear_cross_entropy")
    x, y = masked()
    loss, grad = means(x, y)
    for micro in (None, 2, 3):
        model = tiny()
        got = backward(head_loss(model, head=head, pieces=3), x, y, micro)
        assert abs(got - loss) < 1e-6 and (gradient(model) - grad).abs().max() < 1e-6


def test_optimizers_of_another_model_are_refused():
    "The norm that clips is that of what the optimizers hold"
    model = tiny()
    opts = make_optimizers(tiny(), CFG)
    with pytest.raises(GpubError, match="optimizers hold"):
        next(train_next_token(model, lambda n, context_length: Batch(*batch()), CFG, opts))


def test_no_step_waits_for_the_device():
    "Counting targets must not read a number back: on a GPU the host would stop for it"
    reads = []

    class Reads(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func in (
                torch.ops.aten._local_scalar_dense.default,
                torch.ops.aten.is_nonzero.default,
            ):
                reads.append(func)
            return func(*args, **(kwargs or {}))

    x, y = masked()
    model = tiny()
    fit = MicroBatcher(model, SimpleNamespace(grad_checkpoint="off", micro_batch=3, depths=()))
    with Reads():
        forward_backward(partial(next_token_loss, model.loss), TokenBatch.whole(x, y), fit)
    assert not reads


@pytest.mark.parametrize(
    "capability, format",
    [((7, 0), torch.float16), ((7, 5), torch.float16), ((8, 0), torch.bfloat16)],
    ids=["V100", "T4", "A100"],
)
def test_muon_computes_in_a_format_that_the_card_has(capability, format):
    assert muon_format(torch.device("cuda"), capability) == format
    assert muon_format(torch.device("cpu")) == torch.float32


def test_muon_holds_a_few_matrices_at_a_time_in_bf16(monkeypatch):
    "All equal matrices of the 1B in one stack would take 4 GB more"
    matrices = [torch.nn.Parameter(torch.randn(6, 4)) for _ in range(20)]
    for p in matrices:
        p.grad = torch.randn_like(p)
    stacks = []
    real = optim.divide_stack

    def noted(f, stack, world):
        stacks.append((len(stack), stack.dtype))
        return real(f, stack, world)

    monkeypatch.setattr(optim, "divide_stack", noted)
    Muon(matrices, dtype=torch.bfloat16).step()
    assert stacks == [(8, torch.bfloat16), (8, torch.bfloat16), (4, torch.bfloat16)]


def test_four_functions_from_the_entry_to_backward(text, tmp_path, monkeypatch):
    "Who steps into a run with a debugger is at the gradients after `go` and three more calls"
    package = Path(gpub.__file__).parent
    calls, real = [], torch.Tensor.backward

    def backward(loss):
        stack = traceback.extract_stack()
        calls.append([call.name for call in stack if package in Path(call.filename).parents])
        real(loss)

    monkeypatch.setattr(torch.Tensor, "backward", backward)
    settings = dict(steps=2, d_model=16, n_layers=1, n_heads=2, context_length=16, batch_tokens=64)
    options = RunOptions(
        "shakespeare-short",
        tmp_path / "run",
        text,
        settings | dict(precision="fp32", compile="no"),
        "cpu",
        log=lambda line: None,
    )
    Trainer(options).go()
    assert calls == [["go", "steps", "train", "forward_backward"]] * 2


def step_of(n=1, last_good_step=1, **fields):
    "A step whose numbers were made here"
    one = torch.tensor(1.0)
    given = dict(tokens=8, loss=one, grad_norm=one, lr=0.1) | fields
    return TrainStep(n=n, last_good_step=torch.tensor(last_good_step), **given)


@pytest.mark.parametrize("name", ["loss", "tok_s", "val_loss", "usd"])
def test_a_metric_does_not_take_the_place_of_what_a_row_has(name):
    "It is said when the first step is made, not when the first row is written"
    with pytest.raises(GpubError, match=f"may not be called {name}"):
        step_of(metrics={name: 7.0})


@dataclass(frozen=True)
class Pair(World):
    "One of two processes; the other was good up to another step"

    rank: int = 0
    size: int = 2
    behind: int = 0  # steps of the other since its last good one

    def max(self, t):
        return torch.maximum(t, torch.tensor(self.behind))

    def mean(self, t):
        return t


@pytest.mark.parametrize("mine, others", [(4, 6), (6, 4), (9, 4), (4, 9)])
def test_the_first_bad_step_is_the_first_of_all_processes(mine, others):
    with pytest.raises(Diverged, match="at step 5"):
        step_of(9, mine, world=Pair(behind=9 - others)).row()
    assert step_of(4, 4, world=Pair(behind=0)).row()["step"] == 4


def test_a_step_that_fp16_skipped_is_a_row_of_json():
    row = step_of(grad_norm=torch.tensor(float("inf"))).row()
    assert row["grad_norm"] is None and json.dumps(row, allow_nan=False)


def test_where_gradients_overflow_in_fp16_no_optimizer_moves():
    "The embedding's alone overflow: it is AdamW's, and the matrices are Muon's, with momentum"
    model = tiny()
    cfg = replace(CFG, steps=2, optimizer="muon", clip=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    rows = Batch(*batch())
    steps = train_next_token(model, lambda *at: rows, cfg, settings=LoopSettings(scaler=scaler))
    next(steps)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model.tok.weight.register_hook(lambda gradient: torch.full_like(gradient, float("inf")))
    assert next(steps).row()["grad_norm"] is None and scaler.get_scale() == 2.0
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_gradients_that_are_never_numbers_end_a_run_in_fp16():
    "An overflow is over when the scale is small; these are not"
    model = tiny()
    cfg = replace(CFG, steps=MOST_SKIPPED + 5)
    rows = Batch(*batch())
    model.tok.weight.register_hook(lambda gradient: torch.full_like(gradient, float("nan")))
    settings = LoopSettings(scaler=torch.amp.GradScaler("cpu"))
    steps = train_next_token(model, lambda *at: rows, cfg, settings=settings)
    for _ in range(MOST_SKIPPED):
        assert next(steps).row()["grad_norm"] is None
    with pytest.raises(Diverged, match=f"at step {MOST_SKIPPED + 1}"):
        next(steps).row()


def test_a_stage_that_does_not_divide_the_rows_of_batches_is_refused_at_once():
    ids = torch.randint(11, (500,), generator=torch.Generator().manual_seed(0)).numpy()
    cfg = replace(CFG, steps=4, batch_tokens=48, stages=((0.0, 8), (0.5, 3)))
    why = "windows of 8 tokens, which cannot be cut into the recipe's stage of 3"
    refuses(why, train_next_token, tiny(), Batches(ids, context_length=8, batch=6), cfg)


def test_conversations_that_share_a_row_are_no_text():
    ids, targets = batch()
    packed = Batch(ids, targets, segments=torch.zeros_like(ids))
    with pytest.raises(GpubError, match="rows of one text each"):
        next(train_next_token(tiny(), lambda step, t: packed, CFG))


@pytest.mark.parametrize("micro", [1, 2, 3])
def test_a_mean_over_its_own_targets_may_be_cut_into_pieces_without_any(micro):
    "A loss that divides by its own count: its gradient of a piece without targets is NaN"
    x, y = masked()

    def loss_of(model):
        def mean(ids, targets):
            logits, asked = model(ids).flatten(0, 1), targets.flatten() != IGNORED
            nats = torch.nn.functional.cross_entropy(
                logits, targets.flatten().clamp(min=0), reduction="none"
            )
            return (nats * asked).sum() / asked.sum()

        return mean

    loss, grad = means(x, y)
    model = tiny()
    got = backward(loss_of(model), x, y, micro)
    assert abs(got - loss) < 1e-6 and (gradient(model) - grad).abs().max() < 1e-6


def test_a_mode_of_checkpointing_that_nobody_has_is_refused():
    with pytest.raises(KeyError, match="selectve"):
        checkpoint_block("selectve")
    with pytest.raises(GpubError, match="mode must be one of off, selective, full"):
        Cut(mode="selectve")


def test_blocks_whose_layers_nobody_knows_do_not_sleep():
    model = tiny()
    model.blocks = torch.nn.ModuleList([torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)])
    with pytest.raises(GpubError, match="have no layer attn.proj"):
        set_depth(model, 1, fresh=True)


def test_gradients_that_a_caller_left_are_not_learned_from():
    def first_norm(leave):
        model = tiny()
        if leave:
            x, y = batch()
            model.loss(x, y).backward()
        return next(train_next_token(model, lambda step, t: Batch(*batch()), CFG)).grad_norm

    assert torch.equal(first_norm(True), first_norm(False))


def test_a_caller_that_measures_between_steps_does_not_change_the_training():
    def modes(measure):
        model = tiny()
        seen = []
        model.register_forward_pre_hook(lambda model, _: seen.append(model.training))
        for _ in train_next_token(model, lambda step, t: Batch(*batch()), CFG):
            if measure:
                model.eval()
        return seen

    assert set(modes(True)) == {True} and modes(True) == modes(False)


@pytest.mark.parametrize("eval_steps", [(), (1,)])
def test_the_result_is_that_of_the_last_step_whatever_is_validated_before(
    text, tmp_path, eval_steps
):
    "Without a validation there the log was called edited, or the bill was that of an earlier step"
    settings = dict(steps=3, d_model=16, n_layers=1, n_heads=2, context_length=16, batch_tokens=64)
    options = RunOptions(
        "shakespeare-short",
        tmp_path / "run",
        text,
        settings | dict(precision="fp32", compile="no"),
        log=lambda line: None,
        device="cpu",
        eval_steps=eval_steps,
    )
    Trainer(options).go()
    bill = json.loads((tmp_path / "run/bill.json").read_text())
    assert bill["tokens"] == 3 * 64 and bill["val_loss"] > 0


def test_the_weights_of_all_processes_of_a_machine_have_to_fit(monkeypatch):
    "Each builds the whole model on the CPU first; of one that will be sliced there is one copy"
    size = 4 * sum(p.numel() for p in tiny().parameters())
    monkeypatch.setattr(pretraining, "ram_bytes", lambda: 1.5 * size)
    cpu = torch.device("cpu")
    pretraining.build_on_device(TINY, cpu, World(), sliced=False)
    pretraining.build_on_device(TINY, cpu, World(0, 2), sliced=True)
    pretraining.build_on_device(TINY, cpu, World(0, 4, per_machine=1), sliced=False)
    with pytest.raises(GpubError, match="in each of 2 processes take .* this machine has"):
        pretraining.build_on_device(TINY, cpu, World(0, 2), sliced=False)
