"Season 3, chapter 7: a batch found again; a suffix array"

from .style import Drawing


def batch_again():
    d = Drawing(
        "A batch, found again",
        "Seed and step go into a formula. Out come the places of the windows; the windows are cut "
        "from the shards, and a list beside the shards says which documents lie there. Nothing "
        "was written down during training.",
        width=400,
        height=318,
    )
    step = d.box(20, 22, 150, 54, "seed, step", "two numbers", kind="thing")
    order = d.box(230, 22, 150, 54, "order", "a formula", kind="module")
    shards = d.box(20, 126, 150, 54, "shards", "tokens", kind="plum")
    names = d.box(230, 126, 150, 54, "documents", "lengths, names", kind="plum")
    text = d.box(20, 222, 150, 54, "windows", "what it read", kind="good")
    who = d.box(230, 222, 150, 54, "names", "of their documents", kind="good")
    d.arrow(step.right, order.left)
    d.arrow(order.bottom, names.top)
    d.arrow((305, 101), (95, 101), shards.top)
    d.text(200, 94, "places of windows", "note")
    d.arrow(shards.bottom, text.top)
    d.arrow(names.bottom, who.top)
    d.text(200, 300, "the same call during training and years later", "note")
    return d


def suffix_array():
    d = Drawing(
        "A suffix array of banana",
        "The suffixes of a text, sorted: all places where a passage occurs stand next to each "
        "other. Two binary searches find the first and the last of them.",
        width=400,
        height=262,
    )
    word = "banana"
    order = sorted(range(len(word)), key=lambda i: word[i:])
    d.text(42, 32, "place", "note")
    d.text(156, 32, "what follows there", "note")
    for row, place in enumerate(order):
        y = 44 + 34 * row
        hit = word[place:].startswith("ana")
        d.box(16, y, 52, 28, str(place), kind="good" if hit else "quiet")
        d.box(80, y, 152, 28, word[place:], kind="good" if hit else "thing")
    d.arrow((266, 92), (236, 92))
    d.text(274, 96, "first ana", "note", "start")
    d.arrow((266, 126), (236, 126))
    d.text(274, 130, "last ana: 2 times", "note", "start")
    return d


PICTURES = (batch_again, suffix_array)
