"""What a budget buys: text that is read again, and the cheapest size for a number of answers."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from contracts import refuses

from gpub.plans.repeated_text import (
    DATA_LIMITED,
    REPEATS,
    SPARE,
    effective_parameters,
    effective_tokens,
    worth_as_new,
)
from gpub.plans.scaling import PUBLISHED, Law, optimal
from gpub.plans.total_cost import (
    cheapest_size,
    implied_serving,
    lifetime_flops,
    tokens_to_reach,
)

LAWS = [*PUBLISHED.values(), Law(1.0, 50.0, 0.3, 900.0, 0.5)]
ROOT = Path(__file__).parents[1]
TODAY = json.loads((ROOT / "data/published/today.json").read_text(encoding="utf-8"))


def test_text_that_is_read_once_is_worth_itself():
    for read in (1.0, 3e6, 1e10):
        assert effective_tokens(1e10, read) == pytest.approx(read)


def test_repeats_are_worth_less_and_less_and_never_more_than_a_limit():
    worth = [effective_tokens(5e9, 5e9 * passes) / 5e9 for passes in (1, 2, 3, 4, 40, 4000)]
    gains = np.diff(worth[:4])
    assert 1 > gains[0] > gains[1] > gains[2] > 0
    assert worth[3] == pytest.approx(3.73, abs=0.005), "the paper: four epochs, nearly as good"
    assert worth[-1] == pytest.approx(1 + REPEATS) and worth == sorted(worth)
    assert REPEATS == TODAY["repeated"]["passes"]


def test_worth_is_in_the_unit_of_the_text():
    assert effective_tokens(2e9, 9e9) == pytest.approx(1e9 * effective_tokens(2, 9))


@pytest.mark.parametrize("unique", [0, -1.0, float("nan")])
def test_no_text_is_refused(unique):
    refuses("some text to read", effective_tokens, unique, 1e9)
    refuses("some text to read", effective_parameters, 1e9, unique)
    refuses("some text to read", worth_as_new, 1e9, unique, 1e9)


def test_the_law_of_repeats_is_the_published_one():
    "Its constants, and the paper's form with its own rounded numbers (appendix A, eq. 17)"
    filed = TODAY["repeated"]
    assert (REPEATS, SPARE) == (filed["passes"], filed["parameters"])
    law = filed["log_law"]
    scales = [math.log(x) for x in (DATA_LIMITED.E, DATA_LIMITED.A, DATA_LIMITED.B)]
    assert scales == pytest.approx([law["E"], law["A"], law["B"]])
    assert (DATA_LIMITED.a, DATA_LIMITED.b) == (law["a"], law["b"])
    n, unique, passes = 1e9, 5e9, 8
    best = 0.051 * unique
    size = best * (1 + 5.3 * (1 - math.exp(-(n / best - 1) / 5.3)))
    text = unique * (1 + 15.4 * (1 - math.exp(-(passes - 1) / 15.4)))
    printed = 521 / size**0.353 + 1488 / text**0.353 + 1.87
    ours = DATA_LIMITED(effective_parameters(n, unique), effective_tokens(unique, passes * unique))
    assert float(ours) == pytest.approx(printed, abs=0.01)


def test_a_size_counts_in_full_up_to_the_best_for_its_text():
    best, tokens = optimal(DATA_LIMITED, 1e21)
    for n in (best / 100, best / 2, best):
        assert effective_parameters(n, tokens) == pytest.approx(float(n))
    larger = [effective_parameters(k * best, tokens) / best for k in (1, 2, 3, 4, 1_000)]
    gains = np.diff(larger[:4])
    assert 1 > gains[0] > gains[1] > gains[2] > 0 and larger[-1] == pytest.approx(1 + SPARE)


def test_repeats_are_worth_the_less_the_larger_the_model():
    "Four passes over a quarter; a model that is small for the quarter loses the tokens' share only"
    read = 11e9
    alone = effective_tokens(read / 4, read)
    sizes = (5e7, 2e8, 1e9, 5e9)
    worth = [worth_as_new(n, read / 4, read) for n in sizes]
    assert worth[0] == pytest.approx(alone) and worth == sorted(worth, reverse=True)
    assert worth[2] < 0.75 * read < worth[1]
    passes = [worth_as_new(1e9, read / p, read) for p in (1, 2, 4, 8, 64)]
    assert passes[0] == pytest.approx(read) and passes == sorted(passes, reverse=True)


def test_text_of_the_stated_worth_brings_the_same_loss():
    for n, unique, read in ((1e9, 1e9, 7e9), (3e8, 2e9, 9e9), (4e9, 1e10, 2e10)):
        fresh = worth_as_new(n, unique, read)
        repeated = DATA_LIMITED(effective_parameters(n, unique), effective_tokens(unique, read))
        once = DATA_LIMITED(effective_parameters(n, fresh), fresh)
        assert float(once) == pytest.approx(float(repeated), abs=1e-9)


def test_a_life_is_training_and_service():
    assert lifetime_flops(1e9, 20e9, 0) == 1.2e20
    assert lifetime_flops(1e9, 20e9, 60e9) == 2 * 1.2e20, "three tokens served cost one trained"


@pytest.mark.parametrize("law", LAWS)
def test_tokens_bring_a_size_to_its_loss(law):
    for n, d in ((1e8, 1e9), (3e9, 2e11)):
        assert tokens_to_reach(law, float(law(n, d)), n) == pytest.approx(d)
    assert tokens_to_reach(law, law.E + 0.99 * law.A / 1e9**law.a, 1e9) == math.inf
    assert tokens_to_reach(law, law.E, 1e12) == math.inf


@pytest.mark.parametrize("law", LAWS)
def test_with_nothing_served_the_best_size_is_that_of_the_budget(law):
    for flops in (1e19, 1e22, 1e25):
        n, d = optimal(law, flops)
        assert cheapest_size(law, float(law(n, d))) == pytest.approx((n, d), rel=1e-6)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("served", [0, 1e10, 1e12, 1e15])
def test_no_other_size_is_cheaper(law, served):
    "Neighbours and far ones, each read as long as it needs for the same loss"
    loss = law.E + 0.6
    n, d = cheapest_size(law, loss, served)
    assert float(law(n, d)) == pytest.approx(loss)
    least = lifetime_flops(n, d, served)
    for other in n * np.array([0.5, 0.9, 0.99, 1.01, 1.1, 2, 10]):
        need = tokens_to_reach(law, loss, other)
        assert lifetime_flops(other, need, served) >= least * (1 - 1e-9)


def test_more_service_wants_a_smaller_model_that_reads_more():
    sizes = [cheapest_size(LAWS[1], 2.6, served) for served in (0, 1e9, 1e11, 1e13)]
    assert sizes == sorted(sizes, reverse=True)
    assert [d for _, d in sizes] == sorted(d for _, d in sizes)


@pytest.mark.parametrize("law", LAWS)
def test_the_service_that_a_choice_implies_makes_it_the_cheapest(law):
    for served in (0, 1e11, 1e13):
        n, d = cheapest_size(law, law.E + 0.5, served)
        assert implied_serving(law, n, d) == pytest.approx(served, rel=1e-6, abs=1e-3 * d)
    n, d = optimal(law, 1e21)
    assert implied_serving(law, 2 * n, d / 2) < 0 < implied_serving(law, n / 2, 2 * d)


def test_a_loss_at_the_floor_is_refused():
    refuses("the floor is 1.8172", cheapest_size, LAWS[1], 1.8)


def records():
    for kind, rows in TODAY.items():
        if kind not in ("schema", "file"):
            for row in rows if isinstance(rows, list) else [rows]:
                yield kind, row


def test_every_published_figure_has_its_address():
    rows = [row for _, row in records()]
    assert len(rows) > 25 and TODAY["schema"] == "gpub-published/1"
    assert all(row["url"].startswith("https://") for row in rows)
    assert len({row["id"] for row in rows}) == len(rows)
    assert all(row.get("who") or row.get("model") for row in rows)


def test_published_figures_are_of_the_size_they_should_be():
    for row in TODAY["models"]:
        assert 1e8 < row["parameters"] < 1e12 and row["tokens"] > row["parameters"]
    for row in TODAY["optimizers"]:
        assert ("factor" in row) != ("muon" in row)
        assert all(0 < muon < row["adamw"] for muon in row.get("muon", ()))
    for row in TODAY["fp8"]:
        assert 1 < row["fp8_tok_s"] / row["bf16_tok_s"] < 2
    for row in TODAY["experts"]:
        assert row["active"] < row["total"] and row["used"] < row["experts"]
