"Every rung off and on: the same rows, the same loss, and reasons for what stays off"

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cells import defined_here
from click.testing import CliRunner
from torch.nn import functional as F

from gpub.cli.lab import bench_ladder_command, bench_machine_command
from gpub.core import GpubError, read_json
from gpub.lab.bench import ladder, rungs
from gpub.lab.bench import machine as ceilings
from gpub.lab.bench.ladder import (
    LadderPace,
    bench_ladder,
    climb_ladder,
    row_line,
    top_rungs,
)
from gpub.lab.bench.machine import bench_machine, lacks_format, tf32
from gpub.lab.bench.race import Clock, Race
from gpub.lab.bench.rungs import (
    BASE,
    RUNGS,
    Climber,
    Rung,
    defaults,
    held_bytes,
    library_defaults,
    loader,
    survey,
)
from gpub.lab.bench.speed import features, head_loss, kernel
from gpub.model.architectures import build_model
from gpub.model.counts import flops_per_token
from gpub.model.gpt import GPT, GPTConfig, causal_attention, fused_attention
from gpub.model.llama_architecture import BURN_TOY

ROOT = Path(__file__).parents[1]
DEEPER = ROOT / "nbs/season1/deeper"
keep_bits, lost = defined_here(DEEPER / "numbers_of_few_bits.ipynb", "keep_bits", "lost")
roof, step_ops, tiled = defined_here(DEEPER / "kernel_by_kernel.ipynb", "roof", "step_ops", "tiled")
TINY = dict(n_layers=1, d_model=16, n_heads=2, context_length=16, batch_tokens=128)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return survey("shakespeare", CPU, tmp_path_factory.mktemp("place"), TINY)


def losses(place, n=3, **switches):
    c = Climber(place, switches)
    c.run(n - 1)
    out = [float(l) for l in c.losses]
    c.close()
    return out


# what stays off has a reason


def unexplained(device):
    return [name for name, on, why in defaults(device) if not (on or why)]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_whatever_is_off_has_a_reason(device):
    assert unexplained(device) == []


def test_an_unexplained_switch_is_found(monkeypatch):
    # as if the models came with attention by hand
    monkeypatch.setattr(rungs, "fused_attention", None)
    assert unexplained("cuda") == ["fused attention"]


def test_rungs_are_switches_of_the_base():
    assert {k for r in RUNGS for k in (*r.on, *r.off)} <= BASE.keys() == library_defaults(
        "cpu"
    ).keys() and len({r.name for r in RUNGS}) == len(RUNGS)
    assert all({**BASE, **r.off, **r.on} != {**BASE, **r.off} or r.off for r in RUNGS)


def test_the_library_measures_on_a_cpu(place):
    "There `auto` times a step, so the library as it comes has what this ladder found faster"
    for precision in ("fp32", "bf16"):
        ours = top_rungs(place, {**BASE, "precision": precision, "compile": "default"})[0].on
        assert (ours["precision"], ours["compile"]) == (precision, "default")


# the same rows


@pytest.mark.parametrize(
    "kw",
    [
        dict(source="cold", gather=False),
        dict(source="mapped", gather=False),
        dict(source="mapped", gather=True),
        dict(source="ram", gather=False),
        dict(source="device", gather=True),
        dict(source="ram", gather=True, workers=2),
    ],
    ids=lambda k: "-".join(map(str, k.values())),
)
def test_every_loader_reads_the_same_rows(place, kw):
    true, get = loader(place, "ram", True), loader(place, **kw)
    for n in range(3):
        want, rows = true(n), get(n)
        assert want.segments is None and rows.segments is None
        for a, b in ((want.ids, rows.ids), (want.targets, rows.targets)):
            assert a.dtype == b.dtype == torch.int64 and torch.equal(a, b)


# the same loss


@pytest.mark.parametrize(
    "switches",
    [
        r.on
        for r in RUNGS
        if not (r.lacks and r.lacks.__name__.startswith("_")) and "compile" not in r.on
    ]
    + [
        dict(attend="sdpa", kernel="math"),
        dict(pieces=4),
        dict(grad_checkpoint="full"),
        dict(grad_checkpoint="selective"),
    ],
    ids=str,
)
def test_no_switch_changes_the_loss(place, switches):
    narrow = {"bf16", "fp16"} & set(switches.values())
    assert losses(place, **switches) == pytest.approx(losses(place), abs=0.05 if narrow else 2e-5)


def test_two_losses_do_differ(place):  # the comparison above can fail
    assert losses(replace(place, train=replace(place.train, seed=1))) != pytest.approx(
        losses(place), abs=2e-5
    )


@pytest.mark.parametrize(
    "cfg",
    [
        GPTConfig(vocab_size=101, context_length=16, d_model=16, n_layers=2, n_heads=2),
        GPTConfig(
            vocab_size=101,
            context_length=16,
            d_model=16,
            n_layers=1,
            n_heads=2,
            tied=False,
            bias=False,
        ),
        replace(BURN_TOY, vocab_size=101),
    ],
    ids=["tied", "untied", "llama"],
)
@pytest.mark.parametrize(
    "how",
    [
        dict(multiple=64),
        dict(head="chunked"),
        dict(multiple=64, head="chunked", pieces=3),
        dict(head="torch"),
    ],
    ids=str,
)
def test_another_head_has_the_same_loss_and_gradients(cfg, how):
    if how.get("head") == "torch" and not hasattr(F, "linear_cross_entropy"):
        pytest.skip("this torch has no F.linear_cross_entropy")
    model = build_model(cfg)
    ids = torch.randint(101, (4, 17))
    x, y = ids[:, :-1], ids[:, 1:]
    names = [*model.state_dict()]

    def grads(loss):
        model.zero_grad()
        value = loss(x, y)
        value.backward()
        return value.detach(), [p.grad.clone() for p in model.parameters()]

    (a, ga), (b, gb) = grads(model.loss), grads(head_loss(model, **how))
    assert (
        torch.allclose(a, b, atol=1e-5)
        and all(torch.allclose(p, q, atol=1e-6) for p, q in zip(ga, gb))
        and [*model.state_dict()] == names
        and model(x).size(-1) == 101
    )
    with torch.autocast("cpu", torch.bfloat16):
        # far less than bf16 itself can tell apart there
        assert float(head_loss(model, **how)(x, y).detach()) == pytest.approx(float(a), abs=0.005)
    h = features(model, x)
    assert torch.equal(F.linear(h, (model.head or model.tok).weight), model(x))


@pytest.mark.parametrize(
    "t, s, tile", [(16, 16, 4), (17, 17, 4), (5, 20, 8), (1, 9, 64), (64, 64, 64)]
)
def test_tiles_are_attention(t, s, tile):
    q, k, v = (torch.randn(2, 3, n, 8, requires_grad=True) for n in (t, s, s))
    out = [f(q, k, v) for f in (causal_attention, lambda *a: tiled(*a, tile=tile))]
    grads = [torch.autograd.grad(o.square().sum(), (q, k, v)) for o in out]
    assert torch.allclose(*out, atol=1e-5) and all(
        torch.allclose(a, b, atol=1e-4) for a, b in zip(*grads)
    )


def test_kernels_are_chosen():
    q = torch.randn(1, 2, 8, 4)
    for name in (None, "flash", "math"):
        with kernel(name):
            assert torch.allclose(fused_attention(q, q, q), causal_attention(q, q, q), atol=1e-6)
    with kernel("cudnn"), pytest.raises(RuntimeError):
        fused_attention(q, q, q)
    with pytest.raises(GpubError, match="flash, cudnn"):
        kernel("x")


# numbers of narrow formats


def test_bits():
    x = torch.cat(
        [
            torch.randn(4096) * 10.0 ** torch.randint(-6, 6, (4096,)),
            torch.tensor([1.0, -1.0, 1 + 2**-8, 1 + 3 * 2**-8, 0.0]),
        ]
    )
    assert (
        torch.equal(keep_bits(x, 7), x.bfloat16().float())
        and float(keep_bits(torch.tensor([1 + 2**-10]), 10)) == 1 + 2**-10
        and float(keep_bits(torch.tensor([1 + 2**-11]), 10)) == 1.0
    )


@pytest.mark.parametrize(
    "value, zero", [(1e-5, False), (6e-8, False), (3e-8, False), (2.9e-8, True), (1e-9, True)]
)
def test_where_fp16_really_ends(value, zero):
    assert (
        lost(torch.tensor([value, 0.0])) == zero
        and lost(torch.tensor([value]), dtype=torch.bfloat16) == 0
        and lost(torch.tensor([value]), 2.0**16) == 0
    )


# counting


@pytest.mark.parametrize(
    "cfg",
    [
        GPTConfig(vocab_size=65, context_length=32, d_model=32, n_layers=2, n_heads=2),
        GPTConfig(vocab_size=97, context_length=16, d_model=24, n_layers=3, n_heads=3, tied=False),
    ],
)
def test_counted_flops_are_the_formula(cfg):
    ops = {o.name: o for o in step_ops(cfg, 3, causal_attention)}
    assert sum(
        o.flops for n, o in ops.items() if n != "AdamW"
    ) == 3 * cfg.context_length * flops_per_token(cfg) and ops["AdamW"].bytes == 28 * sum(
        p.numel() for p in GPT(cfg).parameters()
    )
    assert "device" not in " ".join(ops)
    # 4 linear layers and 2 matmuls of attention a block, and the head: forward, and twice as many
    # backward
    assert ops["mm"].calls + ops["addmm"].calls + ops["bmm"].calls == 18 * cfg.n_layers + 3
    fused = {o.name: o for o in step_ops(cfg, 3)}
    names = [n for n in fused if "dot_product" in n]
    one = 3 * cfg.n_layers * cfg.context_length**2 * cfg.d_model
    # two matmuls forward; five backward, one more pair than without recomputing
    assert sorted(fused[n].flops for n in names) == [
        4 * one,
        10 * one,
    ]
    assert sum(o.bytes for o in step_ops(cfg, 3, dtype=torch.bfloat16)) > 0 and roof(
        fused.values(), 1e12, 1e11
    ) < roof(ops.values(), 1e12, 1e11)


# climbing


def test_a_rung_that_changes_the_loss_or_fails_is_not_stood_on(place):
    stack = dict(BASE)
    below = Climber(place, stack)
    row, stack2, same = climb_ladder(
        place, Rung("x", "", dict(gather=True, source="ram"), tolerance=-1.0), stack, below, 2
    )
    assert (
        row["equal"] is False
        and row["kept"] is False
        and stack2 == stack
        and same is below
        and "OVER" in row_line(row)
    )
    row, stack2, same = climb_ladder(
        place, Rung("y", "", dict(multiple=64, head="torch")), stack, below, 2
    )
    assert row["why"].startswith("failed here: GpubError") and same is below and stack2 == stack
    assert (
        climb_ladder(place, Rung("z", "", dict(gather=False)), stack, below, 2)[0]["why"]
        == "the rungs below have it already"
    )
    asked = replace(place, asked=dict(precision="fp32"))
    assert (
        "precision is fp32 here"
        == climb_ladder(asked, Rung("w", "", dict(precision="bf16")), stack, below, 2)[0]["why"]
    )
    below.run(2)
    below.close()


@pytest.mark.parametrize(
    "on, kept",
    [
        ([0.9, 0.9, 0.9, 1.1, 1.1], False),
        ([0.95, 0.95, 0.95, 0.95, 1.3], False),  # four turns of five won, by less than the noise
        pytest.param([0.9, 0.9, 0.9, 0.9, 1.1], True, marks=pytest.mark.full),
        pytest.param([0.995] * 5, False, marks=pytest.mark.full),
    ],
)
def test_a_lucky_median_is_no_gain(place, monkeypatch, on, kept):
    monkeypatch.setattr(ladder, "duel", lambda a, b, steps: ([1.0] * 5, on))
    stack = {**BASE, "source": "mapped"}
    below = Climber(place, stack)
    row, _, stands = climb_ladder(place, Rung("x", "", dict(source="ram")), stack, below, 5)
    assert row["kept"] is kept and (stands is below) != kept
    stands.close()


def test_a_switch_that_was_on_already_is_marked(place, monkeypatch):
    "Its gain is none of this climb's: the off side was made worse to measure it"
    monkeypatch.setattr(ladder, "duel", lambda a, b, steps: ([1.0] * 5, [0.5] * 5))
    below = Climber(place, dict(BASE))
    rung = Rung("x", "", dict(gather=False), off=dict(gather=True))
    row, stack, stands = climb_ladder(place, rung, dict(BASE), below, 5)
    assert row["was_on"] and row["kept"] is False and stands is below and stack == BASE
    assert row_line(row).rstrip().endswith("was on")
    below.close()


@pytest.mark.full(instead="test_a_rung_that_changes_the_loss_or_fails_is_not_stood_on")
def test_whole_ladder(tmp_path):
    r = bench_ladder(
        "shakespeare",
        "cpu",
        LadderPace(1),
        settings=TINY,
        rungs=["page cache", "fp16 + scaler", "fused AdamW", "no checkpointing", "CUDA graphs"],
        log=lambda s: None,
    )
    rows = {x["rung"]: x for x in r["rows"]}
    assert (
        json.loads(json.dumps(r)) == r
        and r["machine"]["torch"]
        and r["tokens"] == 128
        and rows["CUDA graphs"]["why"] == "not on this machine: no CUDA device"
    )
    assert (
        {
            "off_ms",
            "on_ms",
            "gain",
            "tok_s",
            "mfu",
            "off_gb",
            "on_gb",
            "loss_gap",
            "tolerance",
            "equal",
        }
        <= rows["fused AdamW"].keys()
        and rows["fused AdamW"]["equal"]
        and 0 < rows["fused AdamW"]["mfu"] < 1
    )
    assert (
        rows["no checkpointing"]["off_gb"] < rows["no checkpointing"]["on_gb"]
        and rows["with Muon"].get("equal") is None
        and "fp32" == r["top"]["precision"]
    )
    late = bench_ladder(
        "shakespeare", "cpu", LadderPace(1, 1e-3), TINY, ["RAM"], log=lambda s: None
    )
    assert {x["why"] for x in late["rows"]} == {"not measured: the 0 s were over"}
    for bad in (
        dict(rungs=["steps"]),
        dict(settings=dict(compile="yes")),
        dict(preset="gpt5"),
        dict(device="cuda:9"),
        dict(settings=dict(TINY, batch_tokens=100)),
    ):
        with pytest.raises(GpubError):
            bench_ladder(
                **{
                    **dict(
                        preset="shakespeare",
                        device="cpu",
                        pace=LadderPace(1),
                        settings=TINY,
                        log=lambda s: None,
                    ),
                    **bad,
                }
            )
    with pytest.raises(GpubError, match="at least 1, got 0"):
        LadderPace(steps=0)


def test_llamas_climb_too(tmp_path):
    p = survey("burn-toy", CPU, tmp_path, dict(batch_tokens=64))
    true = losses(p, 2)
    assert true[0] == pytest.approx(np.log(32_005), abs=0.2) and losses(
        p, 2, attend="sdpa", multiple=64
    ) == pytest.approx(true, abs=2e-5)


@pytest.mark.slow
def test_compiling_keeps_the_loss(place):
    assert losses(place, compile="default", attend="sdpa") == pytest.approx(
        losses(place), abs=1e-3
    ) and losses(place, compile="default", multiple=64) == pytest.approx(losses(place), abs=1e-3)


# clocks, ceilings, commands


def test_the_clock_forgets_what_it_told():
    clock = Clock("cpu")
    clock()
    time.sleep(0.2)
    clock()
    clock()
    asleep, nothing = clock.seconds()
    assert asleep >= 0.2 > nothing >= 0 and clock.marks == []


def test_contenders_take_turns_in_both_orders():
    said, tidied = [], []
    contenders = {name: lambda n, name=name: said.append((n, name)) for name in "ab"}
    race = Race(contenders, before=tidied.append).warm_up(1).run(2)
    assert said == [(0, "a"), (0, "b"), (1, "b"), (1, "a"), (2, "a"), (2, "b")]
    assert tidied == [0, 1, 2] and [len(t.wall) for t in race.times.values()] == [2, 2]
    race.run(1, ["b"])
    assert said[-1] == (3, "b") and len(race.times["b"].cpu) == 3 and len(race.times["a"].cpu) == 2


def test_a_ratio_is_taken_within_rounds():
    race = Race(dict(a=abs, b=abs))
    race.times["a"].wall = [1.0, 100.0, 3.0]  # the second round was disturbed, for both
    race.times["b"].wall = [2.0, 200.0, 6.0]
    assert race.ratio("b", "a") == 2 and race.each() == dict(a=3.0, b=6.0)
    assert race.each(min) == dict(a=1.0, b=2.0) and race.each(sum, "cpu") == {}


@pytest.mark.parametrize(
    "cap, here",
    [
        ((7, 0), {"fp32", "fp16"}),
        ((8, 0), {"fp32", "tf32", "bf16", "fp16"}),
        ((9, 0), {"fp32", "tf32", "bf16", "fp16", "fp8"}),
    ],
)
def test_formats_of_cards(monkeypatch, cap, here):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda d=None: cap)
    assert {
        f for f in ("fp32", "tf32", "bf16", "fp16", "fp8") if not lacks_format("cuda", f)
    } == here


@pytest.mark.full(instead="test_a_rung_that_changes_the_loss_or_fails_is_not_stood_on")
def test_commands(tmp_path, monkeypatch):
    def run(command, *args):
        return CliRunner().invoke(command, [*args], catch_exceptions=False)

    sets = [w for k, v in TINY.items() for w in ("--set", f"{k}={v}")]
    done = run(
        bench_ladder_command,
        "--device",
        "cpu",
        "--preset",
        "shakespeare",
        "--steps",
        "1",
        "--rung",
        "RAM",
        "--json",
        str(tmp_path / "l.json"),
        *sets,
    )
    assert (
        done.exit_code == 0
        and "gain" in done.output
        and read_json(tmp_path / "l.json")["kind"] == "ladder"
    )
    with pytest.raises(GpubError, match="key=value"):
        run(bench_ladder_command, "--set", "x")
    monkeypatch.setattr(
        ceilings, "bench_machine", lambda device: bench_machine(device, (64,), (1, 2, 1, 16, 8))
    )
    done = run(bench_machine_command, "--device", "cpu", "--json", str(tmp_path / "m.json"))
    m = read_json(tmp_path / "m.json")
    assert (
        "matmul" in done.output
        and m["attention"]["kernels"]["flash"]["gap"]
        < dict(float32=1e-5).get(m["attention"]["dtype"], 0.05)
        and "why" in m["attention"]["kernels"]["cudnn"]
        and m["cache_gb_s"] > 0
        and m["copy_gb_s"] > 0.1
        and m["launch_us"] > 0
    )


def test_held_bytes_and_tf32():
    net = torch.nn.Linear(3, 5)
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net(torch.ones(1, 3)).sum().backward()
    opt.step()
    assert held_bytes(net, [opt]) == 2 * 4 * 20
    before = torch.get_float32_matmul_precision()
    with pytest.raises(ZeroDivisionError), tf32(True):
        assert torch.get_float32_matmul_precision() == "high"
        1 / 0
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize(
    "path", sorted((ROOT / "data" / "bench").glob("*.json")), ids=lambda p: p.name
)
def test_receipts_prove_their_losses(path):
    r = read_json(path)
    if r.get("kind") == "ladder":
        assert (
            all(x["equal"] for x in r["rows"] if x.get("kept"))
            and r["machine"]["commit"]
            and r["seconds"] < 600
        )
