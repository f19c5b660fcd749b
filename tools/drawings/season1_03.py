"Chapter 3: a block's matrices, six FLOPs, memory over a step, checkpointing, a forecast"

from .style import Drawing


def block_parameters():
    d = Drawing(
        "The matrices of a block",
        "The four matrices of a transformer block, drawn to scale for width d: queries, keys and "
        "values 3d², the projection d², the MLP up 4d² and down 4d². Together 12d²; everything "
        "else in a block is thin.",
        width=640,
        height=276,
    )
    unit, top = 44, 66
    d.text(126, 36, "attention", "name")
    d.box(28, top, 3 * unit, unit, "3d²", kind="module", corner=2)
    d.text(28 + 1.5 * unit, top + unit + 18, "queries, keys, values", "note")
    d.box(190, top, unit, unit, "d²", kind="module", corner=2)
    d.text(212, top + unit + 18, "projection", "note")
    d.text(430, 36, "MLP", "name")
    d.box(290, top, 4 * unit, unit, "4d²", kind="warm", corner=2)
    d.text(290 + 2 * unit, top + unit + 18, "up", "note")
    d.box(520, top, unit, 4 * unit, "4d²", kind="warm", corner=2)
    d.text(576, top + 2 * unit + 4, "down", "note", "start")
    d.text(28, 188, "12d² in all", "title", "start")
    d.text(28, 212, "biases and norms: 13d, too thin to draw", "note", "start")
    d.text(28, 232, "side of the small square: d", "note", "start")
    return d


def six_flops():
    d = Drawing(
        "Six operations per weight and token",
        "One weight w and one token. Forward, the input is multiplied by w and added to the sum: "
        "2 FLOPs. Backward, the error times w goes to the layer below, and the error times the "
        "input is added to the gradient of w: 2 FLOPs each. Together 6.",
        width=640,
        height=286,
    )
    rows = (
        (64, "forward", "input × w", "add to the output", "module"),
        (138, "backward", "error × w", "add to the error below", "warm"),
        (212, "backward", "error × input", "add to the gradient of w", "good"),
    )
    d.text(250, 40, "multiply", "name")
    d.text(440, 40, "add", "name")
    d.text(598, 40, "FLOPs", "name")
    for y, phase, product, total, kind in rows:
        d.text(24, y + 30, phase, "note", "start")
        left = d.box(180, y, 140, 50, product, kind=kind)
        right = d.box(350, y, 184, 50, "", total, kind)
        d.arrow(left.right, right.left)
        d.text(598, y + 31, "2", "title")
    return d


def memory_over_a_step():
    d = Drawing(
        "Memory over one training step",
        "Memory over one training step of a model with three blocks, in units of one block's "
        "weights. Weights 3 and the optimizer state 6 are always there. Activations grow to 6 on "
        "the way forward and shrink on the way back, while gradients grow to 3. The fullest "
        "moment, 15 units, is at the loss.",
        width=700,
        height=366,
    )
    steps = (
        ("start", 0, 0),
        ("block 1", 2, 0),
        ("block 2", 4, 0),
        ("loss", 6, 0),
        ("block 3", 4, 1),
        ("block 2", 2, 2),
        ("block 1", 0, 3),
        ("update", 0, 3),
    )
    unit, wide, floor, left = 15, 58, 296, 110
    for i, (name, activations, gradients) in enumerate(steps):
        x, y = left + i * (wide + 14), floor
        parts = ((3, "module"), (6, "plum"), (gradients, "warm"), (activations, "good"))
        for size, kind in parts:
            if size:
                y -= size * unit
                d.box(x, y, wide, size * unit, str(size), kind=kind, corner=2, font="number")
        total = 9 + gradients + activations
        d.text(x + wide / 2, y - 7, str(total), "title" if total == 15 else "name")
        d.text(x + wide / 2, floor + 18, name)
    for y, words in ((277, "weights"), (210, "optimizer state"), (150, "what changes")):
        d.text(98, y, words, "note", "end")
    d.text(left + 2 * 72 + wide / 2, floor + 42, "forward", "name")
    d.text(left + 5 * 72 + wide / 2, floor + 42, "backward", "name")
    d.box(left, 26, 18, 18, kind="good", corner=3)
    d.text(left + 26, 40, "activations", "note", "start")
    d.box(left + 120, 26, 18, 18, kind="warm", corner=3)
    d.text(left + 146, 40, "gradients", "note", "start")
    return d


def checkpointing_modes():
    d = Drawing(
        "Gradient checkpointing",
        "What a block keeps for its backward pass. Off: everything. Selective: what matmuls and "
        "attention made; the cheap rest is computed again. Full: only the block's input; the "
        "whole block runs forward twice.",
        width=700,
        height=258,
    )
    parts = ("input", "norm", "q, k, v", "attention", "norm", "up", "GELU")
    kept = {"off": range(7), "selective": (0, 2, 3, 5), "full": (0,)}
    note = {"off": "no work twice", "selective": "cheap work twice", "full": "all work twice"}
    for row, (mode, keeps) in enumerate(kept.items()):
        y = 24 + row * 66
        d.text(20, y + 20, mode, "name", "start")
        d.text(20, y + 38, note[mode], "note", "start")
        for i, part in enumerate(parts):
            kind = "good" if i in keeps else "outside"
            d.box(140 + i * 78, y, 70, 44, "", part, kind)
    d.box(140, 222, 20, 20, kind="good", corner=3)
    d.text(168, 236, "kept until the backward pass", "note", "start")
    d.box(400, 222, 20, 20, kind="outside", corner=3)
    d.text(428, 236, "forgotten, computed again", "note", "start")
    return d


def forecast():
    d = Drawing(
        "From a configuration to a bill",
        "A forecast. The configuration gives parameters, FLOPs per token and bytes. The GPU gives "
        "memory, peak and price. Together they say how many sequences fit, how many hours it "
        "takes and what it costs; the share of the peak is an assumption until a receipt replaces "
        "it.",
        width=700,
        height=300,
    )
    config = d.box(20, 96, 130, 56, "configuration", "a few numbers", "thing")
    gpu = d.box(20, 224, 130, 56, "GPU", "memory, peak, price", "thing")
    middle = (
        (32, "bytes", "at the fullest moment", "good"),
        (96, "FLOPs per token", "6 per weight, + scores", "good"),
    )
    boxes = [d.box(210, y, 180, 52, name, note, kind) for y, name, note, kind in middle]
    share = d.box(210, 160, 180, 52, "MFU", "assumed, or a receipt", "warm")
    fits = d.box(470, 32, 210, 52, "does it fit?", "sequences at once", "module")
    hours = d.box(470, 128, 210, 52, "hours", "FLOPs / (peak × MFU)", "module")
    usd = d.box(470, 226, 210, 52, "dollars", "hours × price", "module")
    for box in boxes:
        d.arrow(config.right, (180, config.right[1]), (180, box.left[1]), box.left)
    d.arrow(boxes[0].right, fits.left)
    d.arrow(boxes[1].right, (430, boxes[1].right[1]), (430, 146), (470, 146))
    d.arrow(share.right, (430, share.right[1]), (430, 162), (470, 162))
    d.arrow(hours.bottom, usd.top)
    d.arrow(gpu.right, usd.left)
    return d


PICTURES = (
    block_parameters,
    six_flops,
    memory_over_a_step,
    checkpointing_modes,
    forecast,
)
