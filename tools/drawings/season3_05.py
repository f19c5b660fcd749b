"Season 3, chapter 5: a group of answers; when a group teaches"

from .style import Drawing


def group_of_four():
    d = Drawing(
        "A group of four answers",
        "The model answers one question four times. A rule gives 1 for the right answer and 0 for "
        "the others. An answer's advantage is its reward minus the mean of the other three: the "
        "right one becomes likelier, the wrong ones less likely.",
        width=490,
        height=282,
    )
    q = d.box(14, 116, 100, 50, "475 + 168", "the question", kind="thing")
    d.text(180, 36, "answers", "name")
    d.text(268, 36, "reward", "name")
    d.text(382, 36, "advantage", "name")
    for n, (answer, reward) in enumerate((("643", 1), ("543", 0), ("533", 0), ("633", 0))):
        y = 52 + 52 * n
        right = reward == 1
        box = d.box(142, y, 76, 38, answer, kind="good" if right else "warm")
        d.arrow(q.right, box.left)
        score = d.box(246, y, 44, 38, str(reward), kind="thing", font="number")
        d.arrow(box.right, score.left)
        words = "1 - 0 = +1.00" if right else "0 - 1/3 = -0.33"
        kind = "good" if right else "warm"
        gain = d.box(318, y, 128, 38, words, kind=kind, font="number")
        d.arrow(score.right, gain.left)
        d.text(456, y + 24, "more" if right else "less", "note", "start")
    d.text(245, 270, "all right or all wrong: every advantage is 0, nothing is learned", "note")
    return d


PICTURES = (group_of_four,)
