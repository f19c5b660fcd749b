"""Do norms of queries and keys, or a mixture of experts, buy anything at equal arithmetic? A small
Llama, the same with norms, and the same with eight experts of half the width of which two work.

python tools/experts.py     about ten minutes of one quiet core; goes on after the last whole run

writes data/experts.json. All draw from one text of known entropy that is longer than a run, so no
run reads a character twice, with three seeds each. The arithmetic of a token is the same but for
the router and the norms."""

import contextlib
import io
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpub.core import read_json, write_atomic
from gpub.device import machine, use_threads
from gpub.model.counts import flops_per_token, parameter_anatomy
from gpub.model.llama import LlamaConfig
from gpub.plans.ladder import known_source, ladder_rates, proxy_config, train_rung

RECEIPT = Path(__file__).resolve().parents[1] / "data/experts.json"
LETTERS = 58  # different characters of the plays
WIDTH = 64
CHARACTERS = 2_048_000
SEEDS = 0, 1, 2
KINDS: Mapping[str, Mapping[str, Any]] = {
    "one feed-forward layer": {},
    "queries and keys normed": dict(qk_norm="per_head"),
    "eight experts, two at work": dict(n_experts=8, d_ff=2 * WIDTH),
}


def sizes(kind: str) -> dict[str, int]:
    "What a kind of model has, and what a token costs"
    cfg = LlamaConfig(vocab_size=LETTERS, **proxy_config(WIDTH) | KINDS[kind])
    anatomy = parameter_anatomy(cfg)
    at_work = anatomy.params - anatomy.resting
    return dict(params=anatomy.params, at_work=at_work, flops_per_token=flops_per_token(cfg))


def train_one(kind: str, seed: int, text: Path, characters: int) -> dict[str, Any]:
    "A run, as it is filed"
    began = time.process_time()
    with tempfile.TemporaryDirectory() as work, contextlib.redirect_stdout(io.StringIO()):
        settings = dict(KINDS[kind], compile="no")
        result = train_rung(WIDTH, characters, text, Path(work, "run"), seed, **settings)
    cpu = round(time.process_time() - began, 1)
    return dict(kind=kind) | result | sizes(kind) | ladder_rates(WIDTH) | dict(cpu=cpu)


def compare(
    file: Path = RECEIPT,  # of the receipt; runs that it has are not trained again
    characters: int = CHARACTERS,  # of a run
    seeds: tuple[int, ...] = SEEDS,
) -> dict[str, Any]:  # the receipt
    "Train what the receipt lacks, and write it after each run"
    use_threads(1)
    runs = read_json(file, "runs")["runs"] if file.exists() else []
    have = {(run["kind"], run["seed"]) for run in runs}
    with tempfile.TemporaryDirectory() as folder:
        text = known_source(Path(folder, "plays"), characters)
        for seed in seeds:
            for kind in KINDS:
                if (kind, seed) in have:
                    continue
                runs.append(train_one(kind, seed, text, characters))
                receipt = dict(command="python tools/experts.py", machine=machine("cpu"), runs=runs)
                write_atomic(file, json.dumps(receipt, indent=1) + "\n")
                print(f"{kind}, seed {seed}: {runs[-1]['loss']:.4f}", flush=True)
    return read_json(file, "runs")


if __name__ == "__main__":
    compare()
