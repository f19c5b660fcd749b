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
        "One weight w and one token. Forward, the input is multiplied by w and added to the sum: "
        "2 FLOPs. Backward, the gradient g of the output, times w, goes to the layer below, and g "
        "times the input is added to the gradient of w: 2 FLOPs each. Together 6.",
        width=400,
        height=312,
    )
    rows = (
        (52, "forward", "input × w", "add to the output", "module"),
        (134, "backward", "g × w", "add to g of the input", "warm"),
        (216, "backward", "g × input", "add to the gradient of w", "good"),
    )
    d.text(76, 34, "multiply", "name")
    d.text(246, 34, "add", "name")
    d.text(366, 34, "FLOPs", "name")
    for y, phase, product, total, kind in rows:
        left = d.box(14, y, 124, 58, product, phase, kind)
        right = d.box(164, y, 164, 58, "", total, kind)
        d.arrow(left.right, right.left)
        d.text(366, y + 34, "2", "title")
    d.text(14, 298, "g: gradient of the output; below, of the input", "note", "start")
    return d


def memory_over_a_step():
    d = Drawing(
        "Memory over one training step",
        "Memory over one training step of a model with three blocks, in units of one block's "
        "weights. Weights 3 and the optimizer state 6 are always there. Activations grow to 6 on "
        "the way forward and shrink on the way back, while gradients grow to 3. The fullest "
        "moment, 15 units, is at the loss.",
        width=420,
        height=362,
    )
    steps = (
        ("start", 0, 0),
        ("block 1", 2, 0),
        ("block 2", 4, 0),
        ("block 3", 6, 0),
        ("block 3", 4, 1),
        ("block 2", 2, 2),
        ("block 1", 0, 3),
        ("update", 0, 3),
    )
    unit, wide, floor, left = 15, 43, 306, 14
    for i, (name, activations, gradients) in enumerate(steps):
        x, y = left + i * (wide + 7), floor
        parts = ((3, "module"), (6, "plum"), (gradients, "warm"), (activations, "good"))
        for size, kind in parts:
            if size:
                y -= size * unit
                d.box(x, y, wide, size * unit, str(size), kind=kind, corner=2, font="number")
        total = 9 + gradients + activations
        d.text(x + wide / 2, y - 7, str(total), "title" if total == 15 else "name")
        if total == 15:
            d.text(x + wide / 2, y - 26, "at the loss", "note")
        d.text(x + wide / 2, floor + 18, name)
    d.text(left + 2 * 50 + wide / 2, floor + 42, "forward", "name")
    d.text(left + 5 * 50 + wide / 2, floor + 42, "backward", "name")
    for i, (kind, words) in enumerate(
        (
            ("good", "activations"),
            ("warm", "gradients"),
            ("plum", "optimizer state"),
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
        "A forecast. The configuration gives parameters, FLOPs per token and bytes. The GPU gives "
        "memory, promised speed and price. With the number of tokens to train on they say how "
        "many sequences fit, how many hours it takes and what it costs; the share of the promised "
        "speed is an assumption until somebody has measured it.",
        width=400,
        height=484,
    )
    config = d.box(26, 22, 152, 54, "configuration", "a few numbers", "thing")
    gpu = d.box(222, 22, 152, 54, "GPU", "memory, speed, price", "thing")
    size = d.box(26, 110, 152, 54, "bytes", "at the fullest moment", "good")
    fits = d.box(222, 110, 152, 54, "does it fit?", "sequences at once", "module")
    work = d.box(26, 198, 152, 54, "FLOPs per token", "6 per weight, + scores", "good")
    tokens = d.box(26, 264, 152, 54, "tokens", "to train on", "thing")
    share = d.box(26, 330, 152, 54, "MFU", "assumed share", "warm")
    hours = d.box(222, 198, 152, 186, "hours", "FLOPs / (speed × MFU)", "module")
    usd = d.box(222, 412, 152, 54, "dollars", "hours × price", "module")
    d.arrow(config.bottom, size.top)
    d.arrow(config.left, (11, config.left[1]), (11, work.left[1]), work.left)
    d.arrow(gpu.bottom, fits.top)
    d.arrow(size.right, fits.left)
    for needed in (work, tokens, share):
        d.arrow(needed.right, (222, needed.right[1]))
    d.arrow(gpu.right, (389, gpu.right[1]), (389, usd.right[1]), usd.right)
    d.arrow((389, hours.right[1]), hours.right)
    d.arrow(hours.bottom, usd.top)
    return d


PICTURES = (
    block_parameters,
    six_flops,
    memory_over_a_step,
    kept_by_a_block,
    checkpointing_modes,
    forecast,
)
