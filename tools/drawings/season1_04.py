"Chapter 4: a step of the loop, AdamW, clipping, accumulation, a NaN, kill and resume, Muon"

from .style import Drawing


def training_step():
    d = Drawing(
        "One step of the training loop",
        "One step of the training loop. The batch of step n goes forward and backward in pieces; "
        "the gradients are clipped; a loss or a gradient that is no number stops the run before "
        "the weights move; the optimizer moves them at the rate of step n. After the step a "
        "checkpoint is saved; after a kill the run begins again with the step that follows it.",
        width=400,
        height=398,
    )
    d.group(8, 14, 384, 272, "step n")
    first = d.box(26, 46, 150, 56, "batch n", "from seed and n", "thing")
    work = d.box(206, 46, 172, 56, "forward, backward", "idea 4: in pieces", "module")
    clip = d.box(206, 130, 172, 56, "clip", "idea 2: length up to 1", "warm")
    check = d.box(206, 214, 172, 56, "all numbers?", "idea 5: if not, stop", "warm")
    move = d.box(26, 214, 150, 56, "move the weights", "ideas 1 and 3", "module")
    save = d.box(26, 318, 150, 56, "save", "idea 6", "good")
    resume = d.box(206, 318, 172, 56, "after a kill", "load, go on", "quiet")
    d.arrow(first.right, work.left)
    d.arrow(work.bottom, clip.top)
    d.arrow(clip.bottom, check.top)
    d.arrow(check.left, move.right)
    d.arrow(move.bottom, save.top)
    d.arrow(save.right, resume.left, kind="dashed")
    d.arrow(move.top, first.bottom)
    d.text(116, 162, "then step", "note", "start")
    d.text(116, 178, "n + 1", "note", "start")
    return d


def gradient_clipping():
    d = Drawing(
        "Gradient clipping",
        "Gradient clipping with a limit of 1. A gradient (3, 4) has length 5 and becomes "
        "(0.6, 0.8), of length 1 in the same direction; a gradient (0.3, 0.4) has length 0.5 and "
        "stays as it is.",
        width=400,
        height=296,
    )
    unit = 42
    for x0, name, end, kept in (
        (56, "longer than 1: scaled", (3, 4), (0.6, 0.8)),
        (258, "shorter: left alone", (0.3, 0.4), (0.3, 0.4)),
    ):
        y0 = 236
        d.arrow((x0 - 20, y0), (x0 + 132, y0), kind="dashed", head=False)
        d.arrow((x0, y0 + 20), (x0, y0 - 186), kind="dashed", head=False)
        d.dot(x0, y0, "outside", unit)
        tip = x0 + end[0] * unit, y0 - end[1] * unit
        if end != kept:
            d.arrow((x0, y0), tip, kind="dashed")
            d.text(tip[0] - 12, tip[1] - 5, "(3, 4), length 5")
        x, y = x0 + kept[0] * unit, y0 - kept[1] * unit
        d.bow((x0, y0), (x - 4, y + 6), 0, weight=3, head=False)
        d.parts.append(f'<path class="head" d="M{x} {y} l-9 4 l7.2 5.4 z"/>')
        words = f"({kept[0]}, {kept[1]})"
        d.text(x0 + 50, y0 - 18, words, "code", "start")
        d.text(x0 + 48, 28, name, "name")
    d.text(306, 262, "limit 1", "note", "start")
    return d


def gradient_accumulation():
    d = Drawing(
        "Gradient accumulation",
        "Gradient accumulation. A batch of eight sequences goes through the model as four "
        "micro-batches of two. Each leaves its share of the gradient; the shares add up, and the "
        "optimizer makes one step.",
        width=400,
        height=322,
    )
    d.text(56, 34, "one batch", "name")
    d.text(171, 34, "micro-batches", "name")
    d.text(299, 34, "gradient", "name")
    plus = (372, 284)
    for i in range(4):
        y = 50 + i * 50
        d.box(14, y, 40, 38, str(2 * i + 1), kind="thing", font="code")
        pair = d.box(58, y, 40, 38, str(2 * i + 2), kind="thing", font="code")
        work = d.box(112, y, 118, 38, "", "forward, backward", "module")
        share = d.box(246, y, 106, 38, "", "its 2/8", "warm")
        d.arrow(pair.right, work.left)
        d.arrow(work.right, share.left)
        d.arrow(share.right, (372, share.right[1]), (372, 260), head=False)
    d.arrow((372, 250), (372, 273))
    circle = d.sum(*plus)
    step = d.box(246, 258, 86, 52, "one step", kind="good")
    d.arrow(circle.left, step.right)
    return d


def kill_and_resume():
    d = Drawing(
        "Kill and resume",
        "Kill and resume. A run of forty steps saves after step 10 and is killed after step 17; "
        "steps 11 to 17 are lost. On the disk are the weights, the optimizer's state and the "
        "number 10. The data and the learning rate of step 11 are functions of the step, so the "
        "run goes on with step 11, and steps 11 to 40 are the same as without the kill.",
        width=400,
        height=316,
    )
    d.text(20, 32, "never stopped", "name", "start")
    d.box(20, 40, 360, 30, "", "steps 1 to 40", "module")
    d.text(20, 104, "killed", "name", "start")
    d.box(20, 112, 90, 30, "", "1 to 10", "module")
    d.box(110, 112, 63, 30, "", "11 to 17", "quiet")
    d.text(183, 131, "killed: 11 to 17 are lost", "note", "start")
    d.text(20, 184, "on the disk", "note", "start")
    d.box(14, 190, 246, 44, kind="outside")
    for x, w, name in ((20, 72, "weights"), (98, 108, "optimizer state"), (212, 38, "10")):
        d.box(x, 194, w, 36, "", name, "quiet")
    d.arrow((106, 142), (106, 190))
    d.text(333, 184, "data and rate", "note")
    d.box(286, 192, 94, 36, "", "f(seed, step)", "outside")
    d.text(20, 292, "resumed", "name", "start")
    d.box(110, 272, 270, 30, "", "steps 11 to 40", "good")
    d.arrow((152, 234), (152, 272))
    d.arrow((333, 228), (333, 272), kind="dashed")
    return d


def nan_spreads():
    d = Drawing(
        "One NaN spreads",
        "One NaN spreads. One number of the token table is a NaN. The table is also the output "
        "layer, so one of 65 logits is a NaN at every position; the softmax divides by a sum with "
        "it; the loss and all gradients are NaN; one step later all 28 tensors are. The guard is "
        "between the gradients and the step.",
        width=400,
        height=212,
    )
    table = d.box(14, 20, 108, 56, "token table", "one NaN", "warm")
    logits = d.box(146, 20, 108, 56, "logits", "1 of 65", "warm")
    softmax = d.box(278, 20, 108, 56, "softmax", "all 65: the sum", "warm")
    loss = d.box(278, 134, 108, 56, "gradients", "all", "warm")
    step = d.box(146, 134, 108, 56, "weights", "all 28 tensors", "warm")
    disk = d.box(14, 134, 108, 56, "disk", "the next save", "warm")
    d.arrow(table.right, logits.left)
    d.arrow(logits.right, softmax.left)
    d.arrow(softmax.bottom, loss.top)
    d.arrow(loss.left, step.right)
    d.arrow(step.left, disk.right)
    d.text(320, 110, "loss", "note", "end")
    d.arrow((266, 100), (266, 206), kind="dashed", head=False)
    d.text(258, 112, "the guard", "name", "end")
    return d


def muon():
    d = Drawing(
        "What Muon does to a gradient",
        "What Muon does to a gradient. Before, one direction has strength 1, the next 0.3, the "
        "others less than 0.1. After Muon all four are 1, so the step goes equally far in every "
        "direction.",
        width=400,
        height=368,
    )
    words = ("1st", "2nd", "3rd", "4th")
    d.text(200, 32, "gradient", "name")
    d.bars(90, 46, (1.0, 0.3, 0.08, 0.03), words, w=220, h=22, gap=8)
    d.arrow((200, 172), (200, 214))
    d.text(212, 196, "all strengths become 1", "note", "start")
    d.text(200, 238, "Muon's step", "name")
    d.bars(90, 250, (1.0, 1.0, 1.0, 1.0), words, w=220, h=20, gap=8, heat="green", decimals=0)
    return d


def adamw():
    d = Drawing(
        "AdamW for one number",
        "AdamW for one number. From its gradient g two running means are kept: m of g over about "
        "the last 10 steps, and s of g squared over about the last 20. The number moves by the "
        "learning rate times m divided by the root of s.",
        width=400,
        height=254,
    )
    gradient = d.box(150, 16, 100, 44, "g", "its gradient", "thing", font="code")
    mean = d.box(14, 98, 170, 56, "m: mean of g", "about the last 10 steps", "module")
    square = d.box(216, 98, 170, 56, "s: mean of g²", "about the last 20 steps", "warm")
    move = d.box(76, 192, 248, 46, "learning rate × m / √s", kind="good", font="code")
    d.arrow((175, 60), mean.top)
    d.arrow((225, 60), square.top)
    d.text(200, 178, "both made fair first", "note")
    d.arrow(mean.bottom, (130, 192))
    d.arrow(square.bottom, (270, 192))
    return d


def two_directions():
    d = Drawing(
        "Three steps for one gradient",
        "Three steps for the gradient with the rows (1, 0.9) and (0.9, 1). The plain step has "
        "strength 1.9 in the direction (1, 1) and 0.1 in the direction (1, -1); AdamW's first step "
        "2 and 0; Muon's 1 and 1.",
        width=400,
        height=270,
    )
    steps = (("plain step", 1.9, 0.1), ("AdamW's first step", 2.0, 0.0), ("Muon's step", 1.0, 1.0))
    for i, (name, agree, differ) in enumerate(steps):
        y = 16 + i * 82
        d.text(14, y + 14, name, "name", "start")
        d.bars(84, y + 24, (agree,), ("(1, 1)",), w=260, h=20, high=2, decimals=1)
        d.bars(84, y + 50, (differ,), ("(1, -1)",), w=260, h=20, high=2, heat="orange", decimals=1)
    return d


PICTURES = (
    training_step,
    gradient_clipping,
    gradient_accumulation,
    nan_spreads,
    kill_and_resume,
    muon,
    adamw,
    two_directions,
)
