"Season 2, chapter 4: what checkpointing keeps, and how a ring adds gradients up"

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


TURNS, TURN_SECONDS, REST = 6, 2.0, 3.0  # a ring of four; the rest shows the end
SECONDS = TURNS * TURN_SECONDS + REST


def ring_states():
    "Of the parts that each GPU of a ring of four holds: how many GPUs are added up, turn by turn"
    held = [[1] * 4 for _ in range(4)]
    states = [[[*parts] for parts in held]]
    for turn in range(TURNS):
        parts = [(gpu - turn) % 4 for gpu in range(4)]  # which one each GPU sends
        sent = [held[gpu][part] for gpu, part in enumerate(parts)]
        for gpu, (part, count) in enumerate(zip(parts, sent, strict=True)):
            neighbour = held[(gpu + 1) % 4]
            # three turns add up, three hand on what is whole
            neighbour[part] = neighbour[part] + count if turn < 3 else count
        states.append([[*parts] for parts in held])
    return states


def key(seconds):
    "A moment of the round, as a share of it"
    return f"{seconds / SECONDS:.4f}"


def shown_between(d, start, end, draw):
    "Shapes that are seen from one second of the round to another; a still picture is its start"
    first = len(d.parts)
    draw()
    shapes = d.parts[first:]
    del d.parts[first:]
    values, times = ["1"], ["0"]
    if start > 0:
        values, times = ["0", "1"], ["0", key(start)]
    if end < SECONDS:
        values.append("0")
        times.append(key(end))
    d.parts.append(f'<g opacity="{values[0]}">')
    if len(values) > 1:
        d.parts.append(
            f'<animate attributeName="opacity" calcMode="discrete" dur="{SECONDS:g}s" '
            f'repeatCount="indefinite" values="{";".join(values)}" keyTimes="{";".join(times)}"/>'
        )
    d.parts += [*shapes, "</g>"]


def cells_of_gpu(d, gpu, x, y, states):
    "The four parts of a GPU, each with its count, which changes when a part has come in"
    for part in range(4):
        counts = [state[gpu][part] for state in states]
        changes = [0, *(turn for turn in range(1, 7) if counts[turn] != counts[turn - 1])]
        for turn, until in zip(changes, [*changes[1:], None], strict=True):
            count = counts[turn]
            kind = {1: "module", 4: "good"}.get(count, "warm")

            def one_cell(count=count, kind=kind, part=part):
                d.box(x + 20 * part, y, 20, 20, str(count), kind=kind, corner=3, font="number")

            end = SECONDS if until is None else until * TURN_SECONDS
            shown_between(d, turn * TURN_SECONDS, end, one_cell)


def parts_on_the_way(d, wires):
    "In each turn one part travels over every wire, all at the same time"
    for turn in range(TURNS):
        start = turn * TURN_SECONDS
        for gpu, ((x0, y0), (x1, y1)) in enumerate(wires):
            letter = "abcd"[(gpu - turn) % 4]

            def packet(letter=letter, x0=x0, y0=y0, x1=x1, y1=y1, start=start):
                d.parts.append("<g>")
                times = f"0;{key(start)};{key(start + TURN_SECONDS)};1"
                d.parts.append(
                    f'<animateTransform attributeName="transform" type="translate" '
                    f'dur="{SECONDS:g}s" repeatCount="indefinite" keyTimes="{times}" '
                    f'values="0 0;0 0;{x1 - x0:.0f} {y1 - y0:.0f};{x1 - x0:.0f} {y1 - y0:.0f}"/>'
                )
                d.box(x0 - 11, y0 - 11, 22, 22, letter, kind="plum", corner=4)
                d.parts.append("</g>")

            if turn == 0:  # at rest the picture shows the counts, and no part on its way
                shown_between(d, 0.05, TURN_SECONDS, packet)
            else:
                shown_between(d, start, start + TURN_SECONDS, packet)


def ring_all_reduce():
    d = Drawing(
        "A ring averages gradients",
        "Four GPUs in a ring, each with a gradient cut into four parts, a to d. In each turn every "
        "GPU sends one part to its neighbour: first GPU 1 sends part a, GPU 2 part b, GPU 3 part c "
        "and GPU 4 part d. The numbers say how many GPUs are added up in a part. A table follows "
        "GPU 1: after three turns its part b is whole, after six all four are. Every wire carries "
        "three quarters of the gradient twice.",
        width=400,
        height=524,
    )
    states = ring_states()
    corners = ((158, 16), (300, 128), (158, 240), (16, 128))
    boxes = [d.box(x, y, 92, 60, kind="quiet") for x, y in corners]
    pairs = ((0, "right", 1, "top"), (1, "bottom", 2, "right"))
    pairs += ((2, "left", 3, "bottom"), (3, "top", 0, "left"))
    wires = []
    for a, leaves, b, enters in pairs:
        wires.append((getattr(boxes[a], leaves), getattr(boxes[b], enters)))
        d.arrow(*wires[-1])
    for gpu, (x, y) in enumerate(corners):
        d.text(x + 46, y + 17, f"GPU {gpu + 1}", "name")
        cells_of_gpu(d, gpu, x + 6, y + 25, states)
        for part, letter in enumerate("abcd"):
            d.text(x + 16 + 20 * part, y + 56, letter, "note")
    d.text(204, 142, "a quarter a turn", "note")
    d.text(204, 158, "over every wire", "note")
    for turn in range(TURNS):
        words = f"turn {turn + 1}: " + ("add" if turn < 3 else "hand on")
        start = turn * TURN_SECONDS

        def line(words=words):
            d.text(204, 182, words, "name")

        shown_between(d, start, start + TURN_SECONDS, line)
    shown_between(d, SECONDS - REST, SECONDS, lambda: d.text(204, 182, "all have all", "name"))
    parts_on_the_way(d, wires)
    for i, part in enumerate("abcd"):
        d.text(234 + 44 * i, 336, part, "name")
    rows = (
        (0, "GPU 1 has its own"),
        (1, "1 turn: d from GPU 4 added"),
        (2, "2 turns"),
        (3, "3 turns: b is the sum of all"),
        (6, "6 turns: all of them are"),
    )
    for row, (turns, name) in enumerate(rows):
        y = 346 + row * 33
        d.text(14, y + 18, name, "note", "start")
        added = states[turns][0]
        kinds = [{1: "module", 4: "good"}.get(count, "warm") for count in added]
        d.tokens(214, y, [str(count) for count in added], 40, 26, 4, kinds=kinds)
    return d


PICTURES = (kept_or_recomputed, ring_all_reduce)
