"""Thoughts and calls: marks that no user can type, a calculator with one truth in Python and in the
page, and an answer that is the same text at every door."""

import random

import memorised
import pytest
from browser import Browser
from hypothesis import given, settings
from hypothesis import strategies as st
from memorised import CONVERSATIONS, TOK, as_messages

from gpub.chat.calculator import CALLS_AT_MOST, calculate, calculator_of
from gpub.chat.talk import Talk, TalkConfig, answer_turns, reply
from gpub.chat.template import (
    CHAR_MARKS,
    TAG_MARKS,
    Message,
    decode_chat,
    encode_answer,
    encode_chat,
    encode_text,
    tag_ids,
    template_for,
    with_tags,
    without_scratch,
)
from gpub.core import GpubError
from gpub.data.bpe import BPETokenizer
from gpub.data.char import CharTokenizer
from gpub.model.generate import generate_batch
from gpub.model.sampling import SamplingConfig
from gpub.record.run import load
from gpub.share.weights import to_tokenizer
from gpub.templates import read_packaged

GREEDY = TalkConfig(temperature=0)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return memorised.make_run(tmp_path_factory.mktemp("memorised") / "run")


@pytest.fixture(scope="module")
def model(run):
    return load(run, device="cpu").model


# ---------------------------------------------------------------- marks


def test_a_result_is_read_and_never_learned():
    for turns in CONVERSATIONS:
        chat = encode_chat(TOK, as_messages(turns))
        learned = with_tags(TOK, TOK.decode(chat.ids[chat.learned]))
        answers = [turn for turn in turns[1::2]]
        for answer in answers:
            for result in answer.split("<result>")[1:]:
                answer = answer.replace(f"<result>{result.split('</result>')[0]}</result>", "")
            assert answer + CHAR_MARKS["end"] in learned
        assert "result" not in learned
        assert list(decode_chat(TOK, chat.ids)) == as_messages(turns)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([*TAG_MARKS, "475*168", "a", " "]), min_size=1, max_size=12))
def test_any_answer_is_read_back(pieces):
    "However the tags stand, and one mask for each token"
    talk = [Message("user", "a"), Message("assistant", "".join(pieces))]
    chat = encode_chat(TOK, talk)
    assert list(decode_chat(TOK, chat.ids)) == talk
    answer = encode_answer(TOK, talk[1].content)
    assert len(answer.ids) == len(answer.learned) == len(chat.ids) - 4
    tags = tag_ids(TOK)
    assert not any(answer.learned[answer.ids == tags["<result>"]])


def test_a_user_cannot_forge_a_mark():
    wide = CharTokenizer([*TOK.chars, *"<>lr"[:2]])
    tags = set(tag_ids(wide).values())
    for text in (*TAG_MARKS, "<call>1+1</call>"):
        for role in ("user", "system"):
            talk = [Message(role, text), Message("user", text)][role == "user" :]
            ids = encode_chat(wide, talk, True).ids
            assert not tags & set(ids.tolist())
            assert [m.content for m in decode_chat(wide, ids)] == [text] * len(talk)
        with pytest.raises(GpubError, match="lacks '<'"):
            encode_chat(TOK, [Message("user", text)])
    for mark in TAG_MARKS.values():
        for role in ("user", "assistant"):
            with pytest.raises(GpubError, match="is a mark"):
                encode_chat(TOK, [Message("user", "a"), Message(role, f"a{mark}")][-1:])


def test_a_tokenizer_without_tags_is_as_it_was():
    "The ids, the mask and the template of the course's own letters, with and without tags in the text"
    old = CharTokenizer([*"abc<>/think ", *CHAR_MARKS.values()])
    talk = [Message("user", "a"), Message("assistant", "<think>a</think> b")]
    chat = encode_chat(old, talk)
    marks = CHAR_MARKS
    text = f"{marks['user']}a{marks['assistant']}<think>a</think> b{marks['end']}"
    assert old.decode(chat.ids) == text
    assert chat.learned.tolist() == [False] * 3 + [True] * (len(text) - 3)
    assert "think" not in template_for(old) and calculator_of(old) is None
    some = CharTokenizer([*old.chars, TAG_MARKS["<think>"]])  # a letter like others, if alone
    assert tag_ids(some) == {} and encode_text(some, TAG_MARKS["<think>"]).tolist() == [16]
    words = BPETokenizer.train(["a b <think>c</think>"] * 3, 300)
    answer = encode_answer(words, "<think>c</think>")
    assert answer.ids.tolist() == words.encode("<think>c</think>").tolist() and answer.learned.all()


def test_tags_can_be_special_tokens_of_byte_pairs():
    marks = ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", *TAG_MARKS)
    tok = BPETokenizer.train(["What is 475*168? It is 79800."] * 3, 300, specials=marks)
    for turns in CONVERSATIONS:
        chat = encode_chat(tok, as_messages(turns))
        assert list(decode_chat(tok, chat.ids)) == as_messages(turns)
        assert "result" not in tok.decode(chat.ids[chat.learned])
    call = tok.encode("<call>6*7</call>", special=True).tolist()
    assert tok.decode(calculator_of(tok).reply_ids(call)) == "<result>42</result>"


TANGLED = ["<result>a<result>b</result>c", "a</result>b<result>c", "</think>a<call>b"]


@pytest.mark.parametrize("kind", ["characters", "byte pairs"])
def test_transformers_has_the_same_ids_and_mask(kind):
    transformers = pytest.importorskip("transformers")
    marks = ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", *TAG_MARKS)
    tok = TOK
    if kind == "byte pairs":
        tok = BPETokenizer.train(["What is 475*168? It is 79800."] * 3, 300, specials=marks)
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=to_tokenizer(tok), chat_template=template_for(tok)
    )
    for turns in [*CONVERSATIONS, *(["a", answer] for answer in TANGLED)]:
        talk = as_messages(turns)
        ours = encode_chat(tok, talk)
        found = theirs.apply_chat_template(
            [m.to_dict() for m in talk],
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        assert ours.ids.tolist() == found["input_ids"]
        assert ours.learned.astype(int).tolist() == found["assistant_masks"]


# ---------------------------------------------------------------- the calculator


def drawn_expressions(n):
    "Calls as a model may write them, right and wrong"
    dice = random.Random(0)

    def number():
        digits = dice.choice([1, 2, 3, 5, 20, 100, 101])
        return dice.choice(["", "", "-"]) + "".join(dice.choices("0123456789", k=digits))

    expressions = []
    for _ in range(n):
        space = dice.choice(["", "", " "])
        whole = f"{number()}{space}{dice.choice('+-*/')}{space}{number()}"
        if dice.random() < 0.2:  # one character more, or another one
            at = dice.randrange(len(whole))
            whole = whole[:at] + dice.choice("+-*/.x ()²\n") + whole[at + dice.randrange(2) :]
        expressions.append(whole)
    return [*expressions, "", "1/0", "0/0", "-0*5", "1/200", "-1/200", "-1/201", "5/-2", "٣+٤"]


def test_python_and_the_page_compute_the_same(tmp_path):
    expressions = drawn_expressions(2000)
    results = [calculate(one) for one in expressions]
    assert 0.1 < results.count("?") / len(results) < 0.6
    with Browser(tmp_path) as browser:
        browser.open("about:blank")
        # of its own, so that its names do not stay in the page
        asked = f"{read_packaged('share/calculator.js')}; return {expressions!r}.map(calculate)"
        found = browser.run(f"(() => {{ {asked} }})()")
    wrong = [o for o in zip(expressions, results, found, strict=True) if o[1] != o[2]]
    assert wrong == []


def test_a_sum_is_right():
    dice = random.Random(1)
    for _ in range(300):
        a, b = dice.randrange(-(10**9), 10**9), dice.randrange(1, 10**5)
        assert calculate(f"{a}+{b}") == f"{a + b}" and calculate(f"{a}*{b}") == f"{a * b}"
        assert calculate(f"{b}-{a}") == f"{b - a}"
        quotient = calculate(f"{a}/{b}")
        assert abs(float(quotient) - a / b) <= 0.005 + 1e-6, (a, b)
        assert ("." in quotient) == (a % b != 0)


# ---------------------------------------------------------------- an answer with calls


def test_the_model_is_answered_in_the_middle_of_its_answer(model):
    for turns in CONVERSATIONS:
        talk = Talk(model, TOK, GREEDY)
        for question, wanted in zip(turns[::2], turns[1::2]):
            pieces = list(talk.ask(question))
            assert "".join(pieces) == wanted
            assert set(TAG_MARKS) & set(pieces) == {tag for tag in TAG_MARKS if tag in wanted}
        assert talk.messages == as_messages(turns)


def test_many_conversations_at_once(model):
    "What `Talk` says alone, whatever stands beside it, with dice too"
    asked = [turns[::2] for turns in CONVERSATIONS]
    assert answer_turns(model, TOK, asked) == [turns[1::2] for turns in CONVERSATIONS]
    assert answer_turns(model, TOK, []) == []
    dice = TalkConfig(temperature=1.5, seed=3, longest=40)
    together = answer_turns(model, TOK, asked, dice, together=3)
    for questions, answers in zip(asked, together):
        talk = Talk(model, TOK, dice)
        heard = []
        for question in questions:
            heard.append("".join(talk.ask(question)))
        assert heard == answers


def test_the_model_cannot_write_a_result(model):
    "However hot: every result follows a call, and is its result"
    seen = 0
    prompts = [encode_chat(TOK, as_messages(t[:1]), True).ids for t in CONVERSATIONS] * 8
    sampling = SamplingConfig(n=90, temperature=3.0, seed=1)
    with_tool = generate_batch(model, prompts, sampling, tool=calculator_of(TOK))
    for prompt, ids in zip(prompts, with_tool):
        text = with_tags(TOK, TOK.decode(ids[len(prompt) :]))
        before, *results = text.split("<result>")
        calls = before.split("</call>")[:-1]
        for n, result in enumerate(results):
            assert before.endswith("</call>")
            call = before.removesuffix("</call>")
            there = "<call>" in text[: text.index("<result>")]
            said, closed, after = result.partition("</result>")
            wanted = "?"
            if "<call>" in call and n < CALLS_AT_MOST:
                wanted = calculate(call.rpartition("<call>")[2])
            assert said == wanted if closed else wanted.startswith(said)
            assert closed or n == len(results) - 1
            seen += 1
            before = before + "<result>" + result
            assert there or "<call>" not in call
        assert len(calls) <= 1 + len(results)
    assert seen > 20


def test_a_fifth_call_is_not_computed(model):
    calculator = calculator_of(TOK)
    text = ""
    for n in range(6):
        text += "<call>2*3</call>"
        reply_ids = calculator.reply_ids(encode_answer(TOK, text).ids.tolist())
        result = TOK.decode(reply_ids[1:-1])
        assert result == ("6" if n < CALLS_AT_MOST else "?")
        text += f"<result>{result}</result>"


def test_an_answer_without_its_scratch(model):
    assert without_scratch(reply(model, TOK, "What is 475*168?", GREEDY)) == "It is 79800."
    assert without_scratch("a<think>b") == "a" and without_scratch("a</call>b") == "ab"
    assert without_scratch("<think>a<call>1</call><result>2</result>b") == "b"
