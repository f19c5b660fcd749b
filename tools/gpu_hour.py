"""One paid hour, for what only a card can say: python -m tools.gpu_hour --usd-per-hour 2.99

Each part is a process of its own with a limit of its own. What it measured is filed at once, whole
or not at all, in a folder laid out like data/, so that every reader of receipts reads it there. A
part that fails or takes too long is filed as failed, with its message, and the next one begins.
The same command goes on where it stopped: a part with a receipt is left out, one that failed is
tried again. At the end stands a table: rehearsed, forecast, measured.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path

from gpub.core import GpubError, first_line, read_json, write_atomic
from gpub.data.text import load_shakespeare
from gpub.device import machine, use_threads
from gpub.files import shipped
from gpub.guards.preflight import PreflightRun, resume
from gpub.guards.rehearse import RehearsalOptions, rehearsal_record, rehearse
from gpub.lab.bench.ladder import LadderPace, bench_ladder
from gpub.lab.bench.machine import bench_machine, lacks_format, peaks
from gpub.lab.bench.train import bench_train, step_speed
from gpub.model.gpu_plan import plan, seconds_per_token
from gpub.model.gpus import GPU, gpu_key
from gpub.plans.gpus import find_card
from gpub.plans.multi_gpu import sized_recipe
from gpub.record.log import read_log
from gpub.table import Table
from gpub.train.options import RunOptions
from gpub.train.trainer import Trainer
from gpub.tune.methods import SftOptions
from gpub.tune.steps import Tuner
from tools.bench.generate import bench_generate
from tools.fp8 import use_fp8

ROOT = Path(__file__).parents[1]  # of the clone
MINUTES = 58.0  # of the hour: what has not begun by then is left out
RECIPE = "recipes/burn1b.json"  # of the text that the smoke run reads
NOT_YET = "not measured yet"
LETTERS = "shakespeare"  # the course's first model: its text is in every clone or a moment away
# what the smoke run leaves to be kept. Its bill is in the part's receipt alone: a folder with a
# bill.json in runs/ is a whole run, whose speed and final loss pages quote
RUN_RECEIPTS = "config.json", "log.jsonl", "samples.jsonl", "ledger.jsonl"
# the top of the ladder, so that 1B is tried as it is trained
LADDER_1B = dict(precision="bf16", batch_tokens=32_768)
TOY_SHAPE = dict(n_layers=1, d_model=16, n_heads=2, context_length=16, batch_tokens=128)


@dataclass(frozen=True)
class Hour:
    "What is measured, where, and where its receipts go"

    out: Path  # laid out like data/: bench/, runs/; and work/, logs/, failed/
    device: str  # cuda, or cpu for a toy
    gpu: str  # as torch names the card; cpu for a toy
    toy: bool = False  # the same parts in small, to see that they run
    data: str | None = None  # shards for the smoke run; default: prepared in a part of its own
    usd_per_hour: float = 0.0  # what the machine costs
    smoke_steps: int = 200  # of the smoke run

    @property
    def small(self) -> str:
        "The smaller preset"
        return "shakespeare" if self.toy else "gpt2-134m"

    @property
    def large(self) -> str:
        "The larger preset"
        return "burn-toy" if self.toy else "burn-1b"

    @property
    def presets(self) -> tuple[str, str]:
        "Both"
        return self.small, self.large

    @property
    def shape(self) -> dict[str, int]:
        "Settings that make a toy of a preset"
        return TOY_SHAPE if self.toy else {}

    @cached_property
    def card(self) -> GPU:
        "The card of the forecasts; one that no table has is measured"
        return find_card(self.gpu)

    @property
    def rehearsed_on(self) -> str:
        "The card that stands in for this one"
        return "A100-80" if self.toy else self.card.name

    @property
    def shards(self) -> Path:
        "What the smoke run reads"
        return Path(self.data) if self.data else self.out / "work/shards"

    def receipt(self, part: str) -> Path:
        "Where a part files what it measured"
        return self.out / "bench" / f"{part}-{gpu_key(self.gpu)}.json"

    def failure(self, part: str) -> Path:
        "Where it is filed that a part failed"
        return self.out / "failed" / f"{part}.json"

    def read(self, part: str) -> dict | None:  # None: not measured yet
        "What a part measured"
        path = self.receipt(part)
        return read_json(path) if path.is_file() else None


@dataclass(frozen=True)
class Part:
    "A piece of the hour"

    name: str  # of its receipt
    minutes: float  # its limit
    measure: Callable[[Hour], dict]  # what it files


@dataclass(frozen=True)
class StepKind:
    "One way to take a step"

    preset: str  # whose step
    compiled: bool  # by torch.compile
    mode: str  # of gradient checkpointing

    @property
    def name(self) -> str:
        "Of its part"
        return f"step-{self.preset}-{'compiled' if self.compiled else 'eager'}-{self.mode}"


def step_kinds(hour: Hour) -> list[StepKind]:
    "Both presets eager and compiled, with and without checkpointing; a toy compiles nothing"
    return [
        StepKind(preset, compiled, mode)
        for preset in hour.presets
        for compiled in ((False,) if hour.toy else (False, True))
        for mode in ("off", "full")
    ]


def micro_batch(hour: Hour, preset: str) -> int:
    """Choose how many sequences go at once, for every way to take a step: a power of two that the
    plan leaves room for without checkpointing, or with it where nothing fits without"""
    model, recipe = sized_recipe(preset, hour.shape)
    rows = {row.checkpointing: row for row in plan(model, hour.card, 10**9).rows}
    row = rows["off"] if rows["off"].fits else rows["full"]
    if not row.fits:
        raise GpubError(f"{preset} does not fit {hour.card.name}")
    largest = min(row.micro_batch, recipe.batch_tokens // model.context_length)
    return 1 << (largest.bit_length() - 1)


def step_settings(hour: Hour, kind: StepKind) -> dict[str, object]:
    "Return the settings of a way to take a step"
    return hour.shape | dict(
        compile="yes" if kind.compiled else "no",
        grad_checkpoint=kind.mode,
        micro_batch=micro_batch(hour, kind.preset),
    )


# the parts


def measure_ceilings(hour: Hour) -> dict:
    "Multiply in every format, copy, launch, attend"
    if hour.toy:
        return bench_machine(hour.device, sizes=(64, 128), shape=(1, 2, 1, 64, 16))
    return bench_machine(hour.device, log=print)


def rehearse_steps(hour: Hour) -> dict:
    "Rehearse every way to take a step on the stand-in for this card"
    records = []
    for kind in step_kinds(hour):
        if kind.compiled:
            continue  # the stand-in has no compiler: rehearsed is the eager step
        options = RehearsalOptions(
            kind.preset, hour.rehearsed_on, settings=step_settings(hour, kind)
        )
        records.append(rehearsal_record(rehearse(options)))
        print(kind.name, records[-1]["verdict"])
    return dict(kind="rehearsals", machine=machine(hour.device), rehearsals=records)


def kill_and_resume(hour: Hour) -> dict:
    "Kill a run with SIGKILL in the middle of a step, go on, and compare with one left alone"
    out = str(hour.out / "work/kill")
    run = PreflightRun(LETTERS, device=hour.device, out=out, log=print)
    return dict(kind="kill", machine=machine(hour.device), finding=resume(run))


def time_steps(hour: Hour, kind: StepKind) -> dict:
    "Time steps of one kind"
    steps = 2 if hour.toy else 30 if kind.preset == hour.small else 8
    settings = step_settings(hour, kind)
    return bench_train(kind.preset, hour.device, steps, settings)


def train_in_fp8(hour: Hour) -> dict:
    """Take the same steps of the larger preset twice, in bf16 and with the blocks' matrix products
    in fp8: speed, memory, and the loss that both have come to"""
    lacks = None if hour.toy else lacks_format(hour.device, "fp8")
    if lacks:
        raise GpubError(lacks)
    use_threads()
    kind = StepKind(hour.large, compiled=not hour.toy, mode="off")
    steps = dict(steps=2, warmup=2) if hour.toy else dict(steps=20, warmup=10)
    taken = dict(settings=step_settings(hour, kind), **steps)
    wide = step_speed(hour.large, hour.device, **taken)
    changed = []
    narrow = step_speed(
        hour.large, hour.device, prepare=lambda m: changed.append(use_fp8(m.blocks)), **taken
    )
    return dict(
        kind="fp8", machine=machine(hour.device), fp8_layers=changed[0], bf16=wide, fp8=narrow
    )


def climb_small(hour: Hour) -> dict:
    "Climb the whole ladder of season 1, chapter 6"
    if hour.toy:
        rungs = ["TF32", "fused attention"]
        return bench_ladder(hour.small, hour.device, LadderPace(1), TOY_SHAPE, rungs)
    return bench_ladder(hour.small, hour.device, LadderPace(seconds=480.0))


def climb_large(hour: Hour) -> dict:
    "Try the rungs whose gain on the 1B was published"
    pace = LadderPace(5, seconds=240.0)
    rungs = ["fused attention", "no checkpointing", "Liger"]
    return bench_ladder(hour.large, hour.device, pace, LADDER_1B, rungs)


def prepare_text(hour: Hour) -> dict:
    "Fetch and prepare as much of the 1B's text as the smoke run reads"
    recipe = shipped(RECIPE)
    options = ["--recipe", recipe, "--tokens", 30_000_000, "--out", hour.shards]
    words = [sys.executable, "-m", "gpub", "prep", *map(str, options)]
    if subprocess.run(words).returncode:
        raise GpubError("gpub prep failed, see the lines above; --data SHARDS takes ready ones")
    manifest = read_json(hour.shards / "manifest.json")
    return dict(kind="shards", machine=machine(), sources=manifest["sources"])


def train_smoke(hour: Hour) -> dict:
    "Train the larger preset with samples at 0, a quarter and the end, as a run in a folder"
    steps = 4 if hour.toy else hour.smoke_steps
    texts = {0, steps // 4, steps}
    if not hour.toy and not hour.shards.is_dir():
        raise GpubError(f"there are no shards in {hour.shards}: give some with --data")
    options = RunOptions(
        preset=hour.large,
        out=hour.out / "work/smoke",
        data=None if hour.toy else hour.shards,
        settings=hour.shape | dict(steps=steps, warmup=steps // 10, log_every=1),
        device=hour.device,
        usd_per_hour=hour.usd_per_hour,
        save_every=max(1, steps // 2),
        keep=1,
        eval_steps={steps},
        milestone_steps=texts,
        eval_tokens=1024 if hour.toy else 500_000,
    )
    folder = Trainer(options).go()
    kept = hour.out / "runs" / f"smoke-{gpu_key(hour.gpu)}"
    kept.mkdir(parents=True, exist_ok=True)
    for name in RUN_RECEIPTS:
        if (folder / name).is_file():
            shutil.copy(folder / name, kept / name)
    rows = [row for row in read_log(folder) if "loss" in row]
    bill = read_json(folder / "bill.json")
    return dict(
        kind="smoke",
        machine=machine(hour.device),
        preset=hour.large,
        steps=steps,
        first_loss=rows[0]["loss"],
        last_loss=rows[-1]["loss"],
        bill=bill,
    )


def tune_small(hour: Hour) -> dict:
    "Train the course's first model to its end, and teach it to answer sums"
    text = hour.out / "work/letters.txt"
    text.parent.mkdir(parents=True, exist_ok=True)
    # its vocabulary is what it reads: answers need digits
    text.write_text(load_shakespeare().text + "\n0123456789+\n", encoding="utf-8", newline="\n")
    base = RunOptions(
        preset=LETTERS,
        out=hour.out / "work/base",
        data=text,
        settings=hour.shape | dict(steps=2, warmup=1) if hour.toy else {},
        device=hour.device,
        eval_tokens=1024 if hour.toy else None,
    )
    folder = Trainer(base).go()
    options = SftOptions(
        run=str(folder),
        out=str(hour.out / "work/sft"),
        data="sums:40" if hour.toy else "sums:4000",
        steps=2 if hour.toy else None,
        device=hour.device,
    )
    tuned = Tuner(options).go()
    measured = [row for row in read_log(tuned) if "val_loss" in row]
    return dict(
        kind="sft",
        machine=machine(hour.device),
        preset=LETTERS,
        base=read_json(folder / "bill.json"),
        first=measured[0],
        last=measured[-1],
        bill=read_json(tuned / "bill.json"),
    )


def write_texts(hour: Hour) -> dict:
    "Write with the cache, without one, and with transformers where it is installed"
    peers = find_spec("transformers") is not None
    if hour.toy:
        return bench_generate((LETTERS,), hour.device, n=8, rounds=1, peers=False)
    return bench_generate(hour.presets, hour.device, n=256, peers=peers)


def parts_of(hour: Hour) -> list[Part]:
    "List the parts in order: what is cheap and most wanted comes first"
    steps = [Part(kind.name, 5, partial(time_steps, kind=kind)) for kind in step_kinds(hour)]
    parts = [
        Part("machine", 4, measure_ceilings),
        Part("rehearsals", 4, rehearse_steps),
        Part("kill", 4, kill_and_resume),
        *steps,
        Part("shards", 6, prepare_text),
        Part("smoke", 20, train_smoke),
        Part("fp8", 5, train_in_fp8),
        Part("generate", 4, write_texts),
        Part(f"ladder-{hour.small}", 9, climb_small),
        Part(f"ladder-{hour.large}", 5, climb_large),
        Part("sft", 4, tune_small),
    ]
    left_out = {"shards"} if hour.data else set()
    if hour.toy:  # which reads what every clone has, and is too small for the rungs of the 1B
        left_out = {"shards", f"ladder-{hour.large}"}
    return [part for part in parts if part.name not in left_out]


# running them


def measure_part(hour: Hour, part: Part):
    "Measure one part in this process, and file its receipt"
    began = time.time()
    result = part.measure(hour)
    filed = dict(part=part.name, began=began, took=round(time.time() - began, 1), **result)
    path = hour.receipt(part.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(filed, indent=1, default=str) + "\n")


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


def run_part(
    hour: Hour,
    part: Part,
    words: Sequence[str],  # the options of this command, for the part's process
    seconds: float,  # its limit
) -> str | None:  # why it failed
    "Measure a part in a process of its own"
    log = hour.out / "logs" / f"{part.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tools.gpu_hour", *words, "--one", part.name]
    with log.open("w", encoding="utf-8") as file:
        child = subprocess.Popen(
            command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = child.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"stopped after {seconds:.0f} s, its limit; it last said: {_last_line(log)}"
        finally:
            if child.poll() is None:  # the limit, or Ctrl-C
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    if code:
        return f"exit code {code}: {_last_line(log)}"
    return None


def spend_hour(
    hour: Hour,
    parts: Sequence[Part],
    words: Sequence[str],  # the options of this command
    minutes: float = MINUTES,  # for all of it
    again: Sequence[str] = (),  # parts to measure although they have a receipt
) -> list[str]:  # the parts that failed
    "Measure part after part"
    ends = time.monotonic() + 60 * minutes
    failed = []
    for part in parts:
        if hour.receipt(part.name).is_file() and part.name not in again:
            print(f"{part.name}: has its receipt")
            continue
        seconds = min(60 * part.minutes, ends - time.monotonic())
        print(f"{part.name}: at most {max(seconds, 0):.0f} s", flush=True)
        why = "the hour was over"
        if seconds > 0:
            why = run_part(hour, part, words, seconds)
        failure = hour.failure(part.name)
        failure.unlink(missing_ok=True)
        if why:
            failed.append(part.name)
            failure.parent.mkdir(parents=True, exist_ok=True)
            message = dict(part=part.name, failed=why, log=f"logs/{part.name}.log")
            write_atomic(failure, json.dumps(message, indent=1) + "\n")
            print(f"{part.name}: FAILED, {why}", flush=True)
    return failed


# the table at the end


def _why_not(hour: Hour, part: str) -> str:
    "What stands where a part has no receipt"
    path = hour.failure(part)
    if not path.is_file():
        return NOT_YET
    return f"failed: {first_line(read_json(path)['failed'], 60)}"


def ceiling_rows(hour: Hour) -> list[list[str]]:
    "The sheet's figures beside what was measured"
    card = hour.card
    sheet = {"bf16": card.bf16, "fp16": card.fp16, "fp32": card.fp32}
    found = hour.read("machine")
    if found is None:
        return [["matmul, copy, attention", "", "", _why_not(hour, "machine")]]
    rows = [
        [f"{name} matmul, TFLOP/s", "", f"{sheet[name]:.4g}" if sheet.get(name) else "", f"{r:.3g}"]
        for name, r in ((name, rate / 1e12) for name, rate in peaks(found).items())
    ]
    rows += [[f"{name} matmul", "", "", why] for name, why in found["lacks"].items()]
    copy = ["copy, GB/s", "", f"{card.bandwidth:,.0f}", f"{found['copy_gb_s']:,.0f}"]
    return [*rows, copy]


def step_rows(hour: Hour) -> list[list[str]]:
    "Speed and memory of every way to take a step"
    rehearsed = hour.read("rehearsals")
    records = rehearsed["rehearsals"] if rehearsed else []
    peak_of = {(r["preset"], r["mode"]): r for r in records}
    rows = []
    for kind in step_kinds(hour):
        model, _ = sized_recipe(kind.preset, hour.shape)
        forecast = 1 / seconds_per_token(model, hour.card, kind.mode)
        receipt = hour.read(kind.name)
        speed = receipt["speed"] if receipt else None
        missing = _why_not(hour, kind.name)
        tok_s = f"{speed['tok_s']:,}" if speed else missing
        rows.append([f"{kind.name}, tok/s", "", f"{forecast:,.0f}", tok_s])
        record = peak_of.get((kind.preset, kind.mode))
        cells = ["", ""]
        if record:
            cells = [f"{record['step_peak'] / 1e9:.2f}"]
            cells.append(f"{max(record['forecast'].values()) / 1e9:.2f}")
        gb = missing
        if speed:
            gb = "" if speed["peak_gb"] is None else f"{speed['peak_gb']:.2f}"
        rows.append([f"{kind.name}, peak GB", *cells, gb])
    return rows


def _smoke_words(receipt: dict) -> str:
    bill = receipt["bill"]
    return (
        f"loss {receipt['first_loss']:.2f} to {receipt['last_loss']:.2f}, "
        f"{bill['seconds'] / 60:.1f} min, ${bill['usd']:.2f}"
    )


def _sft_words(receipt: dict) -> str:
    base = receipt["base"]
    first = receipt["first"]
    last = receipt["last"]
    return (
        f"base: loss {base['val_loss']:.2f} in {base['seconds']:.0f} s; answers: "
        f"{first['val_loss']:.2f} to {last['val_loss']:.2f}, {last['p_right']:.0%} right"
    )


def _fp8_words(receipt: dict) -> str:
    wide, narrow = receipt["bf16"], receipt["fp8"]
    gb = ""
    if narrow["peak_gb"] is not None:
        gb = f", {narrow['peak_gb']:.1f} for {wide['peak_gb']:.1f} GB"
    return (
        f"{narrow['tok_s'] / wide['tok_s']:.2f} of the speed in {wide['precision']}, "
        f"loss {narrow['last_loss']:.3f} for {wide['last_loss']:.3f}{gb}"
    )


def _generate_words(receipt: dict) -> str:
    fastest = {s["preset"]: f"{s['tok_s']['gpub']:,.0f} tok/s" for s in receipt["speed"]}
    for s in receipt["speed"]:
        if "transformers" in s["faster_than"]:
            ratio = s["faster_than"]["transformers"]
            fastest[s["preset"]] += f", {ratio:g}x transformers"
    return "; ".join(f"{preset} {words}" for preset, words in fastest.items())


def _ladder_words(receipt: dict) -> str:
    kept = [row["rung"] for row in receipt["rows"] if row.get("kept")]
    best = max(row["tok_s"] for row in receipt["rows"] if "tok_s" in row)
    return f"{best:,} tok/s with {', '.join(kept) or 'nothing more'}"


def other_rows(hour: Hour) -> list[list[str]]:
    "The parts that have one line"
    words = {
        "kill": lambda receipt: receipt["finding"],
        "smoke": _smoke_words,
        "fp8": _fp8_words,
        "generate": _generate_words,
        f"ladder-{hour.small}": _ladder_words,
        f"ladder-{hour.large}": _ladder_words,
        "sft": _sft_words,
    }
    rows = []
    for part in parts_of(hour):
        if part.name in words:
            receipt = hour.read(part.name)
            cell = words[part.name](receipt) if receipt else _why_not(hour, part.name)
            rows.append([part.name, "", "", cell])
    return rows


def hour_table(hour: Hour) -> Table:
    "Rehearsed, forecast and measured, beside each other"
    rows = [*ceiling_rows(hour), *step_rows(hour), *other_rows(hour)]
    return Table([hour.gpu, "rehearsed", "forecast", "measured"], rows, align="lrrl")


# the command


def _card_here() -> str:
    "Ask for the card's name in another process: this one leaves the card's memory alone"
    code = "import torch; print(torch.cuda.get_device_name())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        why = first_line(done.stderr.strip().splitlines()[-1])
        raise GpubError(f"torch finds no NVIDIA card here ({why}); --toy tries all on a CPU")
    return done.stdout.strip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tools.gpu_hour", description=__doc__)
    parser.add_argument("--out", default="gpu-hour", help="receipts, laid out like data/")
    parser.add_argument("--usd-per-hour", type=float, default=0.0, help="of this machine")
    parser.add_argument("--data", help="shards for the smoke run [default: prepared here]")
    parser.add_argument(
        "--smoke-steps", type=int, default=Hour.smoke_steps, help="steps of the smoke run"
    )
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all of it")
    parser.add_argument("--only", action="append", default=[], metavar="PART")
    parser.add_argument("--again", action="append", default=[], metavar="PART")
    parser.add_argument("--toy", action="store_true", help="small, on a CPU: to see that it runs")
    parser.add_argument("--gpu", help=argparse.SUPPRESS)  # told to a part's process
    parser.add_argument("--one", help=argparse.SUPPRESS)  # the part that this process measures
    return parser


def _chosen(parts: Sequence[Part], names: Sequence[str]) -> list[Part]:
    known = [part.name for part in parts]
    for name in names:
        if name not in known:
            raise GpubError(f"no part {name!r}; there are: {', '.join(known)}")
    return [part for part in parts if not names or part.name in names]


def run(options: argparse.Namespace, words: Sequence[str]) -> int:  # exit code
    "Spend the hour, or measure the one part that is asked for"
    gpu = options.gpu or ("cpu" if options.toy else _card_here())
    device = "cpu" if options.toy else "cuda"
    out = Path(options.out).absolute()
    data = str(Path(options.data).absolute()) if options.data else None
    hour = Hour(out, device, gpu, options.toy, data, options.usd_per_hour, options.smoke_steps)
    parts = parts_of(hour)
    if options.one:
        try:
            measure_part(hour, *_chosen(parts, [options.one]))
        finally:
            sys.stdout.flush()  # so that the last line of the log is why it failed
        return 0
    _chosen(parts, options.again)
    chosen = _chosen(parts, options.only)
    failed = spend_hour(
        hour, chosen, [*words, "--out", str(out), "--gpu", gpu], options.minutes, options.again
    )
    table = hour_table(hour)
    write_atomic(out / "table.md", table.markdown() + "\n")
    print(f"\n{table}\n\nreceipts: {out}; to keep them: cp -r {out}/bench {out}/runs data/")
    if failed:
        print(f"failed: {', '.join(failed)}; the same command tries them again")
    return 1 if failed else 0


def main():
    options = _parser().parse_args()
    try:
        sys.exit(run(options, sys.argv[1:]))
    except GpubError as e:
        sys.exit(f"gpu_hour: {e}")


if __name__ == "__main__":
    main()
