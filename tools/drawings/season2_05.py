"Season 2, chapter 5: the three terms of a scaling law"

from .style import Drawing


def three_terms():
    d = Drawing(
        "The three terms of a scaling law",
        "The loss as a sum of three parts, for four runs. The floor is the same for all. A larger "
        "model makes the second part smaller, more tokens make the third part smaller; with the "
        "same arithmetic one can only be bought with the other.",
        width=520,
        height=252,
    )
    runs = (
        ("small, few tokens", 90, 80),
        ("large, few tokens", 45, 80),
        ("small, many tokens", 90, 34),
        ("large, many tokens", 45, 34),
    )
    for i, (name, lacks, short) in enumerate(runs):
        y = 48 + i * 42
        d.text(150, y + 19, name, "note", "end")
        d.box(160, y, 150, 28, kind="quiet", corner=3)
        d.box(310, y, lacks, 28, kind="module", corner=3)
        d.box(310 + lacks, y, short, 28, kind="warm", corner=3)
    d.text(235, 34, "E: floor", "name")
    d.text(352, 34, "A / Nᵃ", "name")
    d.text(446, 34, "B / Dᵇ", "name")
    d.text(160, 238, "the length of a bar is the loss", "note", "start")
    return d


PICTURES = (three_terms,)
