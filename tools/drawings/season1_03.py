"""Chapter 3: a block's matrices, six FLOPs, memory over a step, what a block keeps, checkpointing,
a forecast"""

from .style import Drawing


def block_parameters():
    d = Drawing(
        "The matrices of a block",
        "The four matrices of a transformer block, drawn to scale for width d: queries, keys and "
        "values 3d², the projection d², the MLP up 4d² and down 4d². Together 12d²; everything "
        "else in a block is thin.",
        width=400,
        height=324,
    )
    unit, top, below = 38, 46, 146
    d.text(14, 32, "attention", "name", "start")
    d.box(14, top, 3 * unit, unit, "3d²", kind="module", corner=2)
    d.text(14 + 1.5 * unit, top + unit + 18, "queries, keys, values", "note")
    d.box(200, top, unit, unit, "d²", kind="module", corner=2)
    d.text(200 + unit / 2, top + unit + 18, "projection", "note")
    d.text(14, 132, "MLP", "name", "start")
    d.box(14, below, 4 * unit, unit, "4d²", kind="warm", corner=2)
    d.text(14 + 2 * unit, below + unit + 18, "up", "note")
    d.box(200, below, unit, 4 * unit, "4d²", kind="warm", corner=2)
    d.text(200 + unit + 8, below + 2 * unit + 4, "down", "note", "start")
    d.text(14, 240, "12d² in all", "title", "start")
    d.text(14, 264, "biases and norms: 13d,", "note", "start")
    d.text(14, 280, "too thin to draw", "note", "start")
    d.text(14, 308, "side of the small square: d", "note", "start")
    return d


def six_flops():
    d = Drawing(
        "Six operations per weight and token",
        "One weight w = 5 and one token with the input x = 3; the gradient of the output is 2. "
        "Forward, 5 times 3 is added to the output: 2 FLOPs. Backward, 2 times 3 is added to the "
        "gradient of w, and 2 times 5 to the gradient of x: 2 FLOPs each. Together 6.",
        width=400,
        height=308,
    )
    rows = (
        (52, "forward", "w × x = 5 × 3", "the output y", "module"),
        (134, "backward", "2 × x = 2 × 3", "the gradient of w", "good"),
        (216, "backward", "2 × w = 2 × 5", "the gradient of x", "warm"),
    )
    d.text(84, 34, "multiply", "name")
    d.text(252, 34, "add to", "name")
    d.text(366, 34, "FLOPs", "name")
    for y, phase, product, total, kind in rows:
        left = d.box(14, y, 140, 58, product, phase, kind)
        right = d.box(180, y, 150, 58, total, "", kind)
        d.arrow(left.right, right.left)
        d.text(366, y + 34, "2", "title")
    d.text(14, 296, "the 2 of the way back is the gradient of y", "note", "start")
    return d


def memory_over_a_step():
    d = Drawing(
        "Memory over one training step",
        "Memory over one training step of a model with three blocks, in units of one block's "
        "weights. Weights 3 and the optimizer state 6 are always there. Activations grow to 6 on "
        "the way forward. On the way back each block needs 1 unit of temporary memory, its "
        "activations are then given back and its gradients stay. The fullest moment, 16 units, is "
        "the first block of the way back.",
        width=420,
        height=388,
    )
    steps = (
        ("start", 0, 0, 0),
        ("block 1", 2, 0, 0),
        ("block 2", 4, 0, 0),
        ("block 3", 6, 0, 0),
        ("block 3", 6, 0, 1),
        ("block 2", 4, 1, 1),
        ("block 1", 2, 2, 1),
        ("update", 0, 3, 0),
    )
    unit, wide, floor, left = 15, 43, 332, 14
    for i, (name, activations, gradients, temporary) in enumerate(steps):
        x, y = left + i * (wide + 7), floor
        parts = (
            (3, "module"),
            (6, "plum"),
            (gradients, "warm"),
            (activations, "good"),
            (temporary, "quiet"),
        )
        for size, kind in parts:
            if size:
                y -= size * unit
                d.box(x, y, wide, size * unit, str(size), kind=kind, corner=2, font="number")
        total = 9 + gradients + activations + temporary
        d.text(x + wide / 2, y - 7, str(total), "title" if total == 16 else "name")
        d.text(x + wide / 2, floor + 18, name)
    d.text(left + 2 * 50 + wide / 2, floor + 42, "forward", "name")
    d.text(left + 5 * 50 + wide / 2, floor + 42, "backward", "name")
    for i, (kind, words) in enumerate(
        (
            ("good", "activations"),
            ("warm", "gradients"),
            ("plum", "optimizer state"),
            ("quiet", "temporary"),
            ("module", "weights"),
        )
    ):
        x, y = left + i % 2 * 218, 14 + i // 2 * 25
        d.box(x, y, 18, 18, kind=kind, corner=3)
        d.text(x + 26, y + 14, words, "note", "start")
    return d


def kept_by_a_block():
    d = Drawing(
        "What a block keeps for each token",
        "What a block keeps for each token until the backward pass, drawn to scale, in widths: "
        "input and output of the first norm 2, query, key and value 3, what attention collected 1, "
        "input and output of the second norm 2, the MLP before and after the GELU 4 and 4. "
        "Together 16.",
        width=400,
        height=296,
    )
    unit, left = 44, 14
    rows = (
        (
            44,
            (
                ("norm", ("in", "out"), 1, "thing"),
                ("attention", ("q", "k", "v", "mix"), 1, "module"),
            ),
        ),
        (132, (("norm", ("in", "out"), 1, "thing"),)),
        (220, (("MLP", ("before GELU", "after GELU"), 4, "warm"),)),
    )
    for y, parts in rows:
        x = left
        for name, boxes, widths, kind in parts:
            d.text(x, y - 12, name, "name", "start")
            for box in boxes:
                d.box(x, y, widths * unit, 40, box, kind=kind, corner=2)
                x += widths * unit
            x += 16
    d.text(left + 2 * unit + 16, 157, "16 widths in all", "title", "start")
    d.text(left, 286, "side of a small box: the width, 128 numbers", "note", "start")
    return d


def checkpointing_modes():
    d = Drawing(
        "Gradient checkpointing",
        "What a block keeps for its backward pass. Off: everything. Selective: what "
        "products of matrices and attention made; the cheap rest is computed again. Full: only "
        "the block's input; the whole block runs forward twice.",
        width=400,
        height=346,
    )
    parts = ("input", "norm", "q, k, v", "attention", "norm", "up", "GELU")
    widths = (40, 40, 52, 66, 40, 34, 40)
    kept = {"off": range(7), "selective": (0, 2, 3, 5), "full": (0,)}
    note = {"off": "no work twice", "selective": "cheap work twice", "full": "all work twice"}
    for row, (mode, keeps) in enumerate(kept.items()):
        x, y = 14, 44 + row * 90
        d.text(14, y - 12, mode, "name", "start")
        d.text(100, y - 12, note[mode], "note", "start")
        for i, (part, wide) in enumerate(zip(parts, widths, strict=True)):
            kind = "good" if i in keeps else "outside"
            d.box(x, y, wide, 44, "", part, kind)
            x += wide + 10
    d.box(14, 290, 18, 18, kind="good", corner=3)
    d.text(40, 303, "kept until the backward pass", "note", "start")
    d.box(14, 316, 18, 18, kind="outside", corner=3)
    d.text(40, 329, "forgotten, computed again", "note", "start")
    return d


def forecast():
    d = Drawing(
        "From a configuration to a bill",
        "A forecast in two rows. The configuration gives the bytes of a step; beside the memory of "
        "the GPU they say how many sequences fit. The configuration also gives the FLOPs of a "
        "token; times the tokens they are all FLOPs, over the promised speed and the MFU the "
        "hours, and times the price the dollars. The MFU is an assumption until somebody has "
        "measured it.",
        width=400,
        height=474,
    )
    d.text(14, 32, "Does it fit?", "name", "start")
    size = d.box(14, 46, 108, 56, "bytes", "configuration", "good")
    memory = d.box(146, 46, 108, 56, "memory", "the GPU's", "thing")
    fits = d.box(278, 46, 108, 56, "sequences", "at once", "module")
    d.arrow(size.right, memory.left)
    d.arrow(memory.right, fits.left)
    d.text(14, 146, "How long, and for how much?", "name", "start")
    work = d.box(14, 160, 162, 56, "FLOPs a token", "configuration", "good")
    tokens = d.box(224, 160, 162, 56, "tokens", "to train on", "thing")
    speed = d.box(14, 282, 162, 56, "speed", "promised, the GPU's", "thing")
    share = d.box(224, 282, 162, 56, "MFU", "assumed share", "warm")
    d.text(200, 193, "×", "title")
    d.text(200, 315, "×", "title")
    d.arrow((14, 239), (386, 239), head=False)
    d.text(14, 262, "divided by", "note", "start")
    d.arrow((200, 338), (200, 376))
    d.box(14, 376, 226, 76, "hours", "all FLOPs / speed reached", "module")
    usd = d.box(278, 376, 108, 76, "dollars", "hours × price", "module")
    d.arrow((240, 414), usd.left)
    return d


PICTURES = (
    block_parameters,
    six_flops,
    memory_over_a_step,
    kept_by_a_block,
    checkpointing_modes,
    forecast,
)
