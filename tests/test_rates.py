"""Learning rates: the sweep brackets the lowest loss, goes on where it was stopped, and the presets
lie where their comment says."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpub.cli.lab import bench_rates_command
from gpub.core import GpubError, read_json
from gpub.lab.bench import rates
from gpub.lab.bench.rates import (
    MOST_RATES,
    RateLine,
    RatePoint,
    bench_rates,
    best_rate,
    line_losses,
    next_rate,
    read_rates,
    run_point,
)
from gpub.model.architectures import config_of
from gpub.model.counts import parameter_anatomy
from gpub.train.presets import PEAK_RATES, PRESETS

DATA = Path(__file__).parents[1] / "data"


def asked(loss_at, line=RateLine()):
    "The rates that a line runs when its losses are known"
    seen = {}
    while (rate := next_rate(line, seen)) is not None:
        seen[rate] = loss_at(rate)
    return seen


@pytest.mark.parametrize("best", [0.011, 0.02, 0.03, 0.04, 0.06, 0.09, 0.15])
def test_a_line_stops_when_its_lowest_loss_lies_between_higher_ones(best):
    seen = asked(lambda rate: math.log(rate / best) ** 2)
    found = sorted(seen)
    lowest = found.index(min(seen, key=seen.get))
    assert 0 < lowest < len(found) - 1
    assert all(b == pytest.approx(2 * a) for a, b in zip(found, found[1:]))


def test_a_line_that_falls_for_ever_ends():
    assert len(asked(lambda rate: -rate)) == MOST_RATES
    assert min(asked(lambda rate: rate)) == pytest.approx(0.04 / 2 ** (MOST_RATES - 1))


def test_a_run_that_diverged_is_no_minimum():
    seen = asked(lambda rate: math.inf if rate > 0.03 else rate)
    assert min(seen, key=seen.get) < 0.02


def test_which_rate_a_line_varies():
    assert RateLine(varied="lr").at(0.1) == RatePoint(lr=0.1)
    assert RateLine(varied="muon_lr").at(0.1) == RatePoint(muon_lr=0.1)
    assert RateLine(varied="both").at(0.1) == RatePoint(muon_lr=0.1, lr=0.05)


TINY = RatePoint(d_model=16, batch_tokens=256, steps=3)


@pytest.fixture
def plan(monkeypatch):
    monkeypatch.setattr(rates, "HELD_OUT", 1024)
    return {"a": [RateLine(TINY)], "b": [RateLine(TINY, varied="lr", centre=0.01)]}


def test_a_sweep_goes_on_where_it_was_stopped(plan, tmp_path, monkeypatch):
    file, count = tmp_path / "r.json", []
    real = rates.run_point
    monkeypatch.setattr(rates, "run_point", lambda *a: count.append(a[0]) or real(*a))
    said = []
    bench_rates(file, seconds=0, plan=plan, log=said.append)
    assert not count and "the same command goes on" in said[-1] and not file.exists()
    first = bench_rates(file, ("a",), plan=plan, log=said.append)
    before = len(count)
    assert len(first["runs"]) == before == len(read_rates(file)) >= 3
    whole = bench_rates(file, plan=plan, log=said.append)
    assert len(count) == len(set(count)) == len(whole["runs"]) > before
    assert whole["runs"][:before] == first["runs"]
    assert [r.machine for r in read_rates(file)][-1] == len(whole["machines"]) - 1
    alone = {r.point: r.loss for r in read_rates(file)}
    assert all(alone[r.point] == r.loss for r in read_rates(file))
    again = rates.load_shakespeare().text
    assert real(TINY, again)[0] == alone[TINY]  # a point is a pure function of its settings


def test_residual_exponent_changes_deep_models_only(plan):
    text = rates.load_shakespeare().text

    def loss(**changes):
        return run_point(RatePoint(**TINY.to_dict() | changes), text)[0]

    assert loss(depth_exponent=0.5) == loss()
    assert loss(n_layers=4, depth_exponent=0.5) != loss(n_layers=4)


@pytest.mark.parametrize(
    "damage, says",
    [
        (lambda r: r.pop("runs"), "lacks runs"),
        (lambda r: r.update(kind="ladder"), "a receipt of 'ladder', not of rates"),
        (lambda r: r["runs"][0].pop("loss"), "needs a value for 'loss'"),
        (lambda r: r["runs"][0]["point"].update(steps="9"), "steps must be a whole number"),
        (lambda r: r["runs"][0].update(machine=7), "machine 7 is not in it"),
        (lambda r: r["runs"][0].update(loss=-1.0), "loss must be 0 or more, got -1.0"),
    ],
)
def test_damaged_receipts_are_one_line(tmp_path, damage, says):
    run = dict(point={}, loss=1.0, seconds=1.0, began="2026", machine=0)
    receipt = dict(kind="rates", machines=[{}], runs=[run])
    damage(receipt)
    (tmp_path / "r.json").write_text(json.dumps(receipt))
    with pytest.raises(GpubError) as e:
        read_rates(tmp_path / "r.json")
    assert says in str(e.value) and "\n" not in str(e.value) and "r.json" in str(e.value)


def test_another_text_needs_another_file(plan, tmp_path):
    file = tmp_path / "r.json"
    file.write_text(json.dumps(dict(kind="rates", text="other", machines=[], runs=[])))
    with pytest.raises(GpubError, match="was made on other, .* give another file"):
        bench_rates(file, plan=plan)
    with pytest.raises(GpubError, match="no axis 'x'; there are: a, b"):
        bench_rates(axes=("x",), plan=plan)


def test_the_command_files_what_it_ran(plan, tmp_path, monkeypatch):
    monkeypatch.setattr(rates, "rate_axes", lambda: plan)
    file = tmp_path / "r.json"
    done = CliRunner().invoke(bench_rates_command, ["--json", str(file), "--axis", "a"])
    assert done.exit_code == 0, done.output
    assert {r.point.d_model for r in read_rates(file)} == {16}
    with pytest.raises(GpubError, match="--json"):
        bench_rates_command.main([], standalone_mode=False)


PEERS = read_json(DATA / "peer_rates.json")["rows"]


def scaled(row, batch_tokens):
    "A peer's rate at another number of tokens a step"
    return row["muon_lr"] * math.sqrt(batch_tokens / row["batch_tokens"])


@pytest.mark.parametrize("name", PEAK_RATES)
def test_large_presets_lie_between_what_others_trained_with(name):
    cfg = PRESETS[name].train
    params = parameter_anatomy(config_of(name)).params
    tuned = [r for r in PEERS if r["tuned"]]
    nearest = min(tuned, key=lambda r: abs(math.log(r["parameters"] / params)))
    (stated,) = [r for r in PEERS if not r["tuned"]]
    ends = sorted(scaled(r, cfg.batch_tokens) for r in (nearest, stated))
    assert ends[0] < cfg.muon_lr < ends[1]
    assert cfg.lr == pytest.approx(cfg.muon_lr / 5)
    assert cfg.warmup == pytest.approx(cfg.steps / 100)


def test_the_sweeps_receipt_is_whole():
    runs = read_rates(DATA / "bench/rates.json")
    points = [r.point for r in runs]
    assert len(points) == len(set(points))
    receipt = read_json(DATA / "bench/rates.json")
    assert all(m["commit"] and m["threads"] == 1 for m in receipt["machines"])
    assert {p.d_model for p in points} >= {64, 128, 256, 512}
    assert {p.n_layers for p in points if not p.depth_exponent} >= {1, 2, 4, 8, 16}
    assert {p.n_layers for p in points if p.depth_exponent} >= {4, 8, 16}
    assert {p.batch_tokens for p in points} >= {512, 2048, 8192, 32_768}


@pytest.mark.parametrize("varied", ["muon_lr", "lr", "both"])
def test_a_line_finds_its_own_runs(varied):
    line = RateLine(varied=varied)
    other = RateLine(RatePoint(d_model=128), varied=varied)
    points = [x.at(r) for x in (line, other) for r in (0.08, 0.02, 0.04)]
    runs = [
        rates.RateRun(point=p, loss=float(i), seconds=1.0, began="", machine=0)
        for i, p in enumerate(points)
    ]
    assert line_losses(runs, line) == {0.02: 1.0, 0.04: 2.0, 0.08: 0.0}
    assert list(line_losses(runs, other)) == [0.02, 0.04, 0.08]
    gone = [replace(runs[0], loss=None), *runs[1:]]
    assert line_losses(gone, line) == {0.02: 1.0, 0.04: 2.0}


def test_the_best_rate_lies_between_the_tried_ones():
    losses = {r: 2 + math.log(r / 0.05) ** 2 for r in (0.02, 0.04, 0.08)}
    assert best_rate(losses) == pytest.approx(0.05)
    assert best_rate({0.02: 1.0, 0.04: 2.0, 0.08: 3.0}) is None
    assert best_rate({}) is None
