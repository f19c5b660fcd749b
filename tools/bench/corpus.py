"""A job of 30.6 billion tokens, as far as a short one can tell: memory that stays, a network that
fails, hours and disk foretold from 2% of it"""

import gzip
import math
import multiprocessing as mp
import os
import re
import resource
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from gpub.core import Config, Count, Positive
from gpub.data.bpe import BPETokenizer
from gpub.data.plays import plays
from gpub.data.shards import ShardWriter
from gpub.data.tokenizer_file import load_tokenizer
from gpub.device import machine
from gpub.prep.clean import Counts, ngram_hashes, word_hashes
from gpub.prep.config import PrepConfig
from gpub.prep.dedup import drop_duplicates
from gpub.prep.mix import EncodedSource, copy_plan, split_sources
from gpub.prep.pipeline import prepare
from gpub.prep.store import Lists, chunk_files, chunk_path, save_chunk
from gpub.table import Table

_HEAP = 2_000_000  # characters that documents are cut from


class MadeUp:
    "A server of documents that are made when they are asked for; one request in `every` fails"

    def __init__(
        self,
        size: int,  # characters of a document
        every: int,  # requests, of which one is answered with 503
    ):
        self.text = plays(_HEAP, seed=0)
        self.size = size
        self.every = every
        self.asked = self.failed = 0
        self.lock = threading.Lock()
        made = self

        class Answers(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                made.answer(self)

            def log_message(self, *_: Any):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        "What the name of a document is put behind"
        return f"http://127.0.0.1:{self.server.server_address[1]}/"

    def document(
        self,
        name: str,  # of a document: its number
    ) -> str:
        "Twenty pieces of the plays, drawn by the name"
        draw = np.random.default_rng(int(name))
        at = draw.integers(0, _HEAP - self.size, 20)
        return "\n".join(self.text[i : i + self.size // 20] for i in at)

    def answer(
        self,
        request: BaseHTTPRequestHandler,  # for a document
    ):
        "Send it, or an error that will pass"
        with self.lock:
            self.asked += 1
            fails = self.asked % self.every == 0
            self.failed += fails
        body = b"" if fails else gzip.compress(self.document(request.path[1:]).encode(), 1)
        request.send_response(503 if fails else 200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def close(self):
        "No more of them"
        self.server.shutdown()
        self.server.server_close()


def _pages() -> float:
    "MB that this process has in memory"
    if not Path("/proc/self/statm").exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # macOS: bytes
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


_PIECE = ("Shall I compare thee to a summer's day? Thou art more lovely. " * 40).encode()


def _yardstick() -> float:
    "Seconds of a processor that a fixed piece of work takes now"
    begin = time.thread_time()
    for _ in range(3):
        hashes, _ = word_hashes(_PIECE)
        np.sort(ngram_hashes(hashes, 5))
        zlib.compress(_PIECE, 1)
    return time.thread_time() - begin


class _Watch:
    "Looks at this process's memory and at the pace of its processor, twenty times a second"

    def __init__(self):
        self.memory = [_pages()]
        self.pace = []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()

    def _look(self):
        while not self.over.wait(0.05):
            self.memory.append(_pages())
            self.pace.append(_yardstick())

    def stop(self) -> list[float]:  # MB, about two hundred of them and the most
        "What it saw"
        self.over.set()
        self.thread.join()
        every = max(1, len(self.memory) // 200)
        return [round(m, 1) for m in [*self.memory[::every], max(self.memory)]]


def _watched_job(first: tuple, job: tuple, told: Any):
    "Prepare twice, each time what (settings, folder, Hub, archive) say; tell what the second took"
    os.environ.update(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    cfg, out, hub, url = first
    os.environ.update(GPUB_HUB=hub, GPUB_BLOBS=url)
    prepare(PrepConfig.from_dict(cfg), out, log=lambda line: None)
    cfg, out, hub, url = job
    os.environ.update(GPUB_HUB=hub, GPUB_BLOBS=url)
    watch = _Watch()
    wall = time.monotonic()
    cpu = time.process_time()
    with tempfile.TemporaryFile("w+") as lines:
        before = os.dup(1)
        os.dup2(lines.fileno(), 1)  # what waits says so on the standard output
        manifest = prepare(PrepConfig.from_dict(cfg), out, log=lambda line: None)
        os.dup2(before, 1)
        lines.seek(0)
        waits = sum(bool(re.search(r"HTTP 503, try \d", line)) for line in lines)
    seconds = time.monotonic() - wall
    cpu = time.process_time() - cpu
    memory = watch.stop()
    cpu -= sum(watch.pace)
    pace = float(np.median(watch.pace or [_yardstick()]))
    told.put(
        dict(
            seconds=seconds,
            cpu_seconds=cpu,
            pace_ms=1000 * pace,
            work=cpu / pace,
            waits=waits,
            memory_mb=memory,
            documents=sum(c["kept"] for c in manifest["counts"].values()),
            bytes=sum(c["bytes_kept"] for c in manifest["counts"].values()),
            tokens=sum(s["tokens"] for s in manifest["shards"]),
        )
    )


def _disk(folder: Path) -> int:
    "Bytes below a folder"
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


@dataclass(frozen=True, kw_only=True)
class LongJob(Config):
    "The job that stands for a longer one"

    documents: Count = 10_000  # of the whole
    size: Count = 10_000  # characters of a document
    share: Positive = 0.02  # of the whole, from which it is foretold
    fails: Positive = 0.001  # share of the requests that fail once
    tokens: Count = 30_600_000_000  # of the job that is meant
    hours: Positive = 1.0  # of work, whose documents are known at once


_FIRST = 20  # documents of the job that is not counted


def _write_names(hub: Path, count: int):
    "A dataset as it lies on the Hub, of documents that a number names"
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = hub / "HuggingFaceTB" / "smollm-corpus" / "python-edu"
    parts.mkdir(parents=True)
    names = pa.table(dict(blob_id=[str(i) for i in range(count)]))
    pq.write_table(names, parts / "train-00000.parquet")
    about = "---\nconfigs:\n- config_name: python-edu\n  data_files: python-edu/*\n---\n"
    (parts.parent / "README.md").write_text(about)


def _in_a_child(work: Callable, *args: Any) -> dict:
    "What a process of its own tells at its end; raises `RuntimeError` where it tells nothing"
    spawn = mp.get_context("spawn")
    told = spawn.SimpleQueue()
    child = spawn.Process(target=work, args=(*args, told))
    child.start()
    while child.is_alive() and told.empty():
        child.join(0.1)
    found = None if told.empty() else told.get()
    child.join()
    if found is None:
        raise RuntimeError(f"{work.__name__} of {args[:2]} ended with {child.exitcode}")
    return found


def run_job(
    job: LongJob,  # sizes
    count: int,  # documents to read
    folder: Path,  # an empty one; the tokenizer lies beside it
) -> dict:  # seconds, memory, disk, retries
    "Prepare so many made-up documents"
    cfg = dict(sources=["code=python-edu"], tokenizer=str(folder.parent / "tok"), val=0.0)
    cfg |= dict(chunk_mb=0.02)  # of names: 500 a chunk
    servers = [MadeUp(job.size, every) for every in (_FIRST + 1, round(1 / job.fails))]
    jobs = []
    for made, name, documents in zip(servers, ("first", "job"), (_FIRST, count)):
        where = folder / name
        _write_names(where / "hub", documents)
        settings = cfg | dict(store=str(where / "store"))
        jobs.append((settings, str(where / "out"), str(where / "hub"), made.url))
    try:
        found = _in_a_child(_watched_job, *jobs)
    finally:
        for made in servers:
            made.close()
    disk = _disk(folder / "job" / "store") + _disk(folder / "job" / "out")
    return found | dict(failed=servers[1].failed, disk_bytes=disk)


_CHUNK = 2000  # documents of a piece


def _write_books(folder: Path, documents: int):
    "Pieces of a store, as reading and encoding leave them; every tenth document is a copy"
    texts = [""] * _CHUNK
    numbers = np.random.default_rng(0)
    for n in range(documents // _CHUNK):
        hashes = numbers.integers(0, 2**63, _CHUNK).astype(np.uint64)
        hashes[::10] = np.uint64(n % 7)
        ones = np.ones(_CHUNK, np.int64)
        names = [f"made {n}.{i}" for i in range(_CHUNK)]
        columns = dict(text=texts, name=names, hashes=hashes, families=hashes, sizes=10 * ones)
        about = dict(counts=Counts(seen=_CHUNK, kept=_CHUNK).to_dict())
        save_chunk(chunk_path(folder / "documents", "made", n), columns, about)
        ids = Lists(np.ones(_CHUNK, np.uint16), ones)
        save_chunk(chunk_path(folder / "ids", "made", n), dict(ids=ids, lengths=ones), {})


def _keep_books(place: str, told: Any):
    "The last stages, and what memory they took"
    folder = Path(place)
    watch = _Watch()
    cpu = time.process_time()
    documents, ids = (chunk_files(folder / kind, "made") for kind in ("documents", "ids"))
    source = EncodedSource("made", documents, ids)
    drop_duplicates([source], None, folder / "duplicates")
    split_sources([source], 0.005, None, None)
    order, _ = copy_plan([source], None, None)
    writer = ShardWriter(folder / "out", load_tokenizer(folder.parent / "tok"))
    for n, copy in enumerate(order, 1):
        some, names, sizes = source.pick(copy.chunk, copy.split, copy.cutoff, None)
        writer.add("made", some, names, sizes, copy.split)
        if n % 32 == 0:
            writer.commit(n)
    writer.close()
    cpu = time.process_time() - cpu
    memory = watch.stop()
    found = dict(cpu_seconds=cpu, memory_mb=memory, grown_mb=round(max(memory) - memory[0], 1))
    told.put(found | dict(dropped=source.counts.dropped["duplicate"]))


def bookkeeping(
    documents: int,  # about so many: whole pieces of 2,000
    folder: Path,  # an empty one; the tokenizer lies beside it
) -> dict:  # seconds and memory of a process of its own
    "What it takes to know so many documents at once"
    documents = max(1, round(documents / _CHUNK)) * _CHUNK
    _write_books(folder, documents)
    return dict(documents=documents) | _in_a_child(_keep_books, str(folder))


def foretold(
    small: dict,  # from `run_job`
    larger: dict,  # the same of more documents
    key: str,  # work or disk_bytes
    size: float,  # bytes of text of the job that is meant
) -> float:
    "The line through two small jobs, at the size of a large one"
    slope = (larger[key] - small[key]) / (larger["bytes"] - small["bytes"])
    return larger[key] + slope * (size - larger["bytes"])


_TURNS = 3  # of the two small jobs, of which the middle one counts


def _middle(runs: list[dict]) -> dict:
    "The run whose work is the median of several"
    return sorted(runs, key=lambda run: run["work"])[len(runs) // 2]


def memory_growth(
    found: dict,  # from `run_job`
) -> float:  # MB
    "How much more memory the last quarter of a job takes than its second"
    memory = np.array(found["memory_mb"])
    quarter = max(1, len(memory) // 4)
    return float(np.median(memory[-quarter:]) - np.median(memory[quarter : 2 * quarter]))


def bench_corpus(
    job: LongJob = LongJob(),  # sizes
) -> dict:
    "A sample and the whole: memory, retries, and how near the forecast came"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as d:
        BPETokenizer.train([plays(_HEAP // 4, seed=1)], 4000).save(Path(d, "tok"))
        counts = [math.ceil(job.share * job.documents * x) for x in (0.5, 1.0)] + [job.documents]
        counts = counts[:2] * _TURNS + counts[2:]
        runs = []
        for i, count in enumerate(counts):
            folder = Path(d, str(i))
            folder.mkdir()
            runs.append(run_job(job, count, folder))
        *few, whole = runs
        small = _middle(few[::2])
        sample = _middle(few[1::2])
        an_hour = job.hours * 3600 * whole["documents"] / whole["cpu_seconds"]
        Path(d, "hour").mkdir()
        hour = bookkeeping(round(an_hour), Path(d, "hour"))
    ahead = {k: foretold(small, sample, k, whole["bytes"]) for k in ("work", "disk_bytes")}
    # the work is foretold; how many seconds that is, the pace says
    ahead["cpu_seconds"] = ahead.pop("work") * whole["pace_ms"] / 1000
    times = job.tokens / whole["tokens"]
    return dict(
        machine=machine(),
        load=round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        job=job.to_dict(),
        small=small,
        sample=sample,
        whole=whole,
        forecast=ahead,
        forecast_of_found={k: ahead[k] / whole[k] for k in ahead},
        memory_growth_mb=memory_growth(whole),
        hour=hour,
        extrapolated=dict(
            times=times,
            cpu_hours=times * whole["cpu_seconds"] / 3600,
            disk_gb=times * whole["disk_bytes"] / 1e9,
            retries=times * whole["waits"],
        ),
    )


def _hour_line(hour: dict | None) -> list[str]:
    if not hour:
        return []  # receipts of before there was one
    return [
        f"the documents of an hour of work, {hour['documents']:,} of which {hour['dropped']:,} are "
        f"copies, known at once: {hour['grown_mb']:+,.0f} MB, {hour['cpu_seconds']:,.0f} CPU s"
    ]


def bench_corpus_table(
    r: dict,  # a receipt of `bench_corpus`
) -> str:
    "The receipt in lines"
    rows = [
        [
            name,
            f"{run['documents']:,}",
            f"{run['bytes'] / 1e6:,.1f}",
            f"{run['cpu_seconds']:,.1f}",
            f"{run['pace_ms']:.2f}",
            f"{run['disk_bytes'] / 1e6:,.1f}",
            f"{max(run['memory_mb']):,.0f}",
            f"{run['failed']} / {run['waits']}",
        ]
        for name, run in (("sample", r["sample"]), ("whole", r["whole"]))
    ]
    ahead = r["forecast"]
    big = r["extrapolated"]
    cpu = f"{ahead['cpu_seconds']:,.1f}"
    disk = f"{ahead['disk_bytes'] / 1e6:,.1f}"
    rows.append(["foretold", "", "", cpu, "", disk, "", ""])
    head = [
        "",
        "documents",
        "MB",
        "CPU s",
        "ms a piece",
        "disk MB",
        "memory MB",
        "failed / tried again",
    ]
    ratio = r["forecast_of_found"]
    return "\n".join(
        [
            str(Table(head, rows, align="lr")),
            f"forecast of found: CPU {ratio['cpu_seconds']:.3f}, disk {ratio['disk_bytes']:.3f}; "
            f"memory of the last quarter over the second: {r['memory_growth_mb']:+.1f} MB",
            *_hour_line(r.get("hour")),
            f"{r['job']['tokens'] / 1e9:,.1f}B tokens are {big['times']:,.0f} such jobs: about "
            f"{big['cpu_hours']:,.0f} CPU hours, {big['disk_gb']:,.0f} GB, "
            f"{big['retries']:,.0f} retries (extrapolated; load {r['load']})",
        ]
    )
