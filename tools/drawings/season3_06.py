"Season 3, chapter 6: one turn of a talk; a blind comparison"

from .style import Drawing


def one_turn():
    d = Drawing(
        "One turn of a talk",
        "What is typed becomes tokens, with the marks of the template around it. The model adds "
        "one token at a time until it says the end mark. The new tokens become text again, and "
        "question and answer stay in the conversation for the next turn.",
        width=400,
        height=240,
    )
    typed = d.box(20, 30, 140, 54, "574+861", "is typed", kind="thing")
    ids = d.box(226, 30, 140, 54, "tokens", "user ... asst", kind="module")
    model = d.box(226, 150, 140, 54, "model", "one token", kind="plum")
    said = d.box(20, 150, 140, 54, "3460", "is said", kind="good")
    d.arrow(typed.right, ids.left)
    d.text(193, 48, "template", "note")
    d.arrow(ids.bottom, model.top)
    d.arrow(model.left, said.right)
    d.arrow((366, 190), (386, 190), (386, 164), (366, 164))
    d.text(296, 224, "again, until it says end", "note")
    d.arrow(said.top, (90, 120), (248, 120), (248, 84))
    d.text(100, 138, "stays in the conversation", "note", "start")
    return d


def blind_comparison():
    d = Drawing(
        "A blind comparison",
        "Two models answer the same question. A coin decides whose answer is called A. The judge "
        "sees question, A and B, and not who wrote them; only afterwards the coin is looked at "
        "and the win is counted.",
        width=400,
        height=318,
    )
    first = d.box(20, 22, 130, 46, "model one", kind="module")
    second = d.box(250, 22, 130, 46, "model two", kind="warm")
    coin = d.box(140, 98, 120, 64, "coin", "who is A?", kind="quiet")
    judge = d.box(20, 208, 130, 64, "judge", "A or B?", kind="plum")
    count = d.box(250, 208, 130, 64, "count", "open the coin", kind="good")
    d.arrow(first.bottom, (85, 130), coin.left)
    d.arrow(second.bottom, (315, 130), coin.right)
    d.arrow(coin.bottom, (200, 186), (85, 186), judge.top)
    d.text(140, 179, "A, B", "note")
    d.arrow(judge.right, count.left)
    d.text(200, 300, "the coin keeps the names until the judge has spoken", "note")
    return d


PICTURES = (one_turn, blind_comparison)
