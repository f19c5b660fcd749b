"Season 3, chapter 3: an adapter beside a linear layer"

from .style import Drawing


def lora_linear():
    d = Drawing(
        "A linear layer with an adapter",
        "The input goes two ways. Through the frozen matrix W, 128 by 128 numbers, and through "
        "two thin ones: A brings 128 numbers down to 4, B brings them up to 128 again. Both "
        "results are added. B starts at zero, so at first nothing changes.",
        width=400,
        height=414,
    )
    x = d.box(162, 18, 76, 44, "x", "128", kind="thing")
    w = d.box(16, 114, 140, 140, "W, frozen", "128 × 128 = 16,384", kind="quiet")
    a = d.box(220, 104, 160, 42, "A", "4 × 128 = 512", kind="good")
    b = d.box(254, 186, 92, 88, "B", "128 × 4 = 512", kind="good")
    d.text(290, 170, "starts at random", "note", "end")
    d.text(244, 234, "starts at 0", "note", "end")
    plus = d.sum(200, 316, 13)
    y = d.box(162, 354, 76, 44, "y", "128", kind="thing")
    d.arrow(x.bottom, (200, 82), (w.top[0], 82), w.top)
    d.arrow(x.bottom, (200, 82), (a.top[0], 82), a.top)
    d.arrow(a.bottom, b.top)
    d.text(310, 171, "4", "number")
    d.arrow(w.bottom, (w.bottom[0], 316), plus.left)
    d.arrow(b.bottom, (b.bottom[0], 316), plus.right)
    d.text(224, 336, "times alpha / rank", "note", "start")
    d.arrow(plus.bottom, y.top)
    return d


def merging():
    d = Drawing(
        "Merging an adapter",
        "The product of B and A, times alpha over rank, is a matrix of the size of W, every "
        "entry a correction. Added to W once, the adapter is gone and the layer costs what it did "
        "before.",
        width=400,
        height=162,
    )
    side, thin, top = 90, 24, 24
    w = d.box(14, top, side, side, "W", kind="quiet")
    d.text(122, top + 45, "+", "title")
    d.text(122, top + 62, "α/r ·", "note")
    d.box(140, top, thin, side, "B", kind="good")
    d.box(172, top, side, thin, "A", kind="good")
    d.text(280, top + 50, "=", "title")
    m = d.box(296, top, side, side, "W + α/r BA", kind="module")
    d.text(w.middle[0], 142, "frozen", "note")
    d.text(196, 142, "rank 4: 1,024 numbers", "note")
    d.text(m.middle[0], 142, "one matrix again", "note")
    return d


PICTURES = (lora_linear, merging)
