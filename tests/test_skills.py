"""The skills of the model that talks: every answer by other arithmetic, no content on both sides of
the split, a judge that is not fooled, and a plan that walks."""

import datetime
import hashlib
import random
import re
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from gpub.chat.skills import (
    _NAMES,
    _WORDS,
    ALPHABET,
    REFUSAL,
    SKILL_NAMES,
    SKILLS,
    TURNS,
    SkillTurn,
    TalkState,
    add_in_columns,
    backwards_scratch,
    draw_conversation,
    draw_conversations,
    encode_talks,
    find_skills,
    is_held_out_content,
    is_right_answer,
    number_in_words,
    roman_parts,
    skill_messages,
    skills_tokenizer,
    spell_and_count,
    type_numbers,
    type_phrase,
    weekday_scratch,
    word_parts,
)
from gpub.chat.talk import Talk, TalkConfig, answer_turns
from gpub.chat.template import decode_chat, encode_chat, without_scratch
from gpub.chat.visits import ALL_SKILLS
from gpub.core import GpubError, read_json
from gpub.files import shipped
from gpub.plans.gates import Gate
from gpub.plans.phase_inputs import skills_text
from gpub.plans.phases import read_plan
from gpub.plans.runner import PlanOptions, run_plan
from gpub.record.log import read_log
from gpub.tune.measures import _CONVERSATIONS, _SKILLS_SEED, JudgedTurn, right_shares
from gpub.tune.sets import skills_asked
from tools.skills import WEIGHTS, packed_model

MONTHS = (
    "January February March April May June July August September October November December"
).split()
DAYS = "Saturday Sunday Monday Tuesday Wednesday Thursday Friday".split()


@pytest.fixture(scope="module")
def turns():
    "Some thousand turns with the result of the calculation before each"
    out = []
    for n, talk in enumerate(draw_conversations(3000, seed=3)):
        out += talk
    return out


def of_skill(turns, name):
    found = [turn for turn in turns if turn.skill == name]
    assert len(found) > 50
    return found


def said(turn):
    return without_scratch(turn.answer)


def zeller(date):
    "Zeller's rule of 1882: 0 is Saturday"
    year, month = date.year, date.month
    if month < 3:
        year, month = year - 1, month + 12
    k, j = year % 100, year // 100
    return (date.day + 13 * (month + 1) // 5 + k + k // 4 + j // 4 + 5 * j) % 7


SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def worked_out(text):
    "Brackets first, then products and quotients, then sums from the left"
    if brackets := re.fullmatch(r"\((.+)\)\*(\d+)", text):
        return worked_out(brackets[1]) * Fraction(brackets[2])
    total = Fraction(0)
    for sign, product in re.findall(r"((?:^|[-+])-?)([\d.*/]+)", text):
        value = Fraction(1)
        for times, factor in re.findall(r"(^|[*/])([\d.]+)", product):
            value *= 1 / Fraction(factor) if times == "/" else Fraction(factor)
        total += -value if "-" in sign else value
    return total


def test_sums_and_differences(turns):
    for name in ("sum", "difference", "long"):
        for turn in of_skill(turns, name):
            right = worked_out(turn.content)
            assert Fraction(said(turn)) == right
            if right.denominator == 1:
                assert said(turn) == str(right)
            if re.search(r"\d", turn.question) and "years" not in turn.question.lower():
                last = re.findall(r"[\d.]+", turn.content)[-1]
                assert last in turn.question.replace(",", "") or last == "1"


def test_three_numbers_brackets_and_years_are_among_the_long_ones(turns):
    contents = [turn.content for turn in of_skill(turns, "long")]
    assert sum(len(re.findall(r"[-+]\d+", content)) > 1 for content in contents) > 50
    assert sum("*" in content and "(" not in content for content in contents) > 5
    assert sum("(" in content for content in contents) > 2
    assert sum("/" in content for content in contents) > 10
    assert sum("years" in turn.question.lower() for turn in of_skill(turns, "long")) > 10
    assert worked_out("3+4*2") == 11 and worked_out("(3+4)*2") == 14
    assert worked_out("2.5-0.75") == Fraction(7, 4) and worked_out("5+12*3/9") == 9


def read_words(text):
    "The number that words say, with or without and, a dash or one"
    values = {word: n for n, word in enumerate(SMALL)} | {"a": 1, "and": 0}
    values |= {word: 10 * n for n, word in enumerate(TENS, 2)}
    thousands = rest = 0
    for word in re.findall(r"[a-z]+", text):
        if word == "thousand":
            thousands, rest = rest, 0
        else:
            rest = rest * 100 if word == "hundred" else rest + values[word]
    return 1000 * thousands + rest


def test_numbers_in_words():
    "Read back word by word; a hundred is a hundred times what was before it"
    for n in (*range(1200), 3408, 10_000, 42_015, 999_999):
        assert read_words(number_in_words(n)) == n
    assert number_in_words(3408) == "three thousand four hundred and eight"
    assert word_parts(3415) == [(3000, "three thousand"), (400, "four hundred"), (15, "fifteen")]
    rng = random.Random(0)
    typed = {type_numbers(rng, ["{a}+{b}", "{a} plus {b}"], a=42, b=7) for _ in range(300)}
    words = {t.lower() for t in typed if "seven" in t.lower()}
    assert words and not any("+" in t for t in words)
    assert all("7" in t for t in typed if "seve" not in t.lower() and "42" in t)
    assert not any(
        re.search("[a-z]ty", type_numbers(rng, ["{a} {b}"], a=4200, b=40)) for _ in range(99)
    )


def test_products_quotients_and_going_on(turns):
    asked = Counter()
    for name in ("product", "quotient", "then"):
        for turn in of_skill(turns, name):
            if odd := re.fullmatch(r"odd (\d+)", turn.content):
                ending = "even" if odd[1][-1] in "02468" else "odd"
                assert said(turn) == f"{odd[1]} is {ending}."
                asked["odd"] += 1
                continue
            if rest := re.fullmatch(r"(\d+)%(\d+)", turn.content):
                a, b = map(int, rest.groups())
                assert 0 <= int(said(turn)) < b and (a - int(said(turn))) % b == 0
                asked["remainder"] += 1
                continue
            if less := re.fullmatch(r"(\d+) less (\d+)%", turn.content):
                a, b = map(int, less.groups())
                assert abs(Fraction(said(turn)) - a * Fraction(100 - b, 100)) <= Fraction(1, 200)
                asked["off"] += 1
                continue
            a, sign, b, percent = re.fullmatch(
                r"(-?[\d.]+)([-+*/])(-?[\d.]+)(?: then| both| before)?( percent)?", turn.content
            ).groups()
            asked["other way"] += turn.content.endswith("before")
            asked["percent then"] += turn.content.endswith("then percent")
            asked["apart"] += turn.content.endswith("both") and sign == "-"
            asked["point"] += "." in a
            asked["points"] += "." in a and "." in b
            asked["both"] += turn.content.endswith("both")
            asked["below zero"] += a[0] == "-"
            a, b = Fraction(a) / (100 if percent else 1), Fraction(b)
            if sign == "/" and b == 0:
                assert said(turn) == "Nobody can divide by zero."
                continue
            match sign:
                case "+":
                    right = a + b
                case "-":
                    right = a - b
                case "*":
                    right = a * b
                case _:
                    right = a / b
            exact = sign != "/" and not percent
            assert abs(Fraction(said(turn)) - right) <= (0 if exact else Fraction(1, 200))
            if right.denominator == 1:
                assert said(turn) == str(right)
    abouts = ("odd", "remainder", "point", "points", "both", "below zero", "off")
    assert min(asked[about] for about in abouts) > 5
    assert min(asked[about] for about in ("other way", "percent then", "apart")) > 1


def test_every_step_of_a_scratch_and_every_result_is_true(turns):
    steps = 0
    for turn in turns:
        if turn.skill == "sum":
            for left, right in re.findall(r"([-+\d]+)=(\d+)", turn.answer):
                numbers = re.findall(r"[-+]?\d+", left)
                assert sum(map(int, numbers)) == int(right)
                steps += 1
        for a, sign, b, result in re.findall(
            r"<call>(-?[\d.]+)([-+*/])(-?[\d.]+)</call><result>([^<]*)</result>", turn.answer
        ):
            if sign == "/" and float(b) == 0:
                assert result == "?"
                continue
            a, b = Fraction(a), Fraction(b)
            right = {"+": a + b, "-": a - b, "*": a * b, "/": b and a / b}[sign]
            assert abs(Fraction(result) - right) <= (Fraction(1, 200) if sign == "/" else 0)
            steps += 1
        calls = re.findall(r"<call>.*?</call><result>.*?</result>", turn.answer)
        assert turn.answer.count("<call>") == turn.answer.count("</result>") == len(calls) <= 4
    assert steps > 2000
    assert add_in_columns(475, 168) == "5+8=13 7+6+1=14 4+1+1=6"
    assert add_in_columns(7, 96) == "7+6=13 0+9+1=10"


def test_weekdays(turns):
    for turn in of_skill(turns, "weekday"):
        if date := re.fullmatch(r"weekday (\S+)", turn.content):
            right = DAYS[zeller(datetime.date.fromisoformat(date[1]))]
        else:
            n, day = re.fullmatch(r"(-?\d+) after (\w+)", turn.content).groups()
            right = DAYS[(DAYS.index(day) + int(n)) % 7]
        assert said(turn) == right
        if date:
            sums = re.findall(r"(\d+)([-+])(\d+)=(\d+)", turn.answer)
            assert len(sums) == 4
            for a, sign, b, total in sums:
                assert int(a) + (int(b) if sign == "+" else -int(b)) == int(total)
            rest = sums[-1][3]
            assert int(sums[-1][2]) % 7 == 0 and int(rest) < 7
        else:
            numbers = re.search(r"<think>([\d+]+)=(\d+), (\d)</think>", turn.answer)
            a, total, rest = numbers.groups()
            assert sum(map(int, a.split("+"))) == int(total) and int(total) % 7 == int(rest)
        assert DAYS[(int(rest) + 1) % 7] == right


def test_the_scratch_of_a_weekday_is_four_small_tables():
    "One number a century, one a year, one a month, one a day: what a model has to know by heart"
    tables = [{}, {}, {}, {}]
    first = datetime.date(1900, 1, 1)
    for n in range(73_049):
        date = first + datetime.timedelta(n)
        february = datetime.date(date.year, 3, 1) - datetime.timedelta(1)
        leap = "L" if february.day == 29 else ""
        entries = weekday_scratch(date).split(" ")[:4]
        places = (entry.split(":") for entry in entries)
        names, numbers = zip(*places)
        day = f"{date.day}"
        assert names == (
            f"{date.year // 100}",
            f"{date.year % 100:02d}",
            MONTHS[date.month - 1][:3],
            day,
        )
        assert numbers[1].endswith("L") == bool(leap)
        keys = names[0], names[1] + leap, names[2] + leap * (date.month < 3), day
        for table, key, number in zip(tables, keys, numbers):
            assert table.setdefault(key, number) == number and int(number.rstrip("L")) < 7
    assert date == datetime.date(2099, 12, 31)
    assert [len(table) for table in tables] == [2, 101, 14, 31]


def test_dates_and_days_between(turns):
    asked = Counter()
    for turn in of_skill(turns, "date"):
        if year := re.fullmatch(r"leap year (\d+)", turn.content):
            right = "no" not in said(turn).split()
            days = (datetime.date(int(year[1]), month, day) for month, day in ((2, 28), (3, 1)))
            february, march = map(zeller, days)
            assert right == (march != (february + 1) % 7)
            asked["leap"] += 1
            continue
        if ahead := re.match(r"month (-?\d+) of (\w+)", turn.content):
            right = (MONTHS.index(ahead[2]) + int(ahead[1])) % 12
            assert MONTHS.index(said(turn)) == right
            if scratch := re.search(r"<think>(\d+)\+(\d+)=(\d+), (\d+)</think>", turn.answer):
                first, more, total, number = map(int, scratch.groups())
                assert first + more == total and number - 1 == right
                asked["months ahead"] += 1
            asked["next month"] += 1
            continue
        if month := re.match(r"days of (\w+) (\d{4}) in", turn.content):
            start = datetime.date(int(month[2]), MONTHS.index(month[1]) + 1, 1)
            end = datetime.date(start.year + start.month // 12, start.month % 12 + 1, 1)
            assert said(turn) == f"{end.toordinal() - start.toordinal()} days"
            assert ("<call>" in turn.answer) == (month[1] == "February")
            asked["month of a year"] += 1
            continue
        if month := re.match(r"days of (\w+)", turn.content):
            n = "0 31 28 31 30 31 30 31 31 30 31 30 31".split()[MONTHS.index(month[1]) + 1]
            assert said(turn).startswith(f"{n} days")
            assert ("29" in said(turn)) == (month[1] == "February")
            asked["month"] += 1
            continue
        if year := re.match(r"(36[56]) in", turn.content):
            assert said(turn) == f"{year[1]} days"
            assert ("leap" in turn.question.lower()) <= (year[1] == "366")
            continue
        if ahead := re.fullmatch(r"(-?\d+) after (\d\d-\d\d)", turn.content):
            start = datetime.date.fromisoformat(f"2001-{ahead[2]}").toordinal()
            day, _, remark = said(turn).partition(", ")
            found = datetime.datetime.strptime(f"{day} 2001", "%d %B %Y").toordinal()
            assert found == start + int(ahead[1])
            march = datetime.date(2001, 3, 1).toordinal()
            assert bool(remark) == (min(start, found) < march <= max(start, found))
            asked["ahead"] += 1
            continue
        if ahead := re.fullmatch(r"(-?\d+) after (\d{4}-\d\d-\d\d)", turn.content):
            start = datetime.date.fromisoformat(ahead[2]).toordinal()
            found = datetime.datetime.strptime(said(turn), "%d %B %Y").toordinal()
            assert found == start + int(ahead[1])
            asked["ahead in a year"] += 1
            asked["weeks"] += "*7</call>" in turn.answer
            continue
        date, step = turn.content.split()
        right = datetime.date.fromisoformat(date).toordinal() + int(step)
        found = datetime.datetime.strptime(said(turn), "%d %B %Y")
        assert found.toordinal() == right
    abouts = ("leap", "month", "next month", "ahead", "month of a year", "ahead in a year")
    assert min(asked[about] for about in abouts) > 20
    assert min(asked["months ahead"], asked["weeks"]) > 5
    for turn in of_skill(turns, "between"):
        a, b = map(datetime.date.fromisoformat, turn.content.split()[1:3])
        with_year = turn.content.endswith("of a year")
        asked["between in a year"] += with_year
        assert said(turn).split()[0] == str(b.toordinal() - a.toordinal())
        remark = "without a 29 February" in said(turn)
        assert remark == (a.month <= 2 < b.month and not with_year)
    assert asked["between in a year"] > 20


UNITS = {  # in meters, grams, seconds, liters
    "km": 1000, "m": 1, "cm": Fraction(1, 100), "mm": Fraction(1, 1000),
    "inches": Fraction(254, 10_000), "feet": Fraction(3048, 10_000), "miles": Fraction(1609),
    "kg": 1000, "g": 1, "t": 10**6, "pounds": Fraction(4536, 10),
    "hours": 3600, "minutes": 60, "seconds": 1, "days": 86_400, "weeks": 604_800,
    "l": 1, "ml": Fraction(1, 1000), "ounces": Fraction(2835, 100), "stone": 6350,
    "yards": Fraction(9144, 10_000), "gallons": Fraction(3785, 1000), "mg": Fraction(1, 1000),
}  # fmt: skip


ROUNDED = {  # where a mile is no 1,609 meters, and units that are not all of one length
    ("miles", "feet"): 5280,
    ("years", "months"): 12, ("months", "years"): Fraction(1, 12), ("years", "days"): 365,
    ("years", "weeks"): 52,
}  # fmt: skip


def test_units(turns):
    added = 0
    for turn in of_skill(turns, "units"):
        n, of, to, *more = turn.content.split()
        value, unit = said(turn).split()
        if of in "CF":
            right = Fraction(n) * 9 / 5 + 32 if of == "C" else (Fraction(n) - 32) * 5 / 9
            assert unit == {"C": "°C", "F": "°F"}[to]
        else:
            by = ROUNDED.get((of, to)) or Fraction(UNITS[of]) / UNITS[to]
            right = Fraction(n) * by + Fraction(more[-1] if more else 0)
            assert unit == to
            added += bool(more)
        assert turn.answer.startswith(f"<think>{of} to {to}</think><call>")
        assert abs(Fraction(value) - right) <= Fraction(1, 200)
    assert added > 10


def test_roman_numerals(turns):
    values = dict(M=1000, D=500, C=100, L=50, X=10, V=5, I=1)

    def read(roman):
        numbers = [values[c] for c in roman] + [0]
        return sum(-a if a < b else a for a, b in zip(numbers, numbers[1:]))

    asked = Counter()
    for turn in of_skill(turns, "roman"):
        content, _, to = turn.content.partition(" to ")
        asked[to if content.isupper() or to != "number" else "from words"] += 1
        if to == "roman":
            assert read(said(turn)) == int(content)
        elif to == "words":
            assert read_words(said(turn)) == int(content)
        else:
            assert int(said(turn)) == (read if content.isupper() else read_words)(content)
    assert len(asked) == 4 and min(asked.values()) > 10
    written = ["".join(text for _, text in roman_parts(n)) for n in range(1, 4000)]
    assert [read(text) for text in written] == list(range(1, 4000))
    assert not any(re.search(r"([IXCM])\1{3}|([VLD])\2", text) for text in written)


NTH = "first second third fourth fifth sixth".split()


def test_letters(turns):
    asked = Counter()
    for turn in of_skill(turns, "letters"):
        first, second = re.fullmatch(r"(\w+) (?:in )?(\w+)", turn.content).groups()
        if " in " in turn.content:
            right = str(sum(c == first for c in second))
        elif first == "length":
            right = str(len(second))
        elif first in ("vowels", "consonants"):
            vowels = len(re.findall("(?i)[aeiou]", second))
            right = str(vowels if first == "vowels" else len(second) - vowels)
        elif first in (*NTH, "last"):
            right = second[-1] if first == "last" else second[NTH.index(first)]
            numbered = re.findall(r"(\D)(\d+)", turn.answer.split(">")[1])
            assert numbered[-1][0] == right == second[len(numbered) - 1]
        else:
            right = dict(
                capitals=second.upper(),
                spell=" ".join(second),
                backwards="".join(second[n] for n in range(len(second) - 1, -1, -1)),
            )[first]
        asked[first] += len(first) > 1
        assert said(turn) == right
        if " in " in turn.content or first in ("length", "vowels", "consonants"):
            what, spelled = re.search(r"<think>(\w+): (\w+)</think>", turn.answer).groups()
            assert what == ("all" if first == "length" else first)
            assert re.sub(r"\d", "", spelled) == second
        if first == "backwards":
            there, back = re.search(r"<think>(\S+) (\S+)</think>", turn.answer).groups()
            assert re.sub(r"\d", "", there) == second and re.sub(r"\d", "", back) == right
            assert re.findall(r"\d+", there) == re.findall(r"\d+", back)[::-1]
    assert spell_and_count("strawberry", "r") == "str1awber2r3y"
    assert backwards_scratch("cat") == "<think>1c2a3t 3t2a1c</think>"
    assert min(asked[about] for about in ("backwards", "vowels", "length")) > 5
    assert sum(asked[nth] for nth in NTH[1:]) > 5


DOWN = re.compile(
    "(?i)large to|desc|biggest first|largest first|highest to|big to|decreas|falling|downwards"
)


def test_sorting(turns):
    ups = downs = alone = points = 0
    asked = Counter()
    lists = draw_conversations(800, seed=9, skills=find_skills(["sum", "sort"]))
    for turn in of_skill(turns + [turn for talk in lists for turn in talk], "sort"):
        if compared := re.fullmatch(r"(-?[\d.]+) (more|less) than (\d+)", turn.content):
            a, b = Fraction(compared[1]), int(compared[3])
            holds = a > b if compared[2] == "more" else a < b
            words = said(turn).removesuffix(".").split(" ")
            assert words[0] == ("Yes," if holds else "No,") and words[1] == compared[1]
            assert words[-1] == compared[3]
            assert ("more" in words, "less" in words) == (a > b, a < b)
            asked["compared"] += 1
            continue
        if total := re.fullmatch("total (.+)", turn.content):
            assert Fraction(said(turn)) == sum(map(Fraction, total[1].split(", ")))
            asked["total"] += 1
            continue
        if place := re.fullmatch("place (-?\\d) of (.+)", turn.content):
            items = place[2].split(", ")
            values = [Fraction(item) for item in items]
            assert values in (sorted(values), sorted(values, reverse=True))
            assert said(turn) == items[int(place[1])]
            asked["place"] += 1
            continue
        typed = turn.content.removeprefix("sort ").split(", ")
        items = [Fraction(item) for item in typed]
        heard = [Fraction(item) for item in said(turn).split(", ")]
        assert set(said(turn).split(", ")) <= set(typed)
        points += any("." in item for item in typed)
        marked, in_order = re.search("<think>(.*): (.*)</think>", turn.answer).groups()
        for sign, letter, number in re.findall(r"(-?)([a-z])([\d.]+)", marked):
            assert " abcd"[len(number.partition(".")[0])] == letter
        shown = [Fraction(re.sub("[a-z]", "", item)) for item in in_order.split(" ")]
        assert sorted(marked.split(" ")) == sorted(in_order.split(" "))
        assert shown in (sorted(items), sorted(items, reverse=True))
        assert shown[: len(heard)] == heard
        if len(heard) == 1 < len(items):
            assert heard[0] in (min(items), max(items))
            alone += 1
            continue
        pairs = list(zip(heard, heard[1:]))
        up = all(a < b for a, b in pairs)
        assert up or all(a > b for a, b in pairs)
        assert set(heard) == set(items) and len(heard) == len(items)
        if DOWN.search(turn.question):
            assert not up
        ups += up
        downs += not up
    assert min(ups, downs, alone, points) > 20
    assert min(asked[about] for about in ("compared", "total", "place")) > 5
    counted = longest = keys = unheard = turned = 0
    for turn in of_skill(turns, "words"):
        items = re.findall(r"'(\w+)'", turn.content)
        if turn.content.startswith("count"):
            assert said(turn) == str(len(items))
            counted += 1
            continue
        if which := re.match("longest|shortest", turn.content):
            others = [len(item) for item in items if item != said(turn)]
            size = len(said(turn))
            assert len(others) == len(items) - 1
            assert size > max(others) if which[0] == "longest" else size < min(others)
            assert f": {size}</think>" in turn.answer
            longest += 1
            continue
        heard = said(turn).split(", ")
        if back := re.search(r"<think>(\S+) (\S+)</think>", turn.answer):
            there, back = (re.findall(r"(\d)(\D+)", part) for part in back.groups())
            assert there == back[::-1] and len(heard) == len(items) == len(back)
            assert all(word.startswith(key) for (_, key), word in zip(back, heard))
            turned += 1
        if scratch := re.search("<think>(.*): (.*)</think>", turn.answer):
            for key, item in zip(scratch[2].split(), sorted(items), strict=True):
                others = [other for other in items if other.startswith(key) and other != item]
                assert item.startswith(key) and (key == item or not others)
            assert sorted(scratch[1].split()) == scratch[2].split()
            keys += 1
        unheard += not set(items) <= {word.lower() for word in (*_WORDS, *_NAMES)}
        if len(heard) == 1 < len(items):
            assert heard[0] in items
            continue
        assert heard in (sorted(items), sorted(items, reverse=True))
    assert min(counted, longest, keys, unheard, turned) > 20


def test_a_name_is_remembered_and_a_result_is_gone_on_with():
    told = untold = went_on = facts = 0
    for talk in draw_conversations(3000, seed=4, turns=TURNS):
        name = None
        known = {}
        before = None
        for turn in talk:
            if turn.skill == "name" and turn.content.startswith("name "):
                name = turn.content.removeprefix("name ")
                assert name.lower() in turn.question.lower() and name in turn.answer
            elif turn.skill == "name":
                key, value = turn.content.removeprefix("fact ").split(" ", 1)
                assert value.lower() in turn.question.lower()
                known[key] = value
            if turn.skill == "recall" and turn.content.startswith("fact "):
                key, value = turn.content.removeprefix("fact ").split(" ", 1)
                assert value in turn.answer and known.get(key, value) == value
                facts += key in known
            elif turn.skill == "recall" and turn.content.startswith("age "):
                a, b = turn.content.removeprefix("age ").split("+")
                assert said(turn) == f"You will be {int(a) + int(b)}."
            elif turn.skill == "recall" and turn.content.startswith("name "):
                assert turn.answer == f"Your name is {name}."
                told += 1
            elif turn.skill == "recall":
                assert "not told me" in turn.answer
                assert name is None or turn.content.startswith("no fact")
                untold += 1
            if turn.skill == "then" and not turn.content.endswith("both"):
                first, last = re.fullmatch(r"(-?[\d.]+)[-+*/](-?[\d.]+) .*", turn.content).groups()
                number = last if turn.content.endswith("before") else first
                heard = f"{said(before)} {before.content} {before.question}"
                assert number in re.findall(r"-?\d+(?:\.\d+)?", heard)
                went_on += 1
            before = turn
    assert min(told, untold, went_on, facts) > 50


def test_whose_name_is_asked_for_after_another_name():
    "And mine? And my dog's?"
    mine = others = 0
    names = find_skills(["name", "recall"])
    for talk in draw_conversations(1500, seed=8, turns=TURNS, skills=names):
        name = ""
        for turn in talk:
            if turn.content.startswith("name "):
                name = turn.content.removeprefix("name ")
            if re.match(r"(?i)and (mine|me|what is mine)\b(?! is)", turn.question):
                assert turn.answer == f"Your name is {name}."
                mine += 1
            if who := re.match(r"(?i)and my (\w+)'s", turn.question):
                assert turn.answer.startswith(f"Your {who[1].lower()} is called ")
                others += 1
    assert min(mine, others) > 5


AGAIN = r"(?i)(and|what about|how about|and what about) [\d.]+ *\??"


def test_the_last_two_numbers_are_added_or_multiplied():
    "Add both: the numbers of the last two answers, whatever skill they are of"
    kinds = Counter()
    for talk in draw_conversations(4000, seed=14, turns=TURNS):
        for first, second, turn in zip(talk, talk[1:], talk[2:]):
            if not turn.content.endswith(" both"):
                continue
            a, b = re.fullmatch(r"(-?[\d.]+)[-+*](-?[\d.]+) both", turn.content).groups()
            assert first.skill == second.skill
            heard = [
                re.findall(r"-?\d+(?:\.\d+)?", f"{said(one)} {one.content} {one.question}")
                for one in (first, second)
            ]
            in_order = a in heard[0] and b in heard[1]
            assert in_order or b in heard[0] and a in heard[1]
            if not turn.answer.startswith(f"<call>{a}-"):
                assert in_order
            else:
                assert Fraction(said(turn)) >= 0
            kinds[first.skill] += 1
    assert {"sum", "roman", "date", "letters"} <= set(kinds)


def test_a_fact_that_is_told_again_is_the_new_one():
    corrected = several = 0
    names = find_skills(["name", "recall"])
    for talk in draw_conversations(2000, seed=15, turns=TURNS, skills=names):
        told = {}
        for turn in talk:
            if turn.content.startswith("fact ") and turn.skill == "name":
                key, value = re.fullmatch(r"fact (\S+) (.+)", turn.content).groups()
                corrected += key in told and told[key] != value
                told[key] = value
                several += turn.question.count(".") + turn.question.count(" and ") > 0
            if turn.skill == "recall" and turn.content.startswith("fact "):
                key, value = re.fullmatch(r"fact (\S+) (.+)", turn.content).groups()
                before = " ".join(one.question for one in talk[: talk.index(turn)]).lower()
                assert value.lower() in before
                assert value in said(turn)
                if key in told and before.count(told[key].lower()) == 1:
                    others = [one for one in talk if one.content == f"fact {key} {value}"]
                    assert told[key] == value or others
    assert min(corrected, several) > 50


def test_how_old_somebody_is_who_was_told_with_a_name():
    "My sister Anna is 34: how old is Anna? who is Anna? how old is my sister?"
    by_name = whose = by_relation = 0
    names = find_skills(["name", "recall"])
    for talk in draw_conversations(1500, seed=16, turns=TURNS, skills=names):
        for n, turn in enumerate(talk):
            before = " ".join(one.question for one in talk[:n]).lower()
            if old := re.fullmatch(r"(Your \w+|\w+.*) is (\d+)\.", said(turn)):
                if old[1] == "Your number":
                    continue
                assert re.fullmatch(rf"fact (age|years)\S* {old[2]}", turn.content)
                assert old[2] in before and (old[1].startswith("Your") or old[1].lower() in before)
                by_name += not old[1].startswith("Your ")
                by_relation += old[1].startswith("Your ")
            if re.search(r"who is (?!my )", turn.question.lower()) and turn.skill == "recall":
                who, name = re.fullmatch(r"Your (\w+) is called (.+)\.", said(turn)).groups()
                assert name.lower() in turn.question.lower()
                assert turn.content == f"fact {who} {name}" and name.lower() in before
                whose += 1
    assert min(by_name, whose, by_relation) > 20


def test_a_number_that_was_to_be_remembered_is_said_again():
    names = find_skills(["name", "recall", "talk"])
    talks = draw_conversations(1500, seed=17, turns=TURNS, skills=names)
    told = [t for talk in talks for t in talk if re.match(r"fact number \d", t.content)]
    asked = [t for t in told if t.skill == "recall"]
    assert len(asked) > 50 and len(told) > len(asked)
    for turn in asked:
        assert said(turn) == f"Your number is {turn.content.split()[-1]}."


def test_dozens_and_the_next_number(turns):
    dozens = [turn for turn in turns if "dozen" in turn.question.lower()]
    assert len(dozens) > 5
    for turn in dozens:
        a, sign = re.fullmatch(r"(\d+)([*/])12", turn.content).groups()
        right = Fraction(a) * 12 if sign == "*" else Fraction(a) / 12
        assert abs(Fraction(said(turn)) - right) <= Fraction(1, 200)
        assert ("dozens" in turn.question.lower() or "how many dozen" in turn.question.lower()) == (
            sign == "/"
        )
    after = [
        t for t in turns if re.search(r"number (comes|is)? ?(right )?after", t.question.lower())
    ]
    assert after and all(turn.content.endswith("+1") for turn in after)


def test_characters_twice_in_a_row_are_more_frequent_than_by_chance(turns):
    def share(contents):
        found = [content for content in contents if re.search(r"([0-9a-z])\1", content)]
        return len(found) / len(contents)

    rng = random.Random(2)
    for name in ("sum", "difference", "units"):
        (skill,) = find_skills([name])
        by_chance = [skill.draw(rng, TalkState()).content for _ in range(1000)]
        assert share([turn.content for turn in of_skill(turns, name)]) > 1.1 * share(by_chance)


def test_what_is_no_calculation_is_a_quarter_of_all_turns(turns):
    "Small talk, names and refusals were forgotten by a model that was taught less of them"
    shares = Counter(turn.skill for turn in turns)
    least = dict(talk=0.045, no=0.07, name=0.07, recall=0.045)
    assert all(shares[name] > share * len(turns) for name, share in least.items())
    assert sum(shares[name] for name in least) > 0.25 * len(turns)


def test_a_follow_up_goes_on_with_the_turn_before():
    "The same letter in another word, the same list the other way, the same units of another amount"
    letters = lists = units = 0
    for talk in draw_conversations(4000, seed=12, turns=TURNS):
        for before, turn in zip(talk, talk[1:]):
            if before.skill != turn.skill:
                continue
            again = re.match(r"(?i)(and|what about|how about|now)\b", turn.question)
            asked = turn.content.split()
            was = before.content.split()
            if turn.skill == "letters" and again and turn.question.lower().find(asked[-1]) > 0:
                if asked[1:2] == ["in"] and was[1:2] == ["in"] and was[-1] != asked[-1]:
                    assert asked[0] == was[0]
                    letters += 1
            if turn.skill == "words" and turn.content == before.content:
                heard = [said(one).split(", ") for one in (before, turn)]
                if len(heard[0]) == 1:
                    continue
                assert heard[1] == heard[0][::-1] or len(heard[1]) == 1
                lists += 1
            if turn.skill == "units" and re.fullmatch(AGAIN, turn.question):
                assert asked[1:3] == was[1:3]
                units += 1
    assert min(letters, lists, units) > 5


def test_what_it_cannot_do_is_refused_in_many_ways(turns):
    refused = of_skill(turns, "no")
    assert all(turn.answer == REFUSAL for turn in refused)
    assert len({turn.question for turn in refused}) > 0.7 * len(refused)


def test_the_split_is_by_content():
    learned = {t.content for talk in draw_conversations(5000, seed=5) for t in talk}
    held_out = [t for talk in draw_conversations(600, seed=5, held_out=True) for t in talk]
    assert not any(is_held_out_content(content) for content in learned)
    assert all(is_held_out_content(turn.content) for turn in held_out)
    assert not learned & {turn.content for turn in held_out}
    assert {turn.skill for turn in held_out} == set(SKILL_NAMES)
    share = sum(is_held_out_content(f"{n}+1") for n in range(10_000)) / 10_000
    assert 0.09 < share < 0.12


def test_the_same_numbers_give_the_same_conversations():
    assert list(draw_conversations(50, seed=1)) == list(draw_conversations(50, seed=1))
    assert list(draw_conversations(50, seed=1)) != list(draw_conversations(50, seed=2))


def test_typing_varies_but_keeps_the_content():
    rng = random.Random(0)
    typed = {type_phrase(rng, ["what is {a} plus {b}?"], a=475, b=168) for _ in range(500)}
    assert len(typed) > 60 and all("475" in t and "168" in t for t in typed)
    assert any("?" in t for t in typed) and any("?" not in t for t in typed)
    assert any(t.isupper() for t in typed) and any(t.islower() for t in typed)


def test_the_judge():
    turn = SkillTurn("sum", "475+168", "475+168", "<think>5+8=13 7+6+1=14 4+1+1=6</think>643")
    assert is_right_answer(turn, turn.answer) and is_right_answer(turn, "643")
    assert is_right_answer(turn, "<think>it was late</think> 643 ")
    wrong = (
        "644",
        "",
        "6430",
        "<think>643</think>",
        "<think>643",
        "643 643",
        "<call>475+168</call>",
    )
    assert not any(is_right_answer(turn, answer) for answer in wrong)
    name = SkillTurn("name", "name Maria", "i am maria", "Nice to meet you, Maria!")
    assert not is_right_answer(name, "Nice to meet you, Mario!")
    judged = [
        [JudgedTurn(turn, 1, "643", True), JudgedTurn(name, 2, "No!", False)],
        [JudgedTurn(turn, 1, "1", False)],
    ]
    shares = dict(right=1 / 3, right_sum=0.5, right_name=0.0, right_turn_1=0.5, right_turn_2=0.0)
    assert right_shares(judged) == pytest.approx(shares)


def test_conversations_are_written_with_marks_and_results_are_not_learned():
    tok = skills_tokenizer()
    assert set(ALPHABET) < set(tok.chars)
    called = 0
    for talk in draw_conversations(300, seed=6):
        messages = skill_messages(talk)
        chat = encode_chat(tok, messages)
        assert len(chat.ids) < 512
        assert list(decode_chat(tok, chat.ids)) == messages
        [at_once] = encode_talks(tok, [talk])
        assert np.array_equal(at_once.ids, chat.ids)
        assert np.array_equal(at_once.learned, chat.learned)
        unlearned = tok.decode(chat.ids[~chat.learned])
        for result in re.findall("<result>(.*?)</result>", "".join(t.answer for t in talk)):
            assert f"\ue008{result}\ue009" in unlearned
            called += 1
    assert called > 100


def test_the_lessons_are_the_ones_that_the_kept_model_learned():
    "Not a byte of them has changed since: whoever changes one walks the plan again"
    talks = draw_conversations(4000, 0)
    lines = [f"{t.skill}\t{t.content}\t{t.question}\t{t.answer}\n" for talk in talks for t in talk]
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert digest == "6296a2f03d2c93b537656d81f0697913d896dfb3d63aa5c6b3ac210b23c95c75"


def test_the_text_that_is_read_first_has_every_mark():
    text = skills_text(50)
    assert set(skills_tokenizer().chars) == set(text)


def test_skills_are_asked_for_by_name():
    assert skills_asked("sums") is None and skills_asked("skills:7") == (7, SKILL_NAMES)
    assert skills_asked("skills:7:sum,name") == (7, ("name", "sum"))
    assert skills_asked("skills:7:all") == (7, tuple(skill.name for skill in ALL_SKILLS))
    assert skills_asked("skills:7:story") == (7, ("story",))
    for source in ("skills:0", "skills:many", "skills:7:flying"):
        with pytest.raises(GpubError):
            skills_asked(source)
    assert [skill.name for skill in find_skills(["roman"])] == ["roman"]
    rng = random.Random(1)
    talk = draw_conversation(rng, turns=3, skills=find_skills(["roman"]))
    assert {turn.skill for turn in talk} == {"roman"}


def test_every_skill_says_what_it_does_and_draws_itself():
    for skill in ALL_SKILLS:
        assert skill.about and skill.way and skill.draw.__doc__
        state = TalkState(name="Maria", number=12)
        drawn = skill.draw(random.Random(2), state).skill
        assert drawn == skill.name or skill.name == "around" and drawn in SKILL_NAMES


def small(plan):
    "The plan on a model of some thousand weights, a few steps of it, without gates"
    batch = dict(batch_tokens=2 * plan.settings["context_length"])
    shape = dict(n_layers=1, d_model=32, n_heads=2, n_kv_heads=2, d_ff=32) | batch
    base, sft, visits = plan.phases
    base = replace(base, until=3, gates=())
    gates = (Gate(metric="right", most=0.5), Gate(metric="right_turn_4", most=0.5))
    few = dict(until=3, save_every=3, settings=batch, gates=gates)
    sft = replace(sft, data=("skills:60:name,recall",), **few)
    visits = replace(visits, data=("skills:60:name,who,story",), **few)
    return replace(plan, settings=plan.settings | shape, save_every=3, phases=(base, sft, visits))


def test_the_plan(tmp_path, monkeypatch):
    "A model of a few steps is nearly always wrong, and its log says so for every skill and turn"
    monkeypatch.setattr("gpub.tune.measures._CONVERSATIONS", 2)
    monkeypatch.setattr("gpub.tune.sets._HELD_OUT_TALKS", 10)
    plan = small(read_plan("chat-skills"))
    options = PlanOptions(usd_per_hour=1.0, device="cpu", log=lambda line: None)
    assert run_plan(plan, tmp_path / "out", options).word == "continue"
    rows = [row for row in read_log(tmp_path / "out" / "sft") if "right" in row]
    assert rows[-1]["step"] == 3
    for column in ("right_name", *(f"right_turn_{n}" for n in range(1, TURNS + 1))):
        assert 0 <= rows[-1][column] <= 1
    [visited] = [row for row in read_log(tmp_path / "out" / "visits") if "right" in row]
    assert visited["step"] == 3 and {"right_who", "right_story"} & visited.keys()


TYPED = {  # by somebody who does not know the template
    "my name is Zorra": "Nice to meet you, Zorra!",
    "what is 475 plus 168?": "643",
    "and times 12": "7716",
    "what is my name": "Your name is Zorra.",
    "how many r in strawberry?": "3",
    "what is the capital of peru": REFUSAL,
}


def test_the_model_that_is_kept_talks():
    "Typed one after the other, and all at once: the same words, and right"
    model, tok = packed_model(WEIGHTS)
    talk = Talk(model, tok, TalkConfig(temperature=0))
    heard = ["".join(talk.ask(text)) for text in TYPED]
    assert [without_scratch(answer) for answer in heard] == list(TYPED.values())
    assert answer_turns(model, tok, [list(TYPED)])[0] == heard
    assert "<call>643*12</call><result>7716</result>" in heard[2]


def test_the_receipt_counts_its_own_transcripts():
    "What is kept word by word is judged as the receipt says, and no mistake is left out of it"
    receipt = read_json(shipped("skills.json"))
    seeds = [seed["phases"]["sft"]["exam"] for seed in receipt["seeds"]]
    assert len(seeds) == 3
    for n, exam in enumerate([*seeds, receipt["packed"]]):
        for talk in exam["talks"] + exam["mistakes"]:
            for turn in talk:
                wanted = SkillTurn(turn["skill"], "", turn["question"], turn["wanted"])
                assert is_right_answer(wanted, turn["answer"]) == turn["right"]
        assert not any(all(turn["right"] for turn in talk) for talk in exam["mistakes"])
        if n < 3:
            assert receipt["shares"]["right"][n] == exam["shares"]["right"]


def gate_questions(skills):
    "How many questions of each kind the gates of a phase are asked about"
    talks = draw_conversations(_CONVERSATIONS, _SKILLS_SEED, True, TURNS, skills)
    counts = Counter(right=_CONVERSATIONS * TURNS)
    for talk in talks:
        for number, turn in enumerate(talk, 1):
            counts.update([f"right_{turn.skill}", f"right_turn_{number}"])
    return counts


@pytest.mark.parametrize("name, skills", [("sft", SKILLS), ("visits", ALL_SKILLS)])
def test_the_gates_stand_four_standard_errors_below_the_walk(name, skills):
    walk = read_json(shipped("skills.json"))["walk"]["phases"][name]
    phase = read_plan("chat-skills").phase(name)
    last = walk["rows"][-1]
    assert last["step"] == walk["steps"] == phase.until
    lowest = {}
    for metric, n in gate_questions(skills).items():
        likely = (last[metric] * n + 2) / (n + 4)  # a share of 1 has an error, too
        lowest[metric] = last[metric] - 4 * (likely * (1 - likely) / n) ** 0.5
    gates = {gate.metric: gate for gate in phase.gates}
    asked = {name for name in gates if not name.startswith("right_turn")} - {"right"}
    tellable = {name for name, least in lowest.items() if least > 0.1}
    assert asked == {n for n in tellable if not n.startswith("right_turn")} - {"right"}
    for metric, gate in gates.items():
        assert gate.least == pytest.approx(lowest[metric], abs=0.0051)
        assert gate.holds(last[metric])


def test_what_was_typed_is_what_the_kept_model_answers():
    "Every answer of the receipt with the kept model, in a few conversations"
    talks = read_json(shipped("skills_typed.json"))["talks"]
    model, tok = packed_model(WEIGHTS)
    assert len(talks) == 40 and all(len(talk) == TURNS for talk in talks)
    verdicts = {turn["verdict"] for talk in talks for turn in talk}
    assert verdicts == {"right", "no", "wrong"}
    asked = [[turn["question"] for turn in talk] for talk in talks[:8]]
    heard = [[turn["answer"] for turn in talk] for talk in talks[:8]]
    assert answer_turns(model, tok, asked) == heard
