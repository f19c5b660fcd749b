"""Every layout of a chat file says the same conversation: thirty made ones are written in each, and
read back; what is no conversation has a fault by which it is counted."""

import json
from itertools import product

import pytest

from gpub.chat.layouts import (
    CHAT_LAYOUTS,
    PAIR_LAYOUTS,
    CompletionLayout,
    InstancesLayout,
    MessagesLayout,
    MessagesPair,
    Preference,
    QuestionLayout,
    QuestionPair,
    SpeakersLayout,
    TranscriptPair,
    messages_of,
    preference_of,
)
from gpub.chat.template import MalformedRecord, Message

SYSTEMS = [None, "Be brief.", "Zähle.\n\nNur Zahlen."]
TALKS = [
    ["What is 2 + 2?", "4"],
    ["  Naïve café 漢字\n", "🙂 "],
    ["Count to 3.", "1\n2\n3", "And on?", "4\n5"],
    ["{{ messages }}", '"\\n', "<|user|>", "</s>", "}", "{"],
    ["Is it so?\nOr so?", "So, and so: x.\n\nReally."],
    ["a", "b", "a", "b", "a", "b", "a", "c"],
    ["0", "False"],
    ["def f(x):\n\treturn x\n", "f"],
    ["Why?\r\nTell me.", "..."],
    [" ", "-"],
]
TRUTHS = [*product(SYSTEMS, TALKS)]
assert len(TRUTHS) == 30


def messages(system, talk):
    told = [Message("system", system)] if system else []
    return told + [Message(("user", "assistant")[n % 2], text) for n, text in enumerate(talk)]


def as_turns(talk):
    "Turns as `datasets` gives them: columns that other rows have are null"
    roles = ("user", "assistant")
    return [
        dict(role=roles[n % 2], content=text, name=None, tool_calls=None)
        for n, text in enumerate(talk)
    ]


def as_parts(talk):
    def parts(text):
        cut = len(text) // 2
        return [dict(type="text", text=piece, image_url=None) for piece in (text[:cut], text[cut:])]

    return [turn | dict(content=parts(turn["content"])) for turn in as_turns(talk)]


def in_messages(system, talk):
    yield dict(messages=as_turns(talk), system=system, source="made", score=1.0)
    yield dict(messages=as_parts(talk), system_prompt=system, tools=[])
    for role in ("system", "developer") if system else ():
        yield dict(messages=[dict(role=role, content=system), *as_turns(talk)], system=None)


def in_speakers(system, talk):
    names = [{"from": ("human", "gpt")[n % 2], "value": t} for n, t in enumerate(talk)]
    yield dict(conversations=names, system_prompt=system or "", messages=None, id="made-1")
    if system:
        yield dict(conversations=[{"from": "system", "value": system}, *names])


def in_completions(system, talk):
    turns = as_turns(talk)
    yield dict(prompt=turns[:-1], completion=turns[-1:], system=system)
    told = [dict(role="system", content=system)] if system else []
    yield dict(prompt=[*told, *turns[:-1]], completion=turns[-1:])


def in_questions(system, talk):
    question, answer = talk[0], talk[1]
    for asked, said in product(
        ("question", "prompt", "instruction"), ("answer", "response", "output", "completion")
    ):
        yield {asked: question, said: answer, "system": system, "input": "", "label": 3}
    first, newline, rest = question.partition("\n")
    if rest:
        yield dict(instruction=first, context=rest, response=answer, system=system)


def in_instances(system, talk):
    yield dict(
        instruction=talk[0],
        instances=[dict(input="", output=talk[1]), dict(input="x", output="y")],
        system=system,
    )


WRITERS = {
    MessagesLayout: in_messages,
    SpeakersLayout: in_speakers,
    CompletionLayout: in_completions,
    QuestionLayout: in_questions,
    InstancesLayout: in_instances,
}
assert {*WRITERS} == {*CHAT_LAYOUTS}
ONE_QUESTION = (QuestionLayout, InstancesLayout, QuestionPair)


def through_json(record):
    return json.loads(json.dumps(record))


@pytest.mark.parametrize("layout", CHAT_LAYOUTS, ids=lambda layout: layout.__name__)
def test_thirty_conversations_in_each_layout(layout):
    for system, talk in TRUTHS:
        short = talk[:2] if layout in ONE_QUESTION else talk
        records = [*WRITERS[layout](system, short)]
        assert records
        for record in map(through_json, records):
            assert next(known for known in CHAT_LAYOUTS if known.describes(record)) is layout
            assert messages_of(record) == messages(system, short)


def in_question_pairs(system, talk, other):
    for name in ("question", "prompt", "instruction"):
        record = {name: talk[0], "chosen": talk[1], "rejected": other}
        yield record | dict(system=system, input=None, margin=2.0)


def in_message_pairs(system, talk, other):
    turns, last = as_turns(talk), dict(role="assistant", content=other)
    told = [dict(role="system", content=system)] if system else []
    before = [*told, *turns[:-1]]
    whole = dict(chosen=[*before, turns[-1]], rejected=[*before, last])
    yield whole | dict(prompt=None)
    yield whole | dict(prompt=talk[0], prompt_id="7", messages=whole["chosen"], score_chosen=8.0)
    yield whole | dict(prompt=before)
    yield dict(prompt=before, chosen=[turns[-1]], rejected=[last])
    yield dict(prompt=turns[:-1], chosen=[turns[-1]], rejected=[last], system=system)
    if len(talk) == 2:
        yield dict(prompt=talk[0], chosen=[turns[-1]], rejected=[last], system=system)


def transcript(talk):
    names = ("Human", "Assistant")
    return "".join(f"\n\n{names[n % 2]}: {text}" for n, text in enumerate(talk))


def in_transcripts(system, talk, other):
    yield dict(chosen=transcript(talk), rejected=transcript([*talk[:-1], other]), system=system)
    prompt = f"{transcript(talk[:-1])}\n\nAssistant:"
    yield dict(prompt=prompt, chosen=f" {talk[-1]}", rejected=f" {other}", system=system)


PAIR_WRITERS = {
    QuestionPair: in_question_pairs,
    MessagesPair: in_message_pairs,
    TranscriptPair: in_transcripts,
}
assert {*PAIR_WRITERS} == {*PAIR_LAYOUTS}


@pytest.mark.parametrize("layout", PAIR_LAYOUTS, ids=lambda layout: layout.__name__)
def test_thirty_pairs_in_each_layout(layout):
    "A transcript marks no end of a turn but the next mark, so spaces around its turns are not kept"
    for n, (system, talk) in enumerate(TRUTHS):
        short, other = talk[:2] if layout in ONE_QUESTION else talk, f"No: {n}"
        if layout is TranscriptPair:
            short = [text.strip() or "-" for text in short]
        for record in map(through_json, PAIR_WRITERS[layout](system, short, other)):
            assert next(known for known in PAIR_LAYOUTS if known.describes(record)) is layout
            prompt = tuple(messages(system, short[:-1]))
            assert preference_of(record) == Preference(prompt, short[-1], other), record


def turn(role, content, **more):
    return dict(role=role, content=content) | more


ASKED, TOLD = turn("user", "a"), turn("assistant", "b")
CALL = [dict(function=dict(name="add", arguments="{}"))]
PICTURE = dict(type="image_url", image_url=dict(url="x"))
MALFORMED = [
    ("a text", "no object", "must be an object"),
    ([ASKED, TOLD], "no object", "must be an object"),
    ({}, "unknown layout", "has no columns: expected messages"),
    (dict(text="a"), "unknown layout", "has text: expected messages"),
    (
        dict(chosen=transcript("ab"), rejected=transcript("ac")),
        "unknown layout",
        "chosen, rejected",
    ),
    (dict(question="a", answer=4), "wrong type", "answer must be text, got 4"),
    (dict(question=["a"], answer="b"), "wrong type", "question must be text"),
    (dict(question="a", answer="b", system=7), "wrong type", "system must be text, got 7"),
    (dict(messages="a"), "wrong type", "messages must be a list of turns"),
    (dict(messages=[ASKED, "b"]), "wrong type", "message 2"),
    (dict(messages=[ASKED, turn("assistant", 4)]), "wrong type", "message 2: content must be"),
    (dict(messages=[]), "no turns", "has no messages"),
    (dict(instruction="a", instances=[]), "no turns", "has no instances"),
    (dict(messages=[turn("system", "a")]), "no turns", "only a system message"),
    (dict(messages=[ASKED, turn("bot", "b")]), "unknown role", "message 2: role must be one of"),
    (dict(conversations=[{"from": "robot", "value": "a"}]), "unknown role", "`from` must be"),
    (dict(messages=[ASKED, turn("assistant", "")]), "empty turn", "message 2: content must be"),
    (dict(messages=[ASKED, turn("assistant", None)]), "empty turn", "message 2: content must be"),
    (dict(question="a", answer=""), "empty turn", "content must be a text"),
    (dict(messages=[TOLD, ASKED]), "turns out of order", "message 1 is by assistant"),
    (dict(messages=[ASKED, TOLD, TOLD]), "turns out of order", "message 3 is by assistant"),
    (
        dict(messages=[ASKED, turn("developer", "c")]),
        "turns out of order",
        "message 2 is by system",
    ),
    (dict(messages=[ASKED, turn("tool", "4")]), "tool turn", "role 'tool'"),
    (dict(messages=[ASKED, turn("assistant", "", tool_calls=CALL)]), "tool turn", "tool_calls"),
    (
        dict(messages=[ASKED, turn("assistant", "b", function_call=CALL[0])]),
        "tool turn",
        "has func",
    ),
    (dict(conversations=[{"from": "observation", "value": "4"}]), "tool turn", "'observation'"),
    (dict(messages=[turn("user", [PICTURE]), TOLD]), "part that is no text", "image_url"),
    (dict(messages=[turn("user", ["a"]), TOLD]), "part that is no text", "'a'"),
    (dict(messages=[ASKED, TOLD], tools=CALL), "another template", "has tools"),
    (
        dict(messages=[ASKED, TOLD], chat_template_kwargs=dict(enable_thinking=True)),
        "another template",
        "has chat_template_kwargs",
    ),
]
MALFORMED_PAIRS = [
    (dict(question="a", chosen="b"), "unknown layout", "has chosen, question: expected chosen and"),
    (dict(chosen="b", rejected="c"), "unknown layout", "expected chosen and rejected"),
    (dict(question="a", chosen="b", rejected=["c"]), "wrong type", "rejected must be text"),
    (dict(question="a", chosen="b", rejected=""), "empty turn", "content must be"),
    (dict(chosen=[ASKED, TOLD], rejected=[ASKED]), "no answer", "rejected ends with a turn of the"),
    (
        dict(chosen=[ASKED, TOLD], rejected=[turn("user", "other"), turn("assistant", "c")]),
        "answers that part early",
        "before their last answer",
    ),
    (
        dict(chosen=[ASKED, TOLD, ASKED, TOLD], rejected=[ASKED, turn("assistant", "c")]),
        "answers that part early",
        "before their last answer",
    ),
    (
        dict(prompt=[ASKED], chosen=[turn("user", "x"), TOLD], rejected=[turn("user", "x"), ASKED]),
        "unknown layout",
        "does not begin with the prompt",
    ),
    (
        dict(chosen=transcript("ab"), rejected=transcript("xb")),
        "answers that part early",
        "before their last answer",
    ),
    (dict(chosen=transcript("a"), rejected=transcript("ab")), "no answer", "chosen ends with"),
    (dict(chosen="Human: a\n\nAssistant:", rejected=transcript("ab")), "empty turn", "message 2"),
    (dict(prompt=[ASKED], chosen=[TOLD], rejected=[turn("tool", "4")]), "tool turn", "'tool'"),
    (dict(question="a", chosen="b", rejected="c", tools=CALL), "another template", "has tools"),
]


@pytest.mark.parametrize(
    "read, record, fault, words",
    [(messages_of, *row) for row in MALFORMED] + [(preference_of, *row) for row in MALFORMED_PAIRS],
)
def test_what_is_malformed_has_a_fault(read, record, fault, words):
    with pytest.raises(MalformedRecord) as refused:
        read(record, "c.json, record 7")
    line = str(refused.value)
    assert refused.value.fault == fault and words in line
    assert "c.json, record 7" in line and "\n" not in line


def test_a_second_thought_belongs_to_the_first():
    "Two turns of the user in a row are one; two answers in a row are no conversation"
    joined = [Message("user", "a\n\nwait"), Message("assistant", "b")]
    second = turn("user", "wait")
    assert messages_of(dict(messages=[ASKED, second, TOLD])) == joined
    chosen = transcript("ab").replace("a\n", "a\n\nHuman: wait\n")
    pair = preference_of(dict(chosen=chosen, rejected=chosen.replace(": b", ": c")))
    assert pair == Preference((joined[0],), "b", "c")
