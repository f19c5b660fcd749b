"Season 3, the page that teaches a model to talk: its phases, what each asks, and where it ends"

from .style import Drawing


def from_text_to_talk():
    d = Drawing(
        "From a base to a model that talks",
        "A base becomes a model that talks in three phases. Examples teach it to answer, "
        "preferences which answer is better, rewards what a rule can check. Behind each phase a "
        "gate asks what was measured, and only then the next one is paid for.",
        width=400,
        height=452,
    )
    phases = (
        ("base", "has read text", "thing", ("its loss",)),
        ("sft", "examples", "module", ("does it end its answers?", "what has it forgotten? (toy)")),
        ("dpo", "preferences", "plum", ("are pairs in order?", "do the chosen fade?")),
        ("grpo", "rewards", "good", ("is it above a guess?", "how far has it gone?")),
    )
    for i, (name, teaches, kind, asked) in enumerate(phases):
        y = 18 + i * 104
        box = d.box(24, y, 120, 48, name, teaches, kind)
        gate = d.box(66, y + 54, 36, 24, "?", kind="warm", corner=12)
        for line, words in enumerate(asked):
            d.text(176, y + 62 + 18 * line, words, "note", "start")
        d.arrow((gate.right[0] + 52, gate.right[1]), gate.right)
        if i < 3:
            d.arrow(gate.bottom, (box.middle[0], y + 104))
    d.text(176, 46, "each phase has a budget", "name", "start")
    return d


PICTURES = (from_text_to_talk,)
