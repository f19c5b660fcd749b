"Season 2, chapter 2: phases, gates and off-ramps"

from .style import Drawing


def phases_and_gates():
    d = Drawing(
        "Phases and gates",
        "A run in phases, one after another. Each answers a question for a stated price. At its "
        "end a checkpoint is written and a gate asks the log; the verdict is continue, stop, or "
        "change the GPU, and only after continue the next phase is paid for.",
        width=400,
        height=520,
    )
    phases = (
        ("smoke", "to step 200"),
        ("proof", "to 10,000"),
        ("grind", "to 60,000"),
        ("push", "to 90,000"),
    )
    budgets = (5, 25, 100, 50)
    end = d.box(238, 70, 148, 338, kind="quiet")
    for i, ((name, steps), usd) in enumerate(zip(phases, budgets, strict=True)):
        y = 18 + i * 104
        d.text(54, y + 29, f"${usd}", "name", "end")
        box = d.box(66, y, 110, 48, name, steps, "module")
        gate = d.box(103, y + 54, 36, 24, "?", kind="warm", corner=12)
        d.arrow(gate.right, (end.x, gate.right[1]))
        d.arrow(gate.bottom, (box.middle[0], y + 104))
        d.text(box.middle[0] - 10, y + 96, "continue", "note", "end")
    d.text(121, 450, "two more, to step 160,000")
    for i, words in enumerate(("stop, or change", "the GPU:", "the checkpoint", "is there")):
        d.text(end.middle[0], 210 + i * 19, words)
    d.text(200, 484, "?: loss, gap, speed and price,")
    d.text(200, 502, "asked of the log before the next dollar")
    return d


def three_guards():
    d = Drawing(
        "Three guards",
        "Three guards, in the order in which they are asked. A rehearsal on a laptop costs nothing "
        "and finds what would crash. The smoke test, for at most 5 dollars, finds what depends on "
        "the machine. The later gates, each at the price of its phase, find what only the loss "
        "shows.",
        width=404,
        height=262,
    )
    guards = (
        ("rehearsal", "on a laptop", "$0", "good"),
        ("smoke test", "200 steps", "up to $5", "module"),
        ("later gates", "after each phase", "from $25", "warm"),
    )
    finds = (
        ("a wrong shape or device,", "a lost gradient,", "a step that does not fit"),
        ("a slow kernel, a bad link,", "a price that is too high,", "a loss that is no number"),
        ("rates that are wrong,", "a text that repeats itself,", "a nat that costs too much"),
    )
    d.text(216, 18, "what it finds", "note", "start")
    d.text(16, 18, "asked, in this order", "note", "start")
    last = None
    for i, ((name, where, usd, kind), words) in enumerate(zip(guards, finds, strict=True)):
        y = 30 + i * 78
        box = d.box(16, y, 112, 54, name, where, kind)
        d.text(box.right[0] + 8, y + 31, usd, "note", "start")
        for j, line in enumerate(words):
            d.text(216, y + 14 + j * 17, line, "note", "start")
        if last:
            d.arrow(last.bottom, box.top)
        last = box
    return d


PICTURES = (phases_and_gates, three_guards)
