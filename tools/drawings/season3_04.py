"Season 3, chapter 4: from two answers to a preference; how far beta lets a model go"

from .style import Drawing


def preference_pair():
    d = Drawing(
        "From two answers to a step of DPO",
        "The model answers a question twice. A judge says which answer is better. DPO raises the "
        "better one and lowers the other, both measured against the model as it was before: the "
        "reference, whose opinion was asked once and written down.",
        width=580,
        height=262,
    )
    q = d.box(14, 100, 100, 50, "475 + 168", "the question", kind="thing")
    a = d.box(148, 44, 90, 50, "643", "answer one", kind="good")
    b = d.box(148, 156, 90, 50, "533", "answer two", kind="warm")
    judge = d.box(272, 100, 114, 50, "judge", "which is better?", kind="plum")
    up = d.box(420, 44, 146, 50, "chosen: up", "against the reference", kind="good")
    down = d.box(420, 156, 146, 50, "rejected: down", "against the reference", kind="warm")
    for box in (a, b):
        d.arrow(q.right, box.left)
        d.arrow(box.right, judge.left)
    d.arrow(judge.right, up.left)
    d.arrow(judge.right, down.left)
    d.text(290, 240, "loss = -ln sigmoid( beta x (gain of chosen - gain of rejected) )", "code")
    return d


def where_it_goes():
    d = Drawing(
        "The loss falls in two ways",
        "DPO only asks for a difference. Left: the better answer rises, the worse one falls. "
        "Right: both fall, the worse one faster. The loss is the same, and the probability has "
        "gone to answers that are in no pair.",
        width=500,
        height=270,
    )
    for x, name, ends, others in (
        (30, "what one hopes for", (0.70, 0.10), 0.20),
        (272, "what may happen", (0.07, 0.01), 0.92),
    ):
        d.text(x + 135, 34, name, "name")
        for top, words, values in (
            (56, "before", (0.30, 0.30, 0.40)),
            (158, "after", (*ends, others)),
        ):
            d.text(x + 34, top + 14, words, "name", "end")
            d.bars(
                x + 110,
                top,
                values,
                ("better", "worse", "other"),
                w=70,
                h=18,
                gap=6,
                heat="green" if words == "after" else "blue",
            )
    d.text(250, 254, "a gain of ln 7 between the two, on both sides", "note")
    return d


PICTURES = (preference_pair, where_it_goes)
