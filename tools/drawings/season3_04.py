"Season 3, chapter 4: from two answers to a preference; how far beta lets a model go"

from .style import Drawing


def preference_pair():
    d = Drawing(
        "From two answers to a step of DPO",
        "The model answers a question twice. A judge says which answer is better. DPO raises the "
        "better one and lowers the other, both measured against the model as it was before: the "
        "reference, whose opinion was asked once and written down.",
        width=400,
        height=408,
    )
    q = d.box(135, 18, 130, 50, "475 + 168", "the question", kind="thing")
    a = d.box(30, 104, 130, 50, "643", "answer one", kind="good")
    b = d.box(240, 104, 130, 50, "533", "answer two", kind="warm")
    judge = d.box(135, 190, 130, 50, "judge", "which is better?", kind="plum")
    up = d.box(14, 282, 162, 50, "chosen: up", "against the reference", kind="good")
    down = d.box(224, 282, 162, 50, "rejected: down", "against the reference", kind="warm")
    for box in (a, b):
        d.arrow(q.bottom, box.top)
        d.arrow(box.bottom, (box.bottom[0], judge.left[1]), judge.left if box is a else judge.right)
    d.arrow(judge.bottom, up.top)
    d.arrow(judge.bottom, down.top)
    d.text(24, 366, "loss = -ln sigmoid( beta ×", "code", "start")
    d.text(48, 388, "(gain of chosen - gain of rejected) )", "code", "start")
    return d


def where_it_goes():
    d = Drawing(
        "The loss falls in two ways",
        "DPO only asks for a difference. Above: the better answer rises, the worse one falls. "
        "Below: both fall, the worse one faster. The loss is the same, and the probability has "
        "gone to answers that are in no pair.",
        width=400,
        height=334,
    )
    for y, name, ends, others in (
        (32, "what one hopes for", (0.70, 0.10), 0.20),
        (178, "what may happen", (0.07, 0.01), 0.92),
    ):
        d.text(14, y, name, "title", "start")
        for x, words, values in (
            (68, "before", (0.30, 0.30, 0.40)),
            (268, "after", (*ends, others)),
        ):
            d.text(x, y + 26, words, "name", "start")
            d.bars(
                x,
                y + 36,
                values,
                ("better", "worse", "other"),
                w=86,
                h=18,
                gap=6,
                heat="green" if words == "after" else "blue",
            )
    d.text(200, 314, "both times a gain of ln 7 between better and worse", "note")
    return d


PICTURES = (preference_pair, where_it_goes)
