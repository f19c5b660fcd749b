"""Questions that were made to find the faults of the model that talks, one kind at a time.

python -m tools.skill_faults      writes `faults` of data/skills.json

The kinds were chosen by somebody who had read forty typed conversations and the answers: they tell
why the kept model answers wrong, and a model that learns other lessons can be asked the same. They
are no blind test, and nothing in them is held out."""

import json
import random
import string
from collections.abc import Callable

from gpub.chat.calculator import calculate
from gpub.chat.skills import SkillTurn, roman_parts
from gpub.core import read_json, write_atomic
from gpub.data.tokenizer import Tokenizer
from gpub.device import use_threads
from gpub.model.gpt import Decoder
from gpub.tune.measures import judge_conversations
from gpub.tune.rollouts import eval_mode
from tools.skills import RECEIPT, WEIGHTS, packed_model

N = 100  # questions of a kind
WORDS = (
    "grammar cherry monkey football engine dance thunder green baker spoon keyboard lamp"
).split()
Talk = list[SkillTurn]


def asked(question: str, answer: object) -> SkillTurn:
    "A question and its right answer"
    return SkillTurn("", "", question, str(answer))


def made_up(rng: random.Random, size: int, doubled: bool) -> str:
    "A word of different letters that nobody has heard, or with one of them twice in a row"
    letters = rng.sample(string.ascii_lowercase, size)
    if doubled:
        at = rng.randrange(size - 1)
        letters[at + 1] = letters[at]
    return "".join(letters)


def backwards(rng: random.Random, size: int) -> Talk:
    word = made_up(rng, size, False)
    return [asked(f"spell {word} backwards", word[::-1])]


def length(rng: random.Random, doubled: bool) -> Talk:
    return [asked(f"how many letters are in {made_up(rng, 11, doubled)}?", 11)]


def difference(rng: random.Random, below: bool) -> Talk:
    small, large = sorted(rng.sample(range(100, 1000), 2))
    a, b = (small, large) if below else (large, small)
    return [asked(f"{a} - {b}", a - b)]


def longest(rng: random.Random) -> Talk:
    words = rng.sample(WORDS, 3)
    lengths = sorted(map(len, words))
    if lengths[-2] == lengths[-1]:
        return longest(rng)
    return [asked(f"which word is longer: {', '.join(words)}?", max(words, key=len))]


def equal_roman(rng: random.Random) -> Talk:
    n = 111 * rng.randint(1, 9)
    roman = "".join(text for _, text in roman_parts(n))
    return [asked(f"what number is {roman}?", n)]


def sorted_numbers(rng: random.Random, doubled: bool) -> Talk:
    numbers = rng.sample([n for n in range(10, 1000) if len(set(str(n))) == len(str(n))], 5)
    if doubled:
        digit = rng.choice("123456789")
        numbers[rng.randrange(5)] = int(digit * rng.randint(2, 3))
    typed = " ".join(map(str, numbers))
    return [asked(f"sort {typed}", ", ".join(map(str, sorted(numbers))))]


def sorted_words(rng: random.Random) -> Talk:
    words = [made_up(rng, rng.randint(3, 8), False) for _ in range(4)]
    return [asked(f"sort {', '.join(words)}", ", ".join(sorted(words)))]


def equal_digits_again(rng: random.Random) -> Talk:
    a, b, c = rng.randint(1, 9) * 1111, rng.randint(2, 9), rng.randint(2, 99)
    return [asked(f"{a} x {b}", a * b), asked(f"and times {c}?", a * b * c)]


def other_way(rng: random.Random) -> Talk:
    a, b = rng.randint(2, 99), rng.randint(2, 99)
    c = 100 * rng.randint(1, 9)
    return [asked(f"{a} + {b}", a + b), asked(f"{c} minus that", calculate(f"{c}-{a + b}"))]


KINDS = {
    "8 different letters backwards": lambda rng: backwards(rng, 8),
    "11 different letters backwards": lambda rng: backwards(rng, 11),
    "how long, 11 different letters": lambda rng: length(rng, False),
    "how long, one of 11 doubled": lambda rng: length(rng, True),
    "three digits minus three": lambda rng: difference(rng, False),
    "the same, below zero": lambda rng: difference(rng, True),
    "longest of three words": longest,
    "Roman numeral of 111 to 999": equal_roman,
    "five numbers sorted": lambda rng: sorted_numbers(rng, False),
    "the same, one of equal digits": lambda rng: sorted_numbers(rng, True),
    "four unheard words sorted": sorted_words,
    "times a number, then again": equal_digits_again,
    "600 minus that": other_way,
}


def right_share(model: Decoder, tok: Tokenizer, draw: Callable[[random.Random], Talk]) -> float:
    "Answer the questions of a kind; the last turn of a conversation counts"
    rng = random.Random(5)
    talks = [draw(rng) for _ in range(N)]
    with eval_mode(model):
        judged = judge_conversations(model, tok, talks)
    return sum(talk[-1].right for talk in judged) / N


def main():
    use_threads()
    packed = packed_model(WEIGHTS)
    faults = {}
    for name, draw in KINDS.items():
        faults[name] = right_share(*packed, draw)
        print(f"{name:32s} {faults[name]}", flush=True)
    receipt = read_json(RECEIPT)
    receipt["faults"] = dict(questions=N, right=faults)
    write_atomic(RECEIPT, json.dumps(receipt, indent=1) + "\n")


if __name__ == "__main__":
    main()
