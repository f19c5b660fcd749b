"""float8: what is rounded is a copy. Names, checkpoints and exports stay those of a plain run, and
where the hardware has none one line says so. Rounding is torchao's own emulation; where torchao is
not installed, what needs it is skipped."""

import sys
from functools import partial
import pytest
import torch
from gpub.core import GpubError
from gpub.device import seed_everything
from gpub.model.gpt import GPT, GPTConfig
from gpub.model.llama import Llama, LlamaConfig
from gpub.model.sizes import GPUS, find_gpu
from gpub.record.checkpoint import load_checkpoint
from gpub.record.load import load
from gpub.share.hub import export_run
from gpub.train import learner, trainer
from gpub.train.config import TrainConfig
from gpub.train.float8 import check_float8, use_float8
from gpub.train.loop import TrainParts, train
from gpub.train.trainer import Trainer
from kill import same_weights
from test_run import gpub

SIZE = dict(vocab_size=64, context_length=32, d_model=64, n_layers=2, n_heads=4)
SMALL = dict(n_layers=2, d_model=32, n_heads=2, context_length=16)
RECIPE = SMALL | dict(batch_tokens=128, steps=8, compile="no", precision="bf16", float8="true")


def build(kind):
    seed_everything(0)
    if kind == "gpt":
        return GPT(GPTConfig(**SIZE))
    return Llama(LlamaConfig(**SIZE, n_kv_heads=2, d_ff=160))


def batches(step, context_length):
    ids = torch.randint(64, (8, 33), generator=torch.Generator().manual_seed(step % 4))
    return ids[:, :-1], ids[:, 1:]


@pytest.fixture
def torchao():
    return pytest.importorskip("torchao.float8", reason="torchao is not installed")


@pytest.fixture
def emulated(torchao, monkeypatch):
    "A CPU that passes for a GPU with float8"
    monkeypatch.setattr(trainer, "check_float8", lambda *asked: None)
    monkeypatch.setattr(learner, "use_float8", partial(use_float8, emulate=True))


@pytest.mark.parametrize("kind", ["gpt", pytest.param("llama", marks=pytest.mark.full)])
def test_it_learns_as_bf16_does(kind, torchao):
    cfg = TrainConfig(steps=30, batch_tokens=256, warmup=2, lr=0.01, muon_lr=0.02)
    ends = {}
    for name in ("bf16", "float8"):
        model = build(kind)
        before = {n: p.clone() for n, p in model.named_parameters()}
        if name == "float8":
            use_float8(model, emulate=True)
        parts = TrainParts(dtype=torch.bfloat16)
        steps = [s.row() for s in train(model, batches, cfg, parts=parts)]
        assert {n: p.dtype for n, p in model.named_parameters()} == {
            n: torch.float32 for n in before
        }
        assert all((p != before[n]).any() for n, p in model.named_parameters())
        ends[name] = [s["loss"] for s in steps]
    first, last = (abs(ends["float8"][i] / ends["bf16"][i] - 1) for i in (0, -1))
    assert ends["bf16"][-1] < 0.9 * ends["bf16"][0]
    assert 0 < first < 0.005 and last < 0.03, ends


def test_only_the_blocks_layers_are_taken(torchao):
    plain = build("llama")
    names = plain.state_dict().keys()
    odd = Llama(LlamaConfig(**SIZE, n_kv_heads=2, d_ff=152, tied=False))
    for model in (plain, odd):
        use_float8(model, emulate=True)
    taken = {n for n, m in plain.named_modules() if type(m).__name__ == "Float8Linear"}
    parts = "attn.qkv attn.proj ffn.gate ffn.up ffn.down".split()
    assert taken == {f"blocks.{i}.{part}" for i in range(2) for part in parts}
    assert plain.state_dict().keys() == names
    # 152 is no multiple of 16
    assert {type(m) for m in (odd.head, *odd.blocks[0].ffn.children())} == {torch.nn.Linear}


def a_run(folder, text, **changes):
    settings = RECIPE | dict(n_kv_heads=1, d_ff=48) | changes
    return Trainer("burn-toy", folder, text, settings, device="cpu", log=list, save_every=4)


@pytest.mark.full(instead="test_it_learns_as_bf16_does")
def test_a_run_resumes_exactly_and_is_read_as_any_other(emulated, text, tmp_path):
    whole = a_run(tmp_path / "whole", text).go()
    steps = a_run(tmp_path / "run", text).steps()
    while next(steps).n < 5:
        pass
    steps.close()
    a_run(tmp_path / "run", text).go()
    same_weights(tmp_path / "run", whole)
    model = load(whole, device="cpu").model
    assert {type(m) for m in model.modules() if "Linear" in type(m).__name__} == {torch.nn.Linear}
    saved = load_checkpoint(whole).model
    assert {t.dtype for t in saved.values()} == {torch.float32}
    assert saved.keys() == model.state_dict().keys()
    export_run(whole, tmp_path / "out")
    with pytest.raises(GpubError, match="holds another run"):
        a_run(tmp_path / "run", text, float8="false").go()


def test_a_run_without_it_is_the_run_of_before(text, tmp_path):
    plain = Trainer("shakespeare", tmp_path / "run", text, dict(steps=1), device="cpu")
    assert "float8" not in plain.identity()["train"]


def test_a_cpu_refuses_in_one_line(text, tmp_path, capsys):
    asked = ["--data", text, "--out", tmp_path / "run", "--device", "cpu", "--set", "float8=true"]
    assert gpub("train", "shakespeare", *asked) == 1
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and "float8 needs compute capability 8.9" in said[0]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("gpu", GPUS)
def test_every_card_is_known(gpu):
    card = find_gpu(gpu)
    assert card.capability and (card.capability >= (8, 0)) == (card.bf16 is not None)


@pytest.mark.parametrize("gpu", ["T4", "A100-80", "A40"])
def test_cards_without_it_are_refused(gpu):
    cfg = TrainConfig(steps=1, float8=True)
    with pytest.raises(GpubError, match=f"and {gpu} is compute capability"):
        check_float8(cfg, gpu, find_gpu(gpu).capability, [64])
    check_float8(cfg, "H100", find_gpu("H100").capability, [64])


def test_a_context_of_odd_length_is_refused():
    with pytest.raises(GpubError, match="a context of 24 tokens is no multiple of 16"):
        check_float8(TrainConfig(steps=1, float8=True), "H100", (9, 0), [16, 24])


def test_another_precision_is_refused():
    with pytest.raises(GpubError, match="float8 goes with bf16, not with fp32"):
        TrainConfig(steps=1, float8=True, precision="fp32")


def test_without_torchao_one_line_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(GpubError, match=r"pip install 'gpub\[float8\]'"):
        use_float8(build("gpt"))
