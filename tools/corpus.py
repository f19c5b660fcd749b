"""Prepare the corpora of the page "The corpus" by the 1B's recipe; then once more, killed twenty
times and taken up by other engines: `GPUB_DATA=folder python tools/corpus.py FOLDER` writes
data/corpus.json"""

import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gpub.core import write_atomic
from gpub.device import machine
from gpub.files import shipped
from gpub.prep import pipeline
from gpub.prep.cluster import Cluster
from gpub.prep.config import PrepConfig, load_recipe

RECEIPT = Path(__file__).parents[1] / "data" / "corpus.json"
STANDS_FOR = {"edu": "fineweb-edu", "math": "finemath", "python": "python-edu"}
STAGES = (
    "read_sources",
    "scan_report",
    "learn_tokenizer",
    "encode_documents",
    "encoded_sources",
    "write_shards",
)
KILLS, PIECES = 20, 9  # a kill after so many more pieces are stored
WAYS = [("pool", 1), ("pool", 2), ("datatrove", 2)]
WAYS += [("pool", 3), ("datatrove", 1), ("datatrove", 3)]


def corpus() -> PrepConfig:
    "Return the 1B's recipe for the corpora in $GPUB_DATA, under names of their own"
    recipe = load_recipe(shipped("recipes/burn1b.json"))
    shares = {source.name: source.weight for source in recipe.parsed}
    data = os.environ["GPUB_DATA"]
    sources = [f"{s}={data}/{s}.jsonl.zst:{shares[theirs]}" for s, theirs in STANDS_FOR.items()]
    filters = {s: recipe.source_filters.get(theirs, ()) for s, theirs in STANDS_FOR.items()}
    return replace(recipe, sources=tuple(sources), source_filters=filters)


@contextmanager
def timed_stages() -> Iterator[dict[str, float]]:
    "Time the stages of the job that is prepared meanwhile, in CPU seconds"
    seconds: dict[str, float] = {}

    def timed(name: str, stage: Callable) -> Callable:
        def call(*args: Any, **options: Any) -> Any:
            begin = time.process_time()
            made = stage(*args, **options)
            seconds[name] = time.process_time() - begin
            return made

        return call

    with ExitStack() as patches:
        for name in STAGES:
            stage = timed(name, getattr(pipeline, name))
            patches.enter_context(patch.object(pipeline, name, stage))
        yield seconds


def size_of(files: Iterator[Path]) -> int:
    "Add up the bytes of files"
    return sum(f.stat().st_size for f in files if f.is_file())


def prepared(folder: Path) -> dict[str, Any]:
    "Prepare the corpora, and return what the receipt has of it"
    store = folder / "store"
    out = folder / "whole"
    for place in (store, out):
        shutil.rmtree(place, ignore_errors=True)
    with timed_stages() as seconds:
        manifest = pipeline.prepare(replace(corpus(), store=str(store)), out)
    stages = {stage.name.partition("-")[0]: size_of(stage.rglob("*")) for stage in store.iterdir()}
    disk = {name: stages[name] for name in ("documents", "scans", "ids")}
    lines = (out / "contaminated.jsonl").read_text(encoding="utf-8").splitlines()
    keys = "counts", "mix", "weights", "looked_for", "scan", "split_by", "gpub"
    return {k: manifest[k] for k in keys} | dict(
        machine=machine(),
        load=round(os.getloadavg()[0], 1),
        cpu_seconds={name: round(s, 2) for name, s in seconds.items()},
        disk_bytes=disk | dict(shards=size_of(out.glob("*.bin"))),
        memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        contaminated=[json.loads(line) for line in lines],
        contaminated_documents=manifest["contaminated"],
    )


def digest(
    out: Path,  # a shard folder
) -> str:  # 64 hex digits
    "SHA-256 of its shards, their documents, its tokenizer and its receipts"
    h = hashlib.sha256()
    for file in sorted(out.iterdir()):
        if file.suffix in (".bin", ".docs") or file.name in (
            "tokenizer.json",
            "contaminated.jsonl",
        ):
            h.update(file.name.encode() + file.read_bytes())
    return h.hexdigest()


def stored(
    out: Path,  # a shard folder that is being made
) -> int:
    "Count the pieces in its store"
    return len(list(out.glob(".work/store/*/*/*.arrow")))


def killed_again_and_again(
    out: Path,  # a folder, emptied first
) -> list[dict]:  # each kill: engine, workers, pieces stored
    "Start, kill, and start with the next way, until a start comes to its end"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    kills = []
    while True:
        name, workers = WAYS[len(kills) % len(WAYS)]
        goal = stored(out) + PIECES if len(kills) < KILLS else float("inf")
        command = [sys.executable, __file__, "--child", str(out), name, str(workers)]
        child = subprocess.Popen(command, start_new_session=True)
        while child.poll() is None and stored(out) < goal:
            time.sleep(0.05)
        if child.poll() is not None:
            if child.returncode:
                sys.exit(f"{name} with {workers} workers ended with {child.returncode}")
            return kills
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        kills.append(dict(engine=name, workers=workers, pieces=stored(out)))


def main(folder: Path):
    "Prepare, prepare again with kills in between, compare, and write the receipt"
    os.environ.update(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    receipt = prepared(folder)
    kills = killed_again_and_again(folder / "killed")
    same = dict(whole=digest(folder / "whole"), killed=digest(folder / "killed"))
    receipt |= dict(killed=dict(sha256=same, kills=kills))
    write_atomic(RECEIPT, json.dumps(receipt, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        workers = int(sys.argv[4])
        cluster = Cluster(executor="local", workers=workers) if sys.argv[3] != "pool" else None
        pipeline.prepare(corpus(), sys.argv[2], workers, cluster)
    else:
        main(Path(sys.argv[1]))
