"""Optimizers named by the path of their class: they learn, go on exactly, or are refused."""

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from gpub.core import GpubError
from gpub.model.architectures import config_of
from gpub.model.counts import optimizer_bytes
from gpub.model.gpt import GPT, DecoderConfig, GPTConfig
from gpub.train.config import TrainConfig
from gpub.train.optim import make_optimizers, optimizer_state, restore_optimizers

PATHS = ("lion.Lion", "torch.optim.SGD", "torch.optim.Adagrad", "torch.optim.NAdam")


def steps(model, optimizers, numbers):
    "Train on one batch a step; the losses"
    losses = []
    for n in numbers:
        ids_bt = torch.randint(65, (2, 3, 32), generator=torch.Generator().manual_seed(n % 2))
        loss = model.loss(*ids_bt)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("path", PATHS)
def test_a_class_by_its_path_learns_and_goes_on_exactly(path):
    cfg = TrainConfig(steps=1, optimizer=path, lr=0.002, weight_decay=0.1)
    torch.manual_seed(0)
    model = GPT(replace(config_of("shakespeare-short"), n_layers=1))
    optimizers = make_optimizers(model, cfg)
    first = steps(model, optimizers, range(6))
    assert first[-1] < first[0]
    assert f"{type(optimizers[0]).__module__}.{type(optimizers[0]).__name__}".endswith(
        path.split(".")[-1]
    )
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    saved = {key: tensor.clone() for key, tensor in optimizer_state(model, optimizers).items()}
    straight = steps(model, optimizers, range(6, 9))
    model.load_state_dict(weights)
    fresh = make_optimizers(model, cfg)
    restore_optimizers(model, fresh, saved)
    assert steps(model, fresh, range(6, 9)) == straight


def test_only_matrices_of_blocks_decay_whatever_the_class():
    model = GPT(replace(config_of("shakespeare-short"), n_layers=1))
    cfg = TrainConfig(steps=1, optimizer="lion.Lion", weight_decay=0.1)
    (optimizer,) = make_optimizers(model, cfg)
    decays = {
        p for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]
    }
    wanted = {p for n, p in model.named_parameters() if p.ndim == 2 and n.startswith("blocks.")}
    assert decays == wanted and all("initial_lr" in group for group in optimizer.param_groups)


@pytest.mark.parametrize(
    "path, words",
    [
        ("torch.optim.Nope", "optimizer=torch.optim.Nope cannot be imported"),
        ("nowhere.Lion", "optimizer=nowhere.Lion cannot be imported"),
        ("os.getcwd", "optimizer=os.getcwd is no class of optimizers"),
        ("torch.optim.LBFGS", "optimizer=torch.optim.LBFGS cannot be made of groups"),
        ("sgd", "muon, adamw or the path of a class"),
    ],
)
def test_refused_in_one_line(path, words):
    with pytest.raises(GpubError, match=words) as refused:
        make_optimizers(GPT(config_of("shakespeare-short")), TrainConfig(steps=1, optimizer=path))
    assert "\n" not in str(refused.value)


def test_its_memory_is_taken_for_that_of_adamw():
    cfg = config_of("shakespeare")
    assert optimizer_bytes(cfg, "lion.Lion") == optimizer_bytes(cfg, "adamw")
    with pytest.raises(GpubError, match="muon, adamw or the path of a class"):
        optimizer_bytes(cfg, "lion")


def test_a_run_that_does_not_compile_does_not_import_the_tracer():
    "Nor what comes with it; and AdamW takes the steps of torch's own, to the bit"
    program = """
import sys, torch
from gpub.model.gpt import GPT, GPTConfig
from gpub.train.config import TrainConfig
from gpub.train.optim import make_optimizers

def trained(make):
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=20, context_length=16, d_model=32, n_heads=2, n_layers=1))
    opts = make(model)
    for _ in range(3):
        model.loss(*torch.arange(64).view(2, 2, 16) % 20).backward()
        for opt in opts:
            opt.step()
            opt.zero_grad()
    return model.state_dict()

config = TrainConfig(steps=3, optimizer="adamw", lr=0.01, weight_decay=0.0)
ours = trained(lambda model: make_optimizers(model, config))
trained(lambda model: make_optimizers(model, TrainConfig(steps=3)))
print("torch._dynamo" in sys.modules, "sympy" in sys.modules)
how = dict(lr=0.01, betas=config.betas, weight_decay=0.0, fused=True)
theirs = trained(lambda model: [torch.optim.AdamW(model.parameters(), **how)])
print("torch._dynamo" in sys.modules, all(torch.equal(ours[k], theirs[k]) for k in ours))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False False\nTrue True\n", done.stderr


def test_a_config_of_what_the_protocol_names_is_enough_for_a_run():
    cfg = GPTConfig(vocab_size=20, context_length=16, d_model=32, n_heads=2, n_layers=1)
    model = GPT(cfg)
    methods = [name for name in vars(DecoderConfig) if name in ("param_table", "to_dict")]
    named = [*DecoderConfig.__annotations__, *methods]
    model.cfg = SimpleNamespace(**{name: getattr(cfg, name) for name in named})
    muon = make_optimizers(model, TrainConfig(steps=1, optimizer="muon"))[0]
    assert muon.param_groups
    assert model.cfg.to_dict() == cfg.to_dict()  # what makes two runs the same
