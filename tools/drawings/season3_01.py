"Season 3, chapter 1: a conversation as tokens, rows of conversations, a mask for each"

from .style import Drawing

SPOKEN = ("user", "2+2", "?", "asst", "4", ".", "end")


def chat_tokens():
    d = Drawing(
        "A conversation as tokens",
        "A question and its answer as seven tokens. Special tokens say who speaks; the words of "
        "the user are read but not learned; the words of the assistant and the token that ends "
        "its turn are learned.",
        width=400,
        height=212,
    )
    x0, w, gap = 14, 48, 6
    kinds = ["plum", "thing", "thing", "plum", "good", "good", "good"]
    boxes = d.tokens(x0, 58, SPOKEN, w, 42, gap, kinds=kinds)
    d.text((boxes[0].x + boxes[2].x + w) / 2, 36, "the user's turn", "name")
    d.text((boxes[3].x + boxes[6].x + w) / 2, 36, "the assistant's turn", "name")
    for box, learned in zip(boxes, (0, 0, 0, 0, 1, 1, 1)):
        x = box.middle[0]
        d.box(x - 16, 114, 32, 28, str(learned), kind="good" if learned else "quiet", font="code")
    d.text(x0, 172, "1: the loss asks for this token", "note", "start")
    d.text(x0, 192, "0: it is only read", "note", "start")
    return d


def packed_rows():
    d = Drawing(
        "Five conversations in rows of ten",
        "Five conversations of 7, 5, 4, 3 and 1 tokens. Above: one in each row of ten, the rest of "
        "the row is padding and 20 of 50 places are used. Below: whole conversations put "
        "together fill two rows to the last place.",
        width=400,
        height=332,
    )
    cell, left = 37, 15
    kinds = dict(A="module", B="good", C="warm", D="plum", E="thing")
    sizes = dict(A=7, B=5, C=4, D=3, E=1)

    def row(y, names):
        place = 0
        for name in names:
            x = left + place * cell
            d.box(x, y, sizes[name] * cell, 26, name, kind=kinds[name], corner=4)
            place += sizes[name]
        if place < 10:
            rest = (10 - place) * cell
            d.box(left + place * cell, y, rest, 26, note="padding", kind="quiet", corner=4)

    d.text(left, 32, "one in each row", "name", "start")
    for i, name in enumerate("ABCDE"):
        row(44 + 34 * i, name)
    d.text(left + 10 * cell, 32, "20 of 50 places", "note", "end")
    d.text(left, 240, "packed", "name", "start")
    for i, names in enumerate(("AD", "BCE")):
        row(252 + 34 * i, names)
    d.text(left + 10 * cell, 240, "20 of 20 places", "note", "end")
    return d


def packed_mask():
    d = Drawing(
        "Who may look at whom in a packed row",
        "A row of seven tokens holds two conversations, A of four tokens and B of three. A token "
        "looks back only within its own conversation: two triangles, and nothing from B to A. "
        "Positions start again at 0 in B.",
        width=400,
        height=448,
    )
    words = ("A0", "A1", "A2", "A3", "B0", "B1", "B2")
    cell, x0, y0 = 40, 68, 64
    kinds = ["module"] * 4 + ["warm"] * 3
    for i, down in enumerate(words):
        d.text(x0 - 10, y0 + (i + 0.5) * cell + 5, down, "code", "end")
        d.text(x0 + (i + 0.5) * cell, y0 - 8, down, "code")
        for j in range(7):
            same = (i < 4) == (j < 4)
            kind = kinds[i] if same and j <= i else "quiet"
            d.box(x0 + j * cell, y0 + i * cell, cell, cell, kind=kind, corner=0)
    d.text(x0 + 3.5 * cell, 32, "looks at", "name")
    for i, (kind, name, note) in enumerate(
        (
            ("module", "A reads A", "as if it stood alone"),
            ("warm", "B reads B", "positions 0, 1, 2 again"),
            ("quiet", "unread", "what comes later; from B, all of A"),
        )
    ):
        y = 364 + 27 * i
        d.box(20, y, 18, 18, kind=kind, corner=3)
        d.text(48, y + 14, name, "name", "start")
        d.text(140, y + 14, note, "note", "start")
    return d


PICTURES = (chat_tokens, packed_rows, packed_mask)
