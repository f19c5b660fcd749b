"""The skills of the model that talks: every answer by other arithmetic, no content on both sides of
the split, a judge that is not fooled, and a plan that walks."""

import datetime
import random
import re
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from gpub.chat.skills import (
    ALPHABET,
    REFUSAL,
    SKILL_NAMES,
    SKILLS,
    TURNS,
    SkillTurn,
    TalkState,
    add_in_columns,
    draw_conversation,
    draw_conversations,
    encode_talks,
    find_skills,
    is_held_out_content,
    is_right_answer,
    roman_parts,
    skill_messages,
    skills_tokenizer,
    spell_and_count,
    subtract_in_columns,
    type_phrase,
    weekday_scratch,
)
from gpub.chat.talk import Talk, TalkConfig, answer_turns
from gpub.chat.template import decode_chat, encode_chat, without_scratch
from gpub.core import GpubError, read_json
from gpub.files import shipped
from gpub.plans.gates import Gate
from gpub.plans.phase_inputs import skills_text
from gpub.plans.phases import read_plan
from gpub.plans.runner import PlanOptions, run_plan
from gpub.record.log import read_log
from gpub.tune.measures import JudgedTurn, right_shares
from gpub.tune.sets import skills_asked
from tools.skills import WEIGHTS, packed_model

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


def test_sums_and_differences(turns):
    for name in ("sum", "difference", "long"):
        for turn in of_skill(turns, name):
            a, sign, b = re.fullmatch(r"(\d+)([-+])(\d+)", turn.content).groups()
            right = int(a) + int(b) if sign == "+" else int(a) - int(b)
            assert said(turn) == str(right)
            assert a in turn.question and b in turn.question


def test_products_quotients_and_going_on(turns):
    for name in ("product", "quotient", "then"):
        for turn in of_skill(turns, name):
            a, sign, b = re.fullmatch(r"(\d+)([-+*/])(\d+)(?: then)?", turn.content).groups()
            a, b = Fraction(a), Fraction(b)
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
            assert abs(Fraction(said(turn)) - right) <= Fraction(1, 200)
            if right.denominator == 1:
                assert said(turn) == str(right)


def test_every_step_of_a_scratch_and_every_result_is_true(turns):
    steps = 0
    for turn in turns:
        if turn.skill in ("sum", "difference"):
            for left, right in re.findall(r"([-+\d]+)=(\d+)", turn.answer):
                numbers = re.findall(r"[-+]?\d+", left)
                assert sum(map(int, numbers)) == int(right)
                steps += 1
        for a, sign, b, result in re.findall(
            r"<call>(-?\d+)([-+*/])(\d+)</call><result>([^<]*)</result>", turn.answer
        ):
            if sign == "/" and b == "0":
                assert result == "?"
                continue
            a, b = Fraction(a), Fraction(b)
            right = {"+": a + b, "-": a - b, "*": a * b, "/": b and a / b}[sign]
            assert abs(Fraction(result) - right) <= Fraction(1, 200)
            steps += 1
        assert turn.answer.count("<call>") == turn.answer.count("</result>") <= 4
    assert steps > 2000
    assert add_in_columns(475, 168) == "5+8=13 7+6+1=14 4+1+1=6"
    assert subtract_in_columns(475, 168) == "15-8=7 7-6-1=0 4-1=3"


def test_weekdays(turns):
    for turn in of_skill(turns, "weekday"):
        if date := re.fullmatch(r"weekday (\S+)", turn.content):
            right = DAYS[zeller(datetime.date.fromisoformat(date[1]))]
        else:
            n, day = re.fullmatch(r"(\d+) after (\w+)", turn.content).groups()
            right = DAYS[(DAYS.index(day) + int(n)) % 7]
        assert said(turn) == right
        a, total, rest = re.search(r"<think>([\d+]+)=(\d+), (\d)</think>", turn.answer).groups()
        assert sum(map(int, a.split("+"))) == int(total) and int(total) % 7 == int(rest)
        assert DAYS[(int(rest) + 1) % 7] == right


def test_the_scratch_of_a_weekday_is_three_small_tables():
    "One number a year, one a month, one a day: what a model has to know by heart"
    tables = [{}, {}, {}]
    first = datetime.date(2000, 1, 1)
    for n in range(36525):
        date = first + datetime.timedelta(n)
        leap = date.year % 4 == 0 and date.month < 3
        keys = (date.year, leap), date.month, date.day
        for table, key, number in zip(tables, keys, weekday_scratch(date).split("=")[0].split("+")):
            assert table.setdefault(key, number) == number and int(number) < 7
    assert [len(table) for table in tables] == [125, 12, 31]


def test_dates_and_days_between(turns):
    for turn in of_skill(turns, "date"):
        date, step = turn.content.split()
        right = datetime.date.fromisoformat(date).toordinal() + int(step)
        found = datetime.datetime.strptime(said(turn), "%d %B %Y")
        assert found.toordinal() == right
    for turn in of_skill(turns, "between"):
        a, b = map(datetime.date.fromisoformat, turn.content.split()[1:])
        assert said(turn).split()[0] == str(b.toordinal() - a.toordinal())
        assert ("without a 29 February" in said(turn)) == (a.month <= 2 < b.month)


UNITS = {  # in meters, grams, seconds, liters
    "km": 1000, "m": 1, "cm": Fraction(1, 100), "mm": Fraction(1, 1000),
    "inches": Fraction(254, 10_000), "feet": Fraction(3048, 10_000), "miles": Fraction(1609),
    "kg": 1000, "g": 1, "t": 10**6, "pounds": Fraction(4536, 10),
    "hours": 3600, "minutes": 60, "seconds": 1, "days": 86_400, "weeks": 604_800,
    "l": 1, "ml": Fraction(1, 1000),
}  # fmt: skip


def test_units(turns):
    for turn in of_skill(turns, "units"):
        n, of, to = turn.content.split()
        value, unit = said(turn).split()
        if of in "CF":
            right = Fraction(n) * 9 / 5 + 32 if of == "C" else (Fraction(n) - 32) * 5 / 9
            assert unit == {"C": "°C", "F": "°F"}[to]
        elif of == "years":
            right = 12 * int(n)
        else:
            right = int(n) * Fraction(UNITS[of]) / UNITS[to]
            assert unit == to
        assert abs(Fraction(value) - right) <= Fraction(1, 200)


def test_roman_numerals(turns):
    values = dict(M=1000, D=500, C=100, L=50, X=10, V=5, I=1)

    def read(roman):
        numbers = [values[c] for c in roman] + [0]
        return sum(-a if a < b else a for a, b in zip(numbers, numbers[1:]))

    for turn in of_skill(turns, "roman"):
        if turn.content.endswith("to roman"):
            assert read(said(turn)) == int(turn.content.split()[0])
        else:
            assert int(said(turn)) == read(turn.content.split()[0])
    written = ["".join(text for _, text in roman_parts(n)) for n in range(1, 4000)]
    assert [read(text) for text in written] == list(range(1, 4000))
    assert not any(re.search(r"([IXCM])\1{3}|([VLD])\2", text) for text in written)


def test_letters_and_sorting(turns):
    for turn in of_skill(turns, "letters"):
        first, second = re.fullmatch(r"(\w+) (?:in )?(\w+)", turn.content).groups()
        right = len(second) if first == "length" else sum(c == first for c in second)
        assert said(turn) == str(right)
    assert spell_and_count("strawberry", "r") == "str1awber2r3y"
    for turn in of_skill(turns, "sort"):
        down, items = re.fullmatch(r"sort (\w+) \[(.*)\]", turn.content).groups()
        items = [int(item) for item in items.split(", ")]
        heard = [int(item) for item in said(turn).split(", ")]
        pairs = list(zip(heard, heard[1:]))
        assert all(a > b if down == "True" else a < b for a, b in pairs)
        assert set(heard) == set(items) and len(heard) == len(items)
    for turn in of_skill(turns, "words"):
        heard = said(turn).split(", ")
        assert all(a < b for a, b in zip(heard, heard[1:]))
        assert set(heard) == set(re.findall(r"'(\w+)'", turn.content))


def test_a_name_is_remembered_and_a_result_is_gone_on_with():
    told = untold = went_on = 0
    for talk in draw_conversations(3000, seed=4, turns=TURNS):
        name = None
        before = None
        for turn in talk:
            if turn.skill == "name":
                name = turn.content.removeprefix("name ")
                assert name.lower() in turn.question.lower() and name in turn.answer
            if turn.skill == "recall" and name:
                assert turn.answer == f"Your name is {name}."
                told += 1
            elif turn.skill == "recall":
                assert "not told me" in turn.answer
                untold += 1
            if turn.skill == "then":
                assert turn.content.startswith(said(before))
                assert before.skill in ("sum", "difference", "product", "quotient", "long", "then")
                went_on += 1
            before = turn
    assert min(told, untold, went_on) > 50


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


def test_the_text_that_is_read_first_has_every_mark():
    text = skills_text(50)
    assert set(skills_tokenizer().chars) == set(text)


def test_skills_are_asked_for_by_name():
    assert skills_asked("sums") is None and skills_asked("skills:7") == (7, SKILL_NAMES)
    assert skills_asked("skills:7:sum,name") == (7, ("name", "sum"))
    for source in ("skills:0", "skills:many", "skills:7:flying"):
        with pytest.raises(GpubError):
            skills_asked(source)
    assert [skill.name for skill in find_skills(["roman"])] == ["roman"]
    rng = random.Random(1)
    talk = draw_conversation(rng, turns=3, skills=find_skills(["roman"]))
    assert {turn.skill for turn in talk} == {"roman"}


def test_every_skill_says_what_it_does_and_draws_itself():
    for skill in SKILLS:
        assert skill.about and skill.way and skill.draw.__doc__
        state = TalkState(name="Maria", number=12)
        assert skill.draw(random.Random(2), state).skill == skill.name


def small(plan):
    "The plan on a model of some thousand weights, a few steps of it, without gates"
    batch = dict(batch_tokens=2 * plan.settings["context_length"])
    shape = dict(n_layers=1, d_model=32, n_heads=2, n_kv_heads=2, d_ff=32) | batch
    base, sft = plan.phases
    base = replace(base, until=3, gates=())
    gates = (Gate(metric="right", most=0.5), Gate(metric="right_turn_4", most=0.5))
    few = dict(until=3, save_every=3, settings=batch, gates=gates)
    sft = replace(sft, data=("skills:60:name,recall",), **few)
    return replace(plan, settings=plan.settings | shape, save_every=3, phases=(base, sft))


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
    for n, exam in enumerate([*seeds, receipt["longer"]["phases"]["sft"]["exam"]]):
        for talk in exam["talks"] + exam["mistakes"]:
            for turn in talk:
                wanted = SkillTurn(turn["skill"], "", turn["question"], turn["wanted"])
                assert is_right_answer(wanted, turn["answer"]) == turn["right"]
        assert not any(all(turn["right"] for turn in talk) for talk in exam["mistakes"])
        if n < 3:
            assert receipt["shares"]["right"][n] == exam["shares"]["right"]


def test_every_seed_passes_the_gates_of_the_plan():
    plan = read_plan("chat-skills")
    gates = plan.phase("sft").gates
    assert {gate.metric for gate in gates} >= {f"right_{name}" for name in SKILL_NAMES}
    for seed in read_json(shipped("skills.json"))["seeds"]:
        last = seed["phases"]["sft"]["rows"][-1]
        assert last["step"] == plan.phase("sft").until
        assert all(gate.holds(last[gate.metric]) for gate in gates)
