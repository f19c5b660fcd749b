"""Prepare the corpus of the page "The corpus" once more, killed twenty times and taken up by other
engines: `python tools/killed_corpus.py WHOLE FOLDER`, where WHOLE is what the page's own cell has
prepared, puts what was found into data/corpus.json"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from gpub.prep.cluster import Cluster
from gpub.prep.config import PrepConfig
from gpub.prep.pipeline import prepare

KILLS, PIECES = 20, 9  # a kill after so many more pieces are stored
WAYS = [("pool", 1), ("pool", 2), ("datatrove", 2)]
WAYS += [("pool", 3), ("datatrove", 1), ("datatrove", 3)]


def corpus() -> PrepConfig:
    "The job of the page"
    data = os.environ["GPUB_DATA"]
    shares = dict(edu=0.87, math=0.10, python=0.03)
    sources = tuple(f"{s}={data}/{s}.jsonl.zst:{w}" for s, w in shares.items())
    return PrepConfig(sources=sources, benchmarks=(f"{data}/eval",))


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
    "Pieces in its store"
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


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        out = Path(sys.argv[2])
        workers = int(sys.argv[4])
        cluster = Cluster(executor="local", workers=workers) if sys.argv[3] != "pool" else None
        prepare(corpus(), out, workers, cluster)
        sys.exit()
    whole, killed = Path(sys.argv[1]), Path(sys.argv[2])
    kills = killed_again_and_again(killed)
    path = Path(__file__).parents[1] / "data" / "corpus.json"
    page = json.loads(path.read_text(encoding="utf-8"))
    same = dict(whole=digest(whole), killed=digest(killed))
    page["killed"] = dict(sha256=same, kills=kills)
    path.write_text(json.dumps(page, indent=1) + "\n", encoding="utf-8")
