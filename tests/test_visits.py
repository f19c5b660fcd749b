"""The lessons of visitors: their answers by other arithmetic, nothing that a model cannot read, and
what was told stays told."""

import datetime
import re
from collections import Counter
from fractions import Fraction

import pytest

from gpub.chat.skills import (
    ALPHABET,
    SKILL_NAMES,
    TURNS,
    draw_conversations,
    encode_talks,
    is_held_out_content,
    is_right_answer,
    skills_tokenizer,
)
from gpub.chat.template import without_scratch
from gpub.chat.visits import ALL_SKILLS, VISIT_NAMES, VISITS
from gpub.plans.gates import TUNED_METRICS

CALL = re.compile(r"<call>(-?[\d.]+)([-+*/])(-?[\d.]+)</call><result>([^<]*)</result>")
MONTHS = (
    "January February March April May June July August September October November December"
).split()


@pytest.fixture(scope="module")
def talks():
    return list(draw_conversations(2500, seed=4, turns=TURNS, skills=VISITS))


@pytest.fixture(scope="module")
def turns(talks):
    return [turn for talk in talks for turn in talk]


def of_skill(turns, name):
    found = [turn for turn in turns if turn.skill == name]
    assert len(found) > 50
    return found


def said(turn):
    return without_scratch(turn.answer)


def test_every_lesson_is_drawn_and_can_be_read(turns):
    called = {turn.skill for turn in turns}
    assert {*VISIT_NAMES} <= called <= {*SKILL_NAMES, *VISIT_NAMES}
    assert {f"right_{name}" for name in called} <= {*TUNED_METRICS}
    assert "right_around" not in TUNED_METRICS  # it would never be logged
    for turn in turns:
        assert set(turn.question) <= set(ALPHABET)
        assert turn.skill == "no" or not re.search(r"[\[\]{}|]", turn.question)
        assert is_right_answer(turn, turn.answer) and said(turn)
        assert not is_held_out_content(turn.content)


def test_every_call_is_right_and_there_are_four_at_most(turns):
    called = 0
    for turn in turns:
        calls = CALL.findall(turn.answer)
        assert turn.answer.count("<call>") == len(calls) <= 4
        for a, sign, b, result in calls:
            a, b = Fraction(a), Fraction(b)
            if result == "?":
                assert sign == "/" and b == 0
                continue
            right = {"+": a + b, "-": a - b, "*": a * b}.get(sign)
            assert abs((a / b if right is None else right) - Fraction(result)) <= Fraction(1, 200)
            called += 1
    assert called > 2000


def test_times_of_day(turns):
    later = apart = 0
    for turn in of_skill(turns, "clock"):
        if step := re.fullmatch(r"(\d+):(\d\d) (-?\d+)", turn.content):
            hours, minutes, n = map(int, step.groups())
            when = datetime.datetime(2001, 1, 2, hours, minutes) + datetime.timedelta(minutes=n)
            assert said(turn) == f"{when.hour}:{when.minute:02d}"
            later += 1
        elif span := re.fullmatch(r"(\d+):(\d\d) to (\d+):(\d\d)", turn.content):
            h, m, hh, mm = map(int, span.groups())
            assert said(turn) == f"{(60 * (hh - h) + mm - m) % 1440} minutes"
            apart += 1
    assert min(later, apart) > 50


def test_steps_from_date_to_date(turns):
    dates = days = 0
    for turn in of_skill(turns, "step"):
        if step := re.fullmatch(r"(-?\d+) after (\d{4}-\d\d-\d\d)", turn.content):
            end = datetime.date.fromisoformat(step[2]) + datetime.timedelta(int(step[1]))
            assert said(turn) == f"{end.day} {MONTHS[end.month - 1]} {end.year}"
            dates += 1
        elif day := re.match(r"(?:weekday|[A-Z][a-z]+day) (\d{4}-\d\d-\d\d)", turn.content):
            right = datetime.date.fromisoformat(day[1]).strftime("%A")
            assert said(turn) in (right, f"Yes, a {right}.", f"No, a {right}.")
            days += 1
    assert min(dates, days) > 50


def test_lists_are_put_in_order_and_turned_round(talks):
    sorted_lists = turned = 0
    for talk in talks:
        for before, turn in zip([None, *talk], talk):
            if turn.skill != "list" or ", " not in said(turn):
                continue
            items = said(turn).split(", ")
            numbers = all(re.fullmatch(r"-?[\d.]+", item) for item in items)
            in_order = sorted(items, key=Fraction if numbers else None)
            assert items in (in_order, in_order[::-1])
            sorted_lists += 1
            if before and before.skill == "list" and said(before).split(", ") == items[::-1]:
                turned += 1
    assert sorted_lists > 200 and turned > 30


def test_letters_of_words(turns):
    counted = Counter()
    for turn in of_skill(turns, "spelling"):
        about, word = turn.content.split()[:2]
        if about == "backwards":
            assert said(turn) == word[::-1]
        elif about == "last":
            assert said(turn) == word[-1]
        elif about == "first":
            assert said(turn) == word[0]
        elif about == "palindrome":
            assert said(turn).startswith("Yes" if word == word[::-1] else "No")
        counted[about] += 1
    assert min(counted[about] for about in ("backwards", "last", "first", "palindrome")) > 10


def test_what_was_told_is_said_again_and_the_rest_is_not_made_up(talks):
    again = never = 0
    for talk in talks:
        heard = ""
        for turn in talk:
            heard += f" {turn.question.lower()}"
            if turn.skill != "who":
                continue
            if said(turn) == "You have not told me that yet.":
                assert turn.content.startswith("not told")
                never += 1
            for name in re.findall(r"called (\w+)\.", said(turn)):
                assert name.lower() in heard
                again += 1
    assert again > 20 and never > 50


def test_visits_and_older_lessons_fit_a_context_half_and_half():
    tok = skills_tokenizer()
    talks = list(draw_conversations(800, seed=6, turns=TURNS, skills=ALL_SKILLS))
    assert max(len(chat.ids) for chat in encode_talks(tok, talks)) <= 512
    counted = Counter(turn.skill for talk in talks for turn in talk)
    new = sum(counted[name] for name in VISIT_NAMES)
    assert 0.4 < new / counted.total() < 0.65
    assert {*SKILL_NAMES} <= {*counted}
