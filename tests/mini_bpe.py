"""Byte-level BPE from nothing, which the Rust library and the widget of a page are held against"""

from collections import Counter, defaultdict
from collections.abc import Iterable

from gpub.data.bpe import BYTES, pieces


class MiniBPE:
    "Byte-level BPE from nothing: count pairs, join the most frequent, repeat"

    def __init__(
        self,
        merges: Iterable[tuple[int, int]] = (),  # pairs of ids; pair number i makes token 256 + i
    ):
        self.tokens = [bytes([b]) for b in BYTES]
        self.ranks = {}
        self.ids = {b: i for i, b in enumerate(BYTES)}
        for pair in merges:
            self.learn(pair)

    def learn(
        self,
        pair: tuple[int, int],  # of ids
    ) -> int:  # id of the new token
        "Make a token of two"
        self.ranks[pair] = len(self.tokens)
        self.tokens.append(self.tokens[pair[0]] + self.tokens[pair[1]])
        return self.ranks[pair]

    @staticmethod
    def join(
        word: list[int],  # list of ids
        pair: tuple[int, int],  # tuple of two ids
        new: int,  # id that stands for both
    ) -> list[int]:
        "Make every such pair of a word, from the left, one token"
        out = []
        i = 0
        while i < len(word):
            hit = tuple(word[i : i + 2]) == pair
            out.append(new if hit else word[i])
            i += 1 + hit
        return out

    @classmethod
    def train(
        cls,
        text: str,  # to count pairs in
        vocab_size: int,  # stop at so many tokens, or when no pair comes twice
    ) -> "MiniBPE":  # the tokenizer
        "Learn merges from a text"
        self = cls()
        freq = Counter(pieces(text))
        words = [[self.ids[b] for b in p.encode()] for p in freq]
        freq = list(freq.values())
        count = Counter()
        words_with = defaultdict(set)

        def tally(i: int, sign: int):
            for pair in zip(words[i], words[i][1:]):
                count[pair] += sign * freq[i]
                words_with[pair].add(i)

        for i in range(len(words)):
            tally(i, 1)
        while len(self.tokens) < vocab_size and count:
            pair = min(count, key=lambda p: (-count[p], p))
            if count[pair] < 2:
                break
            new = self.learn(pair)
            for i in words_with.pop(pair):
                tally(i, -1)
                words[i] = self.join(words[i], pair, new)
                tally(i, 1)
            count = +count  # forget pairs that are gone
        return self

    def encode(
        self,
        text: str,  # any
    ) -> list[int]:
        "Encode a text: in every piece the pair learned earliest is joined first"
        out = []
        for p in pieces(text):
            word = [self.ids[b] for b in p.encode()]
            while len(word) > 1:
                pair = min(zip(word, word[1:]), key=lambda p: self.ranks.get(p, 1 << 32))
                if pair not in self.ranks:
                    break
                word = self.join(word, pair, self.ranks[pair])
            out += word
        return out

    def decode(
        self,
        ids: Iterable[int],  # list of integers
    ) -> str:
        "Decode ids; half a character becomes U+FFFD"
        return b"".join(self.tokens[i] for i in ids).decode("utf-8", "replace")
