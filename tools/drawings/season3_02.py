"Season 3, chapter 2: a teacher who forgets carries; what the masked loss asks for"

from .style import Drawing


def forgetful_teacher():
    d = Drawing(
        "A teacher who forgets carries",
        "The sum 475 + 168, written from the units up. The units make 13: write 3, and the carry "
        "is remembered or forgotten with one half each. So it goes on: two carries, four possible "
        "answers of one quarter each, and one of them, 643, is right.",
        width=700,
        height=300,
    )
    first = d.box(24, 120, 150, 60, "5 + 8 = 13", "write 3")
    tens, plain = (
        d.box(232, 48, 160, 56, "7 + 6 + 1 = 14", "write 4"),
        d.box(232, 196, 160, 56, "7 + 6 = 13", "write 3"),
    )
    ends = [
        ("643", "right", "good"),
        ("543", "", "quiet"),
        ("633", "", "quiet"),
        ("533", "", "quiet"),
    ]
    for box, words in ((tens, "remembers, 1/2"), (plain, "forgets, 1/2")):
        d.arrow(first.right, box.left)
        d.text(206 if box is tens else 200, 74 if box is tens else 250, words, "note", "end")
    for n, (number, note, kind) in enumerate(ends):
        y = 24 + 66 * n
        box = d.box(520, y, 84, 42, number, kind=kind)
        d.arrow((tens if n < 2 else plain).right, box.left)
        d.text(616, y + 18, "1/4", "number", "start")
        if note:
            d.text(616, y + 36, note, "note", "start")
    d.text(476, 36, "1/2", "note", "end")
    return d


def masked_loss():
    d = Drawing(
        "What the masked loss asks for",
        "The thirteen predictions of one sum. The eight that fall on the question are left out; "
        "five remain: four digits of the answer and the end. The six digits of the question are "
        "dice, nobody can predict them.",
        width=700,
        height=196,
    )
    words = ("user", "5", "7", "4", "+", "8", "6", "1", "asst", "3", "4", "6", "0", "end")
    kinds = ["plum", *["thing"] * 7, "plum", *["good"] * 5]
    x0, w, gap = 14, 44, 4
    boxes = d.tokens(x0, 62, words, w, 38, gap, kinds=kinds)
    d.text(boxes[4].middle[0], 40, "read only: six dice of ten sides", "name")
    d.text(boxes[11].middle[0], 40, "asked for", "name")
    for a, b in ((1, 7), (9, 13)):
        x1, x2 = boxes[a].x, boxes[b].x + w
        d.arrow((x1, 116), (x1, 124), (x2, 124), (x2, 116), head=False)
    d.text(boxes[4].middle[0], 146, "6 x ln 10 = 13.8 nats that nobody can learn", "note")
    d.text(boxes[11].middle[0], 146, "5 x 0.1935 = 0.97 nats", "note")
    d.text(x0, 180, "475 + 168 = 643, units first", "note", "start")
    return d


PICTURES = (forgetful_teacher, masked_loss)
