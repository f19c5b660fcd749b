"""The tokenizer of byte pairs in the page, in a real browser: the ids of `BPETokenizer` for any
text, and its text for any ids; how the page shows tokens; refusals."""

import json
import random
import re
from dataclasses import replace

import pytest
import tokenizers
from browser import Browser
from test_demo import PAIRS, PAIRS_GPT, TEXT, make_run, text_of

from gpub.core import GpubError
from gpub.data.bpe import GPT2_PATTERN, LLAMA3_PATTERN, BPETokenizer
from gpub.data.plays import plays
from gpub.data.tokenizer import IdTokenizer
from gpub.share.demo import tokenizer_facts, write_page

WRITTEN = (  # of texts that a tokenizer has to get right, in pieces
    *("the", " and", "I'll", "DON'T", "'ſ", "'S", "'Re", " 12345", "1st", "²", "Ⅷ", "٣٤", "½"),
    *("über", "Ελλάδα", "мир", "中文", "한국어", "עברית", "e\u0301", "\u0301", "ﬆ", "ǅ", "ª", "K"),
    *("🙂", "👩\u200d🚀", "🇨🇭", "\U0001f9ff", "\ue000", "\U0010ffff", "\ufffd", "\ufeff", "\u00ad"),
    *(" ", "  ", "   ", "\n", "\r\n", "\n\n", "\t", "\x0b", "\x0c", "\x85", "\xa0", "\u1680"),
    *("\u2003", "\u2028", "\u2029", "\u200b", "\u3000", "\u180e", "\0", "\x1b", "\x7f", "\x9f"),
    *(".", "...", "!?", "'", "''", "’s", '"', "</script>", "<!--", "${x}", "`", "\\", "_", "~"),
    *("<|endoftext|>", "<|user|>", "\ud83d", "\ude42", "aaaaaaaaa", "lolololo"),
)


def texts(count, seed=0):
    "Nasty and random texts, the same each time"
    dice = random.Random(seed)
    assigned = [*range(0x20, 0x250), *range(0x370, 0x500), *range(0x3040, 0x3100)]
    for number in range(count):
        length = dice.randrange(1, 24)
        match number % 3:
            case 0:
                yield "".join(dice.choices(WRITTEN, k=length))
            case 1:
                yield "".join(map(chr, dice.choices(assigned, k=length)))
            case 2:
                begin = dice.randrange(len(TEXT))
                yield TEXT[begin : begin + 4 * length] + dice.choice(WRITTEN)


def with_other_ids(tok):
    "The same pairs under ids in another order, the whole pieces looked up first, as in Llama 3"
    described = json.loads(tok.rust.to_str())
    model = described["model"]
    order = sorted(model["vocab"], key=lambda name: name[::-1])
    model["vocab"] = {name: number for number, name in enumerate(order)}
    model["merges"] = model["merges"][::-1]  # a late pair first: whole pieces are then no merges
    model["ignore_merges"] = True
    return BPETokenizer(tokenizers.Tokenizer.from_str(json.dumps(described)))


LEARNED = plays(30_000, seed=1) + "".join(filter(lambda t: t.isprintable(), WRITTEN)) * 3
KINDS = dict(
    ours=BPETokenizer.train([LEARNED], 512),
    gpt2=BPETokenizer.train([LEARNED], 700, pattern=GPT2_PATTERN),
    llama3=BPETokenizer.train([LEARNED], 700, pattern=LLAMA3_PATTERN, specials=("</s>",)),
    bytes=BPETokenizer.train([LEARNED], 256, specials=()),
)
KINDS["foreign"] = with_other_ids(KINDS["llama3"])


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as b:
        yield b


@pytest.mark.parametrize("name", KINDS)
def test_ids_and_text_equal_the_tokenizer(browser, tmp_path, name):
    "Ids of 3,000 texts, among them half characters and spelled specials; texts of 500 lists of ids"
    tok = KINDS[name]
    make_run(tmp_path / "run", replace(PAIRS_GPT, vocab_size=tok.vocab_size), tok)
    text_of(browser, write_page(tmp_path / "run", tmp_path / "page.html"), n=1)
    asked = [*WRITTEN, *texts(3000), "aab" * 700, " " * 2000 + "x"]
    got = browser.run(f"{json.dumps(asked)}.map(encode)")
    for text, ids in zip(asked, got, strict=True):
        assert ids == tok.encode(text).tolist(), text
    dice = random.Random(1)
    lists = [dice.choices(range(tok.vocab_size), k=dice.randrange(12)) for _ in range(500)]
    assert browser.run(f"{json.dumps(lists)}.map(decode)") == [tok.decode(ids) for ids in lists]
    assert browser.run(f"decode(encode({json.dumps(TEXT)}))") == TEXT


def test_tokens_are_shown_as_pieces(browser, tmp_path):
    "A space and a line end by their signs, bytes of no character as numbers, words as they are"
    make_run(tmp_path / "run", PAIRS_GPT, PAIRS)
    page = write_page(tmp_path / "run", tmp_path / "page.html")
    text_of(browser, page, prompt="the 👩 ", n=1)
    asked = " the", "\n", "\t", "\xa0", "\x1b"
    shown = [browser.run(f"encode({json.dumps(text)}).map(nameOf).join('')") for text in asked]
    assert shown == ["␣the", "⏎", "⇥", "⟨c2⟩⟨a0⟩", "⟨U+001B⟩"]
    end = PAIRS.specials["<|endoftext|>"]
    assert browser.run(f"nameOf({end})") == "<|endoftext|>"
    spans = browser.run('[...$("out").children].map(s => [s.textContent, s.dataset.bytes ?? ""])')
    given = spans[: len(PAIRS.encode("the 👩 "))]
    # the character stands in the token of its last byte; the others show their bytes
    assert "".join(text for text, _ in given) == "the 👩 "
    assert [number for _, number in given if number] == ["f0", "9f", "91"]
    assert browser.run(
        "[...document.querySelectorAll('label')].some(l => /^Tokens/.test(l.textContent.trim()))"
    )
    assert "nats a token" in browser.run('$("without").textContent')
    assert "from a vocabulary of 321" in browser.run('$("about").textContent')
    browser.run('$("n").value = 0; $("go").click()')
    assert "Tokens must be" in browser.run('$("status").textContent')


def changed(tok, **settings):
    "A tokenizer whose file says something more"
    described = json.loads(tok.rust.to_str())
    described["model"] |= settings.pop("model", {})
    return BPETokenizer(tokenizers.Tokenizer.from_str(json.dumps(described | settings)))


def added(tok, word):
    described = json.loads(tok.rust.to_str())["added_tokens"]
    return dict(
        added_tokens=[
            *described,
            dict(described[0], id=tok.vocab_size, content=word, special=False),
        ]
    )


@pytest.mark.parametrize(
    ("tok", "said"),
    (
        (changed(KINDS["ours"], normalizer=dict(type="NFC")), "more than byte pairs (normalizer)"),
        (changed(KINDS["ours"], model=dict(dropout=0.1)), "more than byte pairs (dropout)"),
        (changed(KINDS["ours"], **added(KINDS["ours"], "word")), "more than byte pairs (words)"),
        (BPETokenizer.train([LEARNED], 300, pattern=r"\p{L}++|\P{L}"), "by a pattern"),
        (IdTokenizer(300), "neither characters nor byte-level pairs"),
    ),
    ids=("normalizer", "dropout", "words", "pattern", "ids"),
)
def test_a_tokenizer_it_cannot_read_is_refused(tmp_path, tok, said):
    make_run(tmp_path / "run", replace(PAIRS_GPT, vocab_size=tok.vocab_size), tok)
    with pytest.raises(GpubError, match=re.escape(said)) as e:
        write_page(tmp_path / "run", tmp_path / "page.html")
    assert "\n" not in str(e.value) and f"gpub serve {tmp_path / 'run'}" in str(e.value)
    assert not (tmp_path / "page.html").exists()


def test_the_vocabulary_counts_for_the_size(tmp_path):
    "A small model, a vocabulary of 100 kB: both are in what the page says of its size"
    tok = KINDS["ours"].padded(8_000)
    make_run(tmp_path / "run", replace(PAIRS_GPT, d_model=3, vocab_size=8_000), tok)
    page = write_page(tmp_path / "run", tmp_path / "page.html")
    told = float(re.search(r"the page ([\d.]+) MB", page.read_text())[1])
    assert abs(told - page.stat().st_size / 1e6) < 0.1
    assert len(json.dumps(tokenizer_facts(tok))) > 1e5
    with pytest.raises(GpubError, match="a page of"):
        write_page(tmp_path / "run", tmp_path / "other.html", limit_mb=told - 0.1)
