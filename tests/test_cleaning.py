"""Cleaning never makes things worse: it is idempotent, its result is valid Unicode, and duplicates
planted are duplicates found."""

import gzip
import json
import random
import unicodedata

import numpy as np
import pytest
from contracts import refuses
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpub.core import GpubError
from gpub.prep.clean import Rules, clean, ngram_hashes, word_hashes
from gpub.prep.contamination import Benchmarks
from gpub.prep.dedup import (
    by_band,
    near_repeats,
    repeats,
    signatures,
)
from gpub.prep.scan import KNOWN, Scan, is_chant, pass_gate, scan_texts

# lone surrogates, controls, everything
ANY = st.text(alphabet=st.characters(exclude_categories=()), max_size=400)
LOOSE = Rules(min_chars=0, max_broken=1, max_symbols=1, max_repeats=1)


@settings(deadline=None, max_examples=200)
@given(ANY)
@example("Ð\x1f\x80")  # what one repair leaves is work for another
@example("A\u0303\x80")
def test_cleaning_is_idempotent_and_gives_valid_text(text):
    once, _ = clean(text, LOOSE)
    assert (
        once.encode().decode() == once
        and unicodedata.is_normalized("NFC", once)
        and not any(c < " " and c not in "\n\t" or c in "\x7f\ufeff" for c in once)
    )
    assert clean(once, LOOSE) == (once, [])


@settings(deadline=None, max_examples=100)
@given(
    st.text(alphabet=st.characters(exclude_categories=("Cs", "Cc")), max_size=200).map(
        lambda t: unicodedata.normalize("NFC", t).replace("\ufeff", "")
    )
)
def test_good_text_is_left_alone(text):
    if not any(c in text for c in "ÃÂâÐÑ\ufffd"):
        assert clean(text, LOOSE) == (text, [])


@pytest.mark.parametrize(
    "text",
    [
        "El Niño, señor Peña",
        "Ça va très bien, château, âne",
        "Århus Ålborg Øresund",
        "Ñandú — “quoted”",
        "Đà Nẵng",
    ],
)
def test_real_accents_are_not_repaired(text):
    assert clean(text * 20, LOOSE) == (text * 20, [])


def test_mojibake_is():
    for good in ("café “open” — très cher", "naïve Grüße"):
        assert (
            clean(
                good.encode().decode("cp1252", "ignore")
                if "”" not in good
                else good.encode().decode("latin-1"),
                LOOSE,
            )[0]
            == good
        )


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.integers(0, 50), max_size=30), max_size=8), st.integers(1, 60))
def test_exact_duplicates_in_any_number_of_files(parts, at_once):
    seen, want = set(), []
    for i, x in enumerate(x for p in parts for x in p):
        if x in seen:
            want.append(i)
        seen.add(x)
    loads = [lambda p=p: np.array(p, np.uint64) for p in parts]
    assert repeats(loads, at_once=at_once).tolist() == want


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text(st.sampled_from("abcé"), min_size=1, max_size=8), min_size=1, max_size=30))
def test_equal_words_equal_numbers(words):
    h, _ = word_hashes(" ".join(words))
    assert len(h) == len(words)
    assert [h.tolist().index(x) for x in h.tolist()] == [words.index(w) for w in words]
    assert len(ngram_hashes(h, 3)) == max(0, len(words) - 2)


def test_planted_near_duplicates_recall_and_precision(record_property):
    rng = random.Random(1)
    vocab = [f"w{i}" for i in range(3000)]

    def doc():
        return [rng.choice(vocab) for _ in range(250)]

    def change(d, n):
        spots = set(rng.sample(range(250), n))
        return [rng.choice(vocab) if i in spots else w for i, w in enumerate(d)]

    originals = [doc() for _ in range(400)]
    # Jaccard of 5-word runs about 0.89 and 0.37
    near, far = (
        [change(d, 3) for d in originals[:100]],
        [change(d, 40) for d in originals[100:200]],
    )
    found = set(
        near_repeats(signatures([" ".join(d) for d in originals + near + far]), 0.8).tolist()
    )
    planted = set(range(400, 500))
    recall, precision = len(found & planted) / 100, len(found & planted) / max(1, len(found))
    record_property("recall", recall)
    record_property("precision", precision)
    print(f"recall {recall}, precision {precision}")
    assert recall >= 0.95 and precision >= 0.98


def test_near_duplicates_in_any_number_of_files(tmp_path):
    rng = random.Random(5)
    docs = [" ".join(rng.choice("abcdefghijklmnop") for _ in range(60)) for _ in range(300)]
    docs += [d + " and more" for d in docs[:90]] + docs[:9]
    sigs = signatures(docs)
    skip = list(range(390, 399))
    want = near_repeats(sigs, 0.6, skip).tolist()
    assert len(want) > 60 and not set(want) & set(skip)
    assert want == near_repeats(lambda: by_band(sigs), 0.6, skip, tmp_path, at_once=37).tolist()
    assert near_repeats(sigs[:0]).tolist() == [] and not list(tmp_path.iterdir())


def test_a_cluster_keeps_its_first():
    base = " ".join(f"w{i}" for i in range(300))
    docs = [base + f" tail {i}" for i in range(20)] + [
        "something else entirely " + " ".join(f"v{i}" for i in range(200))
    ]
    assert near_repeats(signatures(docs), 0.8).tolist() == list(range(1, 20))


@pytest.fixture
def bench(tmp_path):
    q = (
        "which of the following best explains why the seasons change on the surface of our "
        "planet during one year"
    )
    (tmp_path / "quiz.jsonl").write_text(json.dumps({"q": q}) + "\n")
    return Benchmarks([tmp_path]), q


def test_a_benchmark_of_named_parts_is_read_too(bench, tmp_path):
    (tmp_path / "quiz.jsonl").unlink()
    (tmp_path / "parts.json").write_text(json.dumps({"version": 1, "data": [{"q": bench[1]}]}))
    assert Benchmarks([tmp_path]).hits("So: " + bench[1]) == ["parts.json"]


_packed = gzip.compress(random.Random(0).randbytes(2000))


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.json", b"5"),
        ("a.json", b"[" * 200_000),
        ("a.jsonl", b'{"q": '),
        ("a.csv", b'"' + b"x" * 200_000),
        ("a.jsonl.gz", _packed[:900]),
        ("a.txt.gz", _packed[:20] + b"\xff" * 40 + _packed[60:]),
        ("a.txt.gz", b"none"),
    ],
)
def test_a_broken_benchmark_file_is_one_line(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    refuses(f"{name}: not a readable benchmark file", Benchmarks, [tmp_path])


def test_scan_finds_what_was_planted_and_only_that():
    rng = random.Random(2)
    words = [f"word{i}" for i in range(4000)]
    docs = {
        s: [" ".join(rng.choice(words) for _ in range(200)) for _ in range(500)]
        for s in ("web", "code")
    }
    for i, w in enumerate((*KNOWN[:4], "quuxflarb")):
        for k in range(4):
            docs["code"][50 * i + k] += f" {w} = {w}({w})" * 5
    docs["web"][7] += " The class InstanceState of SQLAlchemy; see InstanceState."
    scan = Scan()
    for s, d in docs.items():
        for i in range(0, 500, 70):
            scan.add(s, scan_texts(d[i : i + 70]))
    assert (
        scan.sources["code"].known == {w: 4 for w in KNOWN[:4]}
        and scan.sources["web"].known == {"InstanceState": 1}
        and not +scan.sources["web"].chants
    )
    assert {w for w, *_ in scan.attractors("code")} == {
        *KNOWN[:4],
        "quuxflarb",
    } and scan.attractors("web") == []
    assert scan.rate() == 16e3, "a mention is no chant"
    assert "PersonX" in scan.table()
    pass_gate(scan.rate(), scan.worst(), 16e3)
    with pytest.raises(GpubError, match="gate allows 5; most: .* in 4 documents of 'code'"):
        pass_gate(scan.rate(), scan.worst(), 5)


def test_scan_does_not_depend_on_the_pieces():
    rng = random.Random(3)
    docs = [
        " ".join(rng.choice(["alpha", "beta", "PersonX", "gamma3"]) for _ in range(60))
        for _ in range(40)
    ]

    def scanned(n):
        s = Scan()
        for i in range(0, 40, n):
            s.add("a", scan_texts(docs[i : i + n]))
        return s.to_dict()

    assert scanned(40) == scanned(7) == scanned(1)


def test_thresholds_are_checked():
    refuses("max_repeats is a share between 0 and 1, got 7", Rules, max_repeats=7)
    refuses("min_chars 9", Rules, min_chars=9, max_chars=3)


@pytest.mark.parametrize(
    "mention",
    [
        "a construct called InstanceState, which tracks state; an InstanceState has keys",
        "see the entry for him on the Bruce Medalists website, of the winners of the Bruce Medal",
    ],
)
def test_a_page_that_names_an_attractor_passes_the_gate(mention):
    """Clean text gave 55 false alarms per million documents, with a limit of 100"""
    page = mention + " and more words of an ordinary page" * 80
    scan = Scan()
    scan.add("web", scan_texts([page]))
    assert sum(scan.sources["web"].known.values()) == 1 and scan.rate() == 0
    pass_gate(scan.rate(), scan.worst(), 0)
    word = next(iter(scan.sources["web"].known))
    assert is_chant(f"{word} = {word}({word})\n" * 20, word)


QUESTIONS = [
    dict(q="Which gas do most plants take in?", answers=["carbon dioxide", "oxygen", "helium"]),
    dict(q="The boy's mother said that he was late because of the rain", answers=["so", "no"]),
    dict(q="To open a jar, the lid must be turned", answers=["to the left with force", "up"]),
]


@pytest.fixture
def short_bench(tmp_path):
    path = tmp_path / "short.jsonl"
    path.write_text("".join(json.dumps(q) + "\n" for q in QUESTIONS))
    return Benchmarks([path], tmp_path / "saved")


@pytest.mark.parametrize("item", range(len(QUESTIONS)))
@pytest.mark.parametrize(
    "change",
    [
        str,
        str.upper,
        lambda t: t.replace("'", "\u2019").replace(" ", "\u00a0", 2),
        lambda t: "\u201c" + t.replace(",", " \u2014") + "\u201d",
        lambda t: t.replace(" ", "\n   ", 3),
    ],
)
def test_items_under_13_words_are_found_whole_whatever_their_signs(short_bench, item, change):
    """75% of OpenBookQA and 44% of PIQA had no run of 13 words and could not be found"""
    row = QUESTIONS[item]
    page = "Some text before. " * 9 + change(row["q"]) + "\nA) " + "\nB) ".join(row["answers"])
    (found,) = short_bench.find(page + "\nand more text behind it " * 9)
    assert (found.file, found.item) == ("short.jsonl", item)
    assert found.words.lower().split()[0] == row["q"].lower().split()[0]


def test_a_short_question_alone_is_no_leak(short_bench):
    assert not short_bench.find(
        "Which gas do most plants take in? " + "We shall see in spring. " * 30
    )
    assert not short_bench.find("carbon dioxide oxygen helium " * 9)
    assert short_bench.short == {}


def test_curly_quotes_do_not_hide_a_long_question(bench):
    b, q = bench
    assert b.hits("\u201c" + q.replace(" ", "\u2014", 3) + "\u201d") == ["quiz.jsonl"]


def test_a_run_of_numbers_is_no_leak(tmp_path):
    "Unit matrices and counts to thirteen made 5 of 10 findings in clean text"
    count = " ".join(map(str, range(1, 14)))
    rows = [dict(q="Sort these numbers, please: " + count), dict(q="0 " * 20)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    b = Benchmarks([tmp_path / "q.jsonl"])
    assert not b.find("x = [" + count.replace(" ", ", ") + "]") and not b.find("0 & " * 50)
    assert b.short == {"q.jsonl": 2}, "and said to be so"


def test_many_texts_at_once_are_looked_through_like_each_alone(bench, tmp_path):
    "What begins in one text and ends in the next stands in neither"
    b, q = bench
    words = q.split()
    texts = ["", f"So: {q}", " ".join(words[:7]), " ".join(words[7:]), "\u2014", f"{q}. {q}"]
    texts += ["a page of its own " * 20_000, q.upper(), f"It is \u201c{q}\u201d"]
    found = b.find_all(texts)
    assert found == [b.find(text) for text in texts]
    assert [len(some) for some in found] == [0, 1, 0, 0, 0, 1, 0, 1, 1]
    assert b.find_all([]) == []


def test_words_are_counted_in_many_texts_like_in_each_alone():
    "Also the last word of a text, before signs that begin the next"
    rng = random.Random(3)
    words = ["oak", "elms", "beech", "\u00e9tude", "x", "snake_case"]
    texts = ["", "oak", ' ... "oak', "elms"]
    for _ in range(60):
        some = rng.choices(words, k=rng.randrange(40))
        texts.append(rng.choice(["", "  ("]) + " ".join(some) + rng.choice(["", " "]))
    together, apart = Scan(), Scan()
    together.add("a", scan_texts(texts))
    for text in texts:
        apart.add("a", scan_texts([text]))
    assert (together.seen["a"] == apart.seen["a"]).all() and together.seen["a"].sum() > 100
    assert together.sources["a"].bursts == apart.sources["a"].bursts
