"Season 2, chapter 3: how a model that continues text answers a multiple-choice question"

from .style import Drawing


def answers_scored():
    d = Drawing(
        "Four answers, scored",
        "One question with four answers. The model reads the question with each answer behind it "
        "and adds up the log-probabilities of the answer's tokens. The largest sum is its choice "
        "for acc; divided by the length in characters, the largest quotient is its choice for "
        "acc_norm, and it can be another one.",
        width=400,
        height=326,
    )
    question = d.box(40, 18, 112, 50, "question", "with each answer", "thing")
    d.text(90, 100, "answer", "name")
    d.text(212, 100, "sum, nats", "name")
    d.text(328, 100, "per character", "name")
    answers = (("ice", 3, -4.2), ("water", 5, -6.1), ("a warm wind", 11, -9.9), ("stone", 5, -8.0))
    most = max(answers, key=lambda a: a[2])
    most_each = max(answers, key=lambda a: a[2] / a[1])
    for i, answer in enumerate(answers):
        words, length, total = answer
        y = 114 + i * 44
        box = d.box(40, y, 100, 32, words, kind="module", corner=8, font="note")
        d.arrow((16, box.left[1]), box.left)
        kinds = ["good" if answer is best else "quiet" for best in (most, most_each)]
        for x, kind, value in zip((172, 288), kinds, (total, total / length), strict=True):
            number = f"{value:.2f}".replace("-", "−")
            d.box(x, y, 80, 32, number, kind=kind, corner=8, font="number")
    d.arrow(question.left, (16, question.left[1]), (16, box.left[1]), head=False)
    d.text(212, 306, "acc: the first", "note")
    d.text(328, 306, "acc_norm: the third", "note")
    return d


PICTURES = (answers_scored,)
