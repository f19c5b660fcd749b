"Chapter 5: what a KV cache keeps, the three knobs of sampling, and what a run leaves"

from .style import TOKENS, Drawing


def kv_cache():
    d = Drawing(
        "What a KV cache keeps",
        "Writing four tokens, one a step. Without a cache every step computes the keys and values "
        "of all tokens again, ten in all. With a cache each step computes those of its new token "
        "and reads the others, four in all.",
        width=408,
        height=292,
    )
    for left, name, cached in ((60, "without a cache", False), (240, "with a KV cache", True)):
        d.text(left + 78, 32, name, "title")
        for step in range(4):
            y = 50 + step * 48
            if not cached:
                d.text(left - 10, y + 24, f"step {step + 1}", "note", "end")
            for i, token in enumerate(TOKENS[: step + 1]):
                kept = cached and i < step
                kind = "quiet" if kept else "module"
                d.box(left + i * 40, y, 36, 38, token, kind=kind, corner=8, font="code")
    d.box(26, 254, 20, 20, kind="module")
    d.text(52, 268, "computed: key and value", "note", "start")
    d.box(240, 254, 20, 20, kind="quiet")
    d.text(266, 268, "read from the cache", "note", "start")
    return d


def sampling_knobs():
    d = Drawing(
        "Temperature, top-k and top-p",
        "One distribution over five tokens, and what three knobs make of it. Temperature 0.5 "
        "sharpens it, top-k 2 keeps the two likeliest tokens, top-p 0.9 keeps the smallest set "
        "that holds nine tenths; what is kept is scaled up to add up to one.",
        width=400,
        height=362,
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
        x, y = 44 + i % 2 * 190, 34 + i // 2 * 172
        d.text(x + 56, y, name, "name")
        d.bars(x, y + 14, values, "etaos", w=90, h=20, gap=6, high=0.8, heat=heat)
    return d


def run_folder():
    d = Drawing(
        "What a run leaves behind",
        "A run folder. The trainer writes its settings, a line for every step, the texts it wrote "
        "at milestones, checkpoints and a bill; curves, stages, replayed prompts and costs are "
        "read from these files alone.",
        width=380,
        height=390,
    )
    train = d.box(16, 16, 120, 54, "training", "chapter 4", "thing")
    files = (
        ("config.json", "all settings", "comparing runs"),
        ("log.jsonl", "loss, step by step", "curves, stages"),
        ("samples.jsonl", "texts on the way", "before and after"),
        ("checkpoints/", "weights", "prompts replayed"),
        ("bill.json", "seconds, dollars", "what it cost"),
    )
    for i, (name, note, use) in enumerate(files):
        y = 90 + i * 58
        box = d.box(56, y, 150, 48, name, note, "quiet")
        out = d.box(236, y + 4, 128, 40, "", use, "module")
        d.arrow((32, train.y + train.h), (32, y + 24), box.left)
        d.arrow(box.right, out.left)
    return d


PICTURES = (kv_cache, sampling_knobs, run_folder)
