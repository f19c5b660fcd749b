"""Which size of model is best for a budget? Four budgets of FLOPs, six sizes on each, trained; no
loss is moved to a budget by a law.

python tools/isoflop.py     about half an hour of one quiet core; goes on after the last whole run

writes data/isoflop.json. A budget counts six FLOPs per parameter and character, as the laws do. The
models are the ladder's, with its rates. All draw from one text that is longer than the longest run,
so no run reads a character twice. The smallest budget is trained with three seeds: they say how far
two equal runs may lie apart."""

import contextlib
import io
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpub.core import read_json, write_atomic
from gpub.device import machine, use_threads
from gpub.model.counts import parameter_anatomy
from gpub.model.llama import LlamaConfig
from gpub.plans.ladder import BATCH, known_source, ladder_rates, proxy_config, train_rung

RECEIPT = Path(__file__).resolve().parents[1] / "data/isoflop.json"
LETTERS = 58  # different characters of the plays
RUN = "budget", "width", "seed"  # what tells two runs apart


@dataclass(frozen=True)
class Sweep:
    "Budgets, and the widths that are trained on each"

    widths: dict[float, tuple[int, ...]]  # by budget in FLOPs
    seeds: tuple[int, ...]  # of the smallest budget; every other one has the first
    text: int  # characters to draw from


SWEEP = Sweep(
    widths={
        1.0e11: (16, 24, 32, 40, 48, 56),
        2.3e11: (24, 32, 40, 48, 56, 72),
        5.3e11: (24, 32, 40, 48, 64, 80),
        1.2e12: (40, 48, 64, 80, 96, 128),
    },
    seeds=(0, 1, 2),
    text=6_000_000,
)


def parameters(width: int) -> int:
    "Of a proxy model that reads plays"
    cfg = LlamaConfig(vocab_size=LETTERS, **proxy_config(width))
    return parameter_anatomy(cfg).params


def characters(
    budget: float,  # FLOPs
    width: int,
) -> int:  # a whole number of steps
    "How much text a width can read for a budget, at six FLOPs per parameter and character"
    return round(budget / 6 / parameters(width) / BATCH) * BATCH


def planned(sweep: Sweep) -> Iterator[tuple[float, int, int]]:
    "Every (budget, width, seed): the first seed on all budgets, then the others on the smallest"
    first, *others = sweep.seeds
    for budget in sorted(sweep.widths):
        for width in sweep.widths[budget]:
            yield budget, width, first
    smallest = min(sweep.widths)
    for seed in others:
        for width in sweep.widths[smallest]:
            yield smallest, width, seed


def train_one(budget: float, width: int, seed: int, text: Path) -> dict:
    "A run of the sweep, as it is filed"
    began = time.process_time()
    with tempfile.TemporaryDirectory() as work, contextlib.redirect_stdout(io.StringIO()):
        result = train_rung(width, characters(budget, width), text, Path(work, "run"), seed)
    cpu = time.process_time() - began
    return dict(budget=budget) | result | ladder_rates(width) | dict(cpu=round(cpu, 1))


def measure_valleys(
    file: Path = RECEIPT,  # of the receipt; runs that it has are not trained again
    sweep: Sweep = SWEEP,
) -> dict:  # the receipt
    "Train what the receipt lacks, and write it after each run"
    use_threads(1)
    runs = read_json(file, "runs")["runs"] if file.exists() else []
    have = {tuple(run[key] for key in RUN) for run in runs}
    with tempfile.TemporaryDirectory() as folder:
        text = known_source(Path(folder, "plays"), sweep.text)
        for budget, width, seed in planned(sweep):
            if (budget, width, seed) in have:
                continue
            runs.append(train_one(budget, width, seed, text))
            receipt = dict(
                command="python tools/isoflop.py",
                text=sweep.text,
                machine=machine("cpu"),
                runs=runs,
            )
            write_atomic(file, json.dumps(receipt, indent=1) + "\n")
            loss = runs[-1]["loss"]
            print(f"{budget:.1e} FLOPs, width {width}, seed {seed}: {loss:.4f}", flush=True)
    return read_json(file, "runs")


if __name__ == "__main__":
    measure_valleys()
