"Season 3, chapter 3: an adapter beside a linear layer"

from .style import Drawing


def lora_linear():
    d = Drawing(
        "A linear layer with an adapter",
        "The input goes two ways. Through the frozen matrix W, 128 by 128 numbers, and through "
        "two thin ones: A brings 128 numbers down to 4, B brings them up to 128 again. Both "
        "results are added. B starts at zero, so at first nothing changes.",
        width=520,
        height=300,
    )
    x = d.box(14, 128, 60, 44, "x", "128", kind="thing")
    w = d.box(140, 36, 150, 96, "W, frozen", "128 x 128 = 16,384", kind="quiet")
    a = d.box(120, 204, 104, 40, "A", "4 x 128 = 512", kind="good")
    b = d.box(262, 180, 70, 88, "B", "128 x 4", kind="good")
    d.text(297, 288, "512, starts at 0", "note")
    d.text(172, 288, "starts at random", "note")
    plus = d.sum(390, 150, 13)
    y = d.box(440, 128, 60, 44, "y", "128", kind="thing")
    d.arrow(x.right, (96, 150), (96, 84), w.left)
    d.arrow(x.right, (96, 150), (96, 224), a.left)
    d.arrow(a.right, b.left)
    d.text(243, 214, "4", "number")
    d.arrow(w.right, (390, 84), plus.top)
    d.arrow(b.right, (390, 224), plus.bottom)
    d.text(398, 214, "times alpha / rank", "note", "start")
    d.arrow(plus.right, y.left)
    return d


def merging():
    d = Drawing(
        "Merging an adapter",
        "The product of B and A is a matrix of the size of W, every entry a correction. Added to "
        "W once, the adapter is gone and the layer costs what it did before.",
        width=482,
        height=210,
    )
    w = d.box(20, 50, 110, 110, "W", kind="quiet")
    d.text(148, 111, "+", "title")
    b = d.box(166, 50, 28, 110, "B", kind="good")
    a = d.box(202, 50, 110, 28, "A", kind="good")
    d.text(332, 111, "=", "title")
    m = d.box(352, 50, 110, 110, "W + BA", kind="module")
    for box, words in ((w, "frozen"), (m, "one matrix again")):
        d.text(box.middle[0], 186, words, "note")
    d.text(239, 186, "rank 4: 1,024 numbers", "note")
    return d


PICTURES = (lora_linear, merging)
