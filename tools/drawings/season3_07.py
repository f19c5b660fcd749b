"Season 3, chapter 7: a batch found again; a suffix array"

from .style import Drawing


def batch_again():
    d = Drawing(
        "A batch, found again",
        "Seed and step go into a formula. Out come the places of the windows; the windows are cut "
        "from the shards, and a list beside the shards says which documents lie there. Nothing "
        "was written down during training.",
        width=516,
        height=210,
    )
    step = d.box(14, 66, 96, 54, "seed, step", "two numbers", kind="thing")
    order = d.box(136, 66, 96, 54, "order", "a formula", kind="module")
    shards = d.box(262, 20, 110, 54, "shards", "tokens", kind="plum")
    names = d.box(262, 112, 110, 54, "documents", "lengths, names", kind="plum")
    text = d.box(402, 20, 100, 54, "rows", "what it read", kind="good")
    who = d.box(402, 112, 100, 54, "names", "who wrote it", kind="good")
    d.arrow(step.right, order.left)
    d.arrow(order.right, (246, 93), (246, 47), shards.left)
    d.arrow(order.right, (246, 93), (246, 139), names.left)
    d.arrow(shards.right, text.left)
    d.arrow(names.right, who.left)
    d.text(184, 146, "places of windows", "note")
    d.text(258, 196, "the same call during training and years later", "note")
    return d


def suffix_array():
    d = Drawing(
        "A suffix array of banana",
        "The suffixes of a text, sorted: all places where a passage occurs stand next to each "
        "other. Two binary searches find the first and the last of them.",
        width=520,
        height=270,
    )
    word = "banana"
    order = sorted(range(len(word)), key=lambda i: word[i:])
    d.text(60, 34, "place", "note")
    d.text(200, 34, "what follows there", "note")
    for row, place in enumerate(order):
        y = 46 + 34 * row
        hit = word[place:].startswith("ana")
        d.box(30, y, 60, 28, str(place), kind="good" if hit else "quiet")
        d.box(110, y, 180, 28, word[place:], kind="good" if hit else "thing")
    d.arrow((400, 94), (294, 94))
    d.text(408, 98, "first ana", "note", "start")
    d.arrow((400, 128), (294, 128))
    d.text(408, 132, "last ana: 2 times", "note", "start")
    return d


PICTURES = (batch_again, suffix_array)
