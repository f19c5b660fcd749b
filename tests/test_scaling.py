"""Scaling laws: known laws come back, intervals cover as often as they say, the best size is the
best, forecasts cannot be made afterwards."""

import ast
import contextlib
import io
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from cells import defined_here
from contracts import refuses
from torch.nn import functional as F

from gpub.core import GpubError, read_json
from gpub.data.char import CharTokenizer
from gpub.data.plays import plays, plays_char_nll, plays_entropy
from gpub.model.architectures import config_of
from gpub.model.counts import flops_per_token, parameter_anatomy
from gpub.model.llama import LlamaConfig
from gpub.plans import ladder as ladder_module
from gpub.plans import scaling
from gpub.plans.ladder import (
    BATCH,
    CTX,
    LADDER_RUNGS,
    VAL,
    deep_loss,
    fit_points,
    grade_forecast,
    known_source,
    ladder_rates,
    proxy_config,
    read_forecast,
    read_ladder,
    stamp,
    train_ladder,
    train_rung,
    write_forecast,
)
from gpub.plans.scaling import PUBLISHED, Law, fit_curve, fit_law, optimal, stop_when
from gpub.record.log import read_log

SEASON_2 = Path(__file__).parents[1] / "nbs/season2"
best_for, flops_per_usd, spoken_range = defined_here(
    SEASON_2 / "deeper/dollars_by_a_law.ipynb", "best_for", "flops_per_usd", "spoken_range"
)
TRUTH = Law(0.45, 12.0, 0.33, 600.0, 0.5)
SIZES, BUDGETS = (8e3, 17e3, 31e3, 68e3, 121e3), (2**18, 2**19, 2**20, 2**21)
DATA = Path(__file__).parents[1] / "data/runs"


def world(law=TRUTH, sigma=0.0, seed=0):
    p = np.array([(n, d, 0.0) for d in BUDGETS for n in SIZES])
    p[:, 2] = law(p[:, 0], p[:, 1]) * np.exp(np.random.default_rng(seed).normal(0, sigma, len(p)))
    return p


@pytest.mark.parametrize(
    "law",
    [
        TRUTH,
        Law(1.69, 406.4, 0.34, 410.7, 0.28),
        Law(0.9, 3.0, 0.2, 90.0, 0.4),
        Law(0.1, 900.0, 0.8, 40.0, 0.3),
    ],
)
def test_a_law_comes_back_from_clean_points(law):
    got = fit_law(world(law), boots=2).law
    for k in "EAaBb":
        assert getattr(got, k) == pytest.approx(getattr(law, k), rel=1e-3), k


def test_a_curve_comes_back():
    d = np.geomspace(1e6, 1e10, 12)
    got = fit_curve(np.stack([d, 2.1 + 300 / d**0.31], 1), boots=2).law
    assert (
        (got.E, got.B, got.b)
        == (
            pytest.approx(2.1, rel=1e-4),
            pytest.approx(300, rel=1e-3),
            pytest.approx(0.31, rel=1e-4),
        )
        and got.A == 0
        and got(1, 1e8) == got(1e9, 1e8)
    )


def test_a_known_floor_is_kept_and_helps():
    p = world(sigma=0.005, seed=2)
    free, held = fit_law(p, boots=60), fit_law(p, boots=60, floor=TRUTH.E)

    def wide(f):
        return np.subtract(*f.interval(lambda l: l.a)[::-2])

    assert (
        held.law.E == TRUTH.E == held.laws.E.min() == held.laws.E.max()
        and wide(held) < wide(free)
        and all(
            low <= getattr(TRUTH, k) <= high
            for k in "ab"
            for low, _, high in [held.interval(lambda l: getattr(l, k))]
        )
    )
    for floor in (0, -1, 5.0):
        refuses("floor must be above zero and below every loss", fit_law, p, floor=floor)


def test_units_and_order_do_not_matter():
    p = world(sigma=0.005, seed=3)
    a = fit_law(p, boots=2).law
    q = p[np.random.default_rng(0).permutation(len(p))]
    q[:, 0] *= 1e3
    q[:, 1] /= 1e2
    b = fit_law(q, boots=2).law
    assert (a.E, a.a, a.b) == tuple(pytest.approx(v, rel=1e-3) for v in (b.E, b.a, b.b)) and float(
        a(3e4, 1e7)
    ) == pytest.approx(float(b(3e7, 1e5)), rel=1e-5)


def test_one_bad_run_does_not_carry_the_law_away():
    p = world()
    p[7, 2] *= 1.3
    got = fit_law(p, boots=2).law
    assert (
        got.E == pytest.approx(TRUTH.E, abs=0.01)
        and got.a == pytest.approx(TRUTH.a, abs=0.01)
        and got.b == pytest.approx(TRUTH.b, abs=0.01)
    )


@pytest.fixture(scope="module")
def few_worlds():
    return [fit_law(world(sigma=0.005, seed=s), boots=100, seed=s) for s in range(5)]


@pytest.fixture(scope="module")
def worlds(few_worlds):
    more = range(len(few_worlds), 40)
    return few_worlds + [fit_law(world(sigma=0.005, seed=s), boots=100, seed=s) for s in more]


@pytest.mark.full(instead="test_forecast.py::test_held_out_rungs_are_covered")
def test_intervals_cover_as_often_as_they_say(worlds):
    """90% intervals of 40 worlds: 36 hits expected; fewer than 32 would be chance once in 24 times,
    fewer than 30 once in 200"""
    for k in "Eab":
        hits = sum(
            low <= getattr(TRUTH, k) <= high
            for low, _, high in (f.interval(lambda l: getattr(l, k)) for f in worlds)
        )
        assert 30 <= hits, (k, hits)
    half = sum(
        low <= TRUTH.E <= high for low, _, high in (f.interval(lambda l: l.E, 0.5) for f in worlds)
    )
    assert 12 <= half <= 30, half  # an interval of half is not one of all


@pytest.mark.full(instead="test_forecast.py::test_held_out_rungs_are_covered")
def test_a_forecast_covers_the_run_to_come(worlds):
    rng = np.random.default_rng(9)
    hits, widths = 0, []
    for f in worlds:
        low, mid, high = f.forecast(270e3, 2**22)
        hits += low <= TRUTH(270e3, 2**22) * math.exp(rng.normal(0, 0.005)) <= high
        widths.append((high - low) / mid)
        assert low < mid < high
    assert hits >= 30 and np.median(widths) < 0.1, (hits, np.median(widths))


def test_less_noise_narrower(few_worlds):
    quiet = fit_law(world(sigma=0.0005, seed=0), boots=120)

    def width(f):
        return np.subtract(*f.interval(lambda l: l.E)[::-2])

    assert width(quiet) < 0.4 * np.median([width(f) for f in few_worlds])


@pytest.mark.parametrize("law", [*PUBLISHED.values(), TRUTH])
@pytest.mark.parametrize("flops", [1e13, 1e20, 1e24])
@pytest.mark.parametrize("k", [6, 6.8])
def test_the_best_size_is_the_best(law, flops, k):
    n, d = optimal(law, flops, k)
    tried = np.geomspace(n / 30, n * 30, 40_001)
    assert k * n * d == pytest.approx(flops)
    assert tried[np.argmin(law(tried, flops / k / tried))] == pytest.approx(n, rel=1e-3)


def test_the_best_of_a_menu():
    menu = dict(small=(1e5, 1e-9), large=(1e6, 1e-8), slow=(1e6, 2e-8))
    rows = best_for(TRUTH, 0.1, menu)
    assert [r[3] for r in rows] == sorted(
        float(TRUTH(n, 0.1 / p)) for n, p in menu.values()
    ) and all(r[2] == pytest.approx(0.1 / menu[r[0]][1]) for r in rows)
    assert [r[0] for r in rows].index("large") < [r[0] for r in rows].index("slow")
    assert flops_per_usd("burn-1b", 28_300, 1.45) == pytest.approx(
        flops_per_token(config_of("burn-1b")) * 28_300 * 3600 / 1.45
    )


LINE = np.geomspace(1e6, 1e10, 40)


@pytest.mark.parametrize(
    "price, least",
    [
        (1e-8, 1e-2),
        *(pytest.param(*p, marks=pytest.mark.full) for p in ((2e-8, 5e-3), (1e-9, 3e-2))),
    ],
)
def test_stops_where_the_derivative_says(price, least):
    law = Law(2.0, 0, 0, 400.0, 0.3)
    rows = stop_when(np.stack([LINE, law(1, LINE)], 1), price, least, boots=2)
    at = (law.b * law.B / (least * price)) ** (1 / (1 + law.b))
    # go, go, stop, stop
    assert LINE[4] < at < LINE[-1] and [r["stop"] for r in rows] == sorted(r["stop"] for r in rows)
    assert next(r["tokens"] for r in rows if r["stop"]) == pytest.approx(at, rel=0.35) and rows[-1][
        "usd"
    ] == pytest.approx(1e10 * price)


def test_a_judgement_knows_nothing_of_what_comes_later():
    curve = np.stack(
        [LINE, 2 + 400 / LINE**0.3 * np.exp(np.random.default_rng(0).normal(0, 0.01, 40))], 1
    )[:10]
    cut = stop_when(curve[:6], 1e-8, 1e-3, boots=3)
    later = curve.copy()
    later[6:, 1] = 9.0
    assert len(cut) == 3 and cut == stop_when(later, 1e-8, 1e-3, boots=3)[:3]


P = world()


@pytest.mark.parametrize(
    "pts, says",
    [
        (P[:5], "5 numbers need at least 6 points, got 5"),
        ([], "points, got 0"),
        (P[P[:, 0] == 8e3].repeat(2, 0), "1 different number of parameters (8,000)"),
        (P[P[:, 0] < 2e4], "2 different numbers of parameters (8,000, 17,000)"),
        (P[P[:, 1] <= 2**19], "2 different numbers of tokens"),
        ([*P, (1e4, 1e6, 0.0)], "must be positive numbers, got [10000.0, 1000000.0, 0.0]"),
        ([*P, (1e4, 1e6, math.nan)], "nan"),
        ([*P, (1e4, -1e6, 2.0)], "-1000000.0"),
    ],
)
def test_points_that_cannot_fix_a_law(pts, says):
    with pytest.raises(GpubError) as e:
        fit_law(pts)
    assert says in str(e.value) and "\n" not in str(e.value)


@pytest.mark.parametrize(
    "curve, price, least, says",
    [
        ([], 1e-8, 1e-3, "at least 4 rows are needed to judge by, got 0"),
        ([(1e6, 2.0)], 1e-8, 1e-3, "to judge by, got 1"),
        (P[:8, 1:], 1e-8, 1e-3, "tokens of a log must grow"),
        (np.stack([LINE, LINE], 1), 0, 1e-3, "usd_per_token must be above zero, got 0"),
        (np.stack([LINE, LINE], 1), 1e-8, -1, "least must be above zero, got -1"),
        (np.stack([LINE, 0 * LINE], 1), 1e-8, 1e-3, "must be positive numbers"),
    ],
)
def test_curves_that_cannot_be_judged(curve, price, least, says):
    with pytest.raises(GpubError) as e:
        stop_when(curve, price, least)
    assert says in str(e.value) and "\n" not in str(e.value)


@pytest.mark.parametrize(
    "f",
    [
        lambda: fit_curve([(1e6, 2.0)]),
        lambda: fit_curve([]),
        lambda: optimal(TRUTH, -1),
        lambda: flops_per_usd("burn-1b", 1e4, 0),
        lambda: flops_per_usd("burn-1b", math.nan, 1.0),
        lambda: best_for(TRUTH, 1.0, {}),
        lambda: best_for(TRUTH, 0, dict(a=(1.0, 1.0))),
        lambda: spoken_range("rather good"),
        lambda: train_rung(16, 1000, "x", "y"),
        lambda: train_rung(16, 0, "x", "y"),
    ],
)
def test_refused_in_one_line(f):
    with pytest.raises(GpubError) as e:
        f()
    assert "\n" not in str(e.value)


def test_empty_and_single_row_logs(tmp_path):
    (tmp_path / "log.jsonl").write_text("")
    refuses("is empty", read_log, tmp_path)
    (tmp_path / "log.jsonl").write_text('{"step": 1, "tokens": 5, "loss": 2.0}\n')
    with pytest.raises(GpubError, match="3 numbers need at least 4 points, got 1"):
        fit_curve([(r["tokens"], r["loss"]) for r in read_log(tmp_path)])
    refuses("holds no results", read_ladder, tmp_path)
    (tmp_path / "w16").mkdir()
    (tmp_path / "w16/result.json").write_text('{"params": 5, "tokens": 3}')
    with pytest.raises(
        GpubError, match="result.json lacks blocks, seed, loss, ideal, began: it is damaged"
    ):
        read_ladder(tmp_path)


def test_a_forecast_is_written_once_and_sealed(tmp_path, few_worlds):
    path = tmp_path / "f.json"
    said = write_forecast(path, few_worlds[0], 100_000, 4096 * BATCH, why="test")
    assert (
        read_forecast(path) == said
        and said["why"] == "test"
        and said["low"] < said["middle"] < said["high"]
    )
    refuses("written once", write_forecast, path, few_worlds[1], 1e5, 1e6)
    ran = dict(
        params=100_000,
        tokens=4096 * BATCH,
        loss=said["middle"] + 0.1,
        ideal=plays_entropy() + 0.1,
        began="2999-01-01T00:00:00Z",
    )
    g = grade_forecast(said, ran)
    assert (
        g["inside"]
        and g["off"] == pytest.approx(0, abs=1e-9)
        and not grade_forecast(said, dict(ran, loss=said["high"] + 0.11))["inside"]
    )
    for bad, says in (
        (dict(ran, began=said["written"]), "no forecast"),
        (dict(ran, params=5), "is for 100,000 params"),
    ):
        refuses(says, grade_forecast, said, bad)
    for old, new in (('"middle"', '"muddle"'), (str(said["high"]), str(said["high"] + 1))):
        text = path.read_text()
        path.write_text(text.replace(old, new, 1))
        refuses("seal is broken", read_forecast, path)
        path.write_text(text)


@pytest.mark.parametrize(
    "words, low, high",
    [
        ("50+", 50, math.inf),
        ("low 20s", 20, 24),
        ("mid 30s", 34, 37),
        ("High 40s", 47, 50),
        ("90-130", 90, 131),
        (47, 47, 48),
    ],
)
def test_words_are_ranges(words, low, high):
    assert spoken_range(words) == (low, high)


def test_a_stamp_is_of_the_points():
    assert stamp(P) == stamp(P.tolist()) != stamp(P + 1e-3)


class Fake:
    "Scores every character of the validation text as told"

    def __init__(self, tok, sure):
        self.tok, self.sure, self.row = tok, sure, 0
        self.ids = torch.from_numpy(tok.encode(plays(VAL, seed=1)).astype("int64")).unfold(
            0, CTX + 1, CTX // 2
        )

    def __call__(self, x):
        y = self.ids[self.row : self.row + len(x)]
        self.row += len(x)
        assert torch.equal(x, y[:, :-1])
        return self.sure * F.one_hot(y[:, 1:], self.tok.vocab_size).float()


def test_deep_loss_scores_the_right_characters():
    text = plays(VAL, seed=1)
    tok = CharTokenizer.from_text(text)
    uniform, ideal = deep_loss(Fake(tok, 0.0), tok)
    assert uniform == pytest.approx(math.log(tok.vocab_size)) and deep_loss(Fake(tok, 99.0), tok)[
        0
    ] == pytest.approx(0, abs=1e-6)
    assert (
        ideal == pytest.approx(plays_char_nll(text)[CTX // 2 + 1 :].mean(), abs=2e-3)
        and abs(ideal - plays_entropy()) < 0.05
    )


@pytest.mark.parametrize("width", (16, 48, 96))
def test_twins_keep_the_proportions_of_the_1b(width):
    cfg = LlamaConfig(vocab_size=60, **proxy_config(width))
    a = parameter_anatomy(cfg)
    assert (
        cfg.n_heads == 4 * cfg.n_kv_heads
        and cfg.d_ff == 4 * cfg.d_model
        and a.blocks == 2 * width * width * 29 // 2
    )


@pytest.mark.full(instead="test_rates.py::test_a_sweep_goes_on_where_it_was_stopped")
def test_climbing_files_each_rung_once_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(ladder_module, "VAL", 2048)
    data = known_source(tmp_path / "plays", 30_000)
    rungs = [(16, 2 * BATCH, 0), (24, BATCH, 1)]
    with contextlib.redirect_stdout(io.StringIO()):
        # stopped after the first
        one = next(train_ladder(tmp_path / "filed", data, tmp_path / "work", rungs))
        (two,) = train_ladder(tmp_path / "filed", data, tmp_path / "work", rungs)
        assert not list(train_ladder(tmp_path / "filed", data, tmp_path / "work", rungs))
        refuses("fresh data", train_rung, 16, 64 * BATCH, data, tmp_path / "too-long")
    assert [(r["width"], r["tokens"], r["seed"]) for r in (one, two)] == rungs and [
        r["name"] for r in read_ladder(tmp_path / "filed")
    ] == ["w24-1k-s1", "w16-2k"]
    with contextlib.redirect_stdout(io.StringIO()):
        (other,) = train_ladder(
            tmp_path / "rates", data, tmp_path / "work", rungs[1:], muon_lr=0.02, lr=0.01
        )
    assert (
        read_ladder(tmp_path / "rates")[0]["name"] == "w24-1k-s1-muon_lr0.02-lr0.01"
        and other["loss"] != one["loss"]
    )
    assert sorted(p.name for p in (tmp_path / "filed/w16-2k").iterdir()) == [
        "config.json",
        "log.jsonl",
        "result.json",
        "samples.jsonl",
    ] and {r["loss"] for r in read_ladder(tmp_path / "filed")} == {one["loss"], two["loss"]}
    # not where it lay
    assert read_json(tmp_path / "filed/w16-2k/config.json")["data"]["source"] == "plays"
    assert np.allclose(
        fit_points([one])[0],
        (one["params"], 2 * BATCH, one["loss"] - one["ideal"] + plays_entropy()),
    )


def rates_of(r):
    return (
        dict(muon_lr=float(m[1]), lr=float(m[2]))
        if (m := re.search(r"-muon_lr([\d.]+)-lr([\d.]+)$", r["name"]))
        else ladder_rates(r["width"])
    )


def test_the_repaired_law_gives_the_famous_20_and_the_printed_one_does_not():
    wants = {}
    for name, law in PUBLISHED.items():
        n, d = optimal(law, 5.76e23)  # what Chinchilla was trained with
        wants[name] = round(d / n, 1)
    assert wants == {"Hoffmann 2022": 92.6, "Besiroglu 2024": 18.4}


@pytest.mark.parametrize("folder", ["ladder", "ladder-forecast", "ladder-rates", "ladder-slower"])
def test_receipts_are_what_they_say(folder):
    for r in read_ladder(DATA / folder):
        home = DATA / folder / r["name"]
        config, rows = read_json(home / "config.json"), read_log(home)
        cfg = LlamaConfig.from_dict(config["model"])
        t = config["train"]
        assert (
            parameter_anatomy(cfg).params,
            parameter_anatomy(cfg).blocks,
            flops_per_token(cfg),
        ) == (
            r["params"],
            r["blocks"],
            r["flops_per_token"],
        ) and r["params"] == config["parameters"]
        assert (
            t["steps"] * t["batch_tokens"] == r["tokens"] == rows[-1]["tokens"]
            and t["seed"] == r["seed"]
            and (t["schedule"], t["decay"], t["floor"]) == ("linear", 1.0, 0.0)
        ), r["name"]
        assert rows[-1]["lr"] <= 1.01 * t["lr"] / t["steps"] and {
            k: t[k] for k in ("muon_lr", "lr")
        } == rates_of(r)  # its own schedule, down to nothing
        assert r["tokens"] <= config["data"]["train"]  # no character twice
        assert (
            r["engine_loss"] == rows[-1]["val_loss"] and r["ideal"] < r["loss"] < r["engine_loss"]
        )


def test_the_ladder_is_whole_and_the_forecasts_came_first():
    ladder = read_ladder(DATA / "ladder")
    assert sorted((r["width"], r["tokens"], r["seed"]) for r in ladder) == sorted(LADDER_RUNGS)
    forecast_runs = read_ladder(DATA / "ladder-forecast")
    for r in forecast_runs:
        f = read_forecast(DATA / f"ladder-forecast/{r['name']}.json")
        g = grade_forecast(f, r)
        # a later forecast stands on runs that an earlier one was about, and names them all
        names = f.get("stands_on", [q["name"] for q in ladder])
        stood_on = [q for q in [*ladder, *forecast_runs] if q["name"] in names]
        assert len(stood_on) == len(names) and r["name"] not in names
        by_name = {q["name"]: q for q in stood_on}
        points = fit_points([by_name[name] for name in names])
        assert f["stamp"] == stamp(points) and g["off"] == f["middle"] - g["loss"]
        assert (r["params"], r["tokens"]) not in {(q["params"], q["tokens"]) for q in ladder}


@pytest.mark.parametrize("module", [scaling, ladder_module])
def test_the_module_reads_well(module):
    "Every argument has a type, no function more than 25 statements or 6 arguments"
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        a = node.args
        named = [x for x in [*a.posonlyargs, *a.args, *a.kwonlyargs] if x.arg != "self"]
        extra = [x for x in (a.vararg, a.kwarg) if x]
        assert all(x.annotation for x in named + extra) and node.returns, node.name
        assert len(named) <= 6, node.name
        assert sum(isinstance(x, ast.stmt) for x in ast.walk(node)) <= 26, node.name
