"""The model of season 2: sizes, parity with transformers both ways, groups, memory, causality, a
sane birth."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cells import defined_here
from torch.utils.flop_counter import FlopCounterMode

from gpub.core import GpubError
from gpub.data.batch import Batch
from gpub.model.architectures import (
    SHAPES,
    architecture_of,
    build_model,
    config_from_dict,
    config_of,
)
from gpub.model.counts import flops_per_token, kv_bytes, parameter_anatomy
from gpub.model.generate import generate_ids
from gpub.model.gpt import (
    GPTConfig,
    causal_attention,
    causal_mask,
    count_params,
    fused_attention,
)
from gpub.model.gpu_plan import ROOM, expected_mfu, plan
from gpub.model.gpus import GPUS
from gpub.model.llama import (
    Llama,
    LlamaConfig,
    Rope,
    SwiGLU,
    apply_rope,
    llama_table,
    repeat_kv_heads,
)
from gpub.model.llama_architecture import BURN_1B, BURN_TOY
from gpub.model.probes import input_gradient_map
from gpub.model.step_memory import memory_forecast, peak_memory
from gpub.share.weights import from_theirs, to_config, to_theirs
from gpub.train.config import TrainConfig
from gpub.train.loop import train_next_token
from gpub.train.memory import checkpoint_block

(swiglu_d_ff,) = defined_here(
    Path(__file__).parents[1] / "nbs/season2/01_from_134m_to_1b.ipynb", "swiglu_d_ff"
)
TOY = LlamaConfig(
    vocab_size=97, context_length=48, d_model=48, n_layers=3, n_heads=6, n_kv_heads=2, d_ff=112
)
SHAPED = {
    "grouped": TOY,
    "untied": replace(TOY, tied=False),
    "one kv head": replace(TOY, n_kv_heads=1),
    "all kv heads": replace(TOY, n_kv_heads=6),
    "other base": replace(TOY, rope_base=500_000.0, norm_eps=1e-6),
    "normed queries": replace(TOY, qk_norm="per_head", head_dim=12),
    "norms after": replace(TOY, qk_norm="all_heads", norm_after=True, tied=False),
    "no rotations": replace(TOY, nope_every=2),
}
GPT_TOY = GPTConfig(vocab_size=97, context_length=48, d_model=48, n_layers=3, n_heads=6)


def loud(cfg, seed=0, scale=0.15, **kw):
    "A model far from symmetric, as training would make it"
    torch.manual_seed(seed)
    model = build_model(cfg, **kw)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * scale)
    return model.eval()


def as_theirs(cfg):
    "An empty model of `transformers` in the same shape, with its own random weights"
    hf = pytest.importorskip("transformers")
    c = to_config(cfg)
    c.pop("gpub")
    c.pop("architectures")
    config = hf.AutoConfig.for_model(c.pop("model_type"), **c)
    torch.manual_seed(1)
    made = hf.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for p in made.parameters():
            p.add_(torch.randn_like(p) * 0.15)
    return made


CASES = [pytest.param(c, id=k) for k, c in SHAPED.items()] + [
    pytest.param(GPT_TOY, id="gpt tied"),
    pytest.param(replace(GPT_TOY, tied=False), id="gpt untied"),
]


def close(ours, theirs, x, y):
    "Logits, loss and every gradient"
    a, b = ours(x), theirs(x).logits
    assert a.std().item() > 0.5 and (a - b).abs().max().item() <= 1e-5
    la, lb = ours.loss(x, y), torch.nn.functional.cross_entropy(b.flatten(0, 1), y.flatten())
    assert abs(la.item() - lb.item()) <= 1e-5
    for m, l in ((ours, la), (theirs, lb)):
        m.zero_grad()
        l.backward()
    twin = build_model(ours.cfg)
    # gradients travel under the same names as weights
    twin.load_state_dict({k: p.grad for k, p in ours.named_parameters()})
    want = {k: p.grad for k, p in theirs.named_parameters()}
    got = to_theirs(twin)
    assert got.keys() == want.keys()
    for k in want:
        assert (got[k] - want[k]).abs().max().item() <= 1e-5 * max(1, want[k].abs().max().item()), k


@pytest.mark.parametrize("cfg", CASES)
def test_ours_in_theirs(cfg):
    ours, theirs = loud(cfg), as_theirs(cfg)
    missing, unexpected = theirs.load_state_dict(to_theirs(ours), strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    close(ours, theirs, *torch.randint(97, (2, 3, 48)))


@pytest.mark.parametrize("cfg", CASES)
def test_theirs_in_ours(cfg):
    theirs = as_theirs(cfg)
    ours = from_theirs(
        cfg,
        {k: v for k, v in theirs.state_dict().items() if not (cfg.tied and k == "lm_head.weight")},
    )
    close(ours, theirs, *torch.randint(97, (2, 3, 48)))


def test_a_changed_weight_would_be_noticed():
    ours, theirs = loud(TOY), as_theirs(TOY)
    theirs.load_state_dict(to_theirs(ours), strict=False)
    with torch.no_grad():
        ours.blocks[1].attn.qkv.weight[50, 3] += 0.1  # one number of one key
    with pytest.raises(AssertionError):
        close(ours, theirs, *torch.randint(97, (2, 3, 48)))


def test_another_layout_of_the_pairs_would_be_noticed(monkeypatch):
    def interleaved(x, cos, sin):
        a, b = x[..., ::2], x[..., 1::2]
        cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
        return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)

    ours, theirs = loud(TOY), as_theirs(TOY)
    theirs.load_state_dict(to_theirs(ours), strict=False)
    monkeypatch.setattr("gpub.model.llama.apply_rope", interleaved)
    with pytest.raises(AssertionError):
        close(ours, theirs, *torch.randint(97, (2, 3, 48)))


def test_1b_is_exact():
    with torch.device("meta"):
        model = Llama(BURN_1B)
    assert (
        count_params(model)
        == count_params(BURN_1B)
        == sum(llama_table(BURN_1B).values())
        == parameter_anatomy(BURN_1B).params
        == 1_038_692_352
    )
    assert (
        not any(k.startswith("rope") for k in model.state_dict())
        and SHAPES["burn-1b"].config == BURN_1B == config_of("burn-1b")
        and config_of("burn-toy") == BURN_TOY
    )
    assert (
        swiglu_d_ff(2048) == BURN_1B.d_ff == 8192
        and swiglu_d_ff(2048, 1) == 5632
        and swiglu_d_ff(2304) == 9216
        and kv_bytes(BURN_1B) == 16 * 2 * 8 * 64 * 2
    )


NORMED = SHAPED["normed queries"]
AFTER = SHAPED["norms after"]
NOPE = SHAPED["no rotations"]


@pytest.mark.parametrize("cfg", [TOY, replace(TOY, tied=False), BURN_TOY, NORMED, AFTER, NOPE])
def test_table_matches_the_model_part_by_part(cfg):
    names = dict(Llama(cfg).named_parameters())
    for part, n in llama_table(cfg).items():
        assert (
            sum(
                p.numel()
                for k, p in names.items()
                if ("norm" in k if part == "norms" else f".{part}." in f".{k}")
            )
            == n
        ), part


def test_the_toy_is_small_enough_for_every_test():
    "A step of one row is less arithmetic than one of the smallest GPT of the course"
    loss = Llama(BURN_TOY).loss(*torch.randint(BURN_TOY.vocab_size, (2, 1, 64)))
    loss.backward()
    assert loss.isfinite()
    of_a_row = flops_per_token(BURN_TOY) * BURN_TOY.context_length
    gpt = config_of("shakespeare-short")
    assert of_a_row < flops_per_token(gpt) * 4096


@pytest.mark.parametrize("cfg", [TOY, replace(TOY, tied=False, n_kv_heads=6), NORMED, AFTER])
def test_flops_are_what_torch_counts(cfg):
    model, ids = (
        build_model(cfg, attention=repeat_kv_heads(causal_attention)),
        torch.randint(97, (2, 2, cfg.context_length)),
    )
    with FlopCounterMode(display=False) as counter:
        model.loss(*ids).backward()
    assert counter.get_total_flops() / ids[0].numel() == flops_per_token(cfg)


@pytest.mark.parametrize(
    "mode", [*(pytest.param(mode, marks=pytest.mark.full) for mode in ("off", "full")), "selective"]
)
@pytest.mark.parametrize(
    "cfg",
    [
        LlamaConfig(
            vocab_size=500,
            context_length=128,
            d_model=128,
            n_layers=6,
            n_heads=4,
            n_kv_heads=2,
            d_ff=512,
        ),
        LlamaConfig(
            vocab_size=5000,
            context_length=64,
            d_model=64,
            n_layers=2,
            n_heads=4,
            n_kv_heads=1,
            d_ff=192,
            tied=False,
        ),
        LlamaConfig(
            vocab_size=500,
            context_length=128,
            d_model=64,
            n_layers=6,
            n_heads=8,
            n_kv_heads=4,
            d_ff=64,
            head_dim=32,
            qk_norm="per_head",
        ),
    ],
)
def test_memory_forecast(cfg, mode):
    def steps():
        model = Llama(cfg)
        tc = TrainConfig(
            steps=2,
            batch_tokens=8 * cfg.context_length,
            optimizer="adamw",
            lr=1e-3,
            grad_checkpoint=mode,
            compile="no",
        )
        for _ in train_next_token(
            model,
            lambda n, context_length: Batch(
                *torch.randint(
                    cfg.vocab_size,
                    (2, 8, context_length),
                    generator=torch.Generator().manual_seed(n),
                )
            ),
            tc,
        ):
            pass

    steps()
    real, told = peak_memory(steps), memory_forecast(cfg, 8, mode=mode, optimizer="adamw")["peak"]
    assert abs(told / real - 1) < 0.15, (told, real)


def test_initial_loss():
    """Width, heads, norms and vocabulary of the 1B; fewer layers and a smaller feed-forward, so
    that it fits a test"""
    torch.manual_seed(0)
    cfg = replace(BURN_1B, n_layers=1, d_ff=256, context_length=64)
    ids = torch.randint(cfg.vocab_size, (2, 1, 64))
    with torch.no_grad():
        quiet, usual = (float(Llama(c).loss(*ids)) for c in (cfg, replace(cfg, embed_std=0.02)))
    assert abs(quiet - math.log(32_005)) < 0.1 and 0.2 < usual - math.log(32_005) < 0.6


def test_normed_queries_and_keys_have_one_length():
    "However loud the weights are, each score is at most the square root of the head size"
    scores = []

    def remember(q_bhtd, k_bgsd, v_bgsd):
        scores.append(float((q_bhtd @ k_bgsd.repeat_interleave(3, 1).mT).abs().max()) / 12**0.5)
        return fused_attention(q_bhtd, k_bgsd, v_bgsd)

    for cfg in (NORMED, replace(NORMED, qk_norm=None)):
        torch.manual_seed(0)
        model = Llama(cfg, attention=remember)
        with torch.no_grad():
            for block in model.blocks:
                block.attn.qkv.weight.mul_(1000)
            model(torch.randint(97, (2, 48)))
    normed, plain = scores[:3], scores[3:]
    assert max(normed) <= 12**0.5 * 1.0001 and min(plain) > 100


@pytest.mark.parametrize(
    "mixed, named",
    [
        (dict(qk_norm="per_head", qkv_bias=True), "qkv_bias and qk_norm"),
        (dict(norm_after=True), "norm_after"),
        (dict(qk_norm="all_heads"), "qk_norm"),
        (dict(nope_every=4, qk_norm="per_head"), "qk_norm and nope_every"),
    ],
)
def test_a_mixture_of_families_computes_but_is_not_exported(mixed, named):
    cfg = replace(TOY, **mixed)
    assert loud(cfg).loss(*torch.randint(97, (2, 2, 48))).isfinite()
    with pytest.raises(GpubError, match=f"no family of transformers has just {named}"):
        to_config(cfg)


def test_layers_without_rotations_know_no_distances():
    "With no rotation anywhere, the tokens before the last may change places"
    model, ids = loud(replace(TOY, nope_every=1)), torch.arange(9)[None]
    moved = ids[:, [3, 1, 2, 0, *range(4, 9)]]
    with torch.no_grad():
        one_layer = Llama(replace(TOY, nope_every=1, n_layers=1)).eval()
        rotated = Llama(replace(TOY, n_layers=1)).eval()
        rotated.load_state_dict(one_layer.state_dict())
        near = (one_layer(ids) - one_layer(moved))[:, -1].abs().max()
        far = (rotated(ids) - rotated(moved))[:, -1].abs().max()
        assert near < 1e-6 < 1e-5 < far
        assert not torch.equal(model(ids), model(moved))  # a second layer sees who saw whom


def test_groups_are_repeated_heads():
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(2, 6, 10, 8, requires_grad=True),
        *(torch.randn(2, 2, 10, 8, requires_grad=True) for _ in "kv"),
    )
    for t in (10, 4, 1):
        a, b = (
            fused_attention(q[..., -t:, :], k, v),
            repeat_kv_heads(causal_attention)(q[..., -t:, :], k, v),
        )
        torch.testing.assert_close(a, b)
        for x, y in zip(*(torch.autograd.grad(z.square().sum(), (q, k, v)) for z in (a, b))):
            torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-4)
    model = loud(TOY)
    wide = loud(replace(TOY, n_kv_heads=6))
    state = model.state_dict()
    c, d = TOY.d_model, TOY.head_size
    for i in range(
        TOY.n_layers
    ):  # each key and value head copied to the three queries that share it
        w = state[f"blocks.{i}.attn.qkv.weight"]
        copies = [
            z.unflatten(0, (2, d)).repeat_interleave(3, 0).flatten(0, 1) for z in w[c:].chunk(2)
        ]
        state[f"blocks.{i}.attn.qkv.weight"] = torch.cat([w[:c], *copies])
    wide.load_state_dict(state)
    ids = torch.randint(97, (2, 20))
    torch.testing.assert_close(model(ids), wide(ids), atol=1e-5, rtol=1e-5)


def test_features_alone_leave_a_gradient_for_any_optimizer():
    "Fewer tokens than rows, and no head that reads the tied table in the same pass"
    model = loud(replace(TOY, vocab_size=500))
    model.features(torch.randint(500, (2, 20))).square().sum().backward()
    assert model.tok.weight.grad.layout == torch.strided
    torch.optim.AdamW(model.parameters()).step()


class Memory:
    "The simplest thing that remembers: one growing pair of keys and values per layer"

    def __init__(self, n_layers):
        self.past = [None] * n_layers

    def positions(self, t):
        n = 0 if self.past[0] is None else self.past[0][0].size(2)
        return torch.arange(n, n + t)

    def layer(self, i):
        def f(q, k, v):
            if self.past[i] is not None:
                k, v = (torch.cat(z, 2) for z in zip(self.past[i], (k, v)))
            self.past[i] = k, v
            return fused_attention(q, k, v)

        return f


@pytest.mark.parametrize("cfg", [TOY, replace(TOY, n_kv_heads=6), GPT_TOY, NORMED, AFTER, NOPE])
@pytest.mark.parametrize("pieces", [(20,), (1,) * 20, (7, 1, 12), (1, 19)])
def test_memory_gives_the_same_logits(cfg, pieces):
    model, ids, kv_cache = loud(cfg), torch.randint(97, (2, 20)), Memory(3)
    with torch.no_grad():
        parts = [model(x, kv_cache) for x in ids.split(pieces, 1)]
        whole = model(ids)
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-5, rtol=1e-5)
    assert kv_cache.past[0][0].size(1) == cfg.n_kv_heads and sum(
        k.nbytes + v.nbytes for k, v in kv_cache.past
    ) // 40 == kv_bytes(cfg, 4)


def test_rows_may_stand_at_different_positions():
    model, ids = loud(TOY), torch.randint(97, (1, 9))

    class Shifted(Memory):
        def positions(self, t):
            return torch.stack([torch.arange(t), torch.arange(t) + 5])

    with torch.no_grad():
        a, b = model(ids.expand(2, -1), Shifted(3))
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)  # only distances count


@pytest.mark.parametrize("cfg", [TOY, GPT_TOY])
def test_memory_beyond_the_table_is_refused(cfg):
    model, kv_cache = loud(cfg), Memory(3)
    model(torch.zeros(1, 48, dtype=torch.long), kv_cache)
    with pytest.raises(GpubError, match="position 48 .*context of 48"):
        model(torch.zeros(1, 1, dtype=torch.long), kv_cache)
    with pytest.raises(GpubError, match="49 tokens .*context of 48"):
        model(torch.zeros(1, 49, dtype=torch.long))


@pytest.mark.parametrize(
    "how", [fused_attention, repeat_kv_heads(causal_attention), repeat_kv_heads(fused_attention)]
)
def test_causal(how):
    assert torch.equal(
        input_gradient_map(loud(TOY, attention=how), torch.randint(97, (9,))) > 0, causal_mask(9, 9)
    )


def test_a_leak_would_be_noticed():
    assert (
        input_gradient_map(
            loud(TOY, attention=repeat_kv_heads(lambda q, k, v: (q @ k.mT).softmax(-1) @ v)),
            torch.randint(97, (9,)),
        )
        > 0
    ).all()


def test_rotation_keeps_lengths_and_knows_distances_only():
    rope = Rope(100, 8)
    x = torch.randn(1, 100, 3, 8)
    torch.testing.assert_close(apply_rope(x, *rope(100)).norm(dim=-1), x.norm(dim=-1))
    q, k = torch.randn(2, 1, 1, 1, 8)

    def score(m, n):
        return float(
            (
                apply_rope(q, *rope.at(torch.tensor([m])))
                * apply_rope(k, *rope.at(torch.tensor([n])))
            ).sum()
        )

    assert abs(score(3, 1) - score(93, 91)) < 1e-4 and abs(score(3, 1) - score(3, 2)) > 1e-3


def test_tables_stay_whole_wherever_the_model_goes(monkeypatch):
    model = loud(TOY)
    want = model.rope.cos.clone()
    assert model.to(torch.bfloat16).rope.cos.dtype == torch.float32 and torch.equal(
        model.rope.cos, want
    )
    with torch.device("meta"):
        empty = Llama(TOY)
    computed = []
    tables = Rope.tables
    monkeypatch.setattr(Rope, "tables", lambda *a: computed.append(1) or tables(*a))
    empty.to_empty(device="cpu")
    assert len(computed) == 1, "once, not once a layer"
    assert torch.equal(empty.rope.cos, want)


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_checkpointing_changes_nothing(mode):
    grads = []
    for m in ("off", mode):
        model, ids = (
            loud(TOY),
            torch.randint(97, (2, 2, 48), generator=torch.Generator().manual_seed(0)),
        )
        model.apply_block = checkpoint_block(m)
        model.loss(*ids).backward()
        grads.append([p.grad for p in model.parameters()])
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b)


def test_overfits_one_batch():
    torch.manual_seed(0)
    ids, targets = torch.randint(97, (2, 4, 16))
    model = Llama(TOY)
    cfg = TrainConfig(steps=60, batch_tokens=64, lr=1e-2, muon_lr=0.02, warmup=0, compile="no")
    for s in train_next_token(model, lambda n, context_length: Batch(ids, targets), cfg):
        pass
    assert float(s.loss) < 0.05


def test_residual_writers_start_smaller():
    torch.manual_seed(0)
    cfg = replace(TOY, d_model=192, n_layers=8, d_ff=512, init_std=0.03, embed_std=0.5)
    for name, p in Llama(cfg).named_parameters():
        if p.dim() == 2:
            assert p.std().item() == pytest.approx(
                0.5
                if name == "tok.weight"
                else 0.03 / (4 if name.endswith(("attn.proj.weight", "ffn.down.weight")) else 1),
                rel=0.05,
            ), name
        else:
            assert (p == 1).all(), name


@pytest.mark.parametrize(
    "bad, says",
    [
        (dict(n_heads=5), "d_model 48 and 5 heads"),
        (dict(n_kv_heads=4), "6 n_heads and 4 n_kv_heads"),
        (dict(d_model=54), r"even.*got 9 \(d_model 54 / 6 heads\)"),
        (dict(head_dim=63), r"even.*got 63 \(head_dim\)"),
        (dict(vocab_size=0), "vocab_size.*got 0"),
        (dict(n_kv_heads=True), "kv_heads.*True"),
        (dict(d_ff=1.5), r"d_ff.*1\.5"),
        (dict(rope_base=0), "rope_base.*got 0"),
        (dict(norm_eps=float("nan")), "norm_eps.*nan"),
        (dict(tied=1), "tied.*1"),
        (dict(context_length=-2), "context_length.*-2"),
        (dict(qk_norm="all"), "qk_norm.*all"),
        (dict(nope_every=0), "nope_every.*0"),
    ],
)
def test_config_refuses(bad, says):
    with pytest.raises(GpubError, match=says):
        replace(TOY, **bad)


def test_config_round_trip():
    d = json.loads(json.dumps(TOY.to_dict()))
    assert LlamaConfig.from_dict(d) == TOY
    assert architecture_of(TOY).name == "llama" and config_from_dict("llama", d) == TOY
    with pytest.raises(GpubError, match="bias"):
        LlamaConfig.from_dict(TOY.to_dict() | {"bias": True})


def test_swiglu_by_hand():
    net, x = SwiGLU(8, 12), torch.randn(2, 3, 8)
    g = x @ net.gate.weight.T
    torch.testing.assert_close(
        net(x), (g * torch.sigmoid(g) * (x @ net.up.weight.T)) @ net.down.weight.T
    )


def test_plan_knows_the_1b():
    p = plan("burn-1b", "A100-80", "11.8B")
    assert (
        p.parameters == 1_038_692_352
        and p.flops_per_token == 7_037_054_976
        and p.rows[0].fits
        and not plan("burn-1b", "T4", "1B").rows[0].fits
    )


def test_a_card_of_24_gb_trains_the_1b_and_one_of_16_does_not():
    "The least it needs was 21.5 GB before Muon moved a few matrices at a time"
    least = {c: min(r.peak_gb for r in plan("burn-1b", c, 1e9).rows) for c in GPUS}
    assert least["T4"] < 17.6
    for card in ("RTX 4090", "A10G", "L4"):
        rows = plan("burn-1b", card, 1e9).rows
        assert all(r.fits and r.peak_gb <= ROOM * 24 for r in rows), card
    assert not any(r.fits for r in plan("burn-1b", "T4", 1e9).rows)


@pytest.mark.parametrize("card", ["H100", "H100 NVL", "H100 PCIe", "H200", "H200 NVL"])
def test_a_narrow_model_is_promised_less_of_hopper(card):
    narrow, wide = (
        parameter_anatomy(config_of("gpt2-134m")),
        parameter_anatomy(config_of("burn-1b")),
    )
    assert narrow.d_model < 1024 <= wide.d_model
    assert expected_mfu(narrow, GPUS[card]) == 0.32 < expected_mfu(wide, GPUS[card])


def test_attention_by_hand_knows_groups():
    "Trained and sampled with the same function: neither of both ends in an error of shapes"
    torch.manual_seed(0)
    model = Llama(TOY, causal_attention)
    fused = Llama(TOY)
    fused.load_state_dict(model.state_dict())
    ids_bt = torch.randint(97, (2, 9))
    assert TOY.n_kv_heads < TOY.n_heads
    torch.testing.assert_close(model(ids_bt), fused(ids_bt))
    assert len(generate_ids(model.eval(), [1, 2], 3)) == 5


@pytest.mark.parametrize("setting", [dict(experts_per_token=4), dict(expert_balance=0.5)])
def test_settings_of_experts_need_experts(setting):
    "Without them the setting would be lost on the way through config.json"
    with pytest.raises(GpubError, match="settings of experts: give n_experts, too"):
        replace(TOY, **setting)
    cfg = replace(TOY, n_experts=4, **setting)
    assert LlamaConfig.from_dict(cfg.to_dict()) == cfg and "qk_norm" not in cfg.to_dict()
