"Season 3, chapter 6: one turn of a talk; a blind comparison"

from .style import Drawing


def one_turn():
    d = Drawing(
        "One turn of a talk",
        "What is typed becomes tokens, with the marks of the template around it. The model adds "
        "one token at a time until it says the end mark. The new tokens become text again, and "
        "question and answer stay in the conversation for the next turn.",
        width=550,
        height=220,
    )
    typed = d.box(14, 60, 96, 54, "574+861", "is typed", kind="thing")
    ids = d.box(158, 60, 110, 54, "tokens", "user ... asst", kind="module")
    model = d.box(312, 60, 90, 54, "model", "one token", kind="plum")
    said = d.box(446, 60, 90, 54, "3460", "is said", kind="good")
    d.arrow(typed.right, ids.left)
    d.arrow(ids.right, model.left)
    d.arrow(model.right, said.left)
    d.text(134, 52, "template", "note")
    d.arrow((384, 114), (384, 146), (330, 146), (330, 116))
    d.text(357, 164, "again, until it says end", "note")
    d.arrow((491, 114), (491, 192), (213, 192), (213, 116))
    d.text(352, 208, "stays in the conversation", "note")
    return d


def blind_comparison():
    d = Drawing(
        "A blind comparison",
        "Two models answer the same question. A coin decides whose answer is called A. The judge "
        "sees question, A and B, and not who wrote them; only afterwards the coin is looked at "
        "and the win is counted.",
        width=564,
        height=212,
    )
    first = d.box(14, 36, 100, 46, "model one", kind="module")
    second = d.box(14, 122, 100, 46, "model two", kind="warm")
    coin = d.box(164, 70, 90, 64, "coin", "who is A?", kind="quiet")
    judge = d.box(310, 70, 90, 64, "judge", "A or B?", kind="plum")
    count = d.box(446, 70, 104, 64, "count", "open the coin", kind="good")
    d.arrow(first.right, coin.left)
    d.arrow(second.right, coin.left)
    d.arrow(coin.right, judge.left)
    d.arrow(judge.right, count.left)
    d.text(282, 92, "A, B", "note")
    d.text(209, 196, "names stay here until the judge has spoken", "note")
    return d


PICTURES = (one_turn, blind_comparison)
