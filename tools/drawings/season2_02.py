"Season 2, chapter 2: phases, gates and off-ramps"

from .style import Drawing


def phases_and_gates():
    d = Drawing(
        "Phases and gates",
        "A run as a column of phases. Each answers a question for a stated price. At its end a "
        "checkpoint is written and a gate asks the log; the verdict is continue, stop, or change "
        "the GPU, and only after continue the next phase is paid for.",
        width=380,
        height=466,
    )
    phases = (
        ("smoke", "to step 200"),
        ("proof", "to 10,000"),
        ("grind", "to 60,000"),
        ("push", "to 90,000"),
    )
    budgets = (5, 25, 100, 50)
    for i, ((name, steps), usd) in enumerate(zip(phases, budgets, strict=True)):
        y = 16 + i * 102
        box = d.box(66, y, 120, 50, name, steps, "module")
        d.text(36, y + 30, f"${usd}", "name")
        gate = d.box(112, y + 62, 28, 26, "?", kind="warm", corner=12)
        d.arrow(box.bottom, gate.top)
        if i < 3:
            d.arrow(gate.bottom, (126, y + 102))
        d.arrow(gate.right, (230, y + 75))
    d.box(230, 66, 136, 356, kind="quiet")
    for i, words in enumerate(("stop, or change", "the GPU:", "the checkpoint", "is there")):
        d.text(298, 223 + i * 18, words)
    d.text(190, 440, "?: loss, gap, speed and price, asked of the log")
    d.text(190, 456, "before the next dollar")
    return d


PICTURES = (phases_and_gates,)
