"Season 3, chapter 2: a teacher who forgets carries; what the masked loss asks for"

from .style import Drawing


def forgetful_teacher():
    d = Drawing(
        "A teacher who forgets carries",
        "The sum 475 + 168, written from the units up. The units make 13: write 3, and the carry "
        "is remembered or forgotten with one half each. So it goes on: two carries, four possible "
        "answers of one quarter each, and one of them, 643, is right.",
        width=550,
        height=300,
    )
    first = d.box(14, 120, 120, 60, "5 + 8 = 13", "write 3")
    tens, plain = (
        d.box(190, 48, 140, 56, "7 + 6 + 1 = 14", "write 4"),
        d.box(190, 196, 140, 56, "7 + 6 = 13", "write 3"),
    )
    ends = [
        ("643", "right", "good"),
        ("543", "", "quiet"),
        ("633", "", "quiet"),
        ("533", "", "quiet"),
    ]
    for box, words in ((tens, "remembers, 1/2"), (plain, "forgets, 1/2")):
        d.arrow(first.right, box.left)
        d.text(170 if box is tens else 168, 74 if box is tens else 250, words, "note", "end")
    for n, (number, note, kind) in enumerate(ends):
        y = 24 + 66 * n
        box = d.box(420, y, 70, 42, number, kind=kind)
        d.arrow((tens if n < 2 else plain).right, box.left)
        d.text(502, y + 18, "1/4", "number", "start")
        if note:
            d.text(502, y + 36, note, "note", "start")
    d.text(392, 36, "1/2", "note", "end")
    return d


def masked_loss():
    d = Drawing(
        "What the masked loss asks for",
        "The thirteen predictions of one sum. The eight that fall on the question are left out; "
        "five remain: four digits of the answer and the end. The six digits of the question are "
        "dice, nobody can predict them.",
        width=470,
        height=262,
    )
    asked, said = ("user", "5", "7", "4", "+", "8", "6", "1", "asst"), ("3", "4", "6", "0", "end")
    x0, w, gap = 21, 44, 4
    top = d.tokens(x0, 48, asked, w, 38, gap, kinds=["plum", *["thing"] * 7, "plum"])
    low = d.tokens(x0, 172, said, w, 38, gap, kinds=["good"] * 5)
    d.text(top[4].middle[0], 32, "read only: six dice of ten sides", "name")
    d.text(low[2].middle[0], 158, "asked for", "name")
    for first, last in ((top[1], top[7]), (low[0], low[4])):
        x1, x2, y = first.x, last.x + w, first.y + 46
        d.arrow((x1, y), (x1, y + 8), (x2, y + 8), (x2, y), head=False)
    d.text(top[4].middle[0], 122, "6 x ln 10 = 13.8 nats that nobody can learn", "note")
    d.text(low[2].middle[0], 246, "5 x 0.1935 = 0.97 nats", "note")
    d.text(low[4].right[0] + 14, 195, "475 + 168 = 643, units first", "note", "start")
    return d


PICTURES = (forgetful_teacher, masked_loss)
