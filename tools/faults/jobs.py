"""The commands that write, registered: what they need, what is typed, what must come out.

`tools/faults/sweep.py` disturbs each of them in every way it knows, `tests/test_goes_on.py` in a
few: a command is promised to go on by standing in `JOBS`. Everything but the disturbance is the
real program. What only costs time is made short: pictures are drawn once, texts are four tokens
long, the machine's peak is not measured.
"""

import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from types import ModuleType

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

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
    processes: int = 1  # of torch.distributed; a fault is one of the first
    has_checkpoints: bool = False  # a damaged one is passed over for the one before it
    # what stands beside it while it works, such as a server
    beside: Callable[[Path], AbstractContextManager] = nullcontext


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


def without_clocks(path: Path) -> str:
    "A file of a run folder, without clocks, random names and where the folder lies"
    if path.suffix == ".safetensors" or path.name in ("tokenizer.json", "LATEST"):
        return digest(path.read_bytes())
    if path.name in ("log.jsonl", "samples.jsonl"):
        return clockless(path)
    if path.name == "config.json":
        config = json.loads(path.read_text())
        for name in ("run_id", "command", "options"):
            config.pop(name, None)
        return digest(json.dumps(config).encode())
    if path.name == "phases.jsonl":
        rows = map(json.loads, path.read_text().splitlines())
        return str(sorted({(row["phase"], row["word"]) for row in rows}))
    return "there"


def run_folder(out: Path) -> dict[str, str]:
    "A run folder, or one of several runs"
    files = sorted(path for path in out.rglob("*") if path.is_file())
    slices = [path for path in files if path.name.startswith("shard-")]
    final = {str(p.relative_to(out)): without_clocks(p) for p in files if p not in slices}
    for folder in sorted({path.parent for path in slices}):
        final[str(folder.relative_to(out) / "slices")] = tensors_of_slices(folder)
    return final


def tensors_of_slices(folder: Path) -> str:
    "The tensors of all slices, which may stand in one file or another"
    from safetensors.numpy import load_file

    tensors = {}
    for path in sorted(folder.glob("shard-*.safetensors")):
        for name, tensor in load_file(path).items():
            tensors[path.name[:12], name] = tensor.tobytes()
    return digest(b"".join(str(key).encode() + data for key, data in sorted(tensors.items())))


def records_not_behind(out: Path) -> list[str]:
    "The same of every run below a folder"
    runs = sorted(path.parent for path in out.rglob("checkpoints"))
    return [wrong for run in runs for wrong in record_not_behind(run)]


def record_not_behind(out: Path) -> list[str]:
    "What the logs lack that the newest whole checkpoint says happened"
    from gpub.core import read_config
    from gpub.record.checkpoint import find_newest
    from gpub.record.ledger import read_ledger
    from gpub.record.log import read_log

    newest = find_newest(out, log=lambda line: None)
    if newest is None:
        return []
    step = newest.step
    logged = [row["step"] for row in read_log(out)]
    booked = [row["step"] for row in read_ledger(out)]
    wrong = []
    if [n for n in logged if n <= step] != [*range(1, step + 1)]:
        wrong.append(f"the log has steps {logged} beside checkpoint {step}")
    if not (out / "config.json").is_file():
        return wrong
    # the steps before a branch are on the bill of the run that it left
    paid_elsewhere = read_config(out).get("branch", {}).get("step", 0)
    if max(booked, default=paid_elsewhere) < step:
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


def typed_before(folder: Path, argv: tuple[str, ...]):
    "A command whose result another one needs"
    from gpub.cli.main import cli

    before = Path.cwd()
    os.chdir(folder)
    try:
        cli.main(list(argv), standalone_mode=False)
    finally:
        os.chdir(before)


def trained(folder: Path):
    "A finished run"
    write_play(folder)
    typed_before(folder, TRAIN)


def trained_before(folder: Path):
    "A finished run, to begin with"
    trained(folder)
    (folder / "out" / "run").rename(folder / "before")


def packed(folder: Path):
    "Shards that were compressed for upload"
    prepare_prep(folder)
    typed_before(folder, (*PREP, "--compress"))
    shutil.rmtree(folder / "out" / "shards")


def exported(folder: Path):
    "A run in the layout of Hugging Face, to be uploaded"
    trained(folder)
    typed_before(folder, ("export", "out/run", "out/model"))
    shutil.rmtree(folder / "out" / "run")


def hub_of(folder: Path) -> AbstractContextManager:
    "A server in the place of the Hub, whose repository is a file"
    from stand_in_hub_writes import in_place_of_the_hub

    (folder / "out" / "hub").mkdir(exist_ok=True)
    os.environ["HF_TOKEN"] = "a token of nobody"
    return in_place_of_the_hub(folder / "out" / "hub")


def trained_llama(folder: Path):
    "A finished run that can grow"
    write_play(folder)
    typed_before(folder, LLAMA)


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


SUMS = [(12, 34), (5, 6), (77, 8), (30, 40), (9, 9), (61, 2), (44, 55), (10, 1), (23, 32), (6, 70)]
TALKER = dict(context_length=24, d_model=8, n_layers=1, n_heads=1, n_kv_heads=1, d_ff=8)


def write_talks(folder: Path):
    "A Llama in the layout of Hugging Face, and conversations, preferences and questions for it"
    import torch

    from gpub.chat.sums import sums_tokenizer
    from gpub.model.llama import Llama, LlamaConfig
    from gpub.share.hub import export_model

    tokenizer = sums_tokenizer()
    torch.manual_seed(0)
    model = Llama(LlamaConfig(**TALKER, vocab_size=tokenizer.vocab_size))
    export_model(model, tokenizer, folder / "start")
    lines: dict[str, list[dict]] = dict(chats=[], pairs=[], questions=[])
    for a, b in SUMS:
        question = f"{a}+{b}"
        lines["chats"].append(dict(question=question, answer=str(a + b)))
        lines["pairs"].append(dict(question=question, chosen=str(a + b), rejected=str(a)))
        lines["questions"].append(dict(question=question, answer=str(a + b)))
    for name, rows in lines.items():
        text = "\n".join(json.dumps(row) for row in rows)
        (folder / f"{name}.jsonl").write_text(text)


def write_chat_plan(folder: Path):
    "The toy of the plans that teach a model to talk, smaller, without gates"
    from gpub.files import shipped

    write_talks(folder)
    plan = json.loads(shipped("recipes/chat-toy-plan.json").read_text(encoding="utf-8"))
    base, *tuned = plan["phases"]
    base |= dict(until=3, gates=[])
    plan["settings"] |= dict(n_layers=1, d_model=16, n_heads=1, context_length=64)
    plan["settings"] |= dict(batch_tokens=128, log_every=1)
    plan["save_every"] = 1
    data = dict(sft="talks:40", dpo="sums:40", grpo="sums")
    for phase in tuned:
        phase |= dict(until=3, save_every=2, gates=[], data=[data[phase["name"]]])
        phase["settings"] = dict(batch_tokens=128)
        phase.pop("replay", None)
        if phase["method"] == "dpo":
            phase |= dict(labels="odds")
            phase["dpo"] |= dict(pairs_per_step=4)
        if phase["method"] == "grpo":
            phase["grpo"] |= dict(questions_per_step=2, group=2)
    (folder / "plan.json").write_text(json.dumps(plan))


TRAIN = (
    *("train", "shakespeare", "--data", "play.txt", "--out", "out/run", "--steps", "5"),
    *("--save-every", "2", "--keep", "2", *SETTINGS, "--set", "log_every=1"),
)
LLAMA = (
    *("train", "burn-toy", "--data", "play.txt", "--out", "small", "--steps", "2"),
    *(*SETTINGS, "--set", "n_kv_heads=1", "--set", "d_ff=8", "--set", "log_every=1"),
)
PREP = (
    *("prep", "--source", "a=play.txt:1", "--out", "out/shards", "--vocab", "270"),
    *("--workers", "1", "--no-scan"),
)
INIT = (
    *("train", "--init", "before", "--data", "play.txt", "--out", "out/run", "--steps", "5"),
    *("--save-every", "2", "--keep", "2", "--set", "batch_tokens=16", "--set", "log_every=1"),
)
EXTEND = ("train", "--init", "before", "--extend", "3", "--out", "out/run")
PLAN = ("run", "plan.json", "--out", "out/run", "--device", "cpu", "--usd-per-hour", "1")
TUNE = (
    *("--out", "out/run", "--steps", "5", "--every", "2", "--device", "cpu"),
    *("--set", "batch_tokens=48"),
)
SFT = ("sft", "start", "--data", "chats.jsonl", *TUNE)
DPO = ("dpo", "start", "--pairs", "pairs.jsonl", "--pairs-per-step", "4", *TUNE)
GRPO = (
    *("grpo", "start", "--task", "questions.jsonl", "--questions", "2", "--group", "2"),
    *("--longest", "4", *TUNE),
)


def prepare_prep(folder: Path):
    "Text enough for a tokenizer"
    write_play(folder, 8000)


def one_file(name: str) -> Callable[[Path], dict[str, str]]:
    "What a command adds to a folder: this file, and none beside it"

    def final(out: Path) -> dict[str, str]:
        names = ", ".join(sorted(path.name for path in out.iterdir()))
        return {name: digest((out / name).read_bytes()), "files": names}

    return final


def a_run(name: str, argv: tuple[str, ...], prepare: Callable[[Path], object], **more) -> Job:
    "A command that makes a run folder"
    more = dict(out="out/run", has_checkpoints=True) | more
    return Job(name, argv, prepare, final=run_folder, invariants=records_not_behind, **more)


def made_once(name: str, argv: tuple[str, ...], prepare: Callable[[Path], object]) -> Job:
    "A command that makes a folder whole or not at all, and refuses one that is there"
    out = "out/" + name
    final = run_folder if name == "import" else all_files
    return Job(name, argv, prepare, out, final, nothing_more, once=True)


REGISTERED = [
    a_run("train", TRAIN, write_play),
    a_run("mirror", (*TRAIN, "--mirror", "out/mirror"), write_play, out="out"),
    a_run("ddp", (*TRAIN, "--parallel", "ddp"), write_play, processes=2),
    a_run("fsdp", (*TRAIN, "--parallel", "fsdp"), write_play, processes=2),
    a_run("init", INIT, trained_before),
    a_run("warm", (*INIT, "--warm"), trained_before),
    a_run("extend", EXTEND, trained_before),
    a_run("sft", SFT, write_talks),
    a_run("dpo", DPO, write_talks),
    a_run("grpo", GRPO, write_talks),
    a_run("lora", (*GRPO, "--lora", "2"), write_talks),
    a_run(
        "grow",
        ("grow", "small", "--out", "out/run", "--set", "n_layers=2", "--set", "steps=5"),
        trained_llama,
    ),
    a_run("run", (*PLAN, "--data", "play.txt"), write_plan),
    a_run("chat-plan", PLAN, write_chat_plan),
    Job("prep", PREP, prepare_prep, "out/shards", all_files, nothing_more),
    Job(
        "prep-mirror",
        (*PREP, "--mirror", "out/mirror"),
        prepare_prep,
        "out",
        all_files,
        nothing_more,
    ),
    Job("compress", (*PREP, "--compress"), prepare_prep, "out", all_files, nothing_more),
    Job(
        "unpack",
        ("prep", "--unpack", "out/shards-zst"),
        packed,
        "out/shards-zst",
        all_files,
        nothing_more,
    ),
    made_once("export", ("export", "out/run", "out/export"), trained),
    made_once("import", ("import", "start", "out/import"), write_talks),
    made_once(
        "chats", ("chats", "chats.jsonl", "--run", "start", "--out", "out/chats"), write_talks
    ),
    Job(
        "eval",
        (
            *("eval", "out/run", "--tasks", "hellaswag", "--data", "eval"),
            *("--check", "0", "--device", "cpu"),
        ),
        with_questions,
        "out/run",
        one_file("evals.json"),
        nothing_more,
    ),
    Job(
        "push",
        ("push", "out/model", "some/mirror"),
        exported,
        "out",
        all_files,
        nothing_more,
        beside=hub_of,
    ),
    Job("demo", ("demo", "out/run"), trained, "out/run", one_file("demo.html"), nothing_more),
]
JOBS = {job.name: job for job in REGISTERED}


def replace_everywhere(name: str, other: object):
    "Put `other` in the place of a name, in whichever modules of the package it stands"
    loaded = [module for key, module in sys.modules.items() if key.partition(".")[0] == "gpub"]
    at = [m for m in loaded if not isinstance(vars(m).get(name, m), ModuleType)]
    if not at:
        raise LookupError(f"no module of gpub has {name} any more")
    for module in at:
        setattr(module, name, other)


class Picture:
    "Writes the bytes of a drawing that was made once, the way matplotlib does"

    def __init__(self, drawn: dict[str, str | bytes]):
        self.drawn = drawn  # by kind

    def savefig(self, to: object, format: str = "png", **options: object):
        "Into a file, by its name or opened"
        if hasattr(to, "write"):
            to.write(self.drawn[format])
            return
        with open(to, "wb") as file:
            file.write(self.drawn[format])


def make_short():
    "What costs time and writes nothing is done once, or less of it"
    from gpub.report.page import plot_loss
    from gpub.train.pretraining import SAMPLING

    figure = plot_loss([dict(step=1, loss=1.0)], {})
    png, svg = io.BytesIO(), io.StringIO()
    figure.savefig(png, format="png")
    figure.savefig(svg, format="svg")
    picture = Picture(dict(png=png.getvalue(), svg=svg.getvalue()))
    replace_everywhere("plot_loss", lambda *given, **options: picture)
    replace_everywhere("matmul_peak", lambda *given: 1e12)
    replace_everywhere("machine", lambda device: {"cpu": "any", "gpu": None})
    replace_everywhere("references", lambda corpus: {"unigram": 3.0})
    replace_everywhere("SAMPLING", replace(SAMPLING, n=4))


def copy_prepared(prepared: Path, to: Path):
    "A fresh folder to work in"
    shutil.copytree(prepared, to)
    (to / "out").mkdir(exist_ok=True)
