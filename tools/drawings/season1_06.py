"Chapter 6: the roofline, formats of floats, fusion, attention in tiles"

from .style import Drawing


def roofline():
    d = Drawing(
        "A roofline",
        "A roofline. Across, FLOPs per byte; up, FLOPs a second; both scales are logarithmic. Left "
        "of the ridge the limit is a slope, memory; right of it a flat roof, arithmetic. An "
        "addition and a GELU stand at the left, a large matmul at the right.",
        width=400,
        height=316,
    )
    d.arrow((24, 266), (384, 266))
    d.arrow((24, 266), (24, 30))
    d.bow((24, 250), (214, 84), 0, weight=3, head=False)
    d.bow((214, 84), (380, 84), 0, weight=3, head=False)
    d.arrow((214, 84), (214, 266), kind="dashed", head=False)
    d.text(32, 40, "FLOP/s", "note", "start")
    d.text(384, 284, "FLOPs per byte", "note", "end")
    d.text(298, 70, "arithmetic: the peak", "name")
    d.text(36, 76, "memory:", "name", "start")
    d.text(36, 94, "bandwidth × FLOPs", "note", "start")
    d.text(36, 110, "per byte", "note", "start")
    d.text(110, 304, "waits for memory", "name")
    d.text(296, 304, "waits for arithmetic", "name")
    for x, y, name, heat in (
        (64, 220, "add: 1/12", "orange"),
        (124, 168, "GELU", "orange"),
        (270, 100, "matmul: 341", "blue"),
    ):
        d.dot(x, y, f"heat-{heat}", 6)
        d.text(x + 12, y + 16, name, "note", "start")
    return d


def amdahl():
    d = Drawing(
        "Amdahl's law",
        "A step as a bar of 100 units: the batch has 10, forward 35, backward 45, the update 10. "
        "Below it the same step with a batch that costs nothing: 90 units are left, so the step "
        "is 1.11 times as fast, and no repair of the batch can do more.",
        width=400,
        height=196,
    )
    unit, left = 3.6, 20
    parts = (("forward", 35), ("backward", 45), ("update", 10))
    d.text(left, 30, "before: 100", "name", "start")
    d.box(left, 40, 10 * unit, 40, "10", kind="warm", corner=3, font="number")
    for y in (40, 130):
        x = left + 10 * unit if y == 40 else left
        for name, share in parts:
            words = (str(share), name) if share > 10 else (str(share), "")
            d.box(x, y, share * unit, 40, *words, kind="module", corner=3, font="number")
            x += share * unit
    d.text(left, 98, "batch", "note", "start")
    d.text(left + 360, 98, "update", "note", "end")
    d.text(left, 122, "a batch for nothing: 90", "name", "start")
    d.text(left + 360, 190, "100 / 90 = 1.11 times as fast", "name", "end")
    return d


def float_formats():
    d = Drawing(
        "Four formats of floating-point numbers",
        "Four formats of floating-point numbers as bits. fp32: 8 bits of exponent, 23 of "
        "mantissa. TF32: 8 and 10. bf16: 8 and 7. fp16: 5 and 10. TF32 and bf16 keep the range of "
        "fp32, fp16 does not.",
        width=400,
        height=248,
    )
    bit, left = 8.75, 60
    for i, (name, exponent, mantissa) in enumerate(
        (("fp32", 8, 23), ("TF32", 8, 10), ("bf16", 8, 7), ("fp16", 5, 10))
    ):
        y = 54 + i * 46
        d.text(left - 10, y + 21, name, "name", "end")
        parts = ((1, "quiet"), (exponent, "warm"), (mantissa, "module"))
        x = left
        for size, kind in parts:
            words = str(size) if size > 1 else ""
            d.box(x, y, size * bit, 32, words, kind=kind, corner=3, font="number")
            x += size * bit
        d.text(x + 8, y + 21, f"{1 + exponent + mantissa} bits", "note", "start")
    for x, kind, words in (
        (20, "quiet", "sign"),
        (88, "warm", "exponent: range"),
        (222, "module", "mantissa: precision"),
    ):
        d.box(x, 20, 16, 16, kind=kind, corner=3)
        d.text(x + 22, 33, words, "note", "start")
    return d


def fusion():
    d = Drawing(
        "Fusion",
        "Fusion. Apart: each of the operations reads from memory and writes to it. Fused: one "
        "kernel reads once, computes all of them on the chip, and writes once.",
        width=400,
        height=300,
    )
    ops = ("x³", "× 0.045", "+ x", "tanh")
    d.text(14, 30, "apart", "name", "start")
    for i, op in enumerate(ops):
        box = d.box(14 + i * 95, 42, 86, 36, op, kind="warm")
        d.arrow((box.x + 22, 114), (box.x + 22, 78))
        if op == "+ x":  # reads two
            d.arrow((box.x + 10, 114), (box.x + 10, 78))
        d.arrow((box.x + 64, 78), (box.x + 64, 114))
    d.box(14, 114, 372, 30, "", "memory", "quiet")
    d.text(14, 180, "fused", "name", "start")
    d.group(8, 190, 384, 50, "")
    for i, op in enumerate(ops):
        box = d.box(16 + i * 96, 197, 80, 36, op, kind="good")
        if i:
            d.arrow((box.x - 16, 215), box.left)
    d.box(14, 260, 372, 30, "", "memory", "quiet")
    d.arrow((56, 260), (56, 233))
    d.arrow((344, 233), (344, 260))
    return d


def attention_tiles():
    d = Drawing(
        "Attention in tiles",
        "Attention in tiles. Queries and keys are cut into tiles of four. For each tile of "
        "queries, the tiles of keys are visited one after the other; tiles in the future are "
        "never computed; between tiles only the largest score, the sum and the mix are kept.",
        width=400,
        height=428,
    )
    side, x0, y0 = 72, 90, 48
    d.text(x0 + 1.5 * side, 32, "keys", "name")
    d.text(x0 - 12, y0 + 1.5 * side + 5, "queries", "name", "end")
    for row in range(3):
        for column in range(3):
            kind = "quiet" if column > row else "warm" if column == row else "module"
            number = "" if column > row else str(row * (row + 1) // 2 + column + 1)
            x, y = x0 + column * side, y0 + row * side
            d.box(x, y, side, side, kind=kind, corner=2)
            if number:
                d.text(x + side / 2, y + 26, number, "number")
    y = y0 + 2 * side + 46
    for column in range(2):
        d.arrow((x0 + column * side + 24, y), (x0 + (column + 1) * side + 24, y))
    d.text(x0, y0 + 3 * side + 20, "numbers: the order of the tiles", "note", "start")
    for i, (kind, words) in enumerate(
        (("module", "all of it is past"), ("warm", "masked inside"), ("quiet", "future: skipped"))
    ):
        d.box(14, 316 + i * 32, 20, 20, kind=kind, corner=3)
        d.text(42, 330 + i * 32, words, "note", "start")
    kept = d.box(196, 318, 190, 84, kind="thing")
    d.text(291, kept.y + 24, "kept for each query", "name")
    for i, words in enumerate(("the largest score so far", "the sum, the mix of values")):
        d.text(291, kept.y + 46 + 18 * i, words)
    d.arrow((x0 + 3 * side, y), (346, y), (346, kept.y))
    return d


PICTURES = (roofline, amdahl, float_formats, fusion, attention_tiles)
