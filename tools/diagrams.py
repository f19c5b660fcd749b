"""Draw the picture on the front page of every room: boxes and arrows from the data below.

python tools/diagrams.py      writes nbs/lib/<room>/<room>.svg

A picture brings its own paper, light or dark as the reader prefers, so that it can be read on
either. `tests/test_architecture.py` finds a picture that was not drawn again, and a module that
is gone.
"""

import re
from dataclasses import dataclass
from html import escape
from pathlib import Path

from drawings import style

BOX_WIDTH, BOX_HEIGHT = 168, 54
COLUMN, ROW, MARGIN = 222, 84, 22  # from one box to the next, and around all of them


@dataclass(frozen=True)
class Box:
    "One box on the grid: a module of the room, a thing (text, a file), or what stands outside"

    name: str
    note: str
    column: int
    row: int
    kind: str = "module"  # module, thing, outside

    @property
    def left(self):
        return MARGIN + self.column * COLUMN

    @property
    def top(self):
        return MARGIN + self.row * ROW

    @property
    def middle(self):
        return self.left + BOX_WIDTH // 2, self.top + BOX_HEIGHT // 2


@dataclass(frozen=True)
class Diagram:
    "What the picture says in words, its boxes, and arrows between their names"

    alt: str
    boxes: tuple
    arrows: tuple


def module(name, note, column, row):
    return Box(name, note, column, row, "module")


def thing(name, note, column, row):
    return Box(name, note, column, row, "thing")


def outside(name, note, column, row):
    return Box(name, note, column, row, "outside")


ROOMS = {
    "model": Diagram(
        "Token ids go through a GPT or a Llama to logits; logits become a loss in training, or "
        "text in generation. A config makes the model, and its forecasts without a model.",
        (
            thing("token ids", "(batch, time)", 0, 0),
            module("model.gpt", "chapter 1, with guards", 1, 0),
            thing("logits", "(batch, time, vocab)", 2, 0),
            outside("train.loop", "cross-entropy", 3, 0),
            thing("a config", "GPTConfig, LlamaConfig", 0, 1),
            module("model.llama", "RoPE, SwiGLU, GQA", 1, 1),
            module("model.engine", "KV cache, sampling", 2, 1),
            thing("text", "token by token", 3, 1),
            module("model.counts", "exact counts", 0, 2),
            thing("a forecast", "memory, time, dollars", 1, 2),
            module("model.generate", "one, several, a stream", 2, 2),
            outside("share.server", "many readers", 3, 2),
        ),
        (
            ("token ids", "model.gpt"),
            ("a config", "model.gpt"),
            ("a config", "model.llama"),
            ("model.gpt", "logits"),
            ("model.llama", "logits"),
            ("logits", "train.loop"),
            ("logits", "model.engine"),
            ("model.engine", "text"),
            ("model.engine", "model.generate"),
            ("model.engine", "share.server"),
            ("a config", "model.counts"),
            ("model.counts", "a forecast"),
        ),
    ),
    "data": Diagram(
        "Text is encoded by a tokenizer; tokens lie in memory or in shards on disk; the sampler "
        "says which window is read at which step, and batches hand the rows to training.",
        (
            module("data.text", "tiny Shakespeare", 0, 0),
            module("data.plays", "a play without end", 0, 1),
            outside("prep.pipeline", "corpora, cleaned", 0, 2),
            module("data.tokenizer", "text to ids and back", 1, 1),
            module("data.shards", "checksummed tokens", 1, 2),
            module("data.sampler", "which window, when", 2, 0),
            module("data.batches", "rows of (seed, step)", 2, 1),
            module("data.transfer", "merge, compress", 2, 2),
            module("data.references", "bits per byte", 3, 0),
            module("data.corpus", "train, val, tokenizer", 3, 1),
            outside("train.trainer", "asks for step n", 3, 2),
        ),
        (
            ("data.text", "data.tokenizer"),
            ("data.plays", "data.tokenizer"),
            ("prep.pipeline", "data.shards"),
            ("data.tokenizer", "data.batches"),
            ("data.shards", "data.batches"),
            ("data.shards", "data.transfer"),
            ("data.sampler", "data.batches"),
            ("data.batches", "data.corpus"),
            ("data.references", "data.corpus"),
            ("data.corpus", "train.trainer"),
        ),
    ),
    "chat": Diagram(
        "Files of conversations are read, sorted and written as tokens by the template; packing "
        "puts several into a row; the sums are a world of chats whose best answer is known; talk "
        "goes on turn by turn.",
        (
            outside("chat files", "eight known layouts", 0, 0),
            module("chat.sums", "a world with known limits", 0, 1),
            module("chat.conversations", "read, drop, count, keep", 1, 0),
            module("chat.template", "who speaks, what counts", 1, 1),
            module("chat.packing", "rows, mask, order", 2, 0),
            module("chat.talk", "turn by turn", 2, 1),
            outside("fine-tuning", "asks for step n", 3, 0),
            module("chat.answers", "is it right?", 3, 1),
        ),
        (
            ("chat files", "chat.conversations"),
            ("chat.sums", "chat.template"),
            ("chat.template", "chat.conversations"),
            ("chat.conversations", "chat.packing"),
            ("chat.packing", "fine-tuning"),
            ("chat.template", "chat.talk"),
            ("chat.talk", "chat.answers"),
        ),
    ),
    "record": Diagram(
        "Training writes rows through the folder, weights through the checkpoint and seconds "
        "through the ledger; the log and load modules read them back, checked; the list of runs "
        "reads all of it.",
        (
            outside("train.trainer", "a run under way", 0, 1),
            module("record.folder", "lock, rows, polite stop", 1, 0),
            module("record.checkpoint", "save, verify, load", 1, 1),
            module("record.slices", "each process its own", 1, 2),
            module("record.ledger", "every second, its kind", 1, 3),
            thing("log.jsonl", "with samples, config", 2, 0),
            thing("checkpoints/", "safetensors, state.json", 2, 1),
            thing("ledger.jsonl", "seconds and dollars", 2, 3),
            module("record.log", "rows, checked", 3, 0),
            module("record.run", "a model ready to write", 3, 1),
            module("record.runs", "every run, a line each", 4, 0),
            outside("plans.bill", "what it cost", 3, 3),
        ),
        (
            ("train.trainer", "record.folder"),
            ("train.trainer", "record.checkpoint"),
            ("train.trainer", "record.slices"),
            ("train.trainer", "record.ledger"),
            ("record.folder", "log.jsonl"),
            ("record.checkpoint", "checkpoints/"),
            ("record.slices", "checkpoints/"),
            ("record.ledger", "ledger.jsonl"),
            ("log.jsonl", "record.log"),
            ("record.log", "record.runs"),
            ("checkpoints/", "record.run"),
            ("ledger.jsonl", "plans.bill"),
        ),
    ),
    "prep": Diagram(
        "Raw text is read in chunks, cleaned and searched for benchmark questions; documents and "
        "ids lie in a store; duplicates are dropped, sources mixed, shards written. A recipe "
        "drives the pipeline, here or on a cluster.",
        (
            thing("raw text", "files, URLs, Hugging Face", 0, 0),
            module("prep.sources", "chunks, always the same", 1, 0),
            module("prep.clean", "repair, judge, count", 2, 0),
            module("prep.contamination", "leaked questions out", 3, 0),
            module("prep.store", "documents and ids stay", 3, 1),
            module("prep.dedup", "copies out", 2, 1),
            module("prep.mix", "families, weights", 1, 1),
            outside("data.shards", "what training reads", 0, 1),
            module("prep.config", "a recipe as a file", 0, 2),
            module("prep.pipeline", "stages that resume", 1, 2),
            module("prep.cluster", "datatrove, Slurm, Ray", 2, 2),
            outside("data.tokenizer", "text to ids", 3, 2),
        ),
        (
            ("raw text", "prep.sources"),
            ("prep.sources", "prep.clean"),
            ("prep.clean", "prep.contamination"),
            ("prep.contamination", "prep.store"),
            ("data.tokenizer", "prep.store"),
            ("prep.store", "prep.dedup"),
            ("prep.dedup", "prep.mix"),
            ("prep.mix", "data.shards"),
            ("prep.config", "prep.pipeline"),
            ("prep.pipeline", "prep.cluster"),
        ),
    ),
    "report": Diagram(
        "A run folder becomes a picture of its loss, tables beside the published figures, and one "
        "page that opens offline.",
        (
            outside("record.log", "rows of a run", 0, 0),
            outside("data/published", "the blog's figures", 0, 1),
            module("report.plots", "curves and references", 1, 0),
            module("report.results", "tables, stages, bills", 1, 1),
            module("report.page", "everything on one page", 1, 2),
            thing("loss.png", "one picture of a run", 2, 0),
            thing("tables", "ours beside published", 2, 1),
            thing("report.html", "opens offline", 2, 2),
        ),
        (
            ("record.log", "report.plots"),
            ("record.log", "report.results"),
            ("data/published", "report.results"),
            ("record.log", "report.page"),
            ("report.plots", "loss.png"),
            ("report.results", "tables"),
            ("report.page", "report.html"),
        ),
    ),
    "share": Diagram(
        "A run's weights are renamed for Hugging Face and GGUF, and come back the same way; a demo "
        "page holds the model itself; the server answers programs.",
        (
            module("share.weights", "names, both ways", 1, 0),
            module("share.hub", "export, import, push", 2, 0),
            thing("a Hub folder", "opens in transformers", 3, 0),
            module("share.gguf", "tensors, bit for bit", 2, 1),
            thing("model.gguf", "for llama.cpp", 3, 1),
            outside("record.run", "a trained run", 0, 2),
            module("share.demo", "the model in a page", 2, 2),
            thing("one HTML file", "needs only a browser", 3, 2),
            outside("model.engine", "requests in one batch", 1, 3),
            module("share.server", "OpenAI's protocol", 2, 3),
            thing("/v1", "for programs", 3, 3),
        ),
        (
            ("record.run", "share.weights"),
            ("share.weights", "share.hub"),
            ("share.weights", "share.gguf"),
            ("share.hub", "a Hub folder"),
            ("share.gguf", "model.gguf"),
            ("record.run", "share.demo"),
            ("share.demo", "one HTML file"),
            ("model.engine", "share.server"),
            ("share.server", "/v1"),
        ),
    ),
    "train": Diagram(
        "A preset and options say what to train; the trainer puts a learner and a journal "
        "together; the loop is a generator of steps, whose rows go to the record and to trackers.",
        (
            module("train.presets", "a name's settings", 0, 0),
            module("train.options", "checked once", 1, 0),
            module("train.trainer", "the parts, together", 2, 0),
            module("train.loop", "yields a step at a time", 3, 0),
            module("train.decay", "how strong decay is", 0, 1),
            outside("data, model", "parts handed in", 1, 1),
            module("train.learner", "model and optimizers", 2, 1),
            module("train.journal", "what is written down", 3, 1),
            module("train.kernels", "the fastest attention", 1, 2),
            module("train.parallel", "one run, many devices", 2, 2),
            outside("record", "log, checkpoint, ledger", 3, 2),
            module("train.trackers", "the same rows elsewhere", 3, 3),
        ),
        (
            ("train.decay", "train.presets"),
            ("train.presets", "train.options"),
            ("train.options", "train.trainer"),
            ("data, model", "train.learner"),
            ("train.kernels", "train.learner"),
            ("train.parallel", "train.learner"),
            ("train.learner", "train.trainer"),
            ("train.trainer", "train.loop"),
            ("train.loop", "train.journal"),
            ("train.journal", "record"),
            ("record", "train.trackers"),
        ),
    ),
    "plans": Diagram(
        "Five questions about money: what a card costs, whether to go on to the next phase, what "
        "a run cost, whether a published figure holds, and what a larger model would reach.",
        (
            module("plans.prices", "dollars an hour", 0, 0),
            module("plans.economics", "dollars a token", 1, 0),
            thing("which card", "and for how long", 2, 0),
            thing("a plan", "phases and gates", 0, 1),
            module("plans.phases", "on, or stop here", 1, 1),
            outside("train.trainer", "runs one phase", 2, 1),
            outside("record.ledger", "seconds of a run", 0, 2),
            module("plans.bill", "a nat of loss costs", 1, 2),
            thing("bill.json", "and what comes next", 2, 2),
            outside("data/published", "the blog's figures", 0, 3),
            module("plans.published", "worked out again", 1, 3),
            thing("a verdict", "for every claim", 2, 3),
            module("plans.ladder", "small models, filed", 0, 4),
            module("plans.scaling", "a law, fitted", 1, 4),
            thing("a forecast", "written, later graded", 2, 4),
        ),
        (
            ("plans.prices", "plans.economics"),
            ("plans.economics", "which card"),
            ("a plan", "plans.phases"),
            ("plans.phases", "train.trainer"),
            ("record.ledger", "plans.bill"),
            ("plans.bill", "bill.json"),
            ("data/published", "plans.published"),
            ("plans.published", "a verdict"),
            ("plans.ladder", "plans.scaling"),
            ("plans.scaling", "a forecast"),
        ),
    ),
    "evals": Diagram(
        "Benchmark files become items of one form; the model answers them in batches; scores come "
        "with errors and controls; programs run in a sandbox; the report card holds all of it.",
        (
            thing("benchmark files", "original formats", 0, 0),
            module("evals.tasks", "items of one form", 1, 0),
            module("evals.adapter", "likelihoods in batches", 2, 0),
            module("evals.scores", "with errors, controls", 3, 0),
            outside("record.run", "a trained run", 1, 1),
            module("evals.sandbox", "programs, jailed", 2, 1),
            module("evals.evaluate", "the report card", 3, 1),
            module("evals.samples", "same prompts, seeds", 1, 2),
            thing("a page", "where texts differ", 2, 2),
            thing("evals.json", "stored with the run", 3, 2),
        ),
        (
            ("benchmark files", "evals.tasks"),
            ("evals.tasks", "evals.adapter"),
            ("record.run", "evals.adapter"),
            ("record.run", "evals.sandbox"),
            ("record.run", "evals.samples"),
            ("evals.adapter", "evals.scores"),
            ("evals.scores", "evals.evaluate"),
            ("evals.sandbox", "evals.evaluate"),
            ("evals.samples", "a page"),
            ("evals.evaluate", "evals.json"),
        ),
    ),
    "tune": Diagram(
        "Rollouts write answers, losses say what a method minimises, objectives put both "
        "together; one loop moves the weights, all of them or those of an adapter; methods lead "
        "from a folder to a folder.",
        (
            outside("chat.packing", "rows of conversations", 0, 0),
            module("tune.losses", "formulas and their ends", 0, 1),
            module("tune.rollouts", "many answers at once", 0, 2),
            module("tune.sft", "learn from examples", 1, 0),
            module("tune.dpo", "learn from preferences", 1, 1),
            module("tune.grpo", "learn from rewards", 1, 2),
            module("tune.start", "a run, or from elsewhere", 2, 0),
            module("tune.steps", "one loop, a run folder", 2, 1),
            module("tune.lora", "a thin correction", 2, 2),
            module("tune.sets", "what is learned from", 3, 1),
            module("tune.methods", "from a folder to a folder", 3, 0),
            outside("record", "log, checkpoints", 3, 2),
        ),
        (
            ("chat.packing", "tune.sft"),
            ("tune.losses", "tune.dpo"),
            ("tune.rollouts", "tune.grpo"),
            ("tune.sft", "tune.steps"),
            ("tune.dpo", "tune.steps"),
            ("tune.grpo", "tune.steps"),
            ("tune.steps", "record"),
            ("tune.start", "tune.methods"),
            ("tune.sets", "tune.methods"),
        ),
    ),
    "forensics": Diagram(
        "A run folder says which data, which order and which step: reading finds the batch again. "
        "A sample is laid against all the training data: copies finds the passages that stand "
        "there, how often and in which document.",
        (
            outside("record.folder", "a run, finished", 0, 0),
            outside("train.rows", "its order", 1, 0),
            module("forensics.reading", "the batch, again", 2, 0),
            thing("documents", "of step N", 3, 0),
            outside("record.run", "a sample of it", 0, 1),
            outside("data.corpus", "all it learned from", 1, 1),
            module("forensics.copies", "one pass, no index", 2, 1),
            thing("passages", "how often, and where", 3, 1),
        ),
        (
            ("record.folder", "train.rows"),
            ("train.rows", "forensics.reading"),
            ("forensics.reading", "documents"),
            ("record.run", "data.corpus"),
            ("data.corpus", "forensics.copies"),
            ("forensics.copies", "passages"),
        ),
    ),
    "guards": Diagram(
        "Preflight looks before a run, alarms look during it, the doctor looks at the folder "
        "afterwards, verify at every byte of it; each says what is wrong and what to do.",
        (
            outside("train.presets", "what you want to run", 0, 0),
            module("guards.preflight", "before you pay", 1, 0),
            thing("go, or not", "a line per question", 2, 0),
            outside("train.loop", "a batch, a model", 0, 1),
            module("guards.alarms", "a check per mistake", 1, 1),
            thing("Alarm", "what, and what to do", 2, 1),
            outside("record.folder", "a run, even a broken one", 0, 2),
            module("guards.doctor", "afterwards", 1, 2),
            module("guards.tuned", "of a run that talks", 1, 3),
            thing("findings", "values and remedies", 2, 2),
            thing("any folder", "run, shards, export", 0, 3),
            module("guards.verify", "every byte", 1, 3),
            thing("what holds", "and the way back", 2, 3),
        ),
        (
            ("train.presets", "guards.preflight"),
            ("guards.preflight", "go, or not"),
            ("train.loop", "guards.alarms"),
            ("guards.alarms", "Alarm"),
            ("guards.alarms", "guards.doctor"),
            ("record.folder", "guards.doctor"),
            ("guards.doctor", "findings"),
            ("guards.tuned", "guards.doctor"),
            ("any folder", "guards.verify"),
            ("guards.verify", "what holds"),
        ),
    ),
    "lab": Diagram(
        "Benches race the library against plain code and write receipts; the museum breaks it on "
        "purpose; grading holds a learner's code against what it must do.",
        (
            outside("the library", "every room below", 0, 0),
            module("lab.bench", "races in one run", 1, 0),
            thing("data/bench", "receipts, as ratios", 2, 0),
            module("lab.museum", "broken on purpose", 1, 1),
            thing("an exhibit", "symptom, alarm, repair", 2, 1),
            thing("your file", "attention, RoPE, ...", 0, 2),
            module("lab.grade", "property by property", 1, 2),
            thing("a verdict", "which one fails", 2, 2),
            module("lab.grade_tune", "by where it ends", 1, 3),
        ),
        (
            ("the library", "lab.bench"),
            ("the library", "lab.museum"),
            ("lab.bench", "data/bench"),
            ("lab.museum", "an exhibit"),
            ("your file", "lab.grade"),
            ("lab.grade", "a verdict"),
            ("lab.grade_tune", "lab.grade"),
        ),
    ),
    "cli": Diagram(
        "The first word picks a module of commands, which is imported only then; its options are "
        "read, one room does the work, and what comes back is text and an exit code.",
        (
            thing("gpub train ...", "words and flags", 0, 0),
            module("cli.main", "errors to one line", 1, 0),
            module("cli.options", "loads what is typed", 1, 1),
            module("cli.train", "and one for each room", 2, 0),
            module("cli.start", "Ctrl-C, meanwhile", 2, 1),
            outside("one room", "does the work", 3, 0),
            thing("text, exit code", "0, 1, 2 or 130", 3, 1),
        ),
        (
            ("gpub train ...", "cli.main"),
            ("cli.main", "cli.options"),
            ("cli.options", "cli.train"),
            ("cli.start", "cli.train"),
            ("cli.train", "one room"),
            ("one room", "text, exit code"),
        ),
    ),
}


def route(start, end):
    "Points of an arrow: straight along a row or a column, else around the corner before the end"
    (x0, y0), (x1, y1) = start.middle, end.middle
    if start.column == end.column:
        down = y1 > y0
        first = start.top + BOX_HEIGHT if down else start.top
        last = end.top if down else end.top + BOX_HEIGHT
        return [(x0, first), (x0, last)]
    right = x1 > x0
    first = start.left + BOX_WIDTH if right else start.left
    last = end.left if right else end.left + BOX_WIDTH
    if y0 == y1:
        return [(first, y0), (last, y1)]
    gap = (COLUMN - BOX_WIDTH) // 2
    corner = last - gap if right else last + gap
    return [(first, y0), (corner, y0), (corner, y1), (last, y1)]


def arrow(start, end):
    "An arrow as SVG"
    points = route(start, end)
    path = "M" + " L".join(f"{x} {y}" for x, y in points)
    return f'<path class="arrow" marker-end="url(#head)" d="{path}"/>'


def box(b):
    "A box with its name and one line about it, as SVG"
    x, y = b.middle
    corner = 6 if b.kind == "module" else 14
    return (
        f'<rect class="{b.kind}" x="{b.left}" y="{b.top}" width="{BOX_WIDTH}" '
        f'height="{BOX_HEIGHT}" rx="{corner}"/>\n'
        f'<text class="name" x="{x}" y="{y - 4}" text-anchor="middle">{escape(b.name)}</text>\n'
        f'<text class="note" x="{x}" y="{y + 15}" text-anchor="middle">{escape(b.note)}</text>'
    )


def draw(diagram):
    "The whole picture as SVG"
    at = {b.name: b for b in diagram.boxes}
    width = 2 * MARGIN + max(b.column for b in diagram.boxes) * COLUMN + BOX_WIDTH
    height = 2 * MARGIN + max(b.row for b in diagram.boxes) * ROW + BOX_HEIGHT
    parts = [
        *(arrow(at[start], at[end]) for start, end in diagram.arrows),
        *(box(b) for b in diagram.boxes),
    ]
    return style.svg(width, height, "How data flows through this room", diagram.alt, parts)


def place(root, room):
    "Where the picture of a room lies"
    return root / "nbs" / "lib" / room / f"{room}.svg"


def modules_named():
    "Every room.module that a box names"
    for room, diagram in ROOMS.items():
        for b in diagram.boxes:
            if b.kind != "thing" and re.fullmatch(r"[a-z]+\.[a-z]+", b.name):
                yield room, b.name


def main():
    root = Path(__file__).resolve().parent.parent
    for room, diagram in ROOMS.items():
        place(root, room).write_text(draw(diagram), encoding="utf-8")
        print(place(root, room).relative_to(root))


if __name__ == "__main__":
    main()
