"Chapter 4: a step of the loop, clipping, accumulation, kill and resume, Muon"

from .style import Drawing


def training_step():
    d = Drawing(
        "One step of the training loop",
        "One step of the training loop. The batch of step n goes forward and backward in "
        "micro-batches; the gradients are clipped; the optimizer moves the weights at the rate "
        "of step n; the step is yielded. Outside the loop a NaN stops the run, and only then are "
        "the log and a checkpoint written.",
        width=700,
        height=304,
    )
    d.group(16, 16, 668, 148, "the loop, for each step n")
    names = (
        ("batch n", "from (seed, n)", "thing"),
        ("backward", "micro-batches", "module"),
        ("clip", "length at most 1", "warm"),
        ("move", "rate of step n", "module"),
        ("yield", "loss, norm", "thing"),
    )
    boxes = [
        d.box(30 + i * 130, 60, 112, 58, name, note, kind)
        for i, (name, note, kind) in enumerate(names)
    ]
    for a, b in zip(boxes, boxes[1:]):
        d.arrow(a.right, b.left)
    last, first = boxes[-1], boxes[0]
    d.arrow((last.x + 30, 118), (last.x + 30, 144), (first.x + 56, 144), first.bottom)
    check = d.box(524, 214, 146, 58, "a number?", "else stop", "warm")
    save = d.box(300, 214, 146, 58, "log, checkpoint", kind="good")
    resume = d.box(76, 214, 146, 58, "after a kill", "start at step n", "quiet")
    d.arrow((last.x + 80, 118), (last.x + 80, 214))
    d.arrow(check.left, save.right)
    d.arrow(save.left, resume.right, kind="dashed")
    d.arrow((64, 214), (64, 118), kind="dashed")
    d.arrow(resume.left, (64, 243), (64, 214), kind="dashed", head=False)
    return d


def gradient_clipping():
    d = Drawing(
        "Gradient clipping",
        "Gradient clipping with a limit of 1. A gradient (3, 4) has length 5 and becomes "
        "(0.6, 0.8), of length 1 in the same direction; a gradient (0.3, 0.4) has length 0.5 and "
        "stays as it is.",
        width=560,
        height=322,
    )
    unit = 50
    for x0, name, end, kept in (
        (60, "longer than 1: scaled", (3, 4), (0.6, 0.8)),
        (340, "shorter: left alone", (0.3, 0.4), (0.3, 0.4)),
    ):
        y0 = 256
        d.arrow((x0 - 20, y0), (x0 + 180, y0), kind="dashed", head=False)
        d.arrow((x0, y0 + 20), (x0, y0 - 205), kind="dashed", head=False)
        d.dot(x0, y0, "outside", unit)
        tip = x0 + end[0] * unit, y0 - end[1] * unit
        if end != kept:
            d.arrow((x0, y0), tip, kind="dashed")
            d.text(tip[0] - 26, tip[1] + 14, "(3, 4), length 5", "note", "end")
        d.bow((x0, y0), (x0 + kept[0] * unit, y0 - kept[1] * unit), 0, weight=3)
        words = f"({kept[0]}, {kept[1]})"
        d.text(x0 + 58, y0 - 22, words, "code", "start")
        d.text(x0 + 80, 34, name, "name")
    d.text(396, 284, "limit 1", "note", "start")
    return d


def gradient_accumulation():
    d = Drawing(
        "Gradient accumulation",
        "Gradient accumulation. A batch of eight sequences goes through the model as four "
        "micro-batches of two. Each leaves its share of the gradient; the shares add up, and the "
        "optimizer makes one step.",
        width=700,
        height=296,
    )
    d.text(86, 38, "one batch", "name")
    plus = None
    for i in range(4):
        y = 56 + i * 56
        d.box(32, y, 50, 40, str(2 * i + 1), kind="thing", font="code")
        pair = d.box(88, y, 50, 40, str(2 * i + 2), kind="thing", font="code")
        work = d.box(196, y, 150, 40, "", "forward, backward", "module")
        share = d.box(394, y, 110, 40, "", "2/8 of the loss", "warm")
        d.arrow(pair.right, work.left)
        d.arrow(work.right, share.left)
        plus = (544, 160)
        d.arrow(share.right, (532, share.right[1]), (532, 160), head=False)
    d.text(271, 38, "micro-batches", "name")
    d.text(449, 38, "gradients", "name")
    circle = d.sum(*plus)
    step = d.box(586, 130, 96, 60, "one step", kind="good")
    d.arrow(circle.right, step.left)
    return d


def kill_and_resume():
    d = Drawing(
        "Kill and resume",
        "Kill and resume. A run of forty steps is stopped after step 17. On the disk are the "
        "weights, the optimizer's state and the number 17. The data of step 18 and its learning "
        "rate are functions of the step, so steps 18 to 40 are the same as without the stop.",
        width=700,
        height=300,
    )
    d.text(20, 44, "never stopped", "name", "start")
    d.box(160, 26, 510, 30, "", "steps 1 to 40", "module")
    d.text(20, 104, "stopped", "name", "start")
    d.box(160, 86, 216, 30, "", "steps 1 to 17", "module")
    d.text(392, 106, "killed", "note", "start")
    d.text(20, 270, "resumed", "name", "start")
    d.box(382, 252, 288, 30, "", "steps 18 to 40", "good")
    for i, name in enumerate(("weights", "optimizer state", "17")):
        d.box(160 + i * 130, 160, 122, 36, "", name, "quiet")
    d.text(96, 182, "on the disk", "note")
    d.arrow((330, 116), (330, 160))
    d.arrow((400, 196), (400, 252))
    d.box(560, 160, 110, 36, "", "f(seed, step)", "outside")
    d.text(615, 150, "data and rate", "note")
    d.arrow((615, 196), (615, 252), kind="dashed")
    return d


def muon():
    d = Drawing(
        "What Muon does to a gradient",
        "What Muon does to a gradient. Before, one direction has strength 1, the next 0.3, the "
        "others less than 0.1. After orthogonalization all four are near 1, so the step goes "
        "equally far in every direction.",
        width=620,
        height=200,
    )
    words = ("1st", "2nd", "3rd", "4th")
    d.text(160, 36, "gradient", "name")
    d.bars(80, 56, (1.0, 0.3, 0.08, 0.03), words, w=140, h=24, gap=8)
    d.text(478, 36, "Muon's step", "name")
    d.bars(400, 56, (1.0, 1.0, 1.0, 1.0), words, w=140, h=24, gap=8, heat="green", decimals=0)
    d.arrow((276, 116), (350, 116))
    d.text(313, 100, "S becomes 1", "note")
    return d


PICTURES = (training_step, gradient_clipping, gradient_accumulation, kill_and_resume, muon)
