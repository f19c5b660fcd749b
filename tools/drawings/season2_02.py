"Season 2, chapter 2: phases, gates and off-ramps"

from .style import Drawing


def phases_and_gates():
    d = Drawing(
        "Phases and gates",
        "A run as a row of phases. Each answers a question for a stated price. At its end a "
        "checkpoint is written and a gate asks the log; the verdict is continue, stop, or change "
        "the GPU, and only after continue the next phase is paid for.",
        width=520,
        height=236,
    )
    phases = (
        ("smoke", "to step 200"),
        ("proof", "to 10,000"),
        ("grind", "to 60,000"),
        ("push", "to 90,000"),
    )
    budgets = (5, 25, 100, 50)
    for i, ((name, steps), usd) in enumerate(zip(phases, budgets, strict=True)):
        x = 16 + i * 126
        box = d.box(x, 52, 82, 52, name, steps, "module")
        d.text(x + 41, 38, f"${usd}", "name")
        gate = d.box(x + 90, 62, 24, 32, "?", kind="warm", corner=12)
        if i < 3:
            d.arrow((gate.x + 24, 78), (x + 126, 78))
        d.arrow(gate.bottom, (gate.x + 12, 150))
        del box
    d.box(72, 150, 438, 36, "", "stop, or change the GPU: the checkpoint is there", "quiet")
    d.text(260, 214, "?: loss, gap, speed and price, asked of the log before the next dollar")
    return d


PICTURES = (phases_and_gates,)
