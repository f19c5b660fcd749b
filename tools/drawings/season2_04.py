"Season 2, chapter 4: what checkpointing keeps, and how a ring adds gradients up"

import math

from .style import Drawing

WIDE, BLOCK = 23, 18  # pixels: the time of one block forward, what a block keeps


def memory_over_time(d, base, kept, again):
    "A bar for each stretch of time, as high as what is held then; a backward pass takes two"
    x, held = 14, 0
    for _ in range(4):
        held += kept
        d.box(x, base - held, WIDE, held, kind="module", corner=0)
        x += WIDE
    for _ in range(4):
        high = held
        if again:
            high += BLOCK
            d.box(x, base - high, WIDE, high, kind="plum", corner=0)
            x += WIDE
        d.box(x, base - high, 2 * WIDE, high, kind="warm", corner=0)
        x += 2 * WIDE
        held -= kept


def kept_or_recomputed():
    d = Drawing(
        "Gradient checkpointing",
        "Memory held over the time of one step, for a model of four blocks. Keeping everything, "
        "memory rises with every block of the forward pass and falls with every block of the "
        "backward pass. With full checkpointing only the small inputs pile up; in the backward "
        "pass each block runs forward again, which makes a bump, so the step takes longer and its "
        "peak is about half as high.",
        width=400,
        height=276,
    )
    d.text(14, 30, "keep everything", "name", "start")
    memory_over_time(d, 124, BLOCK, again=False)
    d.text(14, 160, "full checkpointing", "name", "start")
    memory_over_time(d, 220, 5, again=True)
    d.text(14, 244, "height: memory held; to the right: time", "note", "start")
    d.text(14, 262, "blue forward, orange backward, violet forward again", "note", "start")
    return d


def parts_added(turns):
    "Of the four parts that GPU 1 of a ring of four holds: how many GPUs are added up in each"
    held = [[1] * 4 for _ in range(4)]
    for turn in range(turns):
        parts = [(gpu - turn) % 4 for gpu in range(4)]  # which one each GPU sends
        sent = [held[gpu][part] for gpu, part in enumerate(parts)]
        for gpu, (part, count) in enumerate(zip(parts, sent, strict=True)):
            neighbour = held[(gpu + 1) % 4]
            # three turns add up, three hand on what is whole
            neighbour[part] = neighbour[part] + count if turn < 3 else count
    return held[0]


def ring_all_reduce():
    d = Drawing(
        "A ring averages gradients",
        "Four GPUs in a ring, each with a gradient cut into four parts, a to d. In the first turn "
        "GPU 1 sends part a, GPU 2 part b, GPU 3 part c and GPU 4 part d. A table shows how many "
        "GPUs are added up in each part of GPU 1: after three turns its part b is whole, after six "
        "all four are. Every link carries three quarters of the gradient twice.",
        width=400,
        height=472,
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
    for part, x, y in (("a", 284, 74), ("b", 284, 210), ("c", 116, 210), ("d", 116, 74)):
        d.text(x, y, part, "name")
    d.text(centre[0], centre[1] - 4, "a quarter a turn", "note")
    d.text(centre[0], centre[1] + 14, "over every wire", "note")
    for i, part in enumerate("abcd"):
        d.text(234 + 44 * i, 290, part, "name")
    rows = (
        (0, "GPU 1 has its own"),
        (1, "1 turn: d from GPU 4 added"),
        (2, "2 turns"),
        (3, "3 turns: b is the sum of all"),
        (6, "6 turns: all of them are"),
    )
    for row, (turns, name) in enumerate(rows):
        y = 300 + row * 33
        d.text(14, y + 18, name, "note", "start")
        added = parts_added(turns)
        kinds = [{1: "module", 4: "good"}.get(count, "warm") for count in added]
        d.tokens(214, y, [str(count) for count in added], 40, 26, 4, kinds=kinds)
    return d


PICTURES = (kept_or_recomputed, ring_all_reduce)
