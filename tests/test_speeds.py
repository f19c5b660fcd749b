"""Published speeds of others: one schema, a range whose coverage is measured, and what plans say"""

import json
import re
from dataclasses import asdict, replace

import pytest
from click.testing import CliRunner
from contracts import refuses

from gpub.cli.main import cli
from gpub.model.gpus import GPUS, find_gpu
from gpub.plans.cost_forecast import plan_fate, plan_text, price_plan
from gpub.plans.gpus import informed_plan, machine_for
from gpub.plans.multi_gpu import Sharing, price_shared, shared_step
from gpub.plans.phases import read_plan
from gpub.plans.speeds import (
    RANGE_LEVEL,
    grade_speeds,
    read_speeds,
    run_kind,
    speed_range,
    speed_table,
)


@pytest.fixture(scope="module")
def graded():
    return grade_speeds()


def test_four_of_five_published_runs_lie_where_the_others_say(graded):
    "The claim of every range that is printed: measured on 32 runs, each left out once"
    inside = sum(g.inside for g in graded)
    assert len(graded) >= 30 and RANGE_LEVEL - 0.08 <= inside / len(graded) <= RANGE_LEVEL + 0.08
    # and they say something: a card with runs of its own is known within a third of the forecast
    for name in ("A100-80", "H100"):
        known = speed_range(find_gpu(name))
        assert known.alike >= 5 and known.high / known.low < 1.7 and known.low < 1 < known.high


def test_a_range_widens_where_nobody_ran(graded):
    def width(name, gpus=1):
        known = speed_range(GPUS[name], gpus)
        return known.high / known.low

    known = {run_kind(g.speed.gpu, g.speed.gpus, g.speed.stack) for g in graded}
    strangers = [name for name, gpu in GPUS.items() if run_kind(gpu) not in known]
    assert "B200" in strangers and "A100-80" not in strangers
    assert all(width(name) > 2 * width("A100-80") for name in strangers)


def test_memory_that_others_published_is_forecast_within_a_tenth(graded):
    ratios = [
        g.speed.memory_gib / g.speed.forecast_gib for g in graded if g.speed.memory_gib is not None
    ]
    assert len(ratios) >= 5 and all(0.9 < ratio < 1.1 for ratio in ratios)


def test_the_table_is_narrow_and_every_run_has_its_source(graded):
    table = speed_table(graded)
    assert len(table.head) <= 7 and len(table.rows) == len(graded)
    assert len({g.speed.id for g in graded}) == len(graded)
    assert all(g.speed.url.startswith("https://") for g in graded)


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(tok_s=-1), ["tok_s must be a positive number", "-1"]),
        (dict(gpus=0), ["gpus must be", "0"]),
        (dict(stack="jax"), ["stack must be one of torch 2", "jax"]),
        (dict(checkpointing="some"), ["checkpointing must be", "some"]),
        (dict(url=None), ["url must be"]),
    ],
)
def test_an_entry_that_is_wrong_is_refused_in_one_line(tmp_path, change, words):
    row = asdict(read_speeds()[0]) | change
    (tmp_path / "published").mkdir()
    (tmp_path / "published/speeds.json").write_text(json.dumps(dict(runs=[row])))
    refuses([*words, "run 1"], read_speeds, tmp_path)


def test_a_plan_has_a_range_only_where_its_speed_is_forecast():
    forecast = informed_plan("burn-1b", "H200", "1B")
    low, high = forecast.spread
    assert low < 1 < high and "of the forecast" in forecast.evidence
    assert informed_plan("burn-1b", "H200", "1B", mfu=0.4).spread is None
    words = ["plan", "burn-1b", "--gpu", "H200", "--tokens", "1B"]
    said = CliRunner().invoke(cli, words, catch_exceptions=False).output
    row = forecast.rows[0]
    assert f"range    {low * row.tok_s:,.0f} to {high * row.tok_s:,.0f} tok/s" in said
    assert f"${row.usd / high:,.2f} to ${row.usd / low:,.2f}" in said


def test_hours_and_dollars_for_one_eight_and_sixty_four():
    plan = informed_plan("burn-1b", "H100", "30.6B")
    step = shared_step("burn-1b", "H100", Sharing(8, "fsdp"))
    one, eight, many = price_shared(step, plan)
    assert [cost.n for cost in (one, eight, many)] == [1, 8, 64]
    assert one.tok_s == pytest.approx(plan.rows[0].tok_s) and one.waiting == 0
    assert one.usd == pytest.approx(plan.rows[0].usd)
    for cost in (one, eight, many):
        assert cost.hours * 3600 * cost.tok_s == pytest.approx(30.6e9)
        assert cost.usd == pytest.approx(cost.hours * cost.n * plan.usd_per_hour)
        # nobody is faster than all cards computing all the time; who waits is slower by that
        assert cost.tok_s == pytest.approx(one.tok_s * cost.n * (1 - cost.waiting))
    # a step of 131,072 tokens is too small for 64: the network decides
    assert eight.waiting < 0.1 < 0.5 < many.waiting
    unpriced = price_shared(step, replace(plan, usd_per_hour=None))
    assert {cost.usd for cost in unpriced} == {None}


def test_a_plan_of_phases_has_its_range_in_hours_and_dollars():
    plan = read_plan("burn-1b")
    machine = machine_for("burn-1b", "A100-80", 1.49)
    low, high = machine.spread
    lines = plan_text(plan, machine, "push").splitlines()
    line = next(x for x in lines if x.startswith("likely range"))
    assert all(f"at {share * machine.tok_s():,.0f} tok/s" in line for share in (low, high))
    least, most = (float(usd.replace(",", "")) for usd in re.findall(r"\$([\d,.]+\d)", line))
    middle = plan_fate(price_plan(plan, machine, "push"), machine, "push")[-1].total
    # what is not reading is the same at every speed, so the ends lie nearer than the speeds do
    assert middle / high < least < middle < most < middle / low
    asked = replace(machine, spread=None)
    assert "\nlikely range" not in plan_text(plan, asked, "push")
