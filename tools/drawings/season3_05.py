"Season 3, chapter 5: a group of answers; an answer as tosses in a row"

from .style import Drawing


def group_of_four():
    d = Drawing(
        "A group of four answers",
        "The model answers one question four times. A rule gives 1 for the right answer and 0 for "
        "the others. An answer's advantage is its reward minus the mean of the other three: the "
        "right one becomes likelier, the wrong ones less likely.",
        width=400,
        height=366,
    )
    q = d.box(40, 18, 130, 50, "475 + 168", "the question", kind="thing")
    d.text(74, 98, "answers", "name")
    d.text(160, 98, "reward", "name")
    d.text(278, 98, "advantage", "name")
    for n, (answer, reward) in enumerate((("643", 1), ("543", 0), ("533", 0), ("633", 0))):
        y = 110 + 50 * n
        right = reward == 1
        box = d.box(40, y, 68, 38, answer, kind="good" if right else "warm")
        d.arrow((16, box.left[1]), box.left)
        score = d.box(140, y, 40, 38, str(reward), kind="thing", font="number")
        d.arrow(box.right, score.left)
        words = "1 − 0 = +1.00" if right else "0 − 1/3 = −0.33"
        kind = "good" if right else "warm"
        gain = d.box(212, y, 132, 38, words, kind=kind, font="number")
        d.arrow(score.right, gain.left)
        d.text(354, y + 24, "more" if right else "less", "note", "start")
    d.arrow(q.left, (16, q.left[1]), (16, box.left[1]), head=False)
    d.text(200, 328, "all right or all wrong:", "note")
    d.text(200, 347, "every advantage is 0, nothing is learned", "note")
    return d


def tosses():
    d = Drawing(
        "An answer as tosses in a row",
        "A sum with two carries is two tosses in a row. The first is right with probability p, the "
        "second with probability q. So there are three outcomes: wrong at the first toss, wrong at "
        "the second, or all right. Only the last earns a reward.",
        width=400,
        height=214,
    )
    first = d.box(16, 24, 104, 50, "toss 1", "right with p", kind="module")
    second = d.box(150, 24, 104, 50, "toss 2", "right with q", kind="module")
    right = d.box(284, 24, 100, 50, "reward 1", "p q", kind="good")
    wrong = d.box(16, 116, 104, 50, "reward 0", "1 − p", kind="warm")
    late = d.box(150, 116, 104, 50, "reward 0", "p (1 − q)", kind="warm")
    d.arrow(first.right, second.left)
    d.arrow(second.right, right.left)
    d.arrow(first.bottom, wrong.top)
    d.arrow(second.bottom, late.top)
    d.text(200, 196, "three outcomes, and how likely each is", "note")
    return d


PICTURES = (group_of_four, tosses)
