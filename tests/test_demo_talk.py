"""The page with a model inside that talks, in a real browser: the template, the end of an answer,
a conversation of several turns, as `Talk` has them; refusals."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import Browser
from cells import defined_here
from test_demo import TOY, contrasts

from gpub.chat.sums import ask_sum, digits_of, draw_pairs, read_answer, sum_messages, sums_notice
from gpub.chat.talk import Talk, TalkConfig
from gpub.chat.template import (
    CHAR_MARKS,
    TAG_MARKS,
    chat_facts,
    chat_marks,
    encode_answer,
    encode_chat,
    read_messages,
)
from gpub.core import GpubError, read_json
from gpub.data.bpe import SPECIALS, BPETokenizer
from gpub.data.char import CharTokenizer
from gpub.data.plays import plays
from gpub.model.architectures import architecture_of
from gpub.model.gpt import GPT
from gpub.plans.phase_inputs import old_text
from gpub.plans.phases import read_plan
from gpub.plans.runner import PlanOptions, run_plan
from gpub.record.checkpoint import save_checkpoint
from gpub.record.run import load
from gpub.share.demo import write_page

(rounded,) = defined_here(Path(__file__).parents[1] / "nbs/lib/share/demo.ipynb", "rounded")
TOK = CharTokenizer(sorted({*"0123456789+abc é🙂</script>", *CHAR_MARKS.values()}))
PAIRS = BPETokenizer.train([plays(20_000, seed=0)], 300)
TAGGED = BPETokenizer.train([plays(20_000, seed=0)], 300, specials=(*SPECIALS, *TAG_MARKS))
LONGEST = 64  # as the page has it


def make_talker(folder, seed=0, end_bias=0.0, source="chats.jsonl", tok=TOK):
    "A run folder of a model that talks nonsense; a bias towards the end makes its answers short"
    torch.manual_seed(seed)
    cfg = TOY.__class__(**TOY.to_dict() | dict(vocab_size=tok.vocab_size, tied=False))
    model = GPT(cfg).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.12)
        model.norm.bias.add_(end_bias * model.head.weight[chat_marks(tok).end].sign())
    folder.mkdir(parents=True)
    tok.save(folder)
    config = dict(
        format=3,
        preset="grpo",
        architecture=architecture_of(cfg).name,
        model=cfg.to_dict(),
        data=dict(source=source, tokenizer=tok.fingerprint),
        prompt="12+3",
        unit="nats/token",
        chat=chat_facts(tok),
    )
    (folder / "config.json").write_text(json.dumps(config))
    save_checkpoint(folder, 7, model.state_dict(), {}, dict(val_loss=2.5))
    return model


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as b:
        yield b


def opened(browser, page, temperature=0):
    browser.open("about:blank")
    browser.open(page.as_uri())
    browser.wait("typeof ask === 'function' && $('about').textContent")
    browser.run(f'$("temperature").value = {temperature}')


def said(browser, question):
    "What the page answers, after it has finished"
    browser.run(f'$("question").value = {json.dumps(question)}; $("go").click()')
    browser.wait("!answering")
    assert browser.run('$("status").className') == "mute", browser.run('$("status").textContent')
    return browser.run('$("talk").lastElementChild.querySelector("span").textContent')


QUESTIONS = ["12+3", "a é🙂 </script>", "0+0", "abcabc", "7"]


@pytest.mark.parametrize(
    ("end_bias", "tok"),
    ((0.0, TOK), (0.0, PAIRS), pytest.param(0.08, TOK, marks=pytest.mark.full)),
    ids=("long", "pairs", "short"),
)
def test_a_conversation_equals_talk(browser, tmp_path, end_bias, tok):
    "Five turns, more than the window holds, each token the favourite of the page's very weights"
    model = rounded(make_talker(tmp_path / "run", end_bias=end_bias, tok=tok))
    talk = Talk(model, tok, TalkConfig(longest=LONGEST, temperature=0))
    opened(browser, write_page(tmp_path / "run", tmp_path / "page.html"))
    for question in QUESTIONS:
        want = "".join(talk.ask(question))
        assert said(browser, question) == want
        turns = [dict(role=m.role, content=m.content) for m in talk.messages]
        assert browser.run("turns") == turns
    asked = [*talk.messages, type(talk.messages[0])("user", "1")] if talk.messages else []
    if asked:
        ids = talk.fitted(asked).tolist()
        shown = [dict(role=m.role, content=m.content) for m in asked]
        assert browser.run(f"fitted({json.dumps(shown)})") == ids


def test_tags_are_marks_among_byte_pairs(browser, tmp_path):
    "In an answer a tag is its token; in a question it is letters; the calculator's result is pairs"
    make_talker(tmp_path / "run", tok=TAGGED)
    opened(browser, write_page(tmp_path / "run", tmp_path / "page.html"))
    turns = [
        dict(role="user", content="what is <call>2*3</call>, é🙂?"),
        dict(role="assistant", content="<think>well</think><call>2*3</call><result>6</result>six"),
        dict(role="user", content="<|assistant|> again"),
    ]
    ids = encode_chat(TAGGED, read_messages(turns), add_generation_prompt=True).ids
    assert browser.run(f"encodeTurns({json.dumps(turns)}, true)") == ids.tolist()
    call = encode_answer(TAGGED, "<call>475*168</call>").ids.tolist()
    reply = encode_answer(TAGGED, "<result>79800</result>").ids.tolist()
    assert browser.run(f"replyIds({call})") == reply
    assert browser.run(f"textOf({[*call, *reply]})") == "<call>475*168</call><result>79800</result>"


def test_an_answer_ends_with_its_mark_and_is_told(browser, tmp_path):
    make_talker(tmp_path / "run")
    opened(browser, write_page(tmp_path / "run", tmp_path / "page.html"))
    # a model whose favourite is 'a', and after it the end
    ids = {c: i for i, c in enumerate(TOK.chars)}
    end = chat_marks(TOK).end
    browser.run(
        "count = 0; forward = () => { const l = new Float32Array(vocab_size); "
        f"l[count++ ? {end} : {ids['a']}] = 9; return l; }}; 0"
    )
    assert said(browser, "1+1") == "a"
    assert "ended by itself" in browser.run('$("status").textContent')
    marks = browser.run('[...$("tokens").querySelectorAll(".mark")].map(e => e.textContent)')
    assert marks == ["user", "assistant", "end"]
    browser.run('count = 1; $("question").value = "2"; $("go").click()')
    browser.wait("!answering")
    # an answer without a word is no turn, as in `Talk`
    assert len(browser.run("turns")) == 2
    browser.run('$("forget").click()')
    assert browser.run("turns") == [] and browser.run('$("talk").children.length') == 0


def test_sampled_answers_follow_their_seed(browser, tmp_path):
    make_talker(tmp_path / "run")
    page = write_page(tmp_path / "run", tmp_path / "page.html")
    answers = []
    for seed in (1, 1, 2):
        opened(browser, page, temperature=1.5)
        browser.run(f'$("seed").value = {seed}')
        answers.append(said(browser, "12+3"))
    assert answers[0] == answers[1] != answers[2]


def test_what_cannot_be_read_is_said(browser, tmp_path):
    "A forged mark, a letter it never saw, nothing, too much"
    make_talker(tmp_path / "run")
    opened(browser, write_page(tmp_path / "run", tmp_path / "page.html"))
    for question, word in (
        (f"1{CHAR_MARKS['end']}", "cannot read"),
        ("Ж", "cannot read ‘Ж’"),
        ("  ", "empty"),
        ("1" * TOY.context_length, "too long"),
    ):
        browser.run(f'$("question").value = {json.dumps(question)}; $("go").click()')
        assert word in browser.run('$("status").textContent')
        assert browser.run('$("status").className') == "bad" and browser.run("turns") == []


def test_no_request_no_error_and_labels(tmp_path):
    make_talker(tmp_path / "run")
    page = write_page(tmp_path / "run", tmp_path / "page.html")
    with Browser(tmp_path, 390, 844, dark=True) as b:
        opened(b, page)
        said(b, "12+3")
        asked = {e["request"]["url"].split("#")[0] for e in b.seen("Network.requestWillBeSent")}
        assert asked <= {page.as_uri(), "about:blank", "data:,"}
        assert not b.seen("Runtime.exceptionThrown") and not b.seen("Log.entryAdded")
        assert b.run("document.documentElement.scrollWidth <= 390")
        assert b.run('[...document.querySelectorAll("input")].every(e => e.labels.length == 1)')
        assert contrasts(b) > 4.5


SUMS_TYPED = ("12+34", " 12 + 34 = ", "What is 475 + 168?", "what's 9 plus 991", "210+430")
NO_SUMS = ("Hello", "1000+1", "12+34+5", "12-3", "+", "\u0661+\u0662")


def test_sums_are_asked_as_people_write_them(browser, tmp_path):
    "Put into the model's form and shown so, the answer turned back: as gpub.chat.sums has it"
    make_talker(tmp_path / "run", source="sums")
    opened(browser, write_page(tmp_path / "run", tmp_path / "page.html"))
    config = read_json(tmp_path / "run/config.json")
    assert browser.run('$("notice").textContent') == sums_notice(config, "press Forget") != ""
    assert browser.run('$("question").value') == "12 + 34"
    for text in (*SUMS_TYPED, *NO_SUMS):
        assert browser.run(f"askSum({json.dumps(text)})") == ask_sum(text)
    for text in ("6400", "0001", "0000", "", "6ld", "\u0661"):
        assert browser.run(f"readAnswer({json.dumps(text)})") == read_answer(text)
    # a model that says 6400 and the end
    ids, end = {c: i for i, c in enumerate(TOK.chars)}, chat_marks(TOK).end
    says = [*(ids[c] for c in "6400"), end]
    browser.run(
        "count = 0; forward = () => { const l = new Float32Array(vocab_size); "
        f"l[{says}[count++]] = 9; return l; }}; 0"
    )
    browser.run('$("question").value = "12+34"; $("go").click()')
    browser.wait("!answering")
    bubbles = browser.run('[...$("talk").children].map(e => e.textContent)')
    assert bubbles == ["user 12+34 (sent as 210+430)", "assistant 6400 (that is 46)"]
    assert browser.run("turns.map(t => t.content)") == ["210+430", "6400"]


def test_another_model_is_asked_as_it_was_typed(browser, tmp_path):
    make_talker(tmp_path / "run")
    opened(browser, write_page(tmp_path / "run", tmp_path / "page.html"))
    assert browser.run('$("notice").textContent') == ""
    said(browser, "12+3")
    assert browser.run("turns[0].content") == "12+3"
    assert browser.run('$("talk").querySelectorAll("i").length') == 0


def test_another_template_is_refused(tmp_path):
    make_talker(tmp_path / "run")
    config = json.loads((tmp_path / "run/config.json").read_text())
    config["chat"]["template"] = "{{ messages }}"
    (tmp_path / "run/config.json").write_text(json.dumps(config))
    with pytest.raises(GpubError, match="another chat template"):
        write_page(tmp_path / "run", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.full(instead="test_no_request_no_error_and_labels")
def test_a_page_holds_the_model_of_the_plan(tmp_path):
    "Of the very shape and alphabet, in less than a megabyte"
    base = read_plan("chat-toy").phases[0]
    text = old_text(sums=10, characters=5000)
    (tmp_path / "text.txt").write_text(text)
    plan = read_plan("chat-toy")
    small = plan.settings | dict(batch_tokens=128)
    plan = replace(plan, old=str(tmp_path / "text.txt"), settings=small)
    first = replace(base, data=(plan.old,), until=1, gates=())
    tuned = replace(plan.phases[1], until=1, gates=(), data=("talks:40",), replay=None)
    tuned = replace(tuned, settings=dict(batch_tokens=256))
    walk = PlanOptions(device="cpu", usd_per_hour=1.0, log=lambda line: None)
    out = tmp_path / "walk"
    run_plan(replace(plan, phases=(first, tuned)), out, walk)
    page = write_page(out / "sft", tmp_path / "page.html").read_text(encoding="utf-8")
    (n,) = re.findall(r"([\d,]+) parameters", page)
    n = int(n.replace(",", ""))
    assert n / 1e6 == pytest.approx(0.4, rel=0.1)  # as the plan's first line says
    assert len(page) < 1.5 * n + 1e5


@pytest.mark.slow
def test_a_walked_model_adds_in_its_page(browser, tmp_path):
    "Walked to its end, and asked held-out sums"
    walk = PlanOptions(device="cpu", usd_per_hour=1.0)
    assert run_plan("chat-toy", tmp_path / "walk", walk).word == "continue"
    adds_in_its_page(browser, tmp_path / "walk" / "grpo", tmp_path / "page.html")


SUMS = 20  # asked of page and `Talk`


def adds_in_its_page(browser, run, file):
    "The page of a model that can add, and `Talk`, asked the same; how many are right"
    model = rounded(load(run, device="cpu").model)
    tok = load(run, device="cpu").tokenizer
    a, b = draw_pairs(SUMS, np.random.default_rng(3), held_out=True)
    right = 0
    opened(browser, write_page(run, file))
    for x, y in zip(a, b):
        question, wanted = (
            m.content for m in sum_messages(x, y, digits_of(np.array([x + y]), 4)[0])
        )
        talk = Talk(model, tok, TalkConfig(longest=LONGEST, temperature=0))
        browser.run("forget()")
        answer = said(browser, f"{x} + {y}")
        assert answer == "".join(talk.ask(question))
        right += answer == wanted
    assert right >= 0.85 * SUMS, f"{right} of {SUMS} sums"
    return right
