"""Forecasts before a run is paid for: held-out rungs lie in their intervals, published runs speak
for like runs only, and what is too far away is refused in one line."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from gpub.cli.plans import plan_command
from gpub.core import GpubError, read_json
from gpub.data.plays import plays_entropy
from gpub.plans.ladder import fit_points, read_ladder
from gpub.plans.loss_forecast import (
    REACH,
    check_reach,
    forecast_loss,
    ladder_forecast,
    law_forecast,
    published_curve,
    run_forecast,
)
from gpub.plans.scaling import fit_curve
from gpub.train.presets import PRESETS

DATA = Path(__file__).parents[1] / "data"
LADDER = DATA / "runs/ladder"


def test_sealed_runs_beyond_the_ladder_are_covered():
    reach = REACH * fit_points(read_ladder(LADDER))[:, 0].max()
    runs = {run["name"]: fit_points([run])[0] for run in read_ladder(DATA / "runs/ladder-forecast")}
    within = {name: point for name, point in runs.items() if point[0] <= reach}
    assert len(within) >= 2
    for name in runs.keys() - within.keys():
        n, d, _ = runs[name]
        with pytest.raises(GpubError, match="a law is asked up to"):
            ladder_forecast(LADDER, int(n), int(d))
    for name, (n, d, loss) in within.items():
        said = ladder_forecast(LADDER, int(n), int(d))
        assert plays_entropy() <= said.low < loss < said.high, name
        assert said.low < said.middle < said.high < 1.4 * said.low


def test_held_out_rungs_are_covered(tmp_path):
    """Of eight rungs held out one by one, a 90% interval misses more than two once in 26 times"""
    rungs = read_ladder(LADDER)
    covered = 0
    for out in rungs[::2]:
        folder = tmp_path / out["name"]
        shutil.copytree(LADDER, folder, ignore=lambda where, names: {out["name"]} & {*names})
        assert len(read_ladder(folder)) == len(rungs) - 1
        n, d, loss = fit_points([out])[0]
        said = ladder_forecast(folder, int(n), int(d), boots=60)
        covered += said.low < loss < said.high
    assert covered >= 6


def test_the_published_run_would_have_told_its_own_end():
    curve = published_curve("s2-1b")
    seen = curve[curve[:, 0] <= 90_000 * 131_072]
    assert len(seen) < len(curve)
    low, _, high = fit_curve(seen).forecast(1, int(curve[-1, 0]))
    assert low < curve[-1, 1] < high


def test_the_1b_is_told_from_the_run_that_is_like_it():
    recipe = PRESETS["burn-1b"].train
    report = forecast_loss("burn-1b")
    assert report.tokens == recipe.steps * recipe.batch_tokens
    assert [f.source for f in report.forecasts] == ["published run", "published law"]
    assert report.silent.keys() == {"own ladder"} and "8,457 times" in report.silent["own ladder"]
    said = report.forecasts[0]
    published = published_curve("s2-1b")[-1, 1]
    assert said.low < published < said.high and said.high - said.low < 0.2
    assert said == run_forecast("burn-1b", report.tokens)


def test_other_sizes_are_told_by_the_law_alone():
    said = {}
    for name in ("gpt2-124m", "gpt2-355m"):
        (said[name],) = forecast_loss(name).forecasts
    assert said["gpt2-124m"].source == "published law"
    assert said["gpt2-355m"].middle < said["gpt2-124m"].middle - 0.2
    one = law_forecast(1_038_692_352, 20_971_520_000)
    wide = law_forecast(124_439_808, 20_971_520_000)
    assert one.low < 2.446 < one.high and one.high - one.low < wide.high - wide.low


def test_more_tokens_never_hurt():
    middles = [forecast_loss("burn-1b", t).forecasts[0].middle for t in ("5B", "21B", "100B")]
    assert middles == sorted(middles, reverse=True)


@pytest.mark.parametrize(
    "ask, says",
    [
        (lambda: forecast_loss("burn-1b", "100T"), "no forecast of burn-1b on 100,000,000,000,000"),
        (lambda: forecast_loss("burn-1b", "1M"), "fewer than a 26th of the least"),
        (lambda: forecast_loss("shakespeare", "9B"), "no forecast of shakespeare"),
        (lambda: forecast_loss("burn-1c"), "no preset 'burn-1c'"),
        (lambda: law_forecast(10**6, 10**9), "1,000,000 parameters are outside"),
        (lambda: ladder_forecast(LADDER, 10**9, 10**6), "8,142 times the most it has seen"),
        (lambda: run_forecast("gpt2-134m", 10**9), "no run of gpt2-134m on like data"),
        (lambda: published_curve("s3-dpo"), "no losses of a run 's3-dpo'"),
        (lambda: forecast_loss("burn-toy", ladder=DATA), "holds no results"),
    ],
)
def test_nonsense_is_refused_in_one_line(ask, says):
    with pytest.raises(GpubError) as e:
        ask()
    assert says in str(e.value) and "\n" not in str(e.value)


def test_the_reach_is_asked_at_both_ends():
    known = np.array([10.0, 100.0])
    for fine in (10 / REACH, 50, 100 * REACH):
        check_reach("tokens", fine, known)
    for far in (0.9 * 10 / REACH, 1.1 * 100 * REACH):
        with pytest.raises(GpubError, match="up to 10 times beyond"):
            check_reach("tokens", far, known)


def test_the_command_prints_and_files_it(tmp_path):
    file = tmp_path / "f.json"
    done = CliRunner().invoke(plan_command, ["burn-1b", "--forecast", "--json", str(file)])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0].startswith("forecast 2.4") and "published run" in lines[0]
    assert lines[-1].startswith("no word  own ladder")
    report = forecast_loss("burn-1b")
    assert read_json(file) == json.loads(json.dumps(report.to_dict()))
    both = CliRunner().invoke(plan_command, ["burn-1b", "--forecast", "--gpu", "H100"])
    assert "forecast 2.4" in both.output and "summed over all steps: 4.6" in both.output
    with pytest.raises(GpubError, match="belongs to --forecast"):
        words = ["burn-1b", "--gpu", "H100", "--ladder", "x"]
        plan_command.main(words, standalone_mode=False)
    usual = CliRunner().invoke(plan_command, ["burn-1b", "--gpu", "H100"])
    assert "20,971,520,000 tokens" in usual.output, "without --tokens those of the preset"


def test_a_forecast_of_the_model_that_settings_make():
    "Another width is another size; the published run of the preset says nothing about it"
    usual, smaller = forecast_loss("burn-1b"), forecast_loss("burn-1b", settings=dict(n_layers=8))
    assert smaller.params < 0.6 * usual.params and smaller.tokens == usual.tokens
    assert {f.source for f in usual.forecasts} >= {"published run", "published law"}
    assert "published run" in smaller.silent and "another model" in smaller.silent["published run"]
    by = [next(f for f in r.forecasts if f.source == "published law") for r in (usual, smaller)]
    assert by[1].middle > by[0].middle, "a smaller model learns less from as many tokens"
    fewer = forecast_loss("burn-1b", settings=dict(steps="1000"))
    assert fewer.tokens == 1000 * 131_072 and fewer.params == usual.params


@pytest.mark.parametrize(
    "argv, words",
    [
        (["burn-1b", "--forecast", "--set", "d_modle=64"], "no setting 'd_modle'"),
        (["burn-1b", "--forecast", "--set", "n_heads=7"], "7"),
        (["burn-1b", "--gpu", "H100", "--tokens", "1B", "--set", "d_model=64"], "--set changes"),
    ],
)
def test_settings_that_a_plan_cannot_take(argv, words):
    with pytest.raises(GpubError, match=words):
        CliRunner().invoke(plan_command, argv, standalone_mode=False, catch_exceptions=False)
