"""A forecasting league: no entry is taken that was changed, lacks its range or came after the run,
and the score is smallest, on average, for who says what he believes."""

import json
import statistics

import numpy as np
import pytest
from contracts import refuses

from gpub.core import GpubError
from gpub.plans.ladder import read_forecast, seal_forecast
from gpub.plans.league import (
    Entry,
    grade_entry,
    interval_score,
    league_table,
    read_entry,
    seal_entry,
    weighted_score,
)

SAID = dict(who="a class", params=1000, tokens=50_000, low=0.4, middle=0.5, high=0.6, level=0.9)
RUN = dict(params=1000, tokens=50_000, loss=0.5, ideal=0.44, began="2999-01-01T00:00:00Z")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "entry.json"


def test_an_entry_comes_back_as_it_was_sealed(file):
    sealed = seal_entry(file, Entry(**SAID), how="by eye")
    assert read_entry(file) == sealed and sealed.written
    stored = read_forecast(file)
    assert stored["how"] == "by eye" and len(stored["sha256"]) == 64
    refuses("written once", seal_entry, file, Entry(**SAID))


def test_an_entry_changed_after_the_seal_is_refused(file):
    seal_entry(file, Entry(**SAID))
    for old, new in (('"high": 0.6', '"high": 0.7'), ('"middle": 0.5', '"middle": 0.48')):
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new), encoding="utf-8")
        refuses("seal is broken", read_entry, file)
        file.write_text(text, encoding="utf-8")
    assert read_entry(file).high == 0.6


@pytest.mark.parametrize("gone", ["low", "middle", "high", "level", "params", "tokens"])
def test_an_entry_without_value_or_range_is_refused(file, gone):
    seal_forecast(file, {name: value for name, value in SAID.items() if name != gone})
    refuses(f"lacks {gone}", read_entry, file)


@pytest.mark.parametrize(
    "changes, words",
    [
        (dict(low=0.55), "must lie in its range"),
        (dict(high=0.45), "must lie in its range"),
        (dict(low="0.4"), "low must be a positive number, got '0.4'"),
        (dict(high=float("nan")), "high must be"),
        (dict(level=1.0), "level must be a share between 0 and 1"),
        (dict(level=90), "level must be"),
        (dict(params=0), "params must be"),
    ],
)
def test_an_entry_that_cannot_be_is_refused_in_one_line(file, changes, words):
    with pytest.raises(GpubError, match=words):
        Entry(**SAID | changes)
    seal_forecast(file, SAID | changes)
    refuses([words, file.name], read_entry, file)


@pytest.mark.parametrize("text", ["[]", "{}", "not JSON", '{"low": 1}'])
def test_a_file_that_is_no_entry_is_refused(file, text):
    file.write_text(text, encoding="utf-8")
    refuses(file.name, read_entry, file)


def test_a_run_that_is_older_than_the_seal_grades_nothing(file):
    entry = seal_entry(file, Entry(**SAID))
    assert grade_entry(entry, RUN).inside
    for began in ("2026-01-01T00:00:00Z", entry.written):
        refuses("that is no forecast", grade_entry, entry, RUN | dict(began=began))
    refuses("the run has 2,000", grade_entry, entry, RUN | dict(params=2000))


def test_the_interval_score_by_hand():
    assert interval_score(0.4, 0.6, 0.9, 0.5) == pytest.approx(0.2)
    assert interval_score(0.4, 0.6, 0.9, 0.7) == pytest.approx(0.2 + 20 * 0.1)
    assert interval_score(0.4, 0.6, 0.5, 0.3) == pytest.approx(0.2 + 4 * 0.1)
    entry = Entry(**SAID)
    assert weighted_score(entry, 0.5) == pytest.approx((0 + 0.05 * 0.2) / 1.5)
    assert weighted_score(entry, 0.7) == pytest.approx((0.5 * 0.2 + 0.05 * 2.2) / 1.5)


@pytest.mark.parametrize("score", ["interval", "weighted"])
def test_honesty_pays(score):
    "Of many entries the one that says the true median and its 90% has the lowest mean score"
    outcomes = 0.5 + 0.05 * np.random.default_rng(1).standard_normal(4000)
    low, middle, high = np.quantile(outcomes, (0.05, 0.5, 0.95))

    def mean_score(shift, stretch):
        said = dict(
            low=middle + shift - stretch * (middle - low),
            middle=middle + shift,
            high=middle + shift + stretch * (high - middle),
        )
        entry = Entry(**SAID | said)
        if score == "weighted":
            return statistics.mean(weighted_score(entry, x) for x in outcomes)
        return statistics.mean(interval_score(entry.low, entry.high, 0.9, x) for x in outcomes)

    honest = mean_score(0, 1)
    for shift, stretch in ((0, 0.5), (0, 0.8), (0, 1.3), (0, 2), (0.03, 1), (-0.03, 1)):
        assert honest < mean_score(shift, stretch)


def test_an_entry_without_a_seal_is_not_graded():
    refuses("is not sealed", grade_entry, Entry(**SAID), RUN)


def test_the_table_ranks_by_the_score(file):
    good = grade_entry(seal_entry(file, Entry(**SAID)), RUN)
    bold = Entry(**SAID | dict(who="bold", low=0.69, middle=0.7, high=0.71))
    bold = seal_entry(file.with_name("bold.json"), bold)
    table = league_table([grade_entry(bold, RUN), good])
    assert [row[1] for row in table.rows] == ["a class", "bold"]
    assert [row[4] for row in table.rows] == ["inside", "outside"]


def test_every_sealed_forecast_of_the_course_is_an_entry(root):
    ahead = root / "data/runs/ladder-forecast"
    filed = json.loads((ahead / "grades.json").read_text(encoding="utf-8"))
    for grade in filed:
        result = json.loads((ahead.parent / grade["run"] / "result.json").read_text())
        graded = grade_entry(read_entry(ahead.parent / grade["forecast"]), result)
        assert graded.score > 0
    assert all(read_entry(path).level == 0.9 for path in (ahead / "open").glob("*.json"))
