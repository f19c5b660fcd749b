"Chapter 2 and its deeper pages: byte-pair merges, MinHash, the pipeline, shards and their order"

from .style import Drawing


def data_pipeline():
    d = Drawing(
        "The data pipeline",
        "The data pipeline. Raw documents are read in chunks, cleaned, searched for benchmark "
        "questions and encoded into token ids. Then copies are dropped, and the sources are mixed "
        "and written as shards. What is dropped leaves with a reason; every stage keeps its output "
        "on disk, so a kill costs one chunk.",
        width=400,
        height=410,
    )
    w, h = 160, 54
    left, right = 14, 226
    raw = d.box(left, 16, w, h, "raw documents", "web, books, code", "thing")
    read = d.box(right, 16, w, h, "read", "chunks of 4 MB")
    clean = d.box(right, 98, w, h, "clean", "repair, or drop")
    exam = d.box(right, 180, w, h, "decontaminate", "test questions out")
    encode = d.box(right, 262, w, h, "encode", "byte pairs: ids")
    dedup = d.box(right, 344, w, h, "deduplicate", "equal and alike")
    mix = d.box(left, 344, w, h, "mix and split", "by tokens, by family")
    shards = d.box(left, 262, w, h, "shards", "2 bytes a token", "good")
    d.arrow(raw.right, read.left)
    for a, b in ((read, clean), (clean, exam), (exam, encode), (encode, dedup)):
        d.arrow(a.bottom, b.top)
    d.arrow(dedup.left, mix.right)
    d.arrow(mix.top, shards.bottom)
    gone = d.box(left, 190, w, 34, "", "dropped, with a reason", "warm", 17)
    d.arrow(clean.left, (200, clean.left[1]), (200, gone.right[1]), gone.right, kind="dashed")
    d.arrow(exam.left, gone.right, kind="dashed")
    d.arrow((dedup.x, 356), (200, 356), (200, gone.right[1]), kind="dashed", head=False)
    disk = d.box(left, 98, w, h, kind="quiet", corner=15)
    d.text(disk.middle[0], 121, "each stage writes to disk:")
    d.text(disk.middle[0], 138, "a kill costs one chunk")
    return d


def bpe_merges():
    d = Drawing(
        "Byte-pair encoding of one word",
        "Byte-pair encoding of the word there, with merges learned from the text: the then there "
        "other the. Two pairs come five times, t, h and h, e; the rule for ties takes h, e, and it "
        "becomes he. Then t, he, five times, becomes the; the, r, twice, becomes ther. No other "
        "pair comes twice.",
        width=412,
        height=306,
    )
    rows = (
        (("t", "h", "e", "r", "e"), (1, 2), "h + e", "5 times; h is before t"),
        (("t", "he", "r", "e"), (0, 1), "t + he", "5 times"),
        (("the", "r", "e"), (0, 1), "the + r", "2 times"),
        (("ther", "e"), (), "", "no pair comes twice"),
    )
    cell, x0 = 42, 14
    d.text(x0, 22, "text: the then there other the", "note", "start")
    for i, (tokens, pair, rule, count) in enumerate(rows):
        y, x, left = 34 + i * 66, x0, None
        for j, token in enumerate(tokens):
            wide = cell * len(token) - 6
            kind = "module" if len(token) > 1 else "thing"
            box = d.box(x, y, wide, 38, token, kind=kind, corner=8, font="code")
            if j in pair:
                left = left or box.x
                right = box.x + box.w
            x += cell * len(token)
        if pair:
            d.arrow((left, y + 45), (right, y + 45), head=False)
            d.arrow(((left + right) / 2, y + 45), ((left + right) / 2, y + 63))
            d.text(248, y + 16, f"{i + 1}. {rule}", "code", "start")
            d.text(248, y + 34, count, "note", "start")
        else:
            d.text(248, y + 24, count, "note", "start")
    return d


def loss_per_letter():
    d = Drawing(
        "Loss per character",
        "The two words But soft, guessed character by character and token by token. Eight "
        "characters are eight guesses; the BPE tokens But, space so, f and t are four. Each loss "
        "is added up over its guesses and divided by the eight characters.",
        width=400,
        height=176,
    )
    cell, x0 = 28, 14
    rows = (("characters", "But soft"), ("tokens", ("But", " so", "f", "t")))
    for i, (name, tokens) in enumerate(rows):
        y, x = 34 + i * 74, x0
        d.text(x0, y - 10, f"{name}: {len(tokens)} guesses", "note", "start")
        for token in tokens:
            wide = cell * len(token) - 4
            word = token.replace(" ", "␣")
            kind = "module" if len(token) > 1 else "thing"
            d.box(x, y, wide, 36, word, kind=kind, corner=8, font="code")
            x += cell * len(token)
        d.text(x0 + 8 * cell + 10, y + 15, f"the sum of {len(tokens)}", "note", "start")
        d.text(x0 + 8 * cell + 10, y + 31, "losses / 8 characters", "note", "start")
    d.text(x0, 164, "␣ is the space in front of so", "note", "start")
    return d


def jaccard():
    d = Drawing(
        "Words in common over all words",
        "The words of two copies as two sets. The word 5 is only in the first, the word 10 only in "
        "the second, and 28 words, such as Home, Plays and Tickets, are in both. So 28 of 30 words "
        "are in common: 0.93.",
        width=400,
        height=196,
    )
    d.box(14, 44, 296, 100, kind="outside", corner=18)
    d.box(90, 54, 296, 100, kind="outside", corner=18)
    d.text(14, 32, "words of day 5", "note", "start")
    d.text(386, 32, "words of day 10", "note", "end")
    d.box(26, 80, 50, 36, "5", kind="warm", corner=8, font="code")
    d.box(324, 84, 50, 36, "10", kind="warm", corner=8, font="code")
    words = (("Home", 100, 64), ("Plays", 150, 64), ("Tickets", 208, 64), ("open", 100, 102))
    for word, x, y in words:
        d.box(x, y, 9 * len(word) + 8, 30, word, kind="good", corner=8, font="code")
    d.text(160, 122, "and 24 more in both", "note", "start")
    d.text(200, 180, "in common 28, in all 30: 28 / 30 = 0.93", "name")
    return d


def minhash():
    d = Drawing(
        "MinHash",
        "MinHash. The shingles of two texts are put into a random order, and each text notes its "
        "first. Both notes are equal exactly if the first of all is common to both, and the chance "
        "of that is common over all: the Jaccard similarity, here 3 of 6.",
        width=400,
        height=348,
    )
    kinds = {"A": "module", "B": "warm", "both": "good"}
    owner = {"a": "A", "b": "both", "c": "both", "d": "both", "e": "B", "f": "B"}
    orders = (("first order", "cafdbe"), ("second order", "efbacd"), ("third order", "dbeafc"))
    for i, (kind, words) in enumerate(
        (("A", "only in A"), ("both", "in both"), ("B", "only in B"))
    ):
        d.box(14 + i * 112, 16, 20, 20, kind=kinds[kind])
        d.text(42 + i * 112, 30, words, "note", "start")
    d.text(296, 62, "A notes", "note")
    d.text(356, 62, "B notes", "note")
    for i, (name, order) in enumerate(orders):
        y = 76 + i * 84
        d.text(14, y - 8, name, "note", "start")
        for j, shingle in enumerate(order):
            d.box(
                14 + j * 42, y, 36, 38, shingle, kind=kinds[owner[shingle]], corner=8, font="code"
            )
        notes = [next(s for s in order if owner[s] in (text, "both")) for text in "AB"]
        for k, note in enumerate(notes):
            d.box(276 + k * 60, y, 40, 38, note, kind=kinds[owner[note]], corner=8, font="code")
        d.text(326, y + 55, "equal" if notes[0] == notes[1] else "not equal", "note")
    d.text(14, 332, "each letter stands for one shingle, a run of a few words", "note", "start")
    return d


def minhash_bands():
    d = Drawing(
        "Bands and buckets",
        "Bands and buckets. The signatures of two texts are cut into bands of four numbers, of "
        "which four are drawn. Each band puts a text into the bucket with its four numbers. In the "
        "second band all four numbers are equal, so both texts are in one bucket, and only "
        "therefore are they compared.",
        width=400,
        height=300,
    )
    signatures = {
        "A": ("7294", "3185", "6610", "9427"),
        "B": ("7291", "3185", "2610", "9408"),
    }
    kinds = {"A": "module", "B": "warm"}
    wide, gap, x0 = 78, 10, 42
    for row, (name, bands) in enumerate(signatures.items()):
        y = 36 + row * 52
        d.text(24, y + 24, name, "name")
        for i, numbers in enumerate(bands):
            kind = "good" if i == 1 else kinds[name]
            d.box(x0 + i * (wide + gap), y, wide, 36, " ".join(numbers), kind=kind, font="code")
    for i in range(4):
        d.text(x0 + i * (wide + gap) + wide / 2, 24, f"band {i + 1}", "note")
    d.text(24, 160, "buckets", "note", "start")
    for i, (first, second) in enumerate(zip(*signatures.values(), strict=True)):
        x = x0 + i * (wide + gap)
        if first == second:
            d.arrow((x + wide / 2, 124), (x + wide / 2, 172))
            d.box(x, 174, wide, 54, " ".join(first), "A and B", "good")
        else:
            d.box(x, 174, wide, 46, " ".join(first), "A", "thing")
            d.box(x, 228, wide, 46, " ".join(second), "B", "thing")
    return d


def shard_and_sampler():
    d = Drawing(
        "Shards and the sampler",
        "Documents, each closed by an end token, are laid end to end into one row of ids, which is "
        "stored as shard files and read as windows of equal length. Which windows a step reads is "
        "computed from the seed and the number of the step; nothing is remembered.",
        width=400,
        height=436,
    )
    x0, whole = 14, 372
    d.text(x0, 26, "documents; gray: the end token", "note", "start")
    sizes, kinds = (100, 61, 137, 74), ("module", "warm", "plum", "good")
    x = x0
    for i, (size, kind) in enumerate(zip(sizes, kinds, strict=True)):
        d.box(x, 36, size - 18, 34, str(i + 1), kind=kind)
        d.box(x + size - 18, 36, 14, 34, kind="quiet", corner=3)
        x += size
    d.text(x0, 102, "shard files", "note", "start")
    half = whole // 2
    for i in range(2):
        d.box(x0 + i * half, 112, half - 6, 34, f"train-0000{i}.bin", kind="thing", font="code")
    d.text(x0, 178, "windows", "note", "start")
    chosen = {2: "blue", 5: "blue"}
    places = []
    for i in range(8):
        kind = "module" if i in chosen else "thing"
        places.append(d.box(x0 + i * 46.5, 188, 40, 34, str(i), kind=kind, font="number"))
    sampler = d.box(102, 266, 180, 56, "the sampler", "(seed, step) -> windows", "good")
    told = d.box(14, 364, 160, 56, "seed 0, step 1", "all it is told", "thing")
    batch = d.box(226, 364, 160, 56, "batch", "windows 2 and 5", "module")
    for i in chosen:
        x = places[i].bottom[0]
        d.arrow((x, sampler.y), places[i].bottom)
    d.arrow((140, told.y), (140, sampler.y + sampler.h))
    d.arrow((256, sampler.y + sampler.h), (256, batch.y))
    return d


PICTURES = (
    data_pipeline,
    bpe_merges,
    loss_per_letter,
    jaccard,
    minhash,
    minhash_bands,
    shard_and_sampler,
)
