"The front page: a small picture for the card of each chapter, without words where it can be"

from .style import Drawing

WIDTH, HEIGHT = 240, 120


def card(title, alt):
    "An empty card"
    return Drawing(title, alt, width=WIDTH, height=HEIGHT)


def curve(d, points, kind="arrow"):
    "A line through points, without a head"
    d.arrow(*points, kind=kind, head=False)


def season1_0():
    d = card("The next letter", "Three letters, and an empty place with a question mark.")
    d.tokens(22, 44, ("R", "O", "M"), w=42, h=34, gap=10)
    d.tokens(178, 44, ("?",), w=42, h=34, kind="warm")
    return d


def season1_1():
    d = card("Attention", "Four letters in a row; the last one looks back at the three before it.")
    places = d.tokens(22, 66, ("R", "O", "M", "E"), w=42, h=34, gap=10)
    for place, lift, weight in zip(places, (34, 22, 10), (3.2, 1.6, 2.4)):
        d.bow(places[3].top, place.top, lift, weight=weight)
    return d


def season1_2():
    d = card("Data", "Letters are joined into longer and longer pieces until a word is one token.")
    d.tokens(30, 14, ("t", "h", "e", "n"), w=38, h=26, gap=8)
    d.tokens(30, 48, ("th", "e", "n"), w=54, h=26, gap=10, kind="module")
    d.tokens(30, 82, ("then",), w=176, h=26, kind="good")
    return d


def season1_3():
    d = card("Scaling up", "Five squares, each larger than the one before: models that grow.")
    x = 16
    for size, kind in zip((10, 18, 30, 48, 78), ("thing", "thing", "module", "module", "warm")):
        d.box(x, 104 - size, size, size, kind=kind, corner=4)
        x += size + 6
    return d


def season1_4():
    d = card("Training", "A loss falls, leaps up where something went wrong, and falls on.")
    curve(d, ((20, 104), (222, 104)), "grid")
    curve(d, ((22, 20), (44, 50), (70, 66), (104, 74), (112, 22), (122, 74), (170, 86), (220, 92)))
    d.dot(112, 22, "warm", 6)
    d.dot(220, 92, "good", 6)
    return d


def season1_5():
    d = card(
        "How a model writes", "The chances of five next letters as bars; the longest one is chosen."
    )
    words, chances = ("e", "a", "o", "i", "t"), (0.62, 0.2, 0.1, 0.05, 0.03)
    d.bars(40, 13, chances, words, w=200, h=15, gap=5, high=0.8, heat="green")
    return d


def season1_6():
    d = card("Speed", "Five bars, each shorter than the one above: every rung takes less time.")
    for i, wide in enumerate((200, 150, 112, 84, 60)):
        kind = "good" if i == 4 else "module"
        d.box(20, 14 + 19 * i, wide, 14, kind=kind, corner=3)
    return d


def blocks(d, x, n, w, kind):
    "A tower of n transformer blocks that stands on the floor"
    for i in range(n):
        d.box(x, 96 - 11 * i, w, 9, kind=kind, corner=2)


def season2_1():
    d = card("From 134M to 1B", "A small tower of blocks beside a tall and wide one.")
    blocks(d, 34, 5, 44, "module")
    blocks(d, 130, 8, 84, "warm")
    d.arrow((86, 76), (122, 64))
    return d


def season2_2():
    d = card("Phases and gates", "Three phases in a row with a gate behind each: go on, or stop.")
    for i, kind in enumerate(("module", "module", "warm")):
        x = 16 + 74 * i
        box = d.box(x, 40, 46, 38, "$", kind=kind)
        gate = d.box(x + 53, 30, 6, 58, kind="good" if i < 2 else "plum", corner=3)
        d.arrow(box.right, gate.left, head=False)
    return d


def season2_3():
    d = card("Benchmarks", "Bars of four tests beside a dashed line: what guessing would give.")
    for i, tall in enumerate((36, 70, 46, 28)):
        d.box(32 + 48 * i, 106 - tall, 30, tall, kind="plum" if tall > 34 else "quiet", corner=3)
    curve(d, ((20, 72), (222, 72)), "dashed")
    return d


def season2_4():
    d = card("Dollars", "A card that is cheap by the hour and one that is cheap by the token.")
    d.text(66, 22, "$ an hour")
    d.text(172, 22, "$ a token")
    for x, tall, kind in ((36, 28, "module"), (70, 74, "warm"), (142, 74, "module")):
        d.box(x, 106 - tall, 26, tall, kind=kind, corner=3)
    d.box(176, 70, 26, 36, kind="warm", corner=3)
    return d


def season2_5():
    d = card("Chinchilla", "Three curves like valleys; a line through their lowest points.")
    lows = []
    for i in range(3):
        x, y = 36 + 50 * i, 18 + 16 * i
        curve(d, ((x - 16, y), (x - 6, y + 26), (x + 12, y + 38), (x + 36, y + 26), (x + 50, y)))
        lows.append((x + 12, y + 38))
    curve(d, (lows[0], lows[2], (204, 110)), "dashed")
    for x, y in lows:
        d.dot(x, y, "heat-orange", 5)
    return d


def season2_6():
    d = card(
        "$175 today",
        "Two models: a short training and five large answers, a longer training and five small "
        "ones.",
    )
    for y, wide, tall, kind in ((24, 44, 30, "warm"), (72, 84, 10, "module")):
        d.box(16, y, wide, 30, "$", kind=kind, corner=4)
        for k in range(5):
            d.box(114 + 23 * k, y + 30 - tall, 17, tall, kind="good", corner=3)
    return d


def season2_7():
    d = card("Train the 1B", "Four stretches of one long road, and a flag at its end.")
    for i, wide in enumerate((44, 44, 70, 30)):
        x = (16, 63, 110, 183)[i]
        d.box(x, 76, wide, 18, kind=("module", "module", "warm", "good")[i], corner=4)
    curve(d, ((218, 94), (218, 24)))
    d.box(190, 24, 28, 20, kind="plum", corner=2)
    return d


def season3_1():
    d = card("Chat data", "A conversation in boxes: a question, an answer, a question.")
    d.box(18, 14, 120, 26, "12 + 7?", kind="thing", corner=10, font="code")
    d.box(142, 46, 80, 26, "19", kind="module", corner=10, font="code")
    d.box(18, 78, 120, 26, "and 8 more?", kind="thing", corner=10, font="code")
    return d


def season3_2():
    d = card(
        "Learning from examples", "A row of tokens: the question is masked, the answer counts."
    )
    for i in range(8):
        d.box(18 + 26 * i, 46, 22, 30, kind="quiet" if i < 5 else "good", corner=4)
    curve(d, ((148, 90), (222, 90)))
    return d


def season3_3():
    d = card("LoRA", "A large square matrix, plus the product of a tall and a flat one.")
    d.box(20, 20, 80, 80, kind="quiet")
    d.sum(122, 60)
    d.box(146, 20, 14, 80, kind="warm", corner=3)
    d.box(168, 20, 54, 14, kind="warm", corner=3)
    return d


def season3_4():
    d = card("Preferences", "Two answers: an arrow lifts the better one, one lowers the other.")
    for x, kind, points in (
        (36, "good", ((72, 66), (72, 26))),
        (132, "warm", ((168, 66), (168, 104))),
    ):
        d.box(x, 46, 72, 30, kind=kind, corner=10)
        d.arrow(*points)
    return d


def season3_5():
    d = card("Rewards", "Eight answers to one question: three right, five wrong, and their mean.")
    for i in range(8):
        right = i in (1, 4, 5)
        d.dot(30 + 26 * i, 30 if right else 92, "good" if right else "warm", 9)
    curve(d, ((16, 69), (224, 69)), "dashed")
    return d


def season3_6():
    d = card("Talk", "Four models side by side answer the same question.")
    d.box(66, 12, 108, 24, "what is 6 + 7?", kind="thing", corner=10, font="note")
    words = (("?", "quiet"), ("31", "warm"), ("12", "warm"), ("13", "good"))
    for i, (answer, kind) in enumerate(words):
        d.box(18 + 52 * i, 58, 48, 40, answer, kind=kind, corner=10, font="code")
    return d


def season3_7():
    d = card("Forensics", "A page of lines; a glass lies on the one that was learnt by heart.")
    for i in range(6):
        kind = "heat-orange" if i == 3 else "quiet"
        d.box(28, 16 + 16 * i, (150, 132, 160, 140, 120, 154)[i], 7, kind=kind, corner=3)
    d.dot(150, 67, "outside", 24)
    curve(d, ((167, 84), (198, 110)))
    return d


def season3_8():
    d = card("Growing", "A small square inside a larger one: the new rooms are still empty.")
    d.box(70, 10, 100, 100, kind="quiet", corner=5)
    d.box(70, 52, 58, 58, kind="module", corner=4)
    curve(d, ((128, 52), (170, 10)))
    return d


def season3_9():
    d = card("Teach the 1B to talk", "Three phases in a row, and at their end an answer.")
    for i, kind in enumerate(("module", "warm", "plum")):
        d.box(18 + 46 * i, 68, 42, 26, kind=kind, corner=4)
    curve(d, ((160, 81), (176, 81)))
    d.box(156, 20, 68, 30, "3460", kind="good", corner=10, font="code")
    return d


PICTURES = (
    *(season1_0, season1_1, season1_2, season1_3, season1_4, season1_5, season1_6),
    *(season2_1, season2_2, season2_3, season2_4, season2_5, season2_6, season2_7),
    *(season3_1, season3_2, season3_3, season3_4, season3_5, season3_6, season3_7),
    season3_8,
    season3_9,
)
