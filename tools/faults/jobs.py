"""The small commands that are disturbed: what they need, what is typed, what must come out.

Everything but the disturbance is the real program. What only costs time is made short: pictures
are drawn once, texts are four tokens long, the machine's peak is not measured.
"""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np

CLOCKS = {"seconds", "tok_s", "mfu", "usd", "at", "hours", "paid_usd", "run_usd"}
SIZES = [
    "precision=fp32",
    "compile=no",
    "d_model=8",
    "n_layers=1",
    "n_heads=1",
    "context_length=8",
    "stages=[[0,8]]",
    "depths=[[0,1]]",
    "batch_tokens=16",
]
SETTINGS = [part for setting in SIZES for part in ("--set", setting)]


@dataclass(frozen=True)
class Job:
    "One command, and what is compared"

    name: str
    argv: tuple[str, ...]  # as typed, in a folder that `prepare` filled
    prepare: Callable[[Path], object]  # fills the folder
    out: str  # what the command makes, below the folder
    final: Callable[[Path], dict[str, str]]  # what must be the same in the end, by name
    invariants: Callable[[Path], list[str]]  # what is wrong after a fault, in words
    once: bool = False  # when it is done, the same command is refused


def digest(data: bytes) -> str:
    "Short enough for a message"
    return sha256(data).hexdigest()[:12]


def clockless(path: Path) -> str:
    "The rows of a log without what a clock said"
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    kept = [{k: v for k, v in row.items() if k not in CLOCKS} for row in rows]
    return digest(json.dumps(kept).encode())


def all_files(folder: Path) -> dict[str, str]:
    "Every file of a folder"
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): digest(path.read_bytes()) for path in files}


def run_folder(out: Path) -> dict[str, str]:
    "A run folder, without clocks and without the random name of the run"
    config = json.loads((out / "config.json").read_text())
    for name in ("run_id", "command", "options"):  # a random name, and where the folder lies
        config.pop(name, None)
    files = {"config.json": digest(json.dumps(config).encode())}
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if path.suffix in (".safetensors",) or path.name in ("tokenizer.json", "LATEST"):
            files[name] = digest(path.read_bytes())
        elif path.name in ("log.jsonl", "samples.jsonl"):
            files[name] = clockless(path)
        elif path.is_file() and name not in files and path.name != "phases.jsonl":
            files[name] = "there"
    if (out / "phases.jsonl").is_file():
        rows = map(json.loads, (out / "phases.jsonl").read_text().splitlines())
        files["phases.jsonl"] = str(sorted({(r["phase"], r["word"]) for r in rows}))
    return files


def record_not_behind(out: Path) -> list[str]:
    "What the logs lack that the newest whole checkpoint says happened"
    from gpub.record.checkpoint import latest
    from gpub.record.ledger import read_ledger
    from gpub.record.log import read_log

    newest = latest(out, log=lambda line: None)
    if newest is None:
        return []
    step = int(newest.name[5:])
    logged = [row["step"] for row in read_log(out)]
    booked = [row["step"] for row in read_ledger(out)]
    wrong = []
    if [n for n in logged if n <= step] != [*range(1, step + 1)]:
        wrong.append(f"the log has steps {logged} beside checkpoint {step}")
    if max(booked, default=0) < step:
        wrong.append(f"the ledger ends at step {max(booked, default=0)} beside checkpoint {step}")
    return wrong


def nothing_more(out: Path) -> list[str]:
    "A command whose work is all or nothing"
    return []


def write_play(folder: Path, size: int = 3000):
    "The text that is learned"
    from gpub.data.plays import plays

    (folder / "play.txt").write_text(plays(size, seed=3))


def write_plan(folder: Path):
    "Two phases of two steps"
    write_play(folder)

    def phase(name, until):
        gates = [dict(metric="gap", most=9.0)]
        question = "Does it go on?"
        return dict(name=name, question=question, until=until, usd=9.0, gates=gates)

    settings = dict(setting.split("=", 1) for setting in SIZES)
    settings |= {k: json.loads(v) for k, v in settings.items() if k in ("stages", "depths")}
    whole = {k: int(v) for k, v in settings.items() if isinstance(v, str) and v.isdecimal()}
    plan = dict(
        about="the twin of a plan",
        preset="shakespeare",
        settings=settings | whole,
        save_every=2,
        phases=[phase("first", 2), phase("second", 4)],
    )
    (folder / "plan.json").write_text(json.dumps(plan))


def trained(folder: Path):
    "A finished run"
    from gpub.cli.main import cli

    write_play(folder)
    before = Path.cwd()
    os.chdir(folder)
    try:
        cli.main(list(TRAIN), standalone_mode=False)
    finally:
        os.chdir(before)


def with_questions(folder: Path):
    "A finished run, and a few questions to ask it"
    trained(folder)
    (folder / "eval").mkdir()
    rng = np.random.default_rng(0)
    lines = (folder / "play.txt").read_text().splitlines()
    lines = [line for line in lines if len(line) > 20 and "[" not in line]
    rows = []
    for number in range(4):
        chosen = [lines[int(n)] for n in rng.integers(len(lines), size=5)]
        rows.append(dict(activity_label="Play", ctx=chosen[0], endings=chosen[1:], label=number))
    text = "\n".join(json.dumps(row) for row in rows)
    (folder / "eval" / "hellaswag_val.jsonl").write_text(text)


TRAIN = (
    *("train", "shakespeare", "--data", "play.txt", "--out", "out/run", "--steps", "4"),
    *("--save-every", "2", "--keep", "1", *SETTINGS, "--set", "log_every=1"),
)
PREP = (
    *("prep", "--source", "a=play.txt:1", "--out", "out/shards", "--vocab", "270"),
    *("--workers", "1", "--no-scan"),
)


def prepare_prep(folder: Path):
    "Text enough for a tokenizer"
    write_play(folder, 8000)


JOBS = {
    job.name: job
    for job in (
        Job("train", TRAIN, write_play, "out/run", run_folder, record_not_behind),
        Job(
            "run",
            (
                *("run", "plan.json", "--data", "play.txt"),
                *("--out", "out/run", "--device", "cpu"),
                "--usd-per-hour",
                "1",
            ),
            write_plan,
            "out/run",
            run_folder,
            record_not_behind,
        ),
        Job("prep", PREP, prepare_prep, "out/shards", all_files, nothing_more),
        Job(
            "export",
            ("export", "out/run", "out/hf"),
            trained,
            "out/hf",
            all_files,
            nothing_more,
            once=True,
        ),
        Job(
            "eval",
            (
                *("eval", "out/run", "--tasks", "hellaswag", "--data", "eval"),
                *("--check", "0", "--device", "cpu"),
            ),
            with_questions,
            "out/run",
            lambda out: {
                "evals.json": digest((out / "evals.json").read_bytes()),
                "files": ", ".join(sorted(path.name for path in out.iterdir())),
            },
            nothing_more,
        ),
    )
}


def make_short():
    "What costs time and writes nothing is done once, or less of it"
    import matplotlib.figure

    import gpub.report.page as page
    import gpub.train.journal as journal
    import gpub.train.trainer as trainer

    drawn = {}
    draw, plot = matplotlib.figure.Figure.savefig, page.plot_loss

    class Picture:
        "Writes the bytes of the first drawing, the way matplotlib does"

        def savefig(self, to, **how):
            import io

            kind = how.get("format", "png")
            if kind not in drawn:
                memory = io.StringIO() if kind == "svg" else io.BytesIO()
                draw(plot([dict(step=1, loss=1.0)], {}), memory, format=kind)
                drawn[kind] = memory.getvalue()
            if hasattr(to, "write"):
                to.write(drawn[kind])
            else:
                with open(to, "wb") as file:
                    file.write(drawn[kind])

    page.plot_loss = lambda *given, **how: Picture()
    trainer.matmul_peak = lambda *given: 1e12
    trainer.references = lambda corpus: {"unigram": 3.0}
    trainer.machine = lambda device: {"cpu": "any", "gpu": None}
    journal.SAMPLING = replace(journal.SAMPLING, n=4)
    for kind in ("png", "svg"):
        nowhere = os.devnull if kind == "png" else __import__("io").StringIO()
        Picture().savefig(nowhere, format=kind)


def copy_prepared(prepared: Path, to: Path):
    "A fresh folder to work in"
    shutil.copytree(prepared, to)
    (to / "out").mkdir(exist_ok=True)
