"The front page: the whole course on one map, a column for each season"

from .style import Drawing

CHAPTERS = {  # season -> number, the title in one line or two, which paths cross it
    1: (
        ("0", "Guess the", "next letter", "E"),
        ("1", "The first", "transformer", "EWG"),
        ("2", "Data preparation", "", "W"),
        ("3", "Scaling up", "", "WG"),
        ("4", "Training", "challenges", "WG"),
        ("5", "How a model", "writes", "W"),
        ("6", "The optimization", "ladder", "G"),
    ),
    2: (
        ("1", "From 134M to 1B", "", "WG"),
        ("2", "The $175", "experiment", "G"),
        ("3", "What it learned", "", ""),
        ("4", "Ten lessons", "", "G"),
        ("5", "Chinchilla", "", "W"),
        ("6", "$175 today", "", ""),
        ("", "Train the 1B", "", "G"),
    ),
    3: (
        ("1", "Chat data", "", "W"),
        ("2", "Learning", "from examples", ""),
        ("3", "LoRA", "", ""),
        ("4", "Learning", "from preferences", ""),
        ("5", "Learning", "from rewards", ""),
        ("6", "Talk", "", ""),
        ("7", "Forensics", "", ""),
        ("8", "Growing", "", ""),
        ("", "Teach a model", "to talk", "G"),
    ),
}
SEASONS = {1: "from nothing to 134M", 2: "to 1B", 3: "a model that talks"}
PATHS = {
    "E": ("heat-green", "one evening"),
    "W": ("heat-blue", "one weekend"),
    "G": ("heat-orange", "rent a GPU"),
}


def course_map():
    d = Drawing(
        "The course on one page",
        "The chapters of three seasons, a column for each, read from top to bottom. Dots mark "
        "three ways through: one evening (chapters 0 and 1), one weekend on a laptop, and the "
        "chapters to read before you rent a GPU. Season 1 has deeper pages beside its chapters.",
        width=420,
        height=632,
    )
    w, h, row_height = 128, 42, 60
    for season, chapters in CHAPTERS.items():
        x = 9 + (season - 1) * (w + 9)
        d.text(x, 28, f"Season {season}", "title", "start")
        d.text(x, 45, SEASONS[season], "note", "start")
        above = None
        for row, (number, first, second, paths) in enumerate(chapters):
            y = 60 + row * row_height
            box = d.box(x, y, w, h)
            lines = (
                [f"{number}  {first}".strip(), second] if second else [f"{number}  {first}".strip()]
            )
            for i, words in enumerate(lines):
                middle = y + h / 2 + 5 + 15 * (i - (len(lines) - 1) / 2)
                d.text(x + w / 2, middle, words, "note")
            for i, path in enumerate(paths):
                d.dot(x + w - 12 - 13 * (len(paths) - 1 - i), y, PATHS[path][0], 6)
            if above:
                d.arrow(above.bottom, box.top)
            above = box
    d.box(9, 60 + 7 * row_height, w, h, note="and deeper pages", kind="outside")
    for i, (kind, words) in enumerate(PATHS.values()):
        d.dot(24 + 136 * i, 612, kind, 6)
        d.text(37 + 136 * i, 616, words, "note", "start")
    return d


PICTURES = (course_map,)
