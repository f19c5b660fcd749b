"Chapter 5: what a KV cache keeps, the three knobs of sampling, and what a run leaves"

from .style import TOKENS, Drawing


def kv_cache():
    d = Drawing(
        "What a KV cache keeps",
        "Writing four tokens, one a step. Without a cache every step computes the keys and values "
        "of all tokens again, ten in all. With a cache each step computes those of its new token "
        "and reads the others, four in all.",
        width=680,
        height=300,
    )
    for left, name, cached in ((96, "without a cache", False), (404, "with a KV cache", True)):
        d.text(left + 118, 36, name, "title")
        for step in range(4):
            y = 56 + step * 50
            if not cached:
                d.text(left - 14, y + 24, f"step {step + 1}", "note", "end")
            for i, token in enumerate(TOKENS[: step + 1]):
                kept = cached and i < step
                kind = "quiet" if kept else "module"
                d.box(left + i * 60, y, 52, 38, token, kind=kind, corner=8, font="code")
    d.box(96, 262, 20, 20, kind="module")
    d.text(124, 276, "computed: key and value", "note", "start")
    d.box(404, 262, 20, 20, kind="quiet")
    d.text(432, 276, "read from the cache", "note", "start")
    return d


def sampling_knobs():
    d = Drawing(
        "Temperature, top-k and top-p",
        "One distribution over five letters, and what three knobs make of it. Temperature 0.5 "
        "sharpens it, top-k 2 keeps the two likeliest letters, top-p 0.9 keeps the smallest set "
        "that holds nine tenths; what is kept is scaled up to add up to one.",
        width=700,
        height=236,
    )
    plain = (0.50, 0.25, 0.17, 0.06, 0.02)
    sharp = [p**2 / sum(q**2 for q in plain) for p in plain]
    two = [p / 0.75 if i < 2 else 0 for i, p in enumerate(plain)]
    nine = [p / 0.92 if i < 3 else 0 for i, p in enumerate(plain)]
    columns = (
        ("the model's", plain, "blue"),
        ("temperature 0.5", sharp, "orange"),
        ("top-k 2", two, "green"),
        ("top-p 0.9", nine, "green"),
    )
    for i, (name, values, heat) in enumerate(columns):
        x = 44 + i * 168
        d.text(x + 56, 40, name, "name")
        d.bars(x, 62, values, "etaos", w=64, h=24, gap=8, high=0.8, heat=heat)
    return d


def run_folder():
    d = Drawing(
        "What a run leaves behind",
        "A run folder. The trainer writes its settings, a line for every step, the texts it wrote "
        "at milestones, checkpoints and a bill; curves, stages, replayed prompts and costs are "
        "read from these files alone.",
        width=680,
        height=330,
    )
    train = d.box(24, 136, 120, 58, "training", "chapter 4", "thing")
    files = (
        ("config.json", "all settings", "comparing runs"),
        ("log.jsonl", "loss, step by step", "curves, stages"),
        ("samples.jsonl", "texts on the way", "before and after"),
        ("checkpoints/", "weights", "prompts replayed"),
        ("bill.json", "seconds, dollars", "what it cost"),
    )
    for i, (name, note, use) in enumerate(files):
        y = 24 + i * 58
        box = d.box(236, y, 176, 48, name, note, "quiet")
        out = d.box(484, y + 4, 172, 40, "", use, "module")
        d.arrow((190, 165), (190, y + 24), box.left)
        d.arrow(box.right, out.left)
    d.arrow(train.right, (190, 165), head=False)
    return d


PICTURES = (kv_cache, sampling_knobs, run_folder)
