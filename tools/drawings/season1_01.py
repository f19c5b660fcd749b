"Chapter 1: attention over four tokens, heads, the block, GPT as a whole"

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


def attention_four_tokens():
    d = Drawing(
        "Self-attention over four tokens",
        "Self-attention over the four tokens R, O, M, E, seen from the last one. Its query is "
        "compared with the key of every token so far; the softmax turns the four scores into "
        "weights that add up to 1; the output is the values, mixed in these proportions.",
        width=400,
        height=380,
    )
    w, gap, x0 = 62, 12, 100
    tokens = d.tokens(x0, 262, TOKENS, w, 40, gap, kinds=["thing"] * 3 + ["module"])
    d.text(x0 - 14, 287, "tokens", "note", "end")
    d.text(x0 - 14, 201, "weights", "note", "end")
    d.text(x0 - 14, 64, "values, mixed", "note", "end")
    end = tokens[3].middle[0], 84
    for token, weight in zip(tokens, HEAD_WEIGHTS[3], strict=True):
        x = token.middle[0]
        d.arrow((x, 262), (x, 210), head=False)
        d.bow((x, 184), end, 0, weight=1 + 9 * weight, head=False)
        d.box(x - 27, 184, 54, 26, f"{weight:.2f}", kind="quiet", corner=13, font="number")
    d.box(tokens[3].x, 40, w, 44, "output", kind="good")
    d.text(tokens[3].middle[0], 324, "its query asks", "note")
    d.text(tokens[1].middle[0], 346, "their keys answer: how well do we match?", "note")
    d.text(tokens[1].middle[0], 364, "their values are what is handed over", "note")
    return d


def multi_head():
    d = Drawing(
        "Multi-head attention",
        "Multi-head attention with four heads. The 128 numbers of each position become queries, "
        "keys and values; each head takes 32 of each and makes its own attention map; the four "
        "results are put side by side again and mixed by a last linear layer.",
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
    d.text(x - 12, 391, "every position", "note", "end")
    entry = d.box(x, 366, w, 40, "128 numbers", kind="thing")
    qkv = d.box(x, 296, w, 40, "qkv: queries, keys, values", kind="module")
    d.text(x - 8, 320, "one linear layer", "note", "end")
    d.arrow(entry.top, qkv.bottom)
    proj = d.box(x, 84, w, 40, "proj: mixes the heads", kind="module")
    d.text(x - 8, 108, "one linear layer", "note", "end")
    out = d.box(x, 20, w, 40, "128 numbers", kind="good")
    d.arrow(proj.top, out.bottom)
    d.text(x - 12, 198, "four heads,", "note", "end")
    d.text(x - 12, 214, "32 numbers", "note", "end")
    d.text(x - 12, 230, "each", "note", "end")
    for i, (rows, note) in enumerate(zip(patterns, notes, strict=True)):
        left = x + 5 + i * 70
        square = [[*row, *[0] * (4 - len(row))] for row in rows]
        d.matrix(left, 176, square, cell=15, decimals=None)
        d.text(left + 30, 164, f"head {i + 1}", "name")
        d.text(left + 30, 254, note, "note")
        d.arrow((left + 30, 296), (left + 30, 262))
        d.arrow((left + 30, 150), (left + 30, 124))
    return d


def block():
    d = Drawing(
        "The transformer block",
        "A transformer block, read from the bottom up. The residual stream runs straight through. "
        "Attention reads it through a LayerNorm and adds its result; then the MLP reads the new "
        "sum through another LayerNorm and adds its own.",
        width=400,
        height=470,
    )
    x, side, w = 64, 112, 206
    d.text(x, 456, "residual stream in", "note")
    d.text(x, 24, "residual stream out", "note")
    for foot, name, note, kind in (
        (424, "Multi-head attention", "collects from earlier positions", "module"),
        (222, "MLP with GELU", "works on each position alone", "warm"),
    ):
        norm = d.box(side, foot - 52, w, 36, "LayerNorm", kind="thing")
        part = d.box(side, foot - 136, w, 52, name, note, kind=kind)
        plus = d.sum(x, foot - 166)
        start = 440 if foot == 424 else 247  # the stream's foot, or the sum below
        d.arrow((x, start), (x, plus.bottom[1]))
        d.arrow((x, foot), (norm.middle[0], foot), norm.bottom)
        d.arrow(norm.top, part.bottom)
        d.arrow(part.top, (part.middle[0], plus.middle[1]), plus.right)
        d.text(side + w + 10, part.middle[1] + 4, "its result", "note", "start")
        d.text(side + w + 10, part.middle[1] + 20, "is added", "note", "start")
    d.arrow((x, 45), (x, 32))
    return d


def gpt():
    d = Drawing(
        "GPT as a whole",
        "The whole GPT, read from the bottom up: token ids pick token embeddings, position "
        "embeddings are added, two blocks and a last LayerNorm refine the sum, and the output "
        "head turns each position into 65 logits, one for each possible next character.",
        width=400,
        height=560,
    )
    x, w = 116, 202
    tokens = d.tokens(x, 502, TOKENS, 46, 34, 6)
    d.text(x - 12, 524, "tokens", "note", "end")
    embedding = d.box(x, 424, w, 44, "Token embedding", "65 × 128", kind="module")
    d.arrow((x + w / 2, 502), embedding.bottom)
    plus = d.sum(x + w / 2, 392)
    d.arrow(embedding.top, plus.bottom)
    position = d.box(284, 368, 94, 44, "Positions", "256 × 128", kind="module")
    d.arrow(position.left, plus.right)
    first = d.box(x, 302, w, 54, "Block 1", "attention, then MLP", kind="warm")
    second = d.box(x, 224, w, 54, "Block 2", "attention, then MLP", kind="warm")
    norm = d.box(x, 162, w, 38, "LayerNorm", kind="thing")
    head = d.box(x, 94, w, 44, "Output head", "128 × 65, tied", kind="module")
    d.arrow(plus.top, first.bottom)
    d.arrow(first.top, second.bottom)
    d.arrow(second.top, norm.bottom)
    d.arrow(norm.top, head.bottom)
    d.arrow(head.right, (390, 116), (390, 446), embedding.right, kind="dashed")
    d.text(353, 246, "same", "note")
    d.text(353, 262, "weights", "note")
    for token, word in zip(tokens, ("O", "M", "E", "O"), strict=True):
        d.box(token.x, 30, 46, 34, word, kind="good", corner=8, font="code")
    d.arrow(head.top, (x + w / 2, 64))
    d.text(x - 12, 44, "logits for", "note", "end")
    d.text(x - 12, 60, "the next token", "note", "end")
    d.text(x - 12, 332, "residual stream,", "note", "end")
    d.text(x - 12, 348, "128 numbers for", "note", "end")
    d.text(x - 12, 364, "each position", "note", "end")
    return d


PICTURES = (windows, attention_four_tokens, multi_head, block, gpt)
