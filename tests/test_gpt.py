"The model of chapter 1: sizes, causality, a sane birth, and equality with GPT-2 itself"

import json
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from contracts import refuses
from torch import nn
from torch.nn import functional as F

from gpub.chat.packing import PackedAttention
from gpub.core import GpubError
from gpub.model.architectures import build_model
from gpub.model.first_gpt import FirstGPT, attention_weights
from gpub.model.generate import generate_ids
from gpub.model.gpt import (
    GPT,
    MLP,
    Block,
    GPTConfig,
    causal_attention,
    causal_mask,
    count_params,
    fused_attention,
    mark_exact,
    param_table,
)
from gpub.model.llama import Llama
from gpub.model.llama_architecture import BURN_TOY
from gpub.model.probes import input_gradient_map, sample_ids

TINY = GPTConfig(vocab_size=65, context_length=256, d_model=128, n_layers=2, n_heads=4)
TOY = GPTConfig(vocab_size=11, context_length=16, d_model=32, n_layers=3, n_heads=4)
KNOWN = {
    "tiny": (TINY, 437_888),
    "tiny untied": (replace(TINY, tied=False), 446_208),
    "134M": (
        GPTConfig(
            vocab_size=32_000, context_length=512, d_model=768, n_layers=12, n_heads=12, tied=False
        ),
        134_601_216,
    ),
    "124M": (
        GPTConfig(vocab_size=50_257, context_length=1024, d_model=768, n_layers=12, n_heads=12),
        124_439_808,
    ),
}


def toy(seed=0, scale=1.0, attention=fused_attention, **kw):
    "A toy model; `scale` > 1 makes it far from symmetric, as training would"
    torch.manual_seed(seed)
    model = GPT(replace(TOY, **kw), attention)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1 * (scale - 1))
    return model


@pytest.mark.parametrize("name", KNOWN)
def test_parameter_counts(name):
    cfg, n = KNOWN[name]
    with torch.device("meta"):
        model = GPT(cfg)
    assert count_params(model) == count_params(cfg) == sum(param_table(cfg).values()) == n


@pytest.mark.parametrize("bias", (True, False))
@pytest.mark.parametrize("tied", (True, False))
def test_param_table_matches_the_model_part_by_part(bias, tied):
    cfg = replace(TOY, bias=bias, tied=tied)
    names = dict(GPT(cfg).named_parameters())
    for part, n in param_table(cfg).items():
        mine = [
            p
            for k, p in names.items()
            if ("norm" in k if part == "norms" else f".{part}." in f".{k}")
        ]
        assert sum(p.numel() for p in mine) == n, part


def test_state_dict_names_are_the_checkpoint_keys():
    want = {"tok.weight", "pos.weight", "norm.weight", "norm.bias"} | {
        f"blocks.{i}.{p}.{w}"
        for i in range(2)
        for w in ("weight", "bias")
        for p in ("attn.qkv", "attn.proj", "ffn.up", "ffn.down", "norm1", "norm2")
    }
    assert set(GPT(TINY).state_dict()) == want and set(
        GPT(replace(TINY, tied=False)).state_dict()
    ) == want | {"head.weight"}


@pytest.mark.parametrize("cfg", [TINY, replace(TINY, tied=False), replace(TINY, vocab_size=500)])
def test_initial_loss_is_ln_vocab(cfg):
    torch.manual_seed(1)
    ids, targets = torch.randint(cfg.vocab_size, (2, 4, cfg.context_length))
    assert abs(GPT(cfg).loss(ids, targets).item() - math.log(cfg.vocab_size)) < 0.1


@pytest.mark.parametrize("how", (causal_attention, fused_attention))
def test_causal_by_gradient(how):
    "d logits[t] / d input[s] is exactly zero for s > t, and not for s <= t"
    seen = input_gradient_map(toy(scale=2, attention=how), torch.randint(TOY.vocab_size, (9,)))
    assert torch.equal(seen > 0, causal_mask(9, 9))


def test_reach_shows_a_leak_and_leaves_the_model_alone():
    model = toy(scale=2, attention=lambda q, k, v: (q @ k.mT).softmax(-1) @ v)
    ids = torch.randint(TOY.vocab_size, (9,))
    before = model(ids[None])
    assert (input_gradient_map(model, ids) > 0).all()
    assert (
        torch.equal(model(ids[None]), before)
        and all(p.grad is None for p in model.parameters())
        and not model.tok._forward_hooks
    )


def test_causal_by_perturbation():
    model = toy(scale=2)
    a = torch.randint(TOY.vocab_size, (2, 16))
    b = a.clone()
    b[:, 7:] = (b[:, 7:] + 1) % TOY.vocab_size
    la, lb = model(a), model(b)
    torch.testing.assert_close(la[:, :7], lb[:, :7])
    assert ((la - lb)[:, 7:].abs().amax(-1) > 1e-3).all()


def test_a_leak_would_be_noticed():
    "The same test on attention without a mask fails, so the test can fail"

    def leaky(q, k, v):
        return (q @ k.mT / q.size(-1) ** 0.5).softmax(-1) @ v

    model = toy(scale=2, attention=leaky)
    a = torch.randint(TOY.vocab_size, (1, 16))
    b = a.clone()
    b[:, -1] = (b[:, -1] + 1) % TOY.vocab_size
    assert ((model(a) - model(b))[:, :-1].abs().amax(-1) > 1e-4).all()


@pytest.mark.parametrize("t, s", [(1, 1), (7, 7), (1, 9), (4, 9), (256, 256)])
def test_attend_equals_sdpa(t, s):
    torch.manual_seed(0)
    q = torch.randn(2, 3, t, 8, requires_grad=True)
    k, v = (torch.randn(2, 3, s, 8, requires_grad=True) for _ in "kv")
    slow, fast = causal_attention(q, k, v), fused_attention(q, k, v)
    torch.testing.assert_close(slow, fast)
    w = torch.randn_like(slow)
    for a, b in zip(*(torch.autograd.grad((y * w).sum(), (q, k, v)) for y in (slow, fast))):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("how", (causal_attention, fused_attention))
def test_last_queries_alone_get_the_same_answer(how):
    q, k, v = torch.randn(3, 2, 3, 10, 8)
    for t in (1, 4):
        torch.testing.assert_close(how(q[..., -t:, :], k, v), how(q, k, v)[..., -t:, :])


def test_more_queries_than_keys_is_refused():
    refuses("5 queries cannot be the last of 4", causal_mask, 5, 4)


def test_overfits_one_batch():
    torch.manual_seed(0)
    ids, targets = torch.randint(11, (2, 4, 16))
    model = toy()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(120):
        opt.zero_grad()
        loss = model.loss(ids, targets)
        loss.backward()
        opt.step()
    assert loss.item() < 0.05


def test_tied_weights_share_storage():
    tied, untied = toy(tied=True), toy(tied=False)
    assert tied.head is None and untied.head.weight.data_ptr() != untied.tok.weight.data_ptr()
    tied(torch.tensor([[1]])).sum().backward()
    assert (tied.tok.weight.grad.abs().sum(-1) > 0).all()  # head and embedding: every row
    untied(torch.tensor([[1]])).sum().backward()
    assert (untied.tok.weight.grad.abs().sum(-1) > 0).tolist() == [i == 1 for i in range(11)]


def test_residual_writers_start_smaller():
    torch.manual_seed(0)
    for name, p in GPT(replace(TINY, n_layers=8, init_std=0.03)).named_parameters():
        if p.dim() == 2:
            assert p.std().item() == pytest.approx(
                0.03 / (4 if name.endswith(("attn.proj.weight", "ffn.down.weight")) else 1),
                rel=0.05,
            ), name


@pytest.mark.parametrize(
    "bad, says",
    [
        (dict(d_model=130), "d_model 130 and 4 heads"),
        (dict(vocab_size=0), "vocab_size.*got 0"),
        (dict(context_length=-1), "context_length.*got -1"),
        (dict(n_layers=2.0), r"layers.*got 2\.0"),
        (dict(n_heads=True), "heads.*got True"),
        (dict(bias="yes"), "bias.*got 'yes'"),
        (dict(init_std=0), "init_std.*got 0"),
        (dict(init_std=float("nan")), "init_std.*got nan"),
    ],
)
def test_config_refuses(bad, says):
    refuses(says, replace, TINY, **bad)


def test_config_round_trip():
    assert GPTConfig.from_dict(json.loads(json.dumps(TINY.to_dict()))) == TINY
    refuses("dropout", GPTConfig.from_dict, TINY.to_dict() | {"dropout": 0.1})


def test_a_long_input_is_refused_with_both_numbers():
    refuses("17.*16", toy(), torch.zeros(1, 17, dtype=torch.long))


def test_block_takes_any_parts():
    class Twice(torch.nn.Module):
        def forward(self, x):
            return 2 * x

    block = Block(Twice(), Twice(), torch.nn.Identity(), torch.nn.Identity())
    assert torch.equal(block(torch.ones(1, 2, 3)), torch.full((1, 2, 3), 9.0))  # 1 + 2, then 3 + 6


def test_the_lesson_is_the_library():
    "Chapter 1's model and the library's: the same weights, logits and gradients"
    torch.manual_seed(0)
    lesson = FirstGPT(11, 16, 32, 3, 4)
    library = toy()
    with torch.no_grad():
        for p in lesson.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    library.load_state_dict(lesson.state_dict())
    ids, targets = torch.randint(11, (2, 4, 16))
    logits = lesson(ids)
    torch.testing.assert_close(logits, library(ids), atol=1e-5, rtol=1e-5)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    library.loss(ids, targets).backward()
    for mine, theirs in zip(lesson.parameters(), library.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-5, rtol=1e-4)


def test_the_lesson_starts_like_the_library():
    lesson = FirstGPT(65, 256, 128, 8, 4)
    library = GPT(replace(TINY, n_layers=8))
    for (name, mine), theirs in zip(lesson.named_parameters(), library.parameters(), strict=True):
        assert mine.std().item() == pytest.approx(theirs.std().item(), rel=0.05, abs=1e-9), name
        assert mine.mean().item() == pytest.approx(theirs.mean().item(), abs=2e-3), name


def test_attention_weights_of_the_lesson():
    q, k, v = torch.randn(3, 2, 4, 9, 8)
    weights = attention_weights(q, k)
    torch.testing.assert_close(weights @ v, causal_attention(q, k, v))
    assert (weights.triu(1) == 0).all() and (weights.tril() > 0).sum() == 2 * 4 * 45


def test_sample():
    model = toy(scale=2)
    a, b, c = (sample_ids(model, [1, 2], 30, seed=s) for s in (0, 0, 1))
    assert a == b != c and a[:2] == [1, 2] and len(a) == 32 and max(a) < 11
    greedy = sample_ids(model, [1], 5, temperature=0)
    for i in range(1, 6):
        assert greedy[i] == int(model(torch.tensor([greedy[:i]]))[0, -1].argmax())
    torch.manual_seed(5)
    before = torch.get_rng_state()
    sample_ids(model, [1], 3)
    assert torch.equal(before, torch.get_rng_state())  # its own generator
    refuses("empty", sample_ids, model, [], 3)
    refuses("-1", sample_ids, model, [1], 3, temperature=-1)


def as_gpt2(model):
    "The same weights in `transformers`: its linear layers store the transpose"
    hf = pytest.importorskip("transformers")
    c = model.cfg
    gpt2 = hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=c.vocab_size,
            n_positions=c.context_length,
            n_embd=c.d_model,
            n_layer=c.n_layers,
            n_head=c.n_heads,
            tie_word_embeddings=c.tied,
            resid_pdrop=0,
            embd_pdrop=0,
            attn_pdrop=0,
        )
    ).eval()
    names = {
        "tok": "wte",
        "pos": "wpe",
        "blocks": "h",
        "norm1": "ln_1",
        "norm2": "ln_2",
        "attn.qkv": "attn.c_attn",
        "attn.proj": "attn.c_proj",
        "ffn.up": "mlp.c_fc",
        "ffn.down": "mlp.c_proj",
        "norm": "ln_f",
    }

    def rename(k):
        if k.startswith("head"):
            return "lm_head.weight"
        head, _, rest = k.partition(".")
        if head != "blocks":
            return f"transformer.{names[head]}.{rest}"
        i, part, kind = (
            rest.split(".", 1)[0],
            rest.split(".", 1)[1].rsplit(".", 1)[0],
            rest.rsplit(".", 1)[1],
        )
        return f"transformer.h.{i}.{names[part]}.{kind}"

    state = {
        rename(k): v.T
        if k.endswith("weight") and k.split(".")[-2] in ("qkv", "proj", "up", "down")
        else v
        for k, v in model.state_dict().items()
    }
    missing, unexpected = gpt2.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    return gpt2


@pytest.mark.parametrize("tied", (True, False))
def test_it_is_gpt2(tied):
    "Same weights, same logits, same loss as `GPT2LMHeadModel`, untouched"
    model = toy(scale=2, tied=tied)
    gpt2 = as_gpt2(model)
    ids = torch.randint(TOY.vocab_size, (3, 16))
    assert count_params(gpt2) == count_params(model)
    with torch.no_grad():
        ours, theirs = model(ids), gpt2(ids).logits
        assert float(ours.std()) > 0.5 and float((ours - theirs).abs().max()) <= 1e-5
        assert (
            abs(float(model.loss(ids[:, :-1], ids[:, 1:])) - float(gpt2(ids, labels=ids).loss))
            <= 1e-5
        )


class GatedMLP(MLP):
    "An MLP that a block begins without: what it adds is scaled by zero"

    def __init__(self, cfg):
        super().__init__(cfg)
        self.scale = nn.Parameter(torch.zeros(cfg.d_model))
        self.shift = nn.Parameter(torch.full((cfg.d_model,), 0.5))

    def forward(self, x_btc):
        return self.scale * super().forward(x_btc + self.shift)


def test_fresh_weights_leave_a_layer_of_ones_own_as_it_was_made():
    "Linear layers, embeddings and norms are drawn; a gate that begins at zero is not opened"
    model = GPT(TOY)
    for block in model.blocks:
        block.ffn = GatedMLP(TOY)
    with torch.no_grad():
        model.norm.weight.zero_()
    model.reset()
    for block in model.blocks:
        assert not block.ffn.scale.any() and (block.ffn.shift == 0.5).all()
        assert not block.ffn.up.bias.any() and block.ffn.up.weight.std() > 0
    assert (model.norm.weight == 1).all() and not model.norm.bias.any()


@pytest.mark.parametrize("cfg", [TOY, BURN_TOY, replace(BURN_TOY, n_experts=3)])
def test_what_writes_to_the_residual_stream_begins_smaller(cfg):
    "Two layers in each block, known by their names: one that is renamed would train otherwise"
    torch.manual_seed(0)
    model = build_model(replace(cfg, d_model=128, init_std=0.02))
    residual_std = 0.02 / (2 * cfg.n_layers) ** 0.5
    layers = [m for m in model.blocks.modules() if isinstance(m, nn.Linear)]
    smaller = [m for m in layers if abs(m.weight.std().item() / residual_std - 1) < 0.1]
    experts = getattr(cfg, "n_experts", None) or 1
    assert len(smaller) == (1 + experts) * cfg.n_layers
    others = [m for m in layers if m not in smaller]
    assert all(abs(m.weight.std().item() / 0.02 - 1) < 0.1 for m in others)


@pytest.mark.parametrize("cfg", [TOY, BURN_TOY, replace(BURN_TOY, n_experts=3)])
def test_every_config_is_counted_as_it_is_built(cfg):
    assert count_params(cfg) == count_params(build_model(cfg)) == sum(cfg.param_table().values())


def test_a_hook_on_the_head_is_called():
    model = toy(tied=False).eval()
    model.head.register_forward_hook(lambda head, inputs, logits_btv: logits_btv + 1)
    ids_bt = torch.tensor([[1, 2, 3]])
    plain = F.linear(model.features(ids_bt), model.head.weight)
    assert torch.equal(model(ids_bt), plain + 1)


def window_of_two(q_bhtd, k_bhsd, v_bhsd):
    "Another attention: each position looks at itself and the one before"
    near_ts = causal_mask(q_bhtd.size(2), k_bhsd.size(2)).triu(k_bhsd.size(2) - q_bhtd.size(2) - 1)
    return F.scaled_dot_product_attention(q_bhtd, k_bhsd, v_bhsd, near_ts)


@pytest.mark.parametrize("architecture", [GPT, Llama])
def test_another_attention_is_never_replaced_in_silence(architecture, monkeypatch):
    "A cache would sample with another model than was trained; who says it is exact is believed"
    cfg = TOY if architecture is GPT else BURN_TOY
    if architecture is Llama:
        cfg = replace(cfg, n_kv_heads=cfg.n_heads)
    model = architecture(cfg, window_of_two).eval()
    ids_bt = torch.randint(11, (1, 9))
    assert model(ids_bt).isfinite().all()
    refused = "attention of this model, window_of_two, has no KV cache"
    with pytest.raises(GpubError, match=refused):
        generate_ids(model, [1, 2, 3], 4)
    with pytest.raises(GpubError, match=refused):
        model.loss(ids_bt, ids_bt, PackedAttention(torch.zeros(1, 9, dtype=torch.int64)))
    monkeypatch.setattr(window_of_two, "is_exact", True, raising=False)
    assert len(generate_ids(model, [1, 2, 3], 4)) == 7
    by_hand = architecture(cfg, causal_attention).eval()
    assert len(generate_ids(by_hand, [1, 2, 3], 4)) == 7


def test_a_function_that_takes_no_mark_is_refused_in_a_line():
    "A function of C has no attributes, and a partial does not inherit its function's"
    with pytest.raises(GpubError, match="built-in .* takes no mark: call it in a function of your"):
        mark_exact(F.scaled_dot_product_attention)
    model = GPT(TOY, partial(causal_attention)).eval()
    with pytest.raises(GpubError, match="has no KV cache"):
        generate_ids(model, [1, 2, 3], 4)


def test_ids_of_one_axis_are_refused_in_a_line():
    with pytest.raises(GpubError, match=r"ids are \(texts, tokens\), got the shape \(3,\)"):
        toy()(torch.tensor([1, 2, 3]))
