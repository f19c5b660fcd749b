"Season 2, chapter 4: what checkpointing keeps, and how a ring adds gradients up"

import math

from .style import Drawing


def kept_or_recomputed():
    d = Drawing(
        "Gradient checkpointing",
        "A forward and a backward pass over four blocks. Without checkpointing every block keeps "
        "what its backward pass needs. With full checkpointing only the input of each block is "
        "kept, and each block runs forward a second time just before its backward pass.",
        width=400,
        height=276,
    )
    for row, (name, note, kind, again) in enumerate(
        (
            ("keep everything", "1 forward, 1 backward", "warm", False),
            ("full checkpointing", "2 forward, 1 backward", "quiet", True),
        )
    ):
        y = 34 + row * 124
        d.text(14, y, name, "name", "start")
        d.text(386, y, note, "note", "end")
        for i in range(4):
            x = 14 + i * 95
            d.box(x, y + 14, 46, 34, f"{i + 1}", kind="module")
            d.box(x + 50, y + 14, 14 if again else 37, 34, kind=kind, corner=3)
            if again:
                d.box(x, y + 56, 46, 24, "", "again", "plum")
    d.text(14, 116, "beside each block: what it keeps in memory", "note", "start")
    d.text(14, 260, "violet: run again, from the kept input", "note", "start")
    return d


def ring_all_reduce():
    d = Drawing(
        "A ring averages gradients",
        "Four GPUs in a ring, each with a gradient cut into four parts. First each part travels "
        "round and is added up; then the sums travel round. Every link carries three quarters of "
        "the gradient twice.",
        width=400,
        height=406,
    )
    centre, radius = (200, 138), 98
    places = []
    for i in range(4):
        angle = math.radians(-90 + 90 * i)
        x = centre[0] + radius * math.cos(angle)
        y = centre[1] + radius * math.sin(angle)
        places.append(d.box(x - 40, y - 20, 80, 40, f"GPU {i + 1}"))
    pairs = ((0, "right", 1, "top"), (1, "bottom", 2, "right"))
    pairs += ((2, "left", 3, "bottom"), (3, "top", 0, "left"))
    for a, leaves, b, enters in pairs:
        d.arrow(getattr(places[a], leaves), getattr(places[b], enters))
    d.text(centre[0], centre[1] + 5, "a quarter a turn", "note")
    for row, (name, kinds) in enumerate(
        (
            ("each has its own gradient", ("module",) * 4),
            ("3 turns: one part is summed", ("good", "module", "module", "module")),
            ("3 more: all parts are summed", ("good",) * 4),
        )
    ):
        y = 286 + row * 38
        d.text(14, y + 17, name, "note", "start")
        d.tokens(214, y, ["", "", "", ""], 40, 26, 4, kinds=kinds)
    return d


PICTURES = (kept_or_recomputed, ring_all_reduce)
