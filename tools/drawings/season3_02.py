"Season 3, chapter 2: a teacher who forgets carries; what the masked loss asks for"

from .style import Drawing


def forgetful_teacher():
    d = Drawing(
        "A teacher who forgets carries",
        "The sum 475 + 168, written from the units up. The units make 13: write 3, and the carry "
        "is remembered or forgotten with one half each. So it goes on: two carries, four possible "
        "answers of one quarter each, and one of them, 643, is right.",
        width=400,
        height=362,
    )
    first = d.box(120, 18, 160, 56, "5 + 8 = 13", "write 3")
    tens = d.box(20, 136, 160, 56, "7 + 6 + 1 = 14", "write 4")
    plain = d.box(220, 136, 160, 56, "7 + 6 = 13", "write 3")
    d.arrow(first.bottom, tens.top)
    d.arrow(first.bottom, plain.top)
    d.text(138, 104, "remembers, 1/2", "note", "end")
    d.text(262, 104, "forgets, 1/2", "note", "start")
    ends = [
        ("643", "right", "good"),
        ("543", "", "quiet"),
        ("633", "", "quiet"),
        ("533", "", "quiet"),
    ]
    for n, (number, note, kind) in enumerate(ends):
        before = tens if n < 2 else plain
        forgets = n % 2
        x = before.middle[0] + (44 if forgets else -44)
        box = d.box(x - 38, 258, 76, 42, number, kind=kind)
        d.arrow(before.bottom, box.top)
        half = before.middle[0] + (34 if forgets else -34)
        d.text(half, 226, "1/2", "note", "start" if forgets else "end")
        d.text(x, 320, "1/4", "number")
        if note:
            d.text(x, 340, note, "note")
    return d


def masked_loss():
    d = Drawing(
        "What the masked loss asks for",
        "The thirteen predictions of one sum. The eight that fall on the question are left out; "
        "five remain: four digits of the answer and the end. The six digits of the question are "
        "dice, nobody can predict them.",
        width=400,
        height=304,
    )
    asked = ("user", "5", "7", "4", "+", "8", "6", "1")
    answered = ("asst", "3", "4", "6", "0", "end")
    x0, w, gap = 14, 43, 4
    for y, words, kind, name, note in (
        (
            46,
            asked,
            "thing",
            "read only: six dice of ten sides",
            "6 × ln 10 = 13.8 nats that nobody can learn",
        ),
        (176, answered, "good", "asked for", "5 × 0.1935 = 0.97 nats"),
    ):
        boxes = d.tokens(x0, y, words, w, 38, gap, kinds=["plum"] + [kind] * (len(words) - 1))
        x1, x2 = boxes[1].x, boxes[-1].x + w
        d.text((x1 + x2) / 2, y - 14, name, "name")
        d.arrow((x1, y + 46), (x1, y + 54), (x2, y + 54), (x2, y + 46), head=False)
        d.text((x1 + x2) / 2, y + 76, note, "note")
    d.text(x0, 286, "475 + 168 = 643, units first", "note", "start")
    return d


PICTURES = (forgetful_teacher, masked_loss)
