"""Forecasts against built models, against torch's own counters, and against every byte of real
training steps."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest
import torch
from contracts import refuses
from torch.utils.flop_counter import FlopCounterMode

from gpub.core import Config
from gpub.model.architecture import ALWAYS, MODES, Anatomy, Saved
from gpub.model.architectures import ARCHITECTURES, SHAPES, config_from_dict, config_of
from gpub.model.counts import (
    checkpoint_bytes,
    flops_per_token,
    optimizer_bytes,
    parameter_anatomy,
    recompute_flops,
)
from gpub.model.gpt import GPT, GPTConfig, causal_attention, count_params
from gpub.model.gpt_architecture import GPT2
from gpub.model.gpu_plan import (
    ROOM,
    count_of,
    find_receipt,
    plan,
    plan_table,
    receipts,
    seconds_per_token,
)
from gpub.model.gpus import GPUS, find_gpu
from gpub.model.step_memory import (
    PARTS,
    largest_batch,
    memory_forecast,
    memory_timeline,
    peak_memory,
)
from gpub.train.config import TrainConfig
from gpub.train.memory import checkpoint_block
from gpub.train.optim import make_optimizers

ROOT = Path(__file__).parents[1]
TINY = GPTConfig(vocab_size=65, context_length=256, d_model=128, n_layers=2, n_heads=4)
COUNTS = {
    "shakespeare": 437_888,
    "shakespeare-short": 809_856,
    "medium": 3_322_368,
    "gpt2-124m": 124_439_808,
    "gpt2-134m": 134_601_216,
    "gpt2-355m": 354_823_168,
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_those_of_the_built_model(name):
    cfg = SHAPES[name].config
    with torch.device("meta"):
        model = GPT(cfg)
    assert count_params(model) == count_params(cfg) == parameter_anatomy(cfg).params == COUNTS[name]
    mats = [p for k, p in model.named_parameters() if k.startswith("blocks.") and p.ndim == 2]
    assert (
        parameter_anatomy(cfg).blocks == sum(p.numel() for p in mats)
        and parameter_anatomy(cfg).head == (model.head or model.tok).weight.numel()
    )


def test_every_known_size_is_there():
    assert {
        k for k, s in SHAPES.items() if isinstance(s.config, GPTConfig)
    } == COUNTS.keys()  # season 2 adds its own


@pytest.mark.parametrize(
    "cfg",
    [
        TINY,
        replace(TINY, tied=False, bias=False, vocab_size=1000),
        GPTConfig(vocab_size=300, context_length=48, d_model=96, n_layers=5, n_heads=3),
    ],
)
def test_flops_are_what_torch_counts(cfg):
    ids = torch.randint(cfg.vocab_size, (2, 3, cfg.context_length))
    with FlopCounterMode(display=False) as c:
        GPT(cfg, causal_attention).loss(*ids).backward()
    assert flops_per_token(cfg) * ids[0].numel() == c.get_total_flops()


@pytest.mark.parametrize("mode", MODES)
def test_recomputed_flops_are_what_torch_counts(mode):
    """Full checkpointing repeats the blocks but for the last matmul, which nothing needs again;
    selective repeats none"""
    cfg = GPTConfig(vocab_size=300, context_length=48, d_model=96, n_layers=3, n_heads=3)
    ids = torch.randint(cfg.vocab_size, (2, 3, cfg.context_length))
    with FlopCounterMode(display=False) as c:
        checkpointed(GPT(cfg, causal_attention), mode).loss(*ids).backward()
    extra = c.get_total_flops() / ids[0].numel() - flops_per_token(cfg)
    down = 8 * cfg.n_layers * cfg.d_model**2
    assert extra in (
        (recompute_flops(cfg, mode), recompute_flops(cfg, mode) - down) if mode == "full" else (0,)
    )


def checkpointed(model, mode):
    "The model, its blocks applied as the engine does"
    model.apply_block = checkpoint_block(mode)
    return model


def steps(cfg, batch, mode="off", micro=1, optimizer="adamw", context_length=None, half=False):
    "Build, train two steps, forget"
    model = checkpointed(GPT(cfg), mode)
    opts = make_optimizers(
        model, TrainConfig(steps=2, optimizer=optimizer), torch.bfloat16 if half else torch.float32
    )
    for _ in range(2):
        for _ in range(micro):
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = model.loss(
                    *torch.randint(cfg.vocab_size, (2, batch, context_length or cfg.context_length))
                )
            loss.backward()
            del loss
        for o in opts:
            o.step()
            o.zero_grad()


TWINS = {
    "first model": (TINY, 8),
    "one block": (replace(TINY, n_layers=1), 4),
    "one sequence": (TINY, 1),
    "deep, narrow": (
        GPTConfig(vocab_size=300, context_length=64, d_model=64, n_layers=12, n_heads=4),
        8,
    ),
    "many words": (
        GPTConfig(
            vocab_size=8000, context_length=128, d_model=128, n_layers=2, n_heads=4, tied=False
        ),
        4,
    ),
    "many words, tied": (
        GPTConfig(vocab_size=12_000, context_length=64, d_model=96, n_layers=2, n_heads=3),
        2,
    ),
    "few tokens, wide": (
        GPTConfig(vocab_size=2000, context_length=32, d_model=256, n_layers=3, n_heads=4),
        1,
    ),
    "long context": (
        GPTConfig(vocab_size=100, context_length=1024, d_model=96, n_layers=3, n_heads=3),
        2,
    ),
}

WAYS = [("adamw", micro, mode) for micro in (1, 2) for mode in MODES] + [("muon", 2, "off")]
# each way of one micro-batch once, with a shape of its own; the others in `make test-all`
ONCE = set(zip(TWINS, WAYS[: len(MODES)]))
CASES = [
    pytest.param(name, *way, marks=() if (name, way) in ONCE else pytest.mark.full)
    for name in TWINS
    for way in WAYS
]


@pytest.mark.parametrize("name, optimizer, micro, mode", CASES)
def test_peak_memory_within_15_percent(name, optimizer, micro, mode):
    cfg, batch = TWINS[name]
    got = peak_memory(lambda: steps(cfg, batch, mode, micro, optimizer))
    want = memory_forecast(cfg, batch, mode=mode, optimizer=optimizer, accumulate=micro > 1)
    assert abs(want["peak"] / got - 1) <= 0.15, (
        f"{want['peak'] / 1e6:.2f} MB forecast ({want['moment']}), {got / 1e6:.2f} measured"
    )


@pytest.mark.full(instead="test_peak_memory_within_15_percent")
@pytest.mark.parametrize(
    "mode", [MODES[0], *(pytest.param(mode, marks=pytest.mark.full) for mode in MODES[1:])]
)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("deep, narrow", marks=pytest.mark.full),
        "many words",
        pytest.param("many words, tied", marks=pytest.mark.full),
    ],
)
def test_peak_memory_under_autocast(name, mode):
    """Where the peak is at the loss, which no kernel's scratch space touches (a CPU without bf16
    instructions widens matmuls, a GPU does not)"""
    cfg, batch = TWINS[name]
    got = peak_memory(lambda: steps(cfg, batch, mode, half=True))
    want = memory_forecast(cfg, batch, mode=mode, optimizer="adamw", half=True)
    assert abs(want["peak"] / got - 1) <= 0.15


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    "cfg",
    [
        TINY,
        replace(TINY, bias=False, n_heads=8),
        GPTConfig(vocab_size=300, context_length=64, d_model=48, n_layers=2, n_heads=3),
    ],
)
def test_a_block_leaves_what_the_table_says(cfg, half):
    def kept(n_layers):
        model, ids, seen = (
            GPT(replace(cfg, n_layers=n_layers)),
            torch.randint(cfg.vocab_size, (2, 4, cfg.context_length)),
            {},
        )
        weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

        def pack(t):
            if t.untyped_storage().data_ptr() not in weights:
                seen[t.untyped_storage().data_ptr()] = t
            return t

        with (
            torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t),
            torch.autocast("cpu", torch.bfloat16, enabled=half),
        ):
            loss = model.loss(*ids)
        return sum(t.untyped_storage().nbytes() for t in seen.values())

    table = (
        4
        * cfg.context_length
        * sum(
            s.numbers * (4 if s.wide or not half else 2)
            for s in parameter_anatomy(cfg).saved
            if "off" in s.kept
        )
    )
    assert kept(2) - kept(1) == table + half * 2 * 12 * cfg.d_model**2


def test_shorter_sequences_need_less():
    got = peak_memory(lambda: steps(TINY, 8, context_length=64))
    assert (
        abs(memory_forecast(TINY, 8, context_length=64, optimizer="adamw")["peak"] / got - 1)
        <= 0.15
    )


def test_peak_memory_is_a_peak_not_a_sum():
    def f():
        [torch.ones(1000).sum() for _ in range(50)]
        a = torch.ones(250_000)
        del a
        torch.ones(1000)

    assert 1e6 <= peak_memory(f) < 1.1e6


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_the_134m_itself(mode):
    cfg = config_of("gpt2-134m")
    got = peak_memory(lambda: steps(cfg, 2, mode))
    assert abs(memory_forecast(cfg, 2, mode=mode, optimizer="adamw")["peak"] / got - 1) <= 0.15


def test_parts_add_up_to_the_fullest_moment():
    for kw in (dict(), dict(half=True, accumulate=True), dict(mode="full", optimizer="adamw")):
        m, each = memory_forecast(TINY, 4, **kw), memory_timeline(TINY, 4, **kw)
        assert m["peak"] == sum(m[p] for p in PARTS) == max(
            sum(r.values()) for r in each.values()
        ) and set(each[m["moment"]]) == set(PARTS)


def test_modes_order_memory_and_speed():
    cfg, gpu = config_of("gpt2-134m"), GPUS["A100-80"]
    peaks = [memory_forecast(cfg, 32, mode=m, half=True)["peak"] for m in MODES]
    times = [seconds_per_token(cfg, gpu, m) for m in MODES]
    assert peaks == sorted(peaks, reverse=True) and times == sorted(times) and len({*times}) == 3


def test_optimizer_memory_is_what_the_optimizers_hold():
    for kind in ("adamw", "muon"):
        model = GPT(TINY)
        opts = make_optimizers(model, TrainConfig(steps=1, optimizer=kind))
        model.loss(*torch.randint(65, (2, 1, 8))).backward()
        for o in opts:
            o.step()
        assert optimizer_bytes(TINY, kind) == sum(
            v.nbytes for o in opts for s in o.state.values() for v in s.values() if v.ndim
        )
    assert checkpoint_bytes(TINY, "adamw") == 12 * 437_888


def test_largest_batch_is_the_largest():
    for mode in MODES:
        cfg = config_of("gpt2-124m")
        b = largest_batch(cfg, 20e9, mode=mode, half=True)
        assert b & (b - 1) == 0 < b
        assert (
            memory_forecast(cfg, b, mode=mode, half=True)["peak"]
            <= 20e9
            < memory_forecast(cfg, 2 * b, mode=mode, half=True)["peak"]
        )
    assert largest_batch(config_of("gpt2-124m"), 1e6) == 0


@pytest.mark.parametrize(
    "text, n",
    [
        ("2.8B", 2_800_000_000),
        ("300M", 300_000_000),
        ("5k", 5000),
        ("1e9", 10**9),
        ("2,605,285,376", 2_605_285_376),
        ("1_000", 1000),
        (12, 12),
        ("1.5T", 1_500_000_000_000),
    ],
)
def test_token_counts(text, n):
    assert count_of(text) == n


@pytest.mark.parametrize(
    "bad", ["", "B", "-3M", "0", "lots", "3X", "1.2.3", None, "nan", "1e400", "9" * 400]
)
def test_bad_token_counts_are_refused(bad):
    refuses("tokens must be a count", count_of, bad)


def test_gpu_names():
    asked = {
        "T4": ["t4", "Tesla T4"],
        "L4": ["NVIDIA L4"],
        "A10G": ["NVIDIA A10G"],
        "RTX 4090": ["4090", "rtx-4090", "NVIDIA GeForce RTX 4090"],
        "A40": ["a40"],
        "A100-40": ["NVIDIA A100-SXM4-40GB"],
        "A100-80": ["a100-80gb", "NVIDIA A100-SXM4-80GB"],
        "A100-40 PCIe": ["NVIDIA A100-PCIE-40GB"],
        "A100-80 PCIe": ["NVIDIA A100 80GB PCIe", "A100-80 PCIe"],
        "H100": ["H100 SXM", "NVIDIA H100 80GB HBM3"],
        "H200": ["NVIDIA H200"],
        "H100 PCIe": ["NVIDIA H100 PCIe", "H100-PCIE-80GB"],
        "H100 NVL": ["NVIDIA H100 NVL"],
        "B200": ["NVIDIA B200"],
        "L40": ["NVIDIA L40"],
        "L40S": ["NVIDIA L40S"],
        "RTX 5090": ["NVIDIA GeForce RTX 5090"],
        "H200 NVL": ["NVIDIA H200 NVL", "h200nvl"],
    }
    assert all(find_gpu(a).name == name for name, all_ in asked.items() for a in all_)
    for asked, first in {
        "A100": "A100-",
        "L40G": "L40",
        "H100 SMX": "H",
        "B2000": "B200",
        "GTX 1080": "RTX",
    }.items():
        refuses(f"no GPU '{asked}' in the table; it has {first}", find_gpu, asked)


def test_unknown_preset_names_the_nearest():
    refuses("there are: gpt2-134m", plan, "gpt2-134", "T4", "1M")
    refuses("no architecture has a config like dict {}", plan, {}, "T4", "1M")


def test_bad_numbers_are_refused():
    for kw, said in (
        (dict(mfu=40), "mfu"),
        (dict(mfu=0), "mfu"),
        (dict(mfu=float("nan")), "mfu"),
        (dict(usd_per_hour=-1), "usd-per-hour"),
        (dict(usd_per_hour=float("nan")), "usd-per-hour"),
        (dict(optimizer="sgd"), "optimizer"),
    ):
        refuses(said, plan, "medium", "T4", "1M", **kw)
    for bad in (0, 1.5, -2):
        refuses("micro-batch", memory_forecast, TINY, bad)


def test_every_sheet_is_complete():
    published = {
        r["usd_per_hour"]
        for r in json.loads((ROOT / "data/published/costs.json").read_text())["hourly_prices"]
    }
    for g in GPUS.values():
        assert g.memory_gb > 0 and g.fp32 > 0 and g.bandwidth > 0 and "NVIDIA" in g.sheet
        assert 0 < g.mfu <= 1 and g.mfu_source and (g.fp16 or g.bf16)
        assert g.usd is None or (
            g.price[-10:-6] == "2026" and (g.usd in published or "Colab" in g.price)
        )
    assert (
        {"T4", "L4", "A10G", "RTX 4090", "A100-40", "A100-80", "H100", "H200"} <= GPUS.keys()
        and GPUS["T4"].format == "fp16"
        and GPUS["A100-40"].format == "bf16"
    )


def test_plan_adds_up(tmp_path):
    p = plan("gpt2-134m", "A100-80", "2.8B", folder=tmp_path)
    row = p.rows[0]
    assert (
        row.fits
        and row.peak_gb <= ROOM * 80
        and row.tok_s == pytest.approx(0.5 * 312e12 / 713.7e6, rel=1e-3)
    )
    assert row.hours == pytest.approx(2.8e9 / row.tok_s / 3600)
    assert row.usd == pytest.approx(row.hours * 1.49)
    slower = plan("gpt2-134m", "A100-80", "2.8B", mfu=0.25, folder=tmp_path)
    assert slower.rows[0].tok_s == pytest.approx(row.tok_s / 2)
    text = plan_table(p)
    assert all(
        w in text
        for w in (
            "134,601,216",
            "A100-80",
            "bf16",
            "$1.49",
            "assumed: 50%",
            "build-nanogpt",
            "kept",
        )
    ) and json.dumps(asdict(p))


def test_unknown_price_is_asked_for(tmp_path):
    p = plan("gpt2-134m", "T4", "2.8B", folder=tmp_path)
    assert p.rows[0].usd is None and "give --usd-per-hour" in plan_table(p)
    p = plan("gpt2-134m", "T4", "2.8B", usd_per_hour=0.35, folder=tmp_path)
    row = p.rows[0]
    assert row.usd == pytest.approx(row.hours * 0.35) and "give" not in plan_table(p)


def test_what_does_not_fit_is_said():
    p = plan(
        GPTConfig(vocab_size=50_257, context_length=1024, d_model=4096, n_layers=32, n_heads=32),
        "T4",
        "1B",
    )
    assert not any(r.fits for r in p.rows) and p.rows[0].usd is None
    assert plan_table(p).count("for a micro-batch of 1 x 1024") == 3


def test_a_receipt_replaces_the_assumption(tmp_path):
    run = tmp_path / "runs" / "big"
    run.mkdir(parents=True)
    (tmp_path / "bench").mkdir()
    (run / "config.json").write_text(
        json.dumps(
            dict(format=3, preset="gpt2-134m", machine=dict(gpu="NVIDIA H100 80GB HBM3", cpu="x"))
        )
    )
    (run / "bill.json").write_text(json.dumps(dict(tok_s=500_000.0)))
    (tmp_path / "bench" / "other.json").write_text("{}")
    (tmp_path / "bench" / "train.json").write_text(
        json.dumps(
            dict(
                machine=dict(gpu="NVIDIA H200", cpu="x"),
                speed=dict(preset="gpt2-134m", tok_s=6e5, mode="full"),
            )
        )
    )
    assert (
        len(receipts(tmp_path)) == 2
        and receipts(tmp_path / "none") == []
        and find_receipt("gpt2-124m", GPUS["H100"], tmp_path) is None
    )
    assert find_receipt("gpt2-134m", GPUS["H100"], tmp_path).tok_s == 5e5
    p = plan("gpt2-134m", "H200", "1B", folder=tmp_path)
    assert p.speed == "measured: data/bench/train.json"
    assert p.rows[2].tok_s == pytest.approx(6e5) and p.rows[0].tok_s > 7e5, (
        "measured with full checkpointing, faster without"
    )
    assert plan("gpt2-134m", "H200", "1B", mfu=0.4, folder=tmp_path).speed.startswith("assumed")


def test_plan_for_this_machine():
    assert any(r.fits for r in plan("shakespeare", "cpu", "4M").rows)


def test_another_architecture_is_one_record(monkeypatch):
    @dataclass(frozen=True, kw_only=True)
    class Bags(Config):
        vocab_size: int
        d_model: int
        n_layers: int

    def take_apart(cfg):
        head, blocks = cfg.vocab_size * cfg.d_model, cfg.n_layers * cfg.d_model**2
        return Anatomy(
            params=head + blocks,
            blocks=blocks,
            head=head,
            tied=True,
            n_layers=cfg.n_layers,
            d_model=cfg.d_model,
            hidden=cfg.d_model,
            vocab_size=cfg.vocab_size,
            context_length=16,
            saved=(Saved("stream", cfg.d_model, ALWAYS, wide=True),),
        )

    cfg = Bags(vocab_size=100, d_model=64, n_layers=3)
    refuses("no architecture has a config like Bags", plan, cfg, "T4", "1M")
    record = replace(GPT2, name="bags", config=Bags, anatomy=take_apart)
    monkeypatch.setitem(ARCHITECTURES, "bags", record)
    p = plan(cfg, "T4", "1M")
    assert p.parameters == 6400 + 3 * 4096 and p.rows[0].fits and "3 x 64" in plan_table(p)
    assert config_from_dict("bags", cfg.to_dict()) == cfg


@pytest.mark.full(instead="test_names_and_doors.py::test_a_fresh_interpreter_plans_every_preset")
def test_the_front_door_knows_every_model():
    "In a fresh interpreter, with nothing imported before"
    code = "import gpub; print(gpub.plan('burn-1b', 'A100-80', '11.8B', usd_per_hour=1.49))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "1,038,692,352 parameters" in done.stdout


@pytest.mark.full(
    instead="test_templates.py::test_the_source_archive_has_what_the_wheel_is_made_of"
)
def test_works_without_the_checkout(tmp_path):
    "A pip-installed package has no data/ beside it"
    pkg = tmp_path / "gpub"
    shutil.copytree(ROOT / "gpub", pkg, ignore=shutil.ignore_patterns("__pycache__"))
    code = (
        "import gpub.model.gpu_plan as s; assert s.receipts() == []; "
        "print(s.plan_table(s.plan('gpt2-134m', 'A100-40', '2.8B')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert "assumed: 50%" in done.stdout
