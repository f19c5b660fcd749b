"""Thoughts and calls: marks that no user can type, a calculator with one truth in Python and in the
page, and an answer that is the same text at every door."""

import json
import os
import random
import re
import select
from fractions import Fraction
from pathlib import Path

import forked
import memorised
import numpy as np
import pytest
import torch
from browser import Browser
from cells import defined_here
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from memorised import CONVERSATIONS, TOK, as_messages
from test_api import Server

from gpub.chat.calculator import CALLS_AT_MOST, calculate, calculator_of
from gpub.chat.layouts import Preference
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
from gpub.cli.tune import chat_command
from gpub.core import GpubError
from gpub.data.bpe import BPETokenizer
from gpub.data.char import CharTokenizer
from gpub.model.generate import generate_batch
from gpub.model.sampling import SamplingConfig
from gpub.record.run import load
from gpub.share.demo import write_page
from gpub.share.weights import to_tokenizer
from gpub.templates import read_packaged
from gpub.tune.dpo import encode_preference
from gpub.tune.measures import well_formed_share
from gpub.tune.rollouts import sample_answers

GREEDY = TalkConfig(temperature=0)
(rounded,) = defined_here(Path(__file__).parents[1] / "nbs/lib/share/demo.ipynb", "rounded")


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
            with pytest.raises(GpubError, match="marks a turn or a tag"):
                encode_chat(TOK, [Message("user", "a"), Message(role, f"a{mark}")][-1:])


def test_a_tokenizer_without_tags_is_as_it_was():
    "Ids, mask and template of letters without tags, whatever the text has"
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
        whole = dice.choice(["", "", "-"]) + "".join(dice.choices("0123456789", k=digits))
        if dice.random() < 0.7:
            return whole
        return f"{whole}.{''.join(dice.choices('0123456789', k=dice.choice([1, 2, 3, 30])))}"

    expressions = []
    for _ in range(n):
        space = dice.choice(["", "", " "])
        whole = f"{number()}{space}{dice.choice('+-*/')}{space}{number()}"
        if dice.random() < 0.2:  # one character more, or another one
            at = dice.randrange(len(whole))
            whole = whole[:at] + dice.choice("+-*/.x ()²\n") + whole[at + dice.randrange(2) :]
        expressions.append(whole)
    return [
        *expressions,
        "",
        "1/0",
        "0/0",
        "-0*5",
        "1/200",
        "-1/200",
        "-1/201",
        "5/-2",
        "٣+٤",
        "-0.5*0",
        ".5+1",
        "5.+1",
    ]


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
        assert a % b != 0 or quotient == f"{a // b}"


def test_a_point_is_no_rounding():
    dice = random.Random(2)
    for _ in range(500):
        a, b = (
            f"{dice.choice(['', '-'])}{dice.randrange(999)}.{dice.randrange(999):03d}" for _ in "ab"
        )
        b = dice.choice([b, str(dice.randrange(99))])
        x, y = Fraction(a), Fraction(b)
        results = {"+": x + y, "-": x - y, "*": x * y}
        for sign, right in results.items():
            assert Fraction(calculate(f"{a}{sign}{b}")) == right
            assert not re.search(r"\.\d*0$|\.$", calculate(f"{a}{sign}{b}"))
        if y:
            assert abs(Fraction(calculate(f"{a}/{b}")) - x / y) <= Fraction(1, 200)


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
    prompts = [encode_chat(TOK, as_messages(t[:1]), True).ids for t in CONVERSATIONS] * 8
    sampling = SamplingConfig(n=60, temperature=3.0, seed=1)
    texts = generate_batch(model, prompts, sampling, tool=calculator_of(TOK))
    written = [ids[len(prompt) :] for prompt, ids in zip(prompts, texts)]
    assert sum(map(check_calls, written)) > 20
    free = generate_batch(model, prompts, sampling)  # without the calculator it would
    result = tag_ids(TOK)["<result>"]
    assert any(result in ids[len(prompt) :] for prompt, ids in zip(prompts, free))


def check_calls(written):
    "Every call of an answer has its result behind it, and no result comes without; how many"
    calculator = calculator_of(TOK)
    results = 0
    at = 0
    while at < len(written):
        assert written[at] not in calculator.own_ids
        reply_ids = calculator.reply_ids(written[: at + 1])
        at += 1
        came = written[at : at + len(reply_ids)]
        assert came == reply_ids[: len(came)]
        results += bool(came)
        at += len(came)
    return results


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


def test_a_preference_learns_no_result():
    question, answer = CONVERSATIONS[0][:2]
    pair = encode_preference(TOK, Preference(as_messages([question]), answer, "no"))
    chat = encode_chat(TOK, as_messages([question, answer]))
    assert np.array_equal(pair.chosen.ids, chat.ids)
    assert np.array_equal(pair.chosen.learned, chat.learned)


def test_measures_answer_calls(model):
    "The answers of which a run tells how many are well formed"
    prompts = [encode_chat(TOK, as_messages(turns[:1]), True).ids for turns in CONVERSATIONS]
    end = TOK.chars.index(CHAR_MARKS["end"])
    cold = SamplingConfig(temperature=0)
    answers = sample_answers(model, prompts, 70, end, 0, cold, calculator_of(TOK))
    texts = [with_tags(TOK, TOK.decode(ids[:-1])) for ids in answers]
    assert texts == [turns[1] for turns in CONVERSATIONS]
    assert well_formed_share(answers, TOK) == 1


# ---------------------------------------------------------------- the same text at every door


@pytest.fixture(scope="module")
def server(run):
    pytest.importorskip("uvicorn", reason="needs gpub[serve]")
    server = Server(run)
    yield server
    server.stop()


def asked_for(server, messages, **how):
    how = dict(model="run", temperature=0, max_tokens=50) | how
    return server.client.chat.completions.create(messages=messages, **how)


def streamed(server, messages, **how):
    events = asked_for(server, messages, stream=True, **how)
    return [event.choices[0].delta.content or "" for event in events]


def plain(messages):
    return [m.to_dict() for m in messages]


def test_a_pipe_into_gpub_chat(run):
    for turns in CONVERSATIONS:
        questions = "".join(f"{question}\n" for question in turns[::2])
        done = CliRunner().invoke(chat_command, [str(run), "--temperature", "0"], input=questions)
        assert done.exit_code == 0, done.output
        assert done.stdout == "".join(f"{answer}\n" for answer in turns[1::2])


def test_gpub_serve(server):
    "In one piece and in many, each tag whole; with and without thoughts and calls"
    for turns in CONVERSATIONS:
        talk = as_messages(turns)
        for at in range(1, len(talk), 2):
            asked = plain(talk[:at])
            wanted = talk[at].content
            whole = asked_for(server, asked)
            assert whole.choices[0].message.content == wanted
            assert whole.choices[0].finish_reason == "stop"
            answer = encode_answer(TOK, wanted)
            assert whole.usage.completion_tokens == len(answer.ids) + 1  # and the end
            pieces = streamed(server, asked)
            assert "".join(pieces) == wanted
            assert {tag for tag in TAG_MARKS if tag in wanted} <= set(pieces)
            said = without_scratch(wanted)
            quiet = dict(extra_body=dict(scratch=False))
            assert asked_for(server, asked, **quiet).choices[0].message.content == said
            assert "".join(streamed(server, asked, **quiet)) == said


def test_a_stop_and_a_limit_in_the_middle_of_a_call(server):
    (question, wanted) = CONVERSATIONS[0][:2]
    asked = plain(as_messages([question]))
    stopped = asked_for(server, asked, stop="</call>").choices[0]
    assert stopped.message.content == "<call>475*168" and stopped.finish_reason == "stop"
    for n in (5, 10, 12):
        cut = asked_for(server, asked, max_tokens=n).choices[0]
        ids = encode_answer(TOK, wanted).ids[:n]
        assert cut.message.content == with_tags(TOK, TOK.decode(ids))
        assert cut.finish_reason == "length"


def test_many_clients_at_once(server):
    "Each has its own calls, whoever else is answered in the same batch"
    asked = plain(as_messages(["What is 475*168?"]))
    hot = [dict(temperature=1.2, seed=seed) for seed in range(4)]
    alone = [asked_for(server, asked, **one).choices[0].message.content for one in hot]
    several = asked_for(server, asked, temperature=1.2, seed=0, n=4).choices
    assert [choice.message.content for choice in several] == alone


def test_the_served_page_shows_calls(server, tmp_path):
    "On a phone: thoughts and calls are lines of their own, and what is remembered has the tags"
    with Browser(tmp_path, width=390) as browser:
        browser.open(f"http://127.0.0.1:{server.port}/")
        browser.wait("typeof ask === 'function'")
        browser.run("$('temperature').value = 0")
        hold_conversations(browser, "writing === null", "$('forget').click()")


@pytest.mark.parametrize("family", ["GPT", "Llama"])
def test_the_page_with_the_model_inside(run, family, tmp_path):
    if family == "Llama":
        run = memorised.make_run(tmp_path / "llama", llama=True)
    with Browser(tmp_path, width=390) as browser:
        browser.open(write_page(run, tmp_path / "page.html").as_uri())
        browser.wait("typeof ask === 'function' && $('about').textContent")
        browser.run("$('temperature').value = 0")
        hold_conversations(browser, "!answering", "$('forget').click()")
        for turns in CONVERSATIONS:
            ids = encode_chat(TOK, as_messages(turns)).ids.tolist()
            shown = json.dumps(plain(as_messages(turns)))
            assert browser.run(f"encodeTurns({shown}, false)") == ids
        browser.run(f"$('question').value = {TAG_MARKS['<call>']!r}; $('go').click()")
        assert "cannot read" in browser.run("$('status').textContent")
        # the scores themselves, of the weights that the page has
        model = rounded(load(run, device="cpu").model)
        ids = encode_chat(TOK, as_messages(CONVERSATIONS[0])).ids.astype(int)[:100]
        found = browser.run(f"[...forward({ids.tolist()}, 0, true)]")
        with torch.no_grad():
            wanted = model(torch.tensor(ids)[None])[0].flatten().numpy()
        assert np.abs(np.array(found) - wanted).max() < 1e-3 * np.abs(wanted).max()
        # as hot as can be: what the page has read is what Python makes of it, calls with results
        browser.run("$('temperature').value = 2")
        for seed in range(6):
            browser.run(f"$('seed').value = {seed}; $('question').value = 'hello'; $('go').click()")
            browser.wait("!answering")
            ids = browser.run("read")
            check_calls(ids[ids.index(TOK.chars.index(CHAR_MARKS["assistant"])) + 1 :])
            browser.run("$('forget').click()")


def hold_conversations(browser, is_ready, forget):
    for turns in CONVERSATIONS:
        for question in turns[::2]:
            browser.run(f"$('question').value = {question!r}; $('go').click()")
            browser.wait(is_ready)
        assert browser.run("turns") == plain(as_messages(turns))
        shown = browser.run(
            "[...document.querySelectorAll('#talk p.assistant > span')]"
            ".map(e => [...e.childNodes].map(n => [n.className ?? '', n.textContent]))"
        )
        assert shown == [parts_of(answer) for answer in turns[1::2]]
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        browser.run(forget)


def parts_of(answer):
    "What a page shows of an answer: (class, text)"
    parts = []
    found = re.findall(
        r"<think>(.*?)</think>|<call>(.*?)</call><result>(.*?)</result>|([^<]+)", answer
    )
    for think, call, result, said in found:
        if think:
            parts.append(["think", think])
        elif call:
            parts.append(["call", f"{call} = {result}"])
        else:
            parts.append(["", said])
    return parts


def test_gpub_chat_in_a_terminal(run):
    "A call is a dim line of its own; the answer stands below it"
    pty = pytest.importorskip("pty", reason="a terminal as POSIX has it")
    ours, theirs = pty.openpty()
    words = ["-m", "gpub", "chat", run, "--temperature", 0, "--device", "cpu"]
    process = forked.Python(words, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    heard = ""  # and not looked at yet

    def until(sign):
        nonlocal heard
        while sign not in heard:
            ready, _, _ = select.select([ours], [], [], 120)
            assert ready, f"nothing more after {heard!r}, {sign!r} was expected"
            heard += os.read(ours, 1000).decode()
        before, heard = heard.split(sign, 1)
        return before + sign

    until("> ")
    os.write(ours, b"What is 475*168?\n")
    dim, lit = "\x1b[2m", "\x1b[0m"
    assert f"{dim}475*168 = 79800{lit}\r\nIt is 79800." in until("It is 79800.")
    until("> ")
    os.write(ours, b"/reset\n")
    until("> ")
    os.write(ours, b"add 27 and 15\n")
    assert f"{dim}7+5 2, 1. 2+1+1 4{lit}\r\nIt is 42." in until("It is 42.")
    until("> ")
    os.write(ours, b"/quit\n")
    assert process.wait(timeout=60) == 0
    os.close(ours)
