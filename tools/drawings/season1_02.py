"Chapter 2: the pipeline, byte-pair merges, MinHash, shards and the order of reading"

from .style import Drawing


def data_pipeline():
    d = Drawing(
        "The data pipeline",
        "The data pipeline. Raw documents are read in chunks, cleaned, freed of duplicates and of "
        "benchmark questions, encoded into token ids, mixed and written as shards. What is dropped "
        "leaves with a reason; every stage keeps its output on disk, so a kill costs one chunk.",
        width=700,
        height=322,
    )
    w, h, gap = 142, 58, 30
    xs = [24 + i * (w + gap) for i in range(4)]
    raw = d.box(xs[0], 40, w, h, "raw documents", "web, books, code", "thing")
    read = d.box(xs[1], 40, w, h, "read", "chunks of 4 MB")
    clean = d.box(xs[2], 40, w, h, "clean", "repair, or drop")
    dedup = d.box(xs[3], 40, w, h, "deduplicate", "equal and alike")
    exam = d.box(xs[3], 182, w, h, "decontaminate", "test questions out")
    encode = d.box(xs[2], 182, w, h, "encode", "byte pairs: ids")
    mix = d.box(xs[1], 182, w, h, "mix and split", "by tokens, by family")
    shards = d.box(xs[0], 182, w, h, "shards", "2 bytes a token", "good")
    for a, b in ((raw, read), (read, clean), (clean, dedup)):
        d.arrow(a.right, b.left)
    d.arrow(dedup.bottom, exam.top)
    for a, b in ((exam, encode), (encode, mix), (mix, shards)):
        d.arrow(a.left, b.right)
    gone = d.box(xs[2] - 36, 122, 178, 34, "", "dropped, with a reason", "warm", 17)
    d.arrow((clean.middle[0], 98), (clean.middle[0], 122), kind="dashed")
    d.arrow((xs[3] + 20, 98), (xs[3] + 20, 139), gone.right, kind="dashed")
    d.arrow((xs[3] + 20, 182), (xs[3] + 20, 139), kind="dashed", head=False)
    disk = d.box(
        xs[1],
        270,
        3 * w + 2 * gap,
        30,
        "",
        "on disk after every stage: a kill costs one chunk",
        "quiet",
        15,
    )
    for box in (mix, encode, exam):
        d.arrow(box.bottom, (box.middle[0], disk.y), kind="dashed")
    return d


def bpe_merges():
    d = Drawing(
        "Byte-pair encoding of one word",
        "Byte-pair encoding of the word there, with merges learned from the text: the then there "
        "other the. The pair h, e stands there five times and becomes he; t, he, five times, "
        "becomes the; the, r, twice, becomes ther. No other pair comes twice.",
        width=620,
        height=306,
    )
    rows = (
        (("t", "h", "e", "r", "e"), (1, 2), "h + e", "5 times in the text"),
        (("t", "he", "r", "e"), (0, 1), "t + he", "5 times"),
        (("the", "r", "e"), (0, 1), "the + r", "2 times"),
        (("ther", "e"), (), "", "no pair comes twice: done"),
    )
    cell, x0 = 48, 40
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
            d.text(330, y + 16, f"merge {i + 1}:  {rule}", "code", "start")
            d.text(330, y + 34, count, "note", "start")
        else:
            d.text(330, y + 24, count, "note", "start")
    return d


def minhash():
    d = Drawing(
        "MinHash",
        "MinHash. The shingles of two texts are put into a random order, and each text notes its "
        "first. Both notes are equal exactly if the first of all is common to both, and the chance "
        "of that is common over all: the Jaccard similarity, here 3 of 6.",
        width=680,
        height=316,
    )
    kinds = {"A": "module", "B": "warm", "both": "good"}
    owner = {"a": "A", "b": "both", "c": "both", "d": "both", "e": "B", "f": "B"}
    orders = (("first order", "cafdbe"), ("second order", "efbacd"), ("third order", "dbeafc"))
    for i, (kind, words) in enumerate(
        (("A", "only in A"), ("both", "in both"), ("B", "only in B"))
    ):
        d.box(150 + i * 118, 22, 22, 22, kind=kinds[kind])
        d.text(180 + i * 118, 38, words, "note", "start")
    d.text(540, 38, "A notes", "note")
    d.text(616, 38, "B notes", "note")
    for i, (name, order) in enumerate(orders):
        y = 62 + i * 76
        d.text(24, y + 24, name, "note", "start")
        for j, shingle in enumerate(order):
            d.box(
                130 + j * 58, y, 48, 38, shingle, kind=kinds[owner[shingle]], corner=8, font="code"
            )
        notes = [next(s for s in order if owner[s] in (text, "both")) for text in "AB"]
        for k, note in enumerate(notes):
            d.box(516 + k * 76, y, 48, 38, note, kind=kinds[owner[note]], corner=8, font="code")
        d.text(578, y + 58, "equal" if notes[0] == notes[1] else "not equal", "note")
    d.text(24, 300, "each letter stands for one shingle, a run of a few words", "note", "start")
    return d


def shard_and_sampler():
    d = Drawing(
        "Shards and the sampler",
        "Documents, each closed by an end token, are laid end to end into one row of ids, which is "
        "stored as shard files and read as windows of equal length. Which windows a step reads is "
        "computed from the seed and the number of the step; nothing is remembered.",
        width=700,
        height=352,
    )
    x0, whole = 110, 560
    d.text(24, 51, "documents", "note", "start")
    sizes, kinds = (150, 92, 206, 112), ("module", "warm", "plum", "good")
    x = x0
    for i, (size, kind) in enumerate(zip(sizes, kinds, strict=True)):
        d.box(x, 30, size - 22, 34, f"document {i + 1}" if size > 120 else str(i + 1), kind=kind)
        d.box(x + size - 22, 30, 16, 34, kind="quiet", corner=3)
        x += size
    d.text(x0 + whole, 82, "gray: the end token", "note", "end")
    d.text(24, 121, "shard files", "note", "start")
    for i, size in enumerate((280, 280)):
        d.box(x0 + i * 280, 100, size - 6, 34, f"train-0000{i}.bin", kind="thing", font="code")
    d.text(24, 191, "windows", "note", "start")
    chosen = {2: "blue", 5: "blue"}
    places = []
    for i in range(8):
        kind = "module" if i in chosen else "thing"
        places.append(d.box(x0 + i * 70, 170, 64, 34, str(i), kind=kind, font="number"))
    sampler = d.box(x0 + 158, 268, 238, 56, "the sampler", "(seed, step) -> windows", "good")
    d.box(24, 268, 150, 56, "seed 0, step 1", "all it is told", "thing")
    d.arrow((174, 296), sampler.left)
    for i in chosen:
        d.arrow((sampler.x + (60 if i == 2 else 178), 268), places[i].bottom)
    batch = d.box(552, 268, 118, 56, "batch", "windows 2 and 5", "module")
    d.arrow(sampler.right, batch.left)
    return d


PICTURES = (data_pipeline, bpe_merges, minhash, shard_and_sampler)
