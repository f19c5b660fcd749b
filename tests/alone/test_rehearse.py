"""A rehearsal finds what would have cost money: planted mistakes, forecasts that agree, every
preset on one, eight and sixty-four GPUs."""

import types

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpub.core import GpubError
from gpub.guards import rehearse as rehearsal
from gpub.guards import standin as standin_module
from gpub.guards.rehearse import RehearsalOptions, rehearse
from gpub.model.architectures import build_model
from gpub.model.llama import Llama
from gpub.train import learner as learning
from gpub.train.presets import PRESETS

CARDS = ("A100-80", "T4")  # an H100 does what an A100 does
TOY = RehearsalOptions("burn-toy", "H100", settings=dict(batch_tokens=256))


@pytest.fixture(autouse=True)
def no_compiler(request, monkeypatch):
    "Only the test of recompiles pays for the compiler's start"
    if "compiler" not in request.keywords:
        made = types.SimpleNamespace(shapes=1, graphs=1, again=0)
        monkeypatch.setattr(rehearsal, "_count_compiles", lambda stage: made)


def planted(change):
    "A model with a mistake"

    def build(cfg):
        model = build_model(cfg)
        change(model)
        return model

    return build


def test_a_healthy_run_has_nothing_to_say():
    found = rehearse(TOY)
    assert found.ready and not found.problems and not found.waits and not found.traffic
    assert {"weights", "sample", "update", "evaluation", "save", "resume"} < found.peaks.keys()


def test_a_torch_without_such_devices_is_told_in_one_line(monkeypatch):
    monkeypatch.delattr(standin_module.backend_registration, standin_module.SET_UP)
    monkeypatch.delattr(torch, "_standin_libraries", raising=False)
    with pytest.raises(GpubError, match=r"a rehearsal needs a newer one .*, training does not$"):
        rehearse(TOY)


def test_a_tensor_left_on_the_cpu_is_found():
    def forget(model):
        model.scale = torch.ones(model.cfg.d_model, device="cpu")
        model.norm.register_forward_hook(lambda module, args, out: out * model.scale)

    found = rehearse(TOY, planted(forget))
    assert "standin:0 and cpu" in found.problems[0] and not found.ready


@pytest.mark.full(instead="test_a_tensor_left_on_the_cpu_is_found")
def test_a_change_in_place_of_what_backward_needs_is_found():
    def change(model):
        model.norm.register_forward_hook(lambda module, args, out: out.exp().mul_(2).tanh().add_(1))

    assert "modified by an inplace operation" in rehearse(TOY, planted(change)).problems[0]


@pytest.mark.full(instead="test_a_tensor_left_on_the_cpu_is_found")
def test_optimizer_state_restored_in_bf16_is_found(monkeypatch):
    whole = learning.restore_optimizers

    def restore(model, opts, tensors):
        whole(model, opts, {name: t.bfloat16() for name, t in tensors.items()})

    monkeypatch.setattr(learning, "restore_optimizers", restore)
    found = rehearse(TOY)
    assert not found.ready, found


@pytest.mark.full(instead="test_a_tensor_left_on_the_cpu_is_found")
def test_a_mask_on_another_device_is_found():
    def attention(q, k, v):
        mask = torch.ones(q.size(-2), q.size(-2), dtype=torch.bool, device="cpu").tril()
        group = q.size(1) > k.size(1)
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(q, k, v, attn_mask=mask, enable_gqa=group)

    def change(model):
        for block in model.blocks:
            block.attn.attention = attention

    problem = rehearse(TOY, planted(change)).problems[0]
    assert "the mask is on cpu" in problem and "test_rehearse.py" in problem


@pytest.mark.full(instead="test_a_tensor_left_on_the_cpu_is_found")
def test_an_fp32_buffer_in_a_bf16_path_is_found():
    def change(model):
        width = model.cfg.d_model
        model.register_buffer("mix", torch.eye(width))

        def mix(module, args, out):
            with torch.autocast(out.device.type, enabled=False):
                return out.float() @ model.mix

        model.blocks[0].ffn.register_forward_hook(mix)

    problem = rehearse(TOY, planted(change)).problems[0]
    assert "multiplied in fp32" in problem and "test_rehearse.py" in problem


@pytest.mark.full(instead="test_the_peak_is_the_forecast")
def test_an_activation_kept_in_fp32_is_found():
    def change(model):
        for block in model.blocks:
            wide = torch.nn.Buffer(torch.ones(model.cfg.d_ff))
            block.ffn.gate.wide = wide
            block.ffn.gate.register_forward_hook(lambda module, args, out: out * module.wide)

    options = RehearsalOptions("burn-1b", "H100", settings=dict(micro_batch=4, n_layers=2))
    assert rehearse(options).ready
    problem = rehearse(options, planted(change)).problems[0]
    assert "from the forecast" in problem


@pytest.mark.full(instead="test_the_crash_on_resume_of_old_is_found")
def test_optimizer_state_restored_on_the_wrong_device_is_found(monkeypatch):
    whole = learning.restore_optimizers

    def restore(model, opts, tensors):
        whole(model, opts, tensors)
        for state in opts[0].state.values():
            state["step"] = state["step"].to("cpu")

    monkeypatch.setattr(learning, "restore_optimizers", restore)
    problem = rehearse(TOY).problems[0]
    assert "_fused_adamw_" in problem and "cpu" in problem


@pytest.mark.full(instead="test_an_item_in_the_loop_is_found")
def test_parameters_that_lose_their_gradients_are_found():
    def change(model):
        model.blocks[1].ffn.register_forward_hook(lambda module, args, out: out.detach())

    problem = rehearse(TOY, planted(change)).problems[0]
    assert problem.startswith("4 parameters get no gradient: blocks.1.norm2.weight")


def test_an_item_in_the_loop_is_found():
    def change(model):
        whole = model.loss

        def loss(ids, targets):
            found = whole(ids, targets)
            found.item()
            return found

        model.loss = loss

    found = rehearse(TOY, planted(change))
    assert "the host waits" in found.problems[0] and "test_rehearse.py" in found.problems[0]
    assert sum(found.waits.values()) == 1


@pytest.mark.full(instead="test_a_healthy_run_has_nothing_to_say")
@pytest.mark.compiler
def test_a_shape_that_recompiles_is_found():
    def change(model):
        model.calls = 0
        whole = Llama.loss

        def loss(ids, targets):
            model.calls += 1
            cut = ids.size(1) - model.calls % 5
            return whole(model, ids[:, :cut], targets[:, :cut])

        model.loss = loss

    found = rehearse(TOY, planted(change))
    assert "compiled again" in found.problems[0]


@pytest.mark.full(instead="test_a_healthy_run_has_nothing_to_say")
@pytest.mark.compiler
def test_a_healthy_run_compiles_once():
    found = rehearse(TOY)
    assert found.ready and found.graphs == 1 and found.shapes == 1


def test_the_crash_on_resume_of_old_is_found(monkeypatch):
    """AdamW's `step` came back on the CPU: every resume on a GPU crashed, and no test without one
    knew"""

    def restore(model, opts, tensors):
        home = {p: o for o in opts for g in o.param_groups for p in g["params"]}
        params = dict(model.named_parameters())
        for key, t in tensors.items():
            name, k = key.split("|")
            home[params[name]].state[params[name]][k] = t if k == "step" else t.to("standin")

    monkeypatch.setattr(learning, "restore_optimizers", restore)
    assert "_fused_adamw_" in rehearse(TOY).problems[0]


@pytest.mark.parametrize(
    "settings",
    [
        dict(),
        pytest.param(dict(grad_checkpoint="full"), marks=pytest.mark.full),
        pytest.param(dict(optimizer="adamw"), marks=pytest.mark.full),
    ],
)
def test_the_peak_is_the_forecast(settings):
    "A model of the 1B's width and few layers, where nothing is small"
    shape = dict(micro_batch=2, n_layers=3, batch_tokens=4 * 2048)
    found = rehearse(RehearsalOptions("burn-1b", "A100-80", settings=shape | settings))
    assert found.ready, found.problems
    moment = "forward and backward"
    assert abs(found.peaks[moment] / found.forecast[moment] - 1) < 0.03
    # the forecast keeps autocast's narrow copies to the end of the step
    assert found.peaks["update"] < found.forecast["update"]


@pytest.mark.full
def test_all_micro_batches_are_counted():
    "Two are rehearsed; what four send is what four would have sent"
    few = dict(micro_batch=1, batch_tokens=2 * 64 * 8)
    more = few | dict(batch_tokens=4 * 64 * 8)
    two, four = (
        rehearse(RehearsalOptions("burn-toy", "H100", 8, "fsdp", s)).traffic for s in (few, more)
    )
    again = (four["all-gather"] - two["all-gather"]) / 2
    assert 0 < again < two["all-gather"]
    # gradients are cut in every pass: whole ones would be as large as the weights
    assert four["reduce-scatter"] == 2 * two["reduce-scatter"]


@pytest.mark.full
def test_a_slice_is_cut_until_it_fits():
    shape = dict(n_layers=4, batch_tokens=2048 * 64 * 8)
    found = rehearse(RehearsalOptions("burn-1b", "A100-40", 8, "fsdp", shape))
    assert found.fits and 1 < found.micro_batch < 64 and found.mode == "off"


@pytest.mark.full(instead="test_the_peak_is_the_forecast")
def test_a_run_that_does_not_fit_says_so():
    shape = dict(n_layers=12, micro_batch=64, batch_tokens=64 * 1024)
    found = rehearse(RehearsalOptions("gpt2-355m", "T4", settings=shape))
    assert not found.fits and "DOES NOT FIT" in rehearsal.rehearsal_text(found)


@pytest.mark.parametrize(
    "options, part",
    [
        (dict(preset="burn-1b", gpu="T4", processes=8, parallel="fsdp"), "fp16 needs whole"),
        (dict(preset="shakespeare", gpu="H100", processes=64), "cannot be shared equally"),
        (dict(preset="nonsense", gpu="H100"), "no preset"),
        (dict(preset="shakespeare", gpu="H100", processes=0), "--processes"),
        (dict(preset="shakespeare", gpu="H100", parallel="tp"), "--parallel"),
    ],
)
def test_refusals_are_one_line(options, part):
    with pytest.raises(GpubError, match=part):
        rehearse(RehearsalOptions(**options))


@pytest.mark.full
@pytest.mark.parametrize("processes", [8, 64])
def test_the_1b_fits_small_cards_when_many_share_it(processes):
    "Blocks gathered in bf16, Muon's work divided: at most 6 GB on each of eight GPUs"
    found = rehearse(RehearsalOptions("burn-1b", "H100", processes, "fsdp", dict(micro_batch=1)))
    assert found.ready, found.problems
    assert found.passes == 64 // processes and found.peak <= 6e9
    weights = 4 * found.passes * found.parameters
    assert 0.9 * weights < found.traffic["reduce-scatter"] < 1.1 * weights


SHARES = [(1, "ddp"), (8, "fsdp"), (64, "hsdp")]
MORE_SHARES = [(8, "ddp"), (64, "ddp"), (64, "fsdp")]
SHARES += [pytest.param(*share, marks=pytest.mark.slow) for share in MORE_SHARES]


def cannot_be_sliced(preset, gpu, parallel):
    return gpu == "T4" and parallel != "ddp"  # its format needs whole gradients for the scaler


@pytest.mark.full
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("processes, parallel", SHARES)
def test_every_preset_runs_on_few_and_many_gpus(preset, processes, parallel):
    "Two layers stand for all: they are alike, and what is left is what could go wrong"
    length = PRESETS[preset].model["context_length"]
    settings = dict(micro_batch=1, batch_tokens=length * processes, n_layers=2, depths=[])
    for gpu in CARDS:
        options = RehearsalOptions(preset, gpu, processes, parallel, settings)
        if processes > 1 and cannot_be_sliced(preset, gpu, parallel):
            with pytest.raises(GpubError, match="fp16 needs whole gradients"):
                rehearse(options)
            continue
        found = rehearse(options)
        if gpu == "T4" and "burn" in preset:  # no kernel there knows groups of heads
            assert "multiplied in fp32" in found.problems[0]
        else:
            assert found.ready, (gpu, found.problems)
        assert found.peak < 0.9 * 40e9
        assert bool(found.traffic) == (processes > 1)


@pytest.mark.full(instead="test_the_peak_is_the_forecast")
@pytest.mark.parametrize("passes", [1, 2])
def test_the_peak_under_ddp_is_the_forecast(passes):
    "Buckets hold the gradients from the start; of several passes the sum waits beside them"
    shape = dict(micro_batch=2, n_layers=3, batch_tokens=passes * 2 * 2048 * 8)
    found = rehearse(RehearsalOptions("burn-1b", "A100-80", 8, "ddp", shape))
    assert found.ready and found.passes == passes, found.problems
    moment = "forward and backward"
    assert abs(found.peaks[moment] / found.forecast[moment] - 1) < 0.03


@pytest.mark.full(instead="test_the_peak_is_the_forecast")
@pytest.mark.parametrize(
    "processes, parallel, passes", [(8, "fsdp", 2), (64, "fsdp", 1), (16, "hsdp", 2)]
)
def test_slices_take_and_send_what_is_forecast(processes, parallel, passes):
    "Also with DDP's neighbours: the update, and every collective"
    shape = dict(micro_batch=1, n_layers=3, batch_tokens=passes * 2048 * processes)
    found = rehearse(RehearsalOptions("burn-1b", "A100-80", processes, parallel, shape))
    assert found.ready and found.passes == passes, found.problems
    moment = "forward and backward"
    assert abs(found.peaks[moment] / found.forecast[moment] - 1) < 0.03
    assert abs(found.peaks["update"] / found.forecast["update"] - 1) < 0.06
    for kind, planned in found.planned.items():
        assert abs(found.traffic[kind] / planned - 1) < 0.01, kind
    # the norm of gradients in slices is summed inside an operation, and counted
    assert found.calls["all-reduce"] >= 2 and "all-gather" in found.planned
    assert found.traffic.keys() - found.planned.keys() <= {"all-reduce"}


@pytest.mark.full(instead="test_the_peak_is_the_forecast")
def test_what_is_sent_beside_the_forecast_is_found(monkeypatch):
    "Such as the blocks once more, by a model that is not cut block by block"
    plan = rehearsal.forecast_traffic

    def less(*asked):
        return plan(*asked) | {"all-gather": 1}

    monkeypatch.setattr(rehearsal, "forecast_traffic", less)
    shape = dict(micro_batch=1, batch_tokens=64 * 8)
    problems = rehearse(RehearsalOptions("burn-toy", "H100", 8, "fsdp", shape)).problems
    assert "all-gather: 4.3 MB are sent in a step, the forecast says 0.0 MB" in problems[0]


@pytest.mark.parametrize(
    "kv_heads, masked, kernel",
    [(8, False, "flash"), (8, True, "efficient"), (2, False, "flash"), (2, True, "math")],
)
def test_a_mask_takes_the_kernel_that_the_card_would_take(kv_heads, masked, kernel):
    "flash takes no mask, the efficient kernel no groups; what is left keeps all scores"
    called = []

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            called.append(str(func))
            return func(*args, **(kwargs or {}))

    with standin_module.standin_device() as device, device:
        q = torch.zeros(1, 8, 64, 16, requires_grad=True)
        k = torch.zeros(1, kv_heads, 64, 16)
        mask = torch.ones(64, 64, dtype=torch.bool).tril() if masked else None
        with Names():
            attend = torch.nn.functional.scaled_dot_product_attention
            attend(q, k, k, mask, is_causal=not masked, enable_gqa=kv_heads < 8)
    kernels = {name for name in ("flash", "efficient") for call in called if name in call}
    assert kernels == ({kernel} - {"math"})
    assert (kernel == "math") == any("bmm" in call or "softmax" in call for call in called)
