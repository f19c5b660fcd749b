"Season 3, chapter 8: a layer with more units than before"

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


PICTURES = (grown_layer,)
