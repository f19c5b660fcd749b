"Season 3, chapter 8: a layer with more units than before, a norm over more channels"

from .style import Drawing


def grown_layer():
    d = Drawing(
        "A grown layer",
        "A layer of two matrices, grown. The first matrix gets new rows, which may hold anything. "
        "The second gets new columns, and these are zero: whatever the new units say, nobody "
        "hears it yet.",
        width=400,
        height=382,
    )
    x = d.box(165, 18, 70, 44, "x", kind="thing")
    old_up = d.box(16, 112, 220, 54, "old rows", "as they were", kind="module")
    new_up = d.box(256, 112, 128, 54, "new rows", "random", kind="warm")
    old_down = d.box(16, 220, 220, 54, "old columns", "as they were", kind="module")
    new_down = d.box(256, 220, 128, 54, "new columns", "zero", kind="quiet")
    y = d.box(155, 320, 90, 44, "y", "as before", kind="good")
    d.arrow(x.bottom, (200, 82), (126, 82), old_up.top)
    d.arrow(x.bottom, (200, 82), (320, 82), new_up.top)
    d.arrow(old_up.bottom, old_down.top)
    d.arrow(new_up.bottom, new_down.top)
    d.arrow(old_down.bottom, (126, 296), (200, 296), y.top)
    d.arrow(new_down.bottom, (320, 296), (200, 296), y.top)
    d.text(16, 102, "first matrix", "note", "start")
    d.text(16, 210, "second matrix", "note", "start")
    return d


def wider_norm():
    d = Drawing(
        "A norm over more channels",
        "Two channels with the values 3 and 4, and the same with two new channels that hold 0. "
        "The mean square falls from 12.5 to 6.25, so the norm would give larger numbers. A gain "
        "that is smaller by the root of one half brings back the old ones.",
        width=400,
        height=352,
    )
    for left, values, kinds in (
        (30, ("3", "4"), ("module", "module")),
        (212, ("3", "4", "0", "0"), ("module", "module", "quiet", "quiet")),
    ):
        for n, (value, kind) in enumerate(zip(values, kinds, strict=True)):
            d.box(left + 40 * n, 34, 36, 40, value, kind=kind)
    d.text(30, 24, "two channels", "note", "start")
    d.text(212, 24, "the same, and two new ones", "note", "start")
    narrow = d.box(16, 108, 120, 54, "25 / 2 = 12.5", "mean square", kind="thing")
    wide = d.box(222, 108, 136, 54, "25 / 4 = 6.25", "mean square", kind="thing")
    old = d.box(16, 196, 120, 54, "0.85, 1.13", "over the root", kind="good")
    large = d.box(222, 196, 136, 54, "1.2, 1.6", "over the root", kind="warm")
    again = d.box(222, 284, 136, 54, "0.85, 1.13", "times root of 2 / 4", kind="good")
    d.arrow((76, 74), narrow.top)
    d.arrow((290, 74), wide.top)
    d.arrow(narrow.bottom, old.top)
    d.arrow(wide.bottom, large.top)
    d.arrow(large.bottom, again.top)
    return d


def growing_rivals():
    d = Drawing(
        "Three ways to spend the same",
        "A bar of arithmetic for each of three plans, all equally long. The grown model spends a "
        "little on the small one and most on the large one. The small one that reads on spends "
        "all on itself. The large one from scratch spends all on random weights.",
        width=400,
        height=246,
    )
    for top, name, parts in (
        (36, "grown", ((76, "small", "150 steps", "thing"), (290, "large", "150", "module"))),
        (106, "reads on", ((368, "small", "150 + 1,089 steps", "thing"),)),
        (176, "from scratch", ((368, "large", "171 steps", "warm"),)),
    ):
        d.text(16, top - 8, name, "note", "start")
        left = 16
        for width, words, note, kind in parts:
            d.box(left, top, width, 40, words, note, kind=kind)
            left += width + 2
    d.arrow((16, 230), (310, 230))
    d.text(384, 234, "arithmetic", "note", "end")
    return d


PICTURES = (grown_layer, wider_norm, growing_rivals)
