"""Cleaning never makes things worse: it is idempotent, its result is valid Unicode, and duplicates
planted are duplicates found."""

import gzip, json, random, unicodedata
import numpy as np, pytest
from hypothesis import example, given, settings, strategies as st
from gpub.prep.clean import (
    Rules,
    clean,
    near_repeats,
    ngram_hashes,
    repeats,
    signatures,
    word_hashes,
)
from gpub.core import GpubError
from gpub.prep.scan import KNOWN, Benchmarks, Scan, pass_gate, scan_texts

ANY = st.text(
    alphabet=st.characters(exclude_categories=()), max_size=400
)  # lone surrogates, controls, everything
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
def test_exact_duplicates_in_any_number_of_rounds(parts, at_once):
    seen, want = set(), []
    for i, x in enumerate(x for p in parts for x in p):
        if x in seen:
            want.append(i)
        seen.add(x)
    assert repeats([np.array(p, np.uint64) for p in parts], at_once).tolist() == want


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
    near, far = (
        [change(d, 3) for d in originals[:100]],
        [change(d, 40) for d in originals[100:200]],
    )  # Jaccard of 5-word runs about 0.89 and 0.37
    found = set(
        near_repeats(signatures([" ".join(d) for d in originals + near + far]), 0.8).tolist()
    )
    planted = set(range(400, 500))
    recall, precision = len(found & planted) / 100, len(found & planted) / max(1, len(found))
    record_property("recall", recall)
    record_property("precision", precision)
    print(f"recall {recall}, precision {precision}")
    assert recall >= 0.95 and precision >= 0.98


def test_near_duplicates_in_any_number_of_turns():
    rng = random.Random(5)
    docs = [" ".join(rng.choice("abcdefghijklmnop") for _ in range(60)) for _ in range(300)]
    docs += [d + " and more" for d in docs[:90]] + docs[:9]
    sigs = signatures(docs)
    skip = list(range(390, 399))
    want = near_repeats(sigs, 0.6, skip).tolist()
    assert len(want) > 60 and not set(want) & set(skip)
    assert (
        want == near_repeats(lambda: sigs, 0.6, skip, at_once=37).tolist()
        and near_repeats(sigs[:0]).tolist() == []
    )


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
    with pytest.raises(GpubError, match=f"{name}: not a readable benchmark file") as e:
        Benchmarks([tmp_path])
    assert "\n" not in str(e.value)


def test_scan_finds_what_was_planted_and_only_that(bench):
    b, q = bench
    rng = random.Random(2)
    words = [f"word{i}" for i in range(4000)]
    docs = {
        s: [" ".join(rng.choice(words) for _ in range(200)) for _ in range(500)]
        for s in ("web", "code")
    }
    for i, w in enumerate((*KNOWN[:4], "quuxflarb")):
        for k in range(4):
            docs["code"][50 * i + k] += f" {w} = {w}({w})" * 5
    docs["web"][7] += " " + q.title() + "?"
    scan = Scan()
    for s, d in docs.items():
        for i in range(0, 500, 70):
            scan.add(s, scan_texts(d[i : i + 70], KNOWN, b))
    assert (
        scan.sources["code"].known == {w: 4 for w in KNOWN[:4]}
        and not scan.sources["web"].known
        and scan.sources["web"].benchmarks == {"quiz.jsonl": 1}
    )
    assert {w for w, *_ in scan.attractors("code")} == {
        *KNOWN[:4],
        "quuxflarb",
    } and scan.attractors("web") == []
    assert scan.rate() == 17e3 and "PersonX" in scan.table()
    pass_gate(scan.rate(), scan.worst(), 17e3)
    with pytest.raises(GpubError, match="gate allows 5; most: .* in 4 documents of 'code'"):
        pass_gate(scan.rate(), scan.worst(), 5)


def test_scan_does_not_depend_on_the_pieces(bench):
    rng = random.Random(3)
    docs = [
        " ".join(rng.choice(["alpha", "beta", "PersonX", "gamma3"]) for _ in range(60))
        for _ in range(40)
    ]

    def scanned(n):
        s = Scan()
        for i in range(0, 40, n):
            s.add("a", scan_texts(docs[i : i + n], KNOWN, bench[0]))
        return s.to_dict()

    assert scanned(40) == scanned(7) == scanned(1)


def test_thresholds_are_checked():
    with pytest.raises(GpubError, match="max_repeats is a share between 0 and 1, got 7"):
        Rules(max_repeats=7)
    with pytest.raises(GpubError, match="min_chars 9"):
        Rules(min_chars=9, max_chars=3)
