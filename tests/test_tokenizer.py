"""Tokenizers: nothing is lost, two engines agree, and what cannot work is refused by name."""

import json
import random

import numpy as np
import pytest
from contracts import refuses
from hypothesis import given, settings
from hypothesis import strategies as st
from mini_bpe import MiniBPE
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from gpub.core import GpubError
from gpub.data import bpe as bpe_module
from gpub.data.bpe import (
    BYTE_OF,
    BYTES,
    GPT2_PATTERN,
    LLAMA3_PATTERN,
    PATTERN,
    SPECIALS,
    BPETokenizer,
    byte_level,
    pieces,
)
from gpub.data.char import CharTokenizer
from gpub.data.plays import plays
from gpub.data.tokenizer_file import load_tokenizer
from gpub.data.tokenizer_report import stratified, tokenizer_report

tiktoken = pytest.importorskip("tiktoken")
TEXT = (
    plays(60_000, seed=3)
    + "\n\ndef f(x):\n\treturn {'a': x**2, 'b': 1234567}  # naïve ☂️ 東京 \r\n" * 20
)
fast = settings(max_examples=60, deadline=None, database=None)
anything = st.text(st.characters(exclude_categories=["Cs"])) | st.text(
    alphabet=" \n\r\t'ab1,.<|é東\u00a0\u2028", max_size=60
)


@pytest.fixture(scope="module")
def bpe():
    return BPETokenizer.train([TEXT], vocab_size=700)


@pytest.fixture(scope="module")
def slow(bpe):
    return BPETokenizer(bpe.rust, engine="tokenizers")


@fast
@given(st.text(min_size=1).filter(lambda t: len(set(t)) > 1))
def test_characters_round_trip(text):
    tok = CharTokenizer.from_text(text)
    ids = tok.encode(text)
    assert (
        tok.decode(ids) == text
        and ids.dtype == np.uint16
        and ids.tolist() == [sorted(set(text)).index(c) for c in text]
    )


def test_characters_refuse():
    tok = CharTokenizer.from_text("hello")
    refuses(r"lacks 'B', 'y'[^'y]*$", tok.encode, "hell Byyy".replace(" ", ""))
    refuses("and 14 more", tok.encode, "abcdfghijkmnpqrstuvwxyz")
    for bad in "", "a", "aaaa":
        with pytest.raises(GpubError):
            CharTokenizer.from_text(bad)
    refuses("repeats", CharTokenizer, "aba")
    for bad in [4], [-1]:
        refuses(str(bad[0]), tok.decode, bad)
    assert tok.decode([]) == "" and tok.encode("").tolist() == []


def test_characters_beyond_uint16():
    tok = CharTokenizer(map(chr, [*range(0x20, 0xD800), *range(0xE000, 0x12000)]))
    text = chr(0x11FFF) + "a"
    assert (
        tok.vocab_size > 1 << 16
        and tok.encode(text).dtype == np.uint32
        and tok.decode(tok.encode(text)) == text
    )


def test_order_of_characters_is_part_of_the_fingerprint():
    assert CharTokenizer("ab").fingerprint != CharTokenizer("ba").fingerprint


def test_engine_is_proved(bpe):
    assert bpe.engine == "tiktoken" and bpe.same_as_tiktoken()


@fast
@given(text=anything)
def test_text_round_trip_and_engines_agree(bpe, slow, text):
    ids = bpe.encode(text)
    assert (
        bpe.decode(ids) == text == slow.decode(ids) and ids.tolist() == slow.encode(text).tolist()
    )
    assert ids.size == 0 or ids.max() < bpe.vocab_size - len(SPECIALS)


@pytest.fixture(scope="module", params=[GPT2_PATTERN, LLAMA3_PATTERN])
def published(request):
    "The same tokenizer, with each engine"
    tok = BPETokenizer.train([TEXT], vocab_size=700, pattern=request.param)
    return tok, BPETokenizer(tok.rust, engine="tokenizers")


@fast
@given(text=anything)
def test_engines_agree_on_patterns_that_look_ahead(published, text):
    quick, slow = published
    assert (quick.engine, slow.engine) == ("tiktoken", "tokenizers")
    for spaced in (text, f"  {text}   ", text.replace(" ", "  \n ")):
        assert quick.encode(spaced).tolist() == slow.encode(spaced).tolist()


@pytest.mark.full(instead="test_text_round_trip_and_engines_agree")
def test_both_engines_cut_every_character_alike():
    text = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000)
    bare = {bytes([b]): b for b in range(256)}
    for kind in r"\p{L}", r"\p{N}", r"\s":
        one = bytes(
            tiktoken.Encoding(
                kind, pat_str=kind, mergeable_ranks=bare, special_tokens={}
            ).encode_ordinary(text)
        ).decode()
        split = pre_tokenizers.Split(Regex(f"(?:{kind})+"), "removed")
        other = "".join(
            p
            for i in range(0, len(text), 1 << 15)
            for p, _ in split.pre_tokenize_str(text[i : i + (1 << 15)])
        )
        assert len(one) > 20 and set(one).isdisjoint(other) and len(one) + len(other) == len(text)


def test_many_texts_at_once(bpe, slow):
    rng = random.Random(0)
    texts = [TEXT[i : i + rng.randrange(300)] for i in range(0, len(TEXT), 400)] + ["", "x"]
    want = [bpe.encode(t).tolist() for t in texts]
    for tok in bpe, slow:
        assert [i.tolist() for i in tok.encode_batch(texts)] == want and [
            i.tolist() for i in tok.encode_batch(texts, threads=1)
        ] == want
    assert all(i.dtype == np.uint16 for i in bpe.encode_batch(texts))


def test_unproved_vocabulary_stays_with_the_reference():
    vocab = {c: i for i, c in enumerate(sorted(BYTE_OF))} | {"ab": 256, "bc": 257, "abc": 258}
    tok = BPETokenizer(
        byte_level(models.BPE(vocab=vocab, merges=[("a", "b"), ("b", "c"), ("a", "bc")]), PATTERN)
    )
    forced = BPETokenizer(tok.rust, engine="tiktoken")
    assert (
        tok.engine == "tokenizers"
        and not tok.same_as_tiktoken()
        and tok.encode("abc").tolist() != forced.encode("abc").tolist()
    )


def test_no_tiktoken(monkeypatch, bpe):
    monkeypatch.setattr(bpe_module, "find_spec", lambda name: None)
    other = BPETokenizer(bpe.rust)
    assert other.engine == "tokenizers" and other.encode(TEXT).tolist() == bpe.encode(TEXT).tolist()


def test_sixty_lines_equal_rust():
    for text in TEXT, "aaaa aaa aa a bbb abab " * 9, "ababab cdcd " * 3 + "xyxy  \n\n" * 3:
        mini, rust = (
            MiniBPE.train(text, 400),
            BPETokenizer.train([text], vocab_size=400, specials=()),
        )
        assert list(mini.ranks) == rust.merges and len(mini.tokens) == rust.vocab_size
        assert (
            mini.encode(TEXT[:3000]) == rust.encode(TEXT[:3000]).tolist()
            and MiniBPE(rust.merges).decode(mini.encode(text)) == text
        )


def test_special_tokens(bpe):
    assert (
        list(bpe.specials.items()) == list(zip(SPECIALS, range(700, 705)))
        and bpe.vocab_size == 705
        and bpe.end == 700
        and len(SPECIALS) == 5
    )
    text = "To be<|endoftext|>or"
    plain, marked = bpe.encode(text), bpe.encode(text, special=True)
    assert (
        700 not in plain
        and marked.tolist().count(700) == 1
        and bpe.decode(plain) == bpe.decode(marked) == text
    )


def test_lone_surrogate_becomes_a_replacement_character(bpe, slow):
    for tok in bpe, slow:
        assert (
            tok.decode(tok.encode("a\ud800b")) == "a\ufffdb"
            and tok.decode(tok.encode_batch(["a\ud800b"])[0]) == "a\ufffdb"
        )


def test_files(tmp_path, bpe):
    for i, tok in enumerate([bpe, CharTokenizer.from_text(TEXT)]):
        again = load_tokenizer(tok.save(tmp_path / str(i)).parent)
        assert (
            again.fingerprint == tok.fingerprint
            and again.encode(TEXT).tolist() == tok.encode(TEXT).tolist()
        )
    assert (
        Tokenizer.from_file(str(tmp_path / "0" / "tokenizer.json")).encode("To be").ids
        == bpe.encode("To be").tolist()
    )
    assert BPETokenizer.train([TEXT], vocab_size=699).fingerprint != bpe.fingerprint
    bad = tmp_path / "tokenizer.json"
    for content in (
        "",
        "{",
        "[]",
        '{"type": "word"}',
        '{"type": "char", "chars": 5}',
        '{"model": {"type": "WordPiece"}}',
    ):
        bad.write_text(content)
        refuses("tokenizer.json", load_tokenizer, tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "BPE"}}')
    refuses("not a whole tokenizer file", load_tokenizer, tmp_path)
    refuses("nowhere", load_tokenizer, tmp_path / "nowhere")


def test_gpt2_files(tmp_path):
    spell = {b: c for c, b in BYTE_OF.items()}
    merges = ["Ġ t", "h e", "Ġt he", "i n"]
    vocab = [spell[b] for b in BYTES] + [m.replace(" ", "") for m in merges] + ["<|endoftext|>"]
    (tmp_path / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(vocab)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    tok = load_tokenizer(tmp_path)
    assert (
        tok.vocab_size == 261
        and tok.end == 260
        and tok.engine == "tiktoken"
        and tok.pattern == GPT2_PATTERN
        and [tok.tokens[i] for i in tok.encode(" the inn")] == [b" the", b" ", b"in", b"n"]
    )
    assert (
        pieces("it's  ok", GPT2_PATTERN) == ["it", "'s", " ", " ok"]
        and tok.decode(tok.encode(TEXT)) == TEXT
    )
    (tmp_path / "merges.txt").write_text("h e\nq q\n")
    refuses("do not belong together", load_tokenizer, tmp_path)
    (tmp_path / "merges.txt").write_text("h e x\n")
    refuses("no merges file", load_tokenizer, tmp_path)


def test_training_refuses():
    refuses("256", BPETokenizer.train, [TEXT], vocab_size=100)
    with pytest.raises(GpubError, match="at most"):
        # Rust would ask for the memory and end the process
        BPETokenizer.train([TEXT], vocab_size=10**12)
    for empty in [], ["", ""]:
        refuses("no text", BPETokenizer.train, empty)


def test_sample_and_report(bpe):
    texts = {"a": ["x" * 100] * 100, "b": ["é" * 50] * 100}
    sample = stratified(texts, 2000, dict(a=3, b=1))
    assert {k: sum(len(t.encode()) for t in v) for k, v in sample.items()} == {"a": 1500, "b": 500}
    r = tokenizer_report(bpe, dict(plays=[TEXT[:5000], TEXT[5000:9000]], empty=[]))
    used = set(bpe.encode(TEXT[:5000])) | set(bpe.encode(TEXT[5000:9000]))
    assert (
        r["sources"]["plays"]["round_trip"]
        and r["sources"]["plays"]["bytes"] == len(TEXT[:9000].encode())
        and r["sources"]["empty"]["tokens"] == 0
    )
    assert set(r["dead"]) == set(range(700)) - used and r["sources"]["plays"]["bytes_per_token"] > 2


@pytest.mark.parametrize(
    "pattern, lost",
    [
        (r"[a-zA-Z]+|\s+|\d+", "\\x00"),
        (r"\p{L}+|\p{N}+|[^\s\p{L}\p{N}]+|\n", "\\t"),
        (r"\S+|\s+(?=\S)", " "),
    ],
)
def test_a_pattern_that_leaves_characters_out_is_refused(pattern, lost):
    "tiktoken drops what no piece holds, and says nothing"
    with pytest.raises(GpubError, match="pattern .* leaves .* out") as e:
        BPETokenizer.train(["some text, and some text"] * 9, 300, pattern=pattern)
    assert lost in str(e.value) and "\n" not in str(e.value)
