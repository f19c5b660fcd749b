"Season 2, chapter 5: the three terms of a scaling law"

from .style import Drawing, there_and_back


def three_terms():
    d = Drawing(
        "The three terms of a scaling law",
        "The loss as a sum of three parts, for four runs. The floor is the same for all. A larger "
        "model makes the second part smaller, more tokens make the third part smaller; with the "
        "same arithmetic one can only be bought with the other.",
        width=400,
        height=246,
    )
    runs = (
        ("small, few tokens", 70, 62),
        ("large, few tokens", 35, 62),
        ("small, many tokens", 70, 26),
        ("large, many tokens", 35, 26),
    )
    left, floor = 138, 117
    for i, (name, lacks, short) in enumerate(runs):
        y = 46 + i * 42
        d.text(left - 8, y + 19, name, "note", "end")
        d.box(left, y, floor, 28, kind="quiet", corner=3)
        d.box(left + floor, y, lacks, 28, kind="module", corner=3)
        d.box(left + floor + lacks, y, short, 28, kind="warm", corner=3)
    d.text(left + floor / 2, 32, "E: floor", "name")
    d.text(left + floor + 35, 32, "A / Nᵃ", "name")
    d.text(left + floor + 101, 32, "B / Dᵇ", "name")
    d.text(left, 232, "the length of a bar is the loss", "note", "start")
    return d


def many_ladders():
    d = Drawing(
        "How often a range holds",
        "From one known law many ladders are made, each with noise of its own. Each is fitted, and "
        "each fit gives a range of the floor. Counted is how often the range holds the true floor, "
        "the dashed line.",
        width=404,
        height=216,
    )
    law = d.box(8, 84, 92, 52, "one law", "E = 0.45", "quiet")
    true_floor, rows = (
        334,
        (("ladder 1", 290, 372), ("ladder 2", 346, 390), ("ladder 60", 306, 350)),
    )
    d.arrow((true_floor, 36), (true_floor, 196), kind="dashed", head=False)
    d.text(true_floor, 26, "true E", "name")
    for i, (name, low, high) in enumerate(rows):
        ladder = d.box(134, 44 + i * 54, 104, 44, name, "its own noise", "module")
        d.arrow(law.right, ladder.left)
        d.arrow(ladder.right, (276, ladder.right[1]))
        holds = low < true_floor < high
        d.box(low, 58 + i * 54, high - low, 10, kind="good" if holds else "warm", corner=3)
        if holds:
            d.text(true_floor - 6, 84 + i * 54, "holds", "note", "end")
        else:
            d.text((low + high) / 2, 84 + i * 54, "misses")
    return d


def sealed_in_order():
    d = Drawing(
        "A forecast under seal",
        "Six boxes in a row that turns back once. The points of the runs so far give a forecast, "
        "which is sealed and committed. Only then the run begins. It reaches a loss, and the loss "
        "grades the forecast.",
        width=404,
        height=176,
    )
    there = [
        ("points", "the runs so far", "quiet"),
        ("forecast", "with a range", "module"),
        ("seal", "hash and commit", "module"),
    ]
    back = [
        ("run", "begins only now", "warm"),
        ("loss", "is reached", "warm"),
        ("grade", "inside or not", "good"),
    ]
    there_and_back(d, there, back)
    return d


PICTURES = (three_terms, many_ladders, sealed_in_order)
