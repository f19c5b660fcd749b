"Season 3, chapter 8: a layer with more units than before"

from .style import Drawing


def grown_layer():
    d = Drawing(
        "A grown layer",
        "A layer of two matrices, grown. The first matrix gets new rows, which may hold anything. "
        "The second gets new columns, and these are zero: whatever the new units say, nobody "
        "hears it yet.",
        width=498,
        height=220,
    )
    x = d.box(14, 88, 50, 44, "x", kind="thing")
    old_up = d.box(104, 30, 110, 84, "old rows", "as they were", kind="module")
    new_up = d.box(104, 122, 110, 44, "new rows", "random", kind="warm")
    old_down = d.box(250, 30, 110, 84, "old columns", "as they were", kind="module")
    new_down = d.box(250, 122, 110, 44, "new columns", "zero", kind="quiet")
    y = d.box(418, 50, 66, 44, "y", "as before", kind="good")
    d.arrow(x.right, (84, 110), (84, 72), old_up.left)
    d.arrow(x.right, (84, 110), (84, 144), new_up.left)
    d.arrow(old_up.right, old_down.left)
    d.arrow(new_up.right, new_down.left)
    d.arrow(old_down.right, y.left)
    d.arrow(new_down.right, (390, 144), (390, 72), y.left)
    d.text(159, 196, "first matrix", "note")
    d.text(305, 196, "second matrix", "note")
    return d


PICTURES = (grown_layer,)
