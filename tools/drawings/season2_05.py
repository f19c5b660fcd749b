"Season 2, chapter 5: the three terms of a scaling law"

from .style import Drawing


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


PICTURES = (three_terms,)
