"Chapter 1: embeddings, attention over four tokens, heads, the block, GPT as a whole"

from math import exp

from .style import HEAD_WEIGHTS, TOKENS, Drawing


def windows():
    d = Drawing(
        "Windows, batches, targets",
        "How a text becomes batches. It is cut into windows of equal length; each epoch deals all "
        "of them once, in a new random order, some at a time; the targets are the same windows one "
        "character later.",
        width=400,
        height=286,
    )
    text = ("First", "␣Citi", "zen:⏎", "Befor", "e␣we␣", "proce")
    kinds = ("module", "thing", "thing", "warm", "thing", "thing")
    d.text(12, 42, "the text, cut into windows of five characters", "note", "start")
    d.tokens(12, 54, text, 58, 36, 5, kinds=kinds)
    d.text(32, 140, "one batch: x", "name", "start")
    d.text(160, 140, "targets: y", "name", "start")
    d.text(268, 140, "row 1 asks", "name", "start")
    for row, (inputs, targets, kind) in enumerate(
        (("Befor", "efore", "warm"), ("First", "irst␣", "module"))
    ):
        y = 156 + row * 52
        d.text(12, y + 23, str(row + 1), "code", "start")
        x = d.box(32, y, 64, 36, inputs, kind=kind, corner=8, font="code")
        later = d.box(160, y, 64, 36, targets, kind="good", corner=8, font="code")
        d.arrow(x.right, later.left)
        d.text(128, y + 12, "one later", "note")
    for i in range(5):
        d.text(268, 166 + 25 * i, f"{'Befor'[: i + 1]:5}  →  {'efore'[i]}", "code", "start")
    return d


def embedding_rows():
    d = Drawing(
        "Token ids pick rows",
        "Token ids pick rows of the embedding table. Each of the four tokens R, O, M, E takes the "
        "row with its number, drawn in its colour, and the four rows together are what the model "
        "computes with.",
        width=400,
        height=330,
    )
    ids, rows = (30, 27, 25, 17), ((2, 0), (0, 2), (1, 0), (0, 1))
    listed = ((17, 3), (25, 2), (27, 1), (30, 0))  # as they lie in the table: id, token
    kinds = ("module", "warm", "good", "plum")  # a colour for each token
    d.text(37, 30, "tokens", "note")
    d.text(96, 30, "ids", "note")
    d.text(212, 30, "embedding table", "note")
    d.text(346, 30, "x_tc", "code")
    d.text(212, 50, "a row for each of 65 ids", "note")
    for place, (number, token) in enumerate(listed):
        y = 70 + 62 * place
        d.box(146, y + 3, 30, 30, str(number), kind=kinds[token], corner=6, font="number")
        d.matrix(184, y, [rows[token]], cell=36, high=4, decimals=0)
        if place < 3:
            d.text(220, y + 54, "⋮", "name")
    for i, (token, number, kind) in enumerate(zip(TOKENS, ids, kinds, strict=True)):
        y = 76 + 58 * i
        d.box(18, y, 38, 34, token, kind=kind, corner=8, font="code")
        d.box(77, y, 38, 34, str(number), kind=kind, corner=8, font="number")
        d.bow((56, y + 17), (77, y + 17), 0, kind=kind, head=False)
        d.box(272, y + 2, 30, 30, str(number), kind=kind, corner=6, font="number")
        d.matrix(310, y - 1, [rows[i]], cell=36, high=4, decimals=0)
    d.text(18, 318, "the same number, the same colour: the same row", "note", "start")
    return d


def query_by_hand():
    d = Drawing(
        "A row times a matrix",
        "The numbers of E times the query matrix. The first number of the query is the dot product "
        "of E with the first column, 0 times 0 plus 1 times 1; the second with the second column, "
        "0 times 1 plus 1 times 0.",
        width=400,
        height=188,
    )
    d.box(20, 64, 76, 38, "", kind="warm", corner=0)  # what is multiplied for the first number
    d.box(144, 46, 38, 76, "", kind="warm", corner=0)
    d.box(276, 64, 38, 38, "", kind="warm", corner=0)
    pale = dict(cell=38, high=1e9, decimals=0)
    d.text(58, 36, "E", "name")
    d.matrix(20, 64, [[0, 1]], **pale)
    d.text(118, 88, "@", "name")
    d.text(182, 36, "W_query", "name")
    d.matrix(144, 46, [[0, 1], [1, 0]], **pale)
    d.text(248, 88, "=", "name")
    d.text(314, 36, "query of E", "name")
    d.matrix(276, 64, [[1, 0]], **pale)
    d.text(20, 150, "first number: 0·0 + 1·1 = 1", "note", "start")
    d.text(20, 168, "second number: 0·1 + 1·0 = 0", "note", "start")
    return d


def one_matrix():
    d = Drawing(
        "One matrix for four heads",
        "Four small query matrices of 128 by 32 are put side by side and make one matrix of 128 by "
        "128. The 128 numbers that come out are cut into four times 32, one piece for each head.",
        width=400,
        height=330,
    )
    kinds = ("module", "thing", "warm", "good")
    d.text(12, 30, "four small matrices, one after the other", "note", "start")
    d.text(12, 168, "one matrix, once", "note", "start")
    for i, kind in enumerate(kinds):
        d.box(12 + 98 * i, 42, 76, 56, f"head {i + 1}", "128 × 32", kind=kind)
        d.arrow((50 + 98 * i, 98), (50 + 98 * i, 112))
        d.box(24 + 98 * i, 112, 52, 26, "32", kind=kind, corner=8, font="number")
        d.box(48 + 76 * i, 180, 76, 56, "", "128 × 32", kind=kind, corner=0)
        d.arrow((86 + 76 * i, 236), (86 + 76 * i, 262))
        d.box(51 + 76 * i, 262, 70, 26, "32", kind=kind, corner=8, font="number")
    d.text(200, 308, "128 numbers, cut into 4 × 32", "note")
    return d


def attention_four_tokens():
    d = Drawing(
        "Self-attention over four tokens",
        "Self-attention over the four tokens R, O, M, E, seen from the last one, read from the top "
        "down. Its query meets the key of every token and gives four scores; divided by the root "
        "of 2 and put through the softmax they are four weights; the output is the four values, "
        "mixed in these proportions.",
        width=400,
        height=452,
    )
    rows = ((2, 0), (0, 2), (1, 0), (0, 1))  # as the embedding table has them
    values = [(a + 2 * b, 2 * a) for a, b in rows]  # times the value matrix
    query = rows[3][::-1]  # the query matrix swaps, the key matrix changes nothing
    scores = [query[0] * a + query[1] * b for a, b in rows]
    weights = HEAD_WEIGHTS[3]
    exact = [exp(score / 2**0.5) for score in scores]
    output = [sum(e * v[i] for e, v in zip(exact, values, strict=True)) for i in (0, 1)]
    output = [x / sum(exact) for x in output]
    w, gap, x0 = 62, 12, 100
    kinds = ["thing"] * 3 + ["module"]
    tokens = d.tokens(x0, 16, TOKENS, w, 34, gap, kinds=kinds)
    middles = [token.middle[0] for token in tokens]
    lines = (
        ("keys", 62, [f"({a}, {b})" for a, b in rows]),
        ("scores", 132, [str(score) for score in scores]),
        ("divided by √2", 168, [f"{score / 2**0.5:.2f}".replace("0.00", "0") for score in scores]),
        ("weights", 238, [f"{weight:.2f}" for weight in weights]),
        ("values", 308, [f"({a}, {b})" for a, b in values]),
    )
    for name, y, words in lines:
        d.text(x0 - 12, y + 18, name, "note", "end")
        for x, word in zip(middles, words, strict=True):
            kind = "warm" if name == "weights" else "quiet"
            d.box(x - 29, y, 58, 26, word, kind=kind, corner=13, font="number")
    for x in middles:
        d.arrow((x, 50), (x, 62), head=False)
        d.arrow((x, 158), (x, 168), head=False)
        for top in (88, 194, 264):  # on both sides of a line of words
            d.arrow((x, top), (x, top + 9), head=False)
            d.arrow((x, top + 29), (x, top + 44))
    d.text(242, 112, f"dot product with the query of E, ({query[0]}, {query[1]})", "note")
    d.text(242, 218, "softmax: positive, 1 in total", "note")
    d.text(242, 288, "each weight times its value", "note")
    out = d.box(x0 + 81, 400, 122, 38, kind="good")
    words = f"({output[0]:.2f}, {output[1]:.2f})"
    d.text(out.middle[0], out.middle[1] + 5, words, "number")
    d.text(out.x - 12, out.middle[1] + 4, "output for E", "note", "end")
    for x, weight in zip(middles, weights, strict=True):
        d.bow(
            (x, 334),
            (out.middle[0] + (x - out.middle[0]) * 0.35, 400),
            0,
            weight=1 + 9 * weight,
            head=False,
        )
    return d


def head_split():
    d = Drawing(
        "From 128 numbers to four heads",
        "How 128 numbers become four heads, for one text of six characters, a row for each. First "
        "six rows of 128 numbers; then each row is cut into four pieces of 32; then the pieces of "
        "each head are put together, and there are four tables of six rows and 32 numbers.",
        width=400,
        height=356,
    )
    kinds = ("module", "thing", "warm", "good")
    d.text(12, 26, "(6, 128)", "code", "start")
    d.text(90, 26, "six characters, 128 numbers each", "note", "start")
    d.text(12, 128, "(6, 4, 32)", "code", "start")
    d.text(106, 128, "unflatten: each row in four pieces of 32", "note", "start")
    d.text(12, 250, "(4, 6, 32)", "code", "start")
    d.text(106, 250, "transpose: a table for each head", "note", "start")
    for row in range(6):
        for head, kind in enumerate(kinds):
            d.box(40 + 80 * head, 36 + 11 * row, 80, 11, kind=kind, corner=0)
            d.box(33 + 84 * head, 138 + 15 * row, 80, 10, kind=kind, corner=0)
            d.box(20 + 94 * head, 260 + 11 * row, 78, 11, kind=kind, corner=0)
    for head in range(4):
        d.text(59 + 94 * head, 344, f"head {head + 1}", "note")
    return d


def multi_head():
    d = Drawing(
        "Multi-head attention",
        "Multi-head attention with four heads, read from the top down. Each head makes queries, "
        "keys and values of 32 numbers from the 128 of each position, and its own attention map; "
        "the four results are put side by side again and mixed by a last linear layer.",
        width=400,
        height=430,
    )
    x, w = 112, 280
    patterns = (  # what a head may look at, as weights of the last four rows
        ((1,), (0.9, 0.1), (0.05, 0.9, 0.05), (0.03, 0.04, 0.9, 0.03)),
        ((1,), (0.5, 0.5), (0.33, 0.33, 0.34), (0.25, 0.25, 0.25, 0.25)),
        ((1,), (0.9, 0.1), (0.85, 0.1, 0.05), (0.8, 0.1, 0.05, 0.05)),
        ((1,), (0.1, 0.9), (0.05, 0.15, 0.8), (0.05, 0.05, 0.1, 0.8)),
    )
    notes = ("one back", "average", "the first", "itself")
    d.text(x - 12, 49, "every position", "note", "end")
    entry = d.box(x, 24, w, 40, "128 numbers", kind="thing")
    qkv = d.box(x, 94, w, 40, "queries, keys, values", kind="module")
    d.text(x - 8, 110, "small matrices,", "note", "end")
    d.text(x - 8, 126, "three a head", "note", "end")
    d.arrow(entry.bottom, qkv.top)
    proj = d.box(x, 306, w, 40, "proj: mixes the heads", kind="module")
    d.text(x - 8, 330, "one linear layer", "note", "end")
    out = d.box(x, 370, w, 40, "128 numbers", kind="good")
    d.arrow(proj.bottom, out.top)
    d.text(x - 12, 202, "four heads,", "note", "end")
    d.text(x - 12, 218, "32 numbers", "note", "end")
    d.text(x - 12, 234, "each", "note", "end")
    for i, (rows, note) in enumerate(zip(patterns, notes, strict=True)):
        left = x + 5 + i * 70
        square = [[*row, *[0] * (4 - len(row))] for row in rows]
        d.matrix(left, 184, square, cell=15, decimals=None)
        d.text(left + 30, 174, f"head {i + 1}", "name")
        d.text(left + 30, 262, note, "note")
        d.arrow((left + 30, 134), (left + 30, 160))
        d.arrow((left + 30, 272), (left + 30, 306))
    return d


def block():
    d = Drawing(
        "The transformer block",
        "A transformer block, read from the top down. The residual stream runs straight through. "
        "Attention reads it through a LayerNorm and adds its result; then the MLP reads the new "
        "sum through another LayerNorm and adds its own.",
        width=400,
        height=470,
    )
    x, side, w = 64, 112, 206
    d.text(x, 22, "residual stream in", "note")
    d.text(x, 456, "residual stream out", "note")
    start = 30
    for top, name, note, kind in (
        (46, "Multi-head attention", "collects from earlier positions", "module"),
        (248, "MLP with GELU", "works on each position alone", "warm"),
    ):
        norm = d.box(side, top + 16, w, 36, "LayerNorm", kind="thing")
        part = d.box(side, top + 84, w, 52, name, note, kind=kind)
        plus = d.sum(x, top + 166)
        d.arrow((x, start), (x, plus.top[1]))
        d.arrow((x, top), (norm.middle[0], top), norm.top)
        d.arrow(norm.bottom, part.top)
        d.arrow(part.bottom, (part.middle[0], plus.middle[1]), plus.right)
        d.text(side + w + 10, part.middle[1] - 4, "its result", "note", "start")
        d.text(side + w + 10, part.middle[1] + 12, "is added", "note", "start")
        start = plus.bottom[1]
    d.arrow((x, start), (x, 438))
    return d


def gpt():
    d = Drawing(
        "GPT as a whole",
        "The whole GPT, read from the top down: token ids pick token embeddings, position "
        "embeddings are added, two blocks and a last LayerNorm refine the sum, and the output "
        "layer turns each position into 65 logits, one for each possible next character.",
        width=400,
        height=560,
    )
    x, w = 116, 202
    tokens = d.tokens(x, 24, TOKENS, 46, 34, 6)
    d.text(x - 12, 45, "tokens", "note", "end")
    embedding = d.box(x, 92, w, 44, "Token embedding", "65 × 128", kind="module")
    d.arrow((x + w / 2, 58), embedding.top)
    plus = d.sum(x + w / 2, 168)
    d.arrow(embedding.bottom, plus.top)
    position = d.box(284, 146, 94, 44, "Positions", "256 × 128", kind="module")
    d.arrow(position.left, plus.right)
    first = d.box(x, 204, w, 54, "Block 1", "attention, then MLP", kind="warm")
    second = d.box(x, 282, w, 54, "Block 2", "attention, then MLP", kind="warm")
    norm = d.box(x, 360, w, 38, "LayerNorm", kind="thing")
    head = d.box(x, 422, w, 44, "Output layer", "128 × 65, tied", kind="module")
    d.arrow(plus.bottom, first.top)
    d.arrow(first.bottom, second.top)
    d.arrow(second.bottom, norm.top)
    d.arrow(norm.bottom, head.top)
    d.arrow(embedding.right, (390, 114), (390, 444), head.right, kind="dashed")
    d.text(353, 302, "same", "note")
    d.text(353, 318, "weights", "note")
    for token in tokens:
        d.box(token.x, 496, 46, 34, "65", kind="good", corner=8, font="number")
    d.arrow(head.bottom, (x + w / 2, 496))
    d.text(x - 12, 508, "65 logits at", "note", "end")
    d.text(x - 12, 524, "each position", "note", "end")
    d.text(x - 12, 222, "residual stream,", "note", "end")
    d.text(x - 12, 238, "128 numbers for", "note", "end")
    d.text(x - 12, 254, "each position", "note", "end")
    return d


PICTURES = (
    windows,
    embedding_rows,
    query_by_hand,
    attention_four_tokens,
    multi_head,
    one_matrix,
    head_split,
    block,
    gpt,
)
