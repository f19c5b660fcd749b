"""A grown model computes what the small one did, learns from there, and has the published sizes."""

import io
import json
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

from gpub.cli.train import grow_command
from gpub.core import GpubError
from gpub.data.plays import plays
from gpub.model.architectures import build_model, config_of
from gpub.model.counts import parameter_anatomy
from gpub.model.gpt import GPTConfig
from gpub.model.grow import check_growth, grow, grown_config
from gpub.model.llama import Llama, LlamaConfig, llama_table
from gpub.model.llama_architecture import BURN_1B, GROWN
from gpub.progress import Progress
from gpub.record.run import load
from gpub.train.growing import grow_options
from gpub.train.options import RunOptions
from gpub.train.presets import PRESETS
from gpub.train.trainer import Trainer

SHAPE = dict(vocab_size=71, context_length=32, d_model=64, n_layers=3, n_heads=4, d_ff=96)
COUNTS = {"burn-2b": 1_921_181_184, "burn-3b": 3_122_969_600}
LARGER = [
    dict(n_layers=7),
    dict(d_ff=160),
    dict(d_model=128, n_heads=8, n_kv_heads=4),
    dict(d_model=96, n_heads=6, n_kv_heads=3, d_ff=97, n_layers=4),
]
KINDS = [dict(), dict(tied=False), dict(qkv_bias=True, head_dim=16)]


def used_model(**more):
    "A model whose every weight matters, norms too"
    torch.manual_seed(0)
    model = Llama(LlamaConfig(**SHAPE, n_kv_heads=2, **more))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn_like(p))
    return model


@pytest.mark.parametrize("sizes", LARGER, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_logits_do_not_move(sizes, kind):
    small, ids = used_model(**kind), torch.randint(0, 71, (2, 32))
    cfg = grown_config(small.cfg, **sizes)
    with torch.no_grad():
        before, after = small(ids), grow(small, cfg)(ids)
        assert (after - before).abs().max() < 2e-6 and before.abs().max() > 1
        twin = Llama(small.cfg).double()
        twin.load_state_dict(small.state_dict())
        assert (grow(twin, cfg)(ids) - twin(ids)).abs().max() < 1e-12


def test_a_wrong_epsilon_would_move_them():
    "The test above can fail: the norms need their epsilon"
    small = used_model(norm_eps=1e-2).double()
    cfg = grown_config(small.cfg, **LARGER[2])
    ids = torch.randint(0, 71, (2, 32))
    grown = grow(small, cfg)
    for block in grown.blocks:
        block.norm1.eps = 1e-2
    with torch.no_grad():
        assert (grown(ids) - small(ids)).abs().max() > 1e-4


def test_everything_learns_from_the_second_step_on():
    small = used_model()
    grown = grow(small, grown_config(small.cfg, **LARGER[3]))
    ids = torch.randint(0, 71, (4, 33))
    opt = torch.optim.AdamW(grown.parameters(), 1e-3)
    losses = []
    for _ in range(2):
        opt.zero_grad()
        loss = grown.loss(ids[:, :-1], ids[:, 1:])
        loss.backward()
        opt.step()
        losses.append(float(loss.detach()))
    assert all(p.grad.any() for p in grown.parameters()) and losses[1] < losses[0]


@pytest.mark.parametrize("name", GROWN)
def test_the_large_presets_have_the_published_counts(name):
    with torch.device("meta"):
        built = sum(p.numel() for p in build_model(config_of(name)).parameters())
    assert built == COUNTS[name] == parameter_anatomy(config_of(name)).params
    assert built == sum(llama_table(config_of(name)).values()) and name in PRESETS
    check_growth(BURN_1B, config_of(name))
    check_growth(config_of("burn-2b"), config_of("burn-3b"))


@pytest.mark.parametrize(
    "change, why",
    [
        (dict(n_layers=2), "can grow, not shrink to 2"),
        (dict(d_model=128), "head_size must stay"),
        (dict(d_model=128, n_heads=8), "share a key-value head"),
        (dict(context_length=64), "cannot grow"),
    ],
)
def test_shapes_that_cannot_compute_the_same_are_refused(change, why):
    with pytest.raises(GpubError, match=why):
        grown_config(used_model().cfg, **change)


def test_other_wrong_shapes_are_refused():
    cfg = used_model().cfg
    with pytest.raises(GpubError, match="norm_eps must be 5e-06"):
        check_growth(cfg, replace(grown_config(cfg, **LARGER[2]), norm_eps=1e-5))
    with pytest.raises(GpubError, match="vocab_size must stay"):
        check_growth(cfg, replace(cfg, vocab_size=72))
    for name, value in dict(qk_norm="per_head", norm_after=True, nope_every=4).items():
        with pytest.raises(GpubError, match=f"a model with {name} does not grow"):
            grown_config(replace(cfg, **{name: value}), n_layers=7)
    gpt = GPTConfig(vocab_size=71, context_length=32, d_model=64, n_layers=3, n_heads=4)
    with pytest.raises(GpubError, match="only a Llama can grow"):
        check_growth(gpt, cfg)


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grow")
    (folder / "play.txt").write_text(plays(6_000, seed=4))
    shape = dict(d_model=32, n_layers=2, n_heads=4, n_kv_heads=1, d_ff=48, context_length=32)
    settings = shape | dict(batch_tokens=128, steps=8, warmup=2)
    quiet = dict(device="cpu", log=lambda text: None, progress=Progress(8, out=io.StringIO()))
    Trainer(RunOptions("burn-toy", folder / "small", folder / "play.txt", settings, **quiet)).go()
    return folder / "small"


@pytest.mark.full(instead="test_logits_do_not_move")
def test_a_grown_run_begins_where_the_small_one_ended(small_run, tmp_path):
    "And a stop in the middle goes on to the same bits, without growing again"
    larger = dict(d_model=64, n_layers=3, n_heads=8, n_kv_heads=2, steps=6, batch_tokens=128)
    kept = []
    for name, stop in (("whole", None), ("half", 3)):
        quiet = dict(device="cpu", log=kept.append, progress=Progress(6, out=io.StringIO()))
        options = grow_options(small_run, None, larger, out=tmp_path / name, save_every=1, **quiet)
        trainer = Trainer(options)
        with trainer.opened() as run:
            for step in run.steps():
                if step.n == stop:
                    break
        if stop:
            again = grow_options(small_run, None, larger, out=tmp_path / name, **quiet)
            Trainer(again).go()
    assert sum("begins with the weights of" in line for line in kept) == 2
    whole, half = (load(tmp_path / name, device="cpu") for name in ("whole", "half"))
    for a, b in zip(whole.model.parameters(), half.model.parameters()):
        assert torch.equal(a, b)
    first = load(small_run, device="cpu")
    assert whole.log[0]["loss"] < first.log[0]["loss"] - 0.2
    assert whole.config["train"]["seed"] == first.config["train"]["seed"] + 1
    assert whole.config["model"]["norm_eps"] == first.config["model"]["norm_eps"] / 2


def test_an_optimizer_does_not_grow(small_run, tmp_path):
    options = grow_options(small_run, None, dict(n_layers=3), out=tmp_path / "warm", warm=True)
    with pytest.raises(GpubError, match="optimizer begins anew: leave --warm out"):
        Trainer(options).task


def test_the_command_grows_and_refuses(small_run, tmp_path):
    def grown(*words):
        return CliRunner().invoke(grow_command, [str(word) for word in (small_run, *words)])

    done = grown("--out", tmp_path / "big", "--set", "n_layers=4", "--set", "steps=2")
    assert done.exit_code == 0, done.output
    config = json.loads((tmp_path / "big/config.json").read_text())
    assert config["model"]["n_layers"] == 4 and config["init"]["source"] == str(small_run)
    assert "has that size already" in str(grown("--out", tmp_path / "same").exception)
    assert "head_size must stay" in str(grown("--to", "burn-2b").exception)
    assert "cannot grow" in str(grown("--set", "context_length=64").exception)
