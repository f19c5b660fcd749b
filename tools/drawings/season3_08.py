"Season 3, chapter 8: a layer with more units than before"

from .style import Drawing


def grown_layer():
    d = Drawing(
        "A grown layer",
        "A layer of two matrices, grown. The first matrix gets new rows, which may hold anything. "
        "The second gets new columns, and these are zero: whatever the new units say, nobody "
        "hears it yet.",
        width=640,
        height=220,
    )
    x = d.box(20, 88, 70, 44, "x", kind="thing")
    old_up = d.box(160, 30, 120, 84, "old rows", "as they were", kind="module")
    new_up = d.box(160, 122, 120, 44, "new rows", "random", kind="warm")
    old_down = d.box(350, 30, 120, 84, "old columns", "as they were", kind="module")
    new_down = d.box(350, 122, 120, 44, "new columns", "zero", kind="quiet")
    y = d.box(550, 50, 70, 44, "y", "as before", kind="good")
    d.arrow(x.right, (125, 110), (125, 72), old_up.left)
    d.arrow(x.right, (125, 110), (125, 144), new_up.left)
    d.arrow(old_up.right, old_down.left)
    d.arrow(new_up.right, new_down.left)
    d.arrow(old_down.right, y.left)
    d.arrow(new_down.right, (510, 144), (510, 72), y.left)
    d.text(220, 196, "first matrix", "note")
    d.text(410, 196, "second matrix", "note")
    return d


PICTURES = (grown_layer,)
