"""The built-in plays: one text, one derivation; the entropy from the grammar is what the ideal
reader pays."""

import hashlib
import math
import os
import random
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from gpub.data.plays import (
    Grammar,
    Markov,
    ideal_error,
    play,
    plays,
    plays_char_nll,
    plays_entropy,
    plays_nll,
    scene_start,
    sees_future,
)

TEXT = plays(300_000, seed=5)


def test_the_same_seed_is_the_same_play_in_any_process():
    code = (
        "from gpub.data.plays import plays; import hashlib; print(hashlib.sha256(plays(50_000, "
        "seed=5).encode()).hexdigest())"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": h},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for h in "12"
    }
    assert runs == {hashlib.sha256(TEXT[:50_000].encode()).hexdigest() + "\n"}
    assert plays(2_000, seed=6) != TEXT[:2_000]


@pytest.mark.parametrize("chars", [0, 1, 1_999, 50_000])
def test_exact_length_and_prefix(chars):
    assert plays(chars, seed=5) == TEXT[:chars] and len(plays(chars, seed=5)) == chars


def test_layout_and_alphabet():
    assert (
        len(set(TEXT)) <= 65
        and TEXT.isascii()
        and "CAPTAIN:\n" in TEXT
        and "[Exeunt.]\n\n" in TEXT
        and "\n\n\n" not in TEXT
    )
    speakers = [a.split(":")[0] for a in TEXT.split("\n\n") if a.split("\n")[0].endswith(":")]
    heads = [i for i, b in enumerate(TEXT.split("\n\n")) if b.startswith("SCENE")]
    assert len(set(speakers)) == 9 and len(heads) > 50


def test_nobody_answers_himself():
    for scene in TEXT.split("SCENE. ")[1:]:
        who = [b.split(":")[0] for b in scene.split("\n\n") if b.split("\n")[0].endswith(":")]
        assert all(a != b for a, b in zip(who, who[1:]))


@pytest.mark.parametrize("args", [(-1,), (1.5,), ("10",), (10, -1), (10, "x"), (True,)])
def test_bad_amounts_are_refused(args):
    with pytest.raises(ValueError, match="whole number"):
        plays(*args)


def test_entropy_is_what_the_ideal_reader_pays():
    nats, chars = plays_nll(TEXT)
    error = ideal_error(TEXT)
    assert 0 < error < 0.004 and abs(nats / chars - plays_entropy()) < 3 * error


def test_the_error_bar_is_honest():
    "Over independent texts, the deviation in standard errors has variance one"
    z = [
        (plays_char_nll(t).mean() - plays_entropy()) / ideal_error(t)
        for t in (plays(50_000, seed=s) for s in range(100, 120))
    ]
    assert 0.5 < np.std(z) < 1.7 and abs(np.mean(z)) < 4 / math.sqrt(len(z))


def test_characters_add_up_and_a_longer_text_is_no_likelier():
    text = TEXT[:3_000]
    nll = plays_char_nll(text)
    assert nll.min() >= 0 and math.isclose(nll.sum(), plays_nll(text)[0])
    totals = [plays_nll(text[:n])[0] for n in range(1, 400)]
    assert np.diff(totals).min() > -1e-9 and np.allclose(np.diff([0] + totals), nll[:399])


def test_next_characters_are_a_distribution():
    "After any beginning, the probabilities of all possible next characters add up to one"
    for n in [0, 10, 40, 100, 333, 1_000, 2_500]:
        odds = 0
        for c in sorted(set(TEXT)):
            try:
                odds += math.exp(-plays_char_nll(TEXT[:n] + c)[-1])
            except ValueError:
                pass
        assert math.isclose(odds, 1)


def test_dice_and_reader_agree_on_every_toy_text():
    """Enumerate a finite grammar: the reader's probabilities of whole texts add up to one and give
    its entropy"""
    g = Grammar(
        {
            "s": {"a{x}b{x}": 2, "c{y}": 1, "ax{y}": 1},
            "x": {"p": 3, "qq": 1, "qr": 2},
            "y": {"1.": 1, "2{x}!": 5},
        },
        "s",
    )
    seen = {g.write(random.Random(i)) for i in range(3_000)}
    nats = {t: g.char_nll(t).sum() for t in seen}
    assert math.isclose(sum(math.exp(-n) for n in nats.values()), 1)
    assert math.isclose(sum(math.exp(-n) * n for n in nats.values()), g.per_text()[0])
    assert math.isclose(sum(math.exp(-n) * len(t) for t, n in nats.items()), g.per_text()[1])


def test_recursion_is_solved_exactly():
    g = Grammar({"s": {"a{s}": 3, "b": 1}}, "s")  # geometric: 3 on average, then b
    nats, chars = g.per_text()
    assert math.isclose(chars, 4) and math.isclose(
        nats, 4 * -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    )


# told apart after any number of characters
AMBIGUOUS = [
    {
        "s": {"{bird}{end}": 1},
        "bird": {"crow": 1, "crown": 1},
        "end": {"n.": 1, ".": 1},
    },  # two stories, one text
    {
        "s": {"{a}": 1, "{b}": 1},
        "a": {"moon": 1},
        "b": {"moon": 1, "sun": 1},
    },  # the same word from two rules
    {"s": {"x": 1, "x{t}": 1}, "t": {"y": 1}},  # one the beginning of another
    {"s": {"x{t}.": 1}, "t": {"": 1, "y": 1}},  # nothing is the beginning of everything
    {"s": {"{t}a.": 1, "{t}b.": 1}, "t": {"z{t}": 1, "y": 1}},
]


@pytest.mark.parametrize("rules", AMBIGUOUS)
def test_an_ambiguous_grammar_is_refused(rules):
    with pytest.raises(ValueError, match="ambiguous"):
        Grammar(rules, "s")


def test_the_play_with_one_bad_word_is_refused(monkeypatch):
    import gpub.data.plays as P

    monkeypatch.setitem(P.PLAY_WORDS, "noun", P.PLAY_WORDS["noun"] | {"moons": 1})
    with pytest.raises(ValueError, match=r"ambiguous.*moon"):
        play.__wrapped__()


@pytest.mark.parametrize(
    "rules, says",
    [
        ({"s": {"{t}": 1}}, "does not have: {t}"),
        ({"s": {}}, "positive weights"),
        ({"s": {"a": 0}}, "positive weights"),
        ({"s": {"a{": 1}}, "brace"),
        ({"s": {"{s}a": 1, "b": 1}}, "begin with itself"),
    ],
)
def test_a_broken_grammar_is_refused(rules, says):
    with pytest.raises(ValueError, match=says):
        Grammar(rules, "s")


def test_a_grammar_that_never_ends_has_no_entropy():
    with pytest.raises(ValueError, match="never ends"):
        Grammar({"s": {"a{s}{s}": 1, "b": 1}}, "s").entropy()


@pytest.mark.parametrize(
    "text, at",
    [
        ("To be", 0),
        (TEXT[:500] + "#", 500),
        (TEXT[:200] + TEXT[:50], 200),
        (TEXT[1:300], 0),
        ("SCENE. A laboratory", 11),
    ],
)
def test_a_text_the_grammar_cannot_write_is_refused_with_its_place(text, at):
    with pytest.raises(ValueError, match=rf"character {at}\)"):
        plays_nll(text)


def test_every_single_typo_is_found_or_costs():
    "Replace one character by '#', which no rule contains: refused at exactly that place"
    for at in random.Random(0).sample(range(2_000), 50):
        with pytest.raises(ValueError, match=rf"character {at}\)"):
            plays_nll(TEXT[:at] + "#" + TEXT[at + 1 : 2_000])


def test_a_split_in_the_middle_of_a_scene():
    split = 270_001
    val = TEXT[split:]
    skip = scene_start(val)
    assert skip > 0 and np.allclose(
        plays_char_nll(val[skip:]), plays_char_nll(TEXT)[split + skip :]
    )
    with pytest.raises(ValueError, match="no scene begins"):
        scene_start("GHOST:\nBoo.")
    with pytest.raises(ValueError, match="2 whole scenes"):
        ideal_error(TEXT[:100])


def test_alarm():
    assert sees_future(0.30, 0.45, 0.01) and "future" in sees_future(0.44, 0.45)
    assert (
        sees_future(0.42, 0.45, 0.01) is None
        and sees_future(0.46, 0.45) is None
        and sees_future(0.45, 0.45) is None
    )


@pytest.mark.parametrize("order", [0, 1, 2])
def test_markov_entropy_is_what_a_reader_pays(order):
    source = Markov(order, "abc", seed=order)
    text = source.sample(60_000, seed=9)
    pairs = Counter(text[i : i + order + 1] for i in range(len(text) - order))
    contexts = Counter(text[i : i + order] for i in range(len(text) - order))
    # conditional entropy of the counts
    counted = sum(n * math.log(contexts[w[:order]] / n) for w, n in pairs.items()) / (
        len(text) - order
    )

    def at(w):
        return sum(source.alphabet.index(c) * 3**i for i, c in enumerate(reversed(w)))

    odds = {w: source.odds[at(w[:order]), at(w[order])] for w in pairs}
    paid = np.array([-math.log(odds[text[i : i + order + 1]]) for i in range(len(text) - order)])
    blocks = paid[:59_000].reshape(-1, 100).mean(1)
    error = blocks.std(ddof=1) / math.sqrt(len(blocks))  # blocks: neighbours are not independent
    assert abs(paid.mean() - source.entropy()) < 3.5 * error and abs(
        counted - source.entropy()
    ) < 3.5 * error + 2 * 3 ** (order + 1) / len(text)
    assert source.sample(100, seed=9) == text[:100] and math.isclose(source.stationary().sum(), 1)
    if order == 1:
        assert np.allclose(source.stationary() @ source.odds, source.stationary())
