"The front page: the whole course on one map"

from .style import Drawing

CHAPTERS = (  # season, the chapter's number, what it gives, which paths cross it
    (1, 1, "A first transformer", "437,888 parameters", "EWG"),
    (1, 2, "Data", "words: BPE, clean shards", "W"),
    (1, 3, "Scaling up", "FLOPs, memory, forecasts", "WG"),
    (1, 4, "Training", "survives what goes wrong", "WG"),
    (1, 5, "Results", "KV cache, sampling, bill", "W"),
    (1, 6, "Speed", "each switch, measured", "G"),
    (2, 1, "From 134M to 1B", "LLaMA, part by part", "WG"),
    (2, 2, "The $175 run", "phases, gates, ledger", "G"),
    (2, 3, "What it learned", "benchmarks, controls", ""),
    (2, 4, "Ten lessons", "dollars for a token", "G"),
    (2, 5, "Chinchilla", "a law, a forecast", "W"),
    (2, 6, "Train the 1B", "or its toy twin", "G"),
    (3, 1, "Chat data", "talk as tokens, masks", "W"),
    (3, 2, "Fine-tuning", "learning from examples", ""),
    (3, 3, "LoRA", "thin matrices, less memory", ""),
    (3, 4, "Preferences", "DPO, and its collapse", ""),
    (3, 5, "Rewards", "GRPO, and its penalties", ""),
    (3, 6, "Talk", "four models, side by side", ""),
    (3, 7, "Forensics", "what it read and repeats", ""),
    (3, 8, "Growing", "from 1B to 2B and 3B", ""),
    (3, 9, "Teach it to talk", "on a rented GPU or the toy", "G"),
)
RUNS = "Train the 1B", "Teach it to talk"  # notebooks beside the chapters, without a number
PATHS = {
    "E": ("heat-green", "one evening"),
    "W": ("heat-blue", "one weekend"),
    "G": ("heat-orange", "rent a GPU"),
}


def course_map():
    d = Drawing(
        "The course on one page",
        "The stops of three seasons, read from left to right. Dots mark three ways through: one "
        "evening (chapter 1), one weekend on a laptop, and the stops before you rent a GPU. Season "
        "1 has deeper pages beside its chapters.",
        width=420,
        height=1012,
    )
    x0, w, h, row_height = 10, 192, 54, 76
    tops = {1: 58, 2: 338, 3: 618}
    d.text(x0, 42, "Season 1: from nothing to 134M", "title", "start")
    d.text(x0 + 2 * w + 16, 42, "+ deeper pages", "note", "end")
    d.text(x0, 322, "Season 2: to 1B", "title", "start")
    d.text(x0, 602, "Season 3: to a model that talks", "title", "start")
    boxes = {}
    for season, number, name, note, paths in CHAPTERS:
        row, column = divmod(number - 1, 2)
        x, y = x0 + column * (w + 16), tops[season] + row * row_height
        label = name if name in RUNS else f"{number}  {name}"
        boxes[season, number] = d.box(x, y, w, h, label, note)
        for i, path in enumerate(paths):
            d.dot(x + w - 12 - 13 * (len(paths) - 1 - i), y, PATHS[path][0], 6)
    for (season, number), box in boxes.items():
        following = boxes.get((season, number + 1))
        if following and number % 2:
            d.arrow(box.right, following.left)
        elif following:
            (x, y), (end, below) = box.bottom, following.top
            d.arrow((x, y), (x, y + 11), (end, y + 11), (end, below))
    for i, (kind, words) in enumerate(PATHS.values()):
        d.dot(24 + 136 * i, 992, kind, 6)
        d.text(37 + 136 * i, 996, words, "note", "start")
    return d


PICTURES = (course_map,)
