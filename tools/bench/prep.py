"""How near the whole pipeline comes to the bare encoder, and how far from the usual way, in one
run, taking turns"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import numpy as np

from gpub.data.bpe import BPETokenizer
from gpub.data.plays import plays
from gpub.data.shards import ShardWriter, join_documents
from gpub.device import machine
from gpub.files import data_dirs
from gpub.lab.bench.prep import datasketch_repeats
from gpub.lab.bench.race import Race
from gpub.prep.clean import clean, utf8
from gpub.prep.dedup import near_repeats, signatures
from gpub.prep.pipeline import PrepConfig, prepare
from gpub.prep.scan import scan_texts
from gpub.prep.sources import Source, chunks, cut_pieces, records
from gpub.prep.store import hashes_of
from gpub.table import Table


def bench_text(
    mb: float,  # in MB (1e6 bytes), about
) -> tuple[str, list[str]]:  # where from, and the texts
    "Documents to measure with"
    out = []
    for name, share in (("edu", 0.87), ("math", 0.10), ("python", 0.03)):
        path = next(
            (d / f"{name}.jsonl.zst" for d in data_dirs() if (d / f"{name}.jsonl.zst").exists()),
            None,
        )
        if path is None:
            return "built-in plays", cut_pieces(plays(int(mb * 1e6), seed=0), 4000)
        room = mb * 1e6 * share
        for c in chunks(Source(name=name, path=str(path)), size=1 << 20):
            for b in c.blocks:
                for t, *_ in records(b):
                    if room > 0:
                        out.append(t)
                        room -= len(t.encode())
            if room <= 0:
                break
    return "edu, math, python of $GPUB_DATA", out


def usual_way(
    path: Path,  # JSONL with a field `text`
    tok: BPETokenizer,  # that cuts the texts
    out: Path,  # file to write, uint16
    cache: Path,  # folder for what `datasets` leaves behind
):
    """The job as it is mostly done: `datasets` with `map` and `filter`, the Rust tokenizer, one
    array per row, a file at the end"""
    import datasets

    datasets.disable_progress_bars()
    seen = set()

    def is_new(row: dict) -> bool:
        if row["text"] is None:
            return False
        h = int(hashes_of([utf8(row["text"])])[0])
        return not (h in seen or seen.add(h))

    def encoded(rows: dict) -> dict:
        cut = tok.rust.encode_batch_fast(rows["text"], add_special_tokens=False)
        return dict(ids=[e.ids + [tok.end] for e in cut])

    ds = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(cache))
    ds = ds.map(lambda row: dict(text=clean(row["text"])[0])).filter(is_new)
    ds = ds.map(encoded, batched=True, remove_columns=ds.column_names)
    with open(out, "wb") as f:
        for rows in ds.with_format("numpy").iter(1000):
            np.concatenate(list(rows["ids"])).astype(np.uint16).tofile(f)


def _cleaned(data: Iterable, rank: int, world_size: int):
    "Our rules as a step of datatrove"
    for document in data:
        text, _ = clean(document.text)
        if text is not None:
            document.text = text
            yield document


def trove_way(
    path: Path,  # JSONL with a field `text`
    tokenizer: Path,  # the file tokenizer.json
    end: str,  # its end token, as text
    out: Path,  # folder for the tokens and logs
):
    "The job by datatrove's own steps, in one task of one process"
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer
    from datatrove.utils.logging import logger

    steps = [
        JsonlReader(str(path.parent), glob_pattern=path.name),
        _cleaned,
        DocumentTokenizer(
            str(out / "tokens"), str(tokenizer), eos_token=end, shuffle_documents=False
        ),
    ]
    logger.disable("datatrove")  # its reports would stand between ours
    try:
        LocalPipelineExecutor(steps, tasks=1, workers=1, logging_dir=str(out / "logs")).run()
    finally:
        logger.enable("datatrove")


def bench_prep(
    mb: float = 20.0,  # text, in MB
    rounds: int = 2,  # the best of so many counts, of three times as many for what is quick
    vocab_size: int = 32_000,  # tokens of the vocabulary that is trained on that text
    usual: bool = True,  # run `datasets.map` too
) -> dict:
    "Whole pipeline, bare encoders, the usual way, near dedup, scan, shard writing: MB/s and ratios"
    where, texts = bench_text(mb)
    tok = BPETokenizer.train(texts, vocab_size)
    with (
        patch.dict(os.environ, TOKENIZERS_PARALLELISM="false"),
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as d,
    ):
        race = _race(_runs(texts, tok, Path(d), usual), rounds)
        stages = stage_speeds(texts[: max(50, len(texts) // 8)])
        ids = tok.encode_batch(texts, threads=1)
        writing = shard_writing(tok, ids, d, tokens=1 << (27 if mb >= 10 else 20))
    # what others do on the machine only ever adds
    clock = race.each(min)
    cpu = race.each(min, "cpu")
    startup = cpu.pop("startup")
    del clock["startup"]
    size = _mb(texts)
    return dict(
        machine=machine(),
        text=where,
        mb=size,
        documents=len(texts),
        vocab=tok.vocab_size,
        engine=tok.engine,
        startup_seconds=startup,
        documents_with_other_ids=_other_ids(tok, texts),
        mb_per_second={k: size / v for k, v in clock.items()},
        mb_per_cpu_second={k: size / v for k, v in cpu.items()},
        ratios=_ratios(cpu, startup, writing),
        stages_mb_per_second=stages,
    )


def _mb(texts: Sequence[str]) -> float:
    return sum(len(t.encode()) for t in texts) / 1e6


def _other_ids(tok: BPETokenizer, texts: Sequence[str]) -> int:
    "Documents that our encoder cuts differently from the library below it"
    library = tok.rust
    return sum(
        tok.encode(t).tolist() != library.encode(t, add_special_tokens=False).ids for t in texts
    )


def _race(runs: dict[str, Callable[[int], object]], rounds: int) -> Race:
    "What is quick takes three turns a round, what is slow one"
    race = Race(runs)
    quick = [k for k in ("pipeline", "startup", "encoder") if k in runs]
    slow = [k for k in ("encode_batch_fast", "datasets_map", "datatrove") if k in runs]
    for _ in range(rounds):
        race.run(3, quick).run(1, slow)
    return race


def _ratios(cpu: dict[str, float], startup: float, writing: dict[str, float]) -> dict[str, float]:
    "How near the pipeline comes to those that do less, in processor seconds"
    whole = cpu["pipeline"]
    fast = cpu["encode_batch_fast"]
    best = min(fast, cpu.get("encoder", fast))
    ratios = dict(
        of_fastest_encoder=best / (whole - startup),
        of_fastest_encoder_with_startup=best / whole,
        of_encode_batch_fast=fast / whole,
    )
    if "datasets_map" in cpu:
        ratios["of_datasets_map"] = cpu["datasets_map"] / whole
    if "datatrove" in cpu:
        ratios["of_datatrove"] = cpu["datatrove"] / whole
    ratios["shard_writing_of_file_copy"] = writing["copy"] / writing["shards"]
    return ratios


def _runs(
    texts: Sequence[str], tok: BPETokenizer, d: Path, usual: bool
) -> dict[str, Callable[[int], object]]:
    "What is timed: functions of the number of the turn, and the files in folder `d` that they read"
    tok.save(d / "tok")
    path = d / "text.jsonl"
    few = d / "few.jsonl"
    lines = "".join(json.dumps(dict(text=t), ensure_ascii=False) + "\n" for t in texts)
    path.write_text(lines, encoding="utf-8", errors="surrogatepass")
    few.write_text(json.dumps(dict(text=texts[0] + texts[1])) + "\n")

    def job(source: Path, out: Path):
        cfg = PrepConfig(sources=(f"text={source}",), tokenizer=str(d / "tok"), scan=False, val=0)
        prepare(cfg, out, log=lambda m: None)

    runs = dict(
        pipeline=lambda n: job(path, d / f"out{n}"), startup=lambda n: job(few, d / f"few{n}")
    )
    if tok._fast:
        runs["encoder"] = lambda n: tok.encode_batch(texts, threads=1)
    bare = tok.rust.encode_batch_fast
    runs["encode_batch_fast"] = lambda n: bare(texts, add_special_tokens=False)
    if usual:
        runs["datasets_map"] = lambda n: usual_way(path, tok, d / f"usual{n}.bin", d / f"cache{n}")
    if usual and find_spec("datatrove"):
        file = d / "tok" / "tokenizer.json"
        end = tok.decode([tok.end])
        runs["datatrove"] = lambda n: trove_way(path, file, end, d / f"trove{n}")
    return runs


def stage_speeds(
    texts: Sequence[str],  # of the slow `datasketch` only a tenth
) -> dict[str, float]:  # {stage: MB per processor second}
    """The stages around the encoder, each alone: cleaning, signatures by two libraries, finding
    near duplicates, the scan"""
    few = texts[: max(20, len(texts) // 10)]
    stages = {
        "clean": (texts, lambda ts: [clean(t) for t in ts]),
        "near dedup, rensa": (texts, lambda ts: near_repeats(signatures(ts))),
        "near dedup, datasketch": (few, datasketch_repeats),
        "scan": (texts, scan_texts),
    }
    for _, stage in stages.values():
        stage(few[:2])  # warm
    race = Race({name: lambda _, on=on, f=f: f(on) for name, (on, f) in stages.items()}).run(1)
    seconds = race.each(min, "cpu")
    return {name: _mb(on) / max(seconds[name], 1e-9) for name, (on, _) in stages.items()}


def _write_shards(folder: Path, tok: BPETokenizer, parts: list[tuple]):
    "Shards of joined documents, finished"
    writer = ShardWriter(folder, tok)
    for part in parts:
        documents = len(part[1])
        names = [f"text.jsonl 1.{i}" for i in range(documents)]
        writer.add("text", part, names, [1] * documents)
    writer.commit(1)
    writer.close()


def _copy_files(folder: Path, to: Path):
    "Each file of a folder copied, and forced to the disk"
    to.mkdir()
    for file in folder.iterdir():
        shutil.copyfile(file, to / file.name)
        with open(to / file.name, "rb+") as f:
            os.fsync(f.fileno())


def shard_writing(
    tok: BPETokenizer,  # whose vocabulary the shards are for
    ids: Sequence[np.ndarray],  # of each document
    folder: str | Path,  # existing; nothing stays in it
    rounds: int = 9,  # of which the median counts
    tokens: int = 1 << 25,  # the documents are repeated up to so many
) -> dict[str, float]:  # seconds of `shards` and of `copy`
    """Writing shards, a million tokens at a time as `prepare` does, against copying the finished
    files; both are forced to disk"""
    done, made, copied = (Path(folder, name) for name in ("done", "made", "copied"))
    per = max(1, len(ids) * 2**20 // max(1, sum(map(len, ids))))
    parts = [
        join_documents(ids[i : i + per], tok.end, ids[0].dtype) for i in range(0, len(ids), per)
    ]
    parts *= max(1, tokens // sum(len(joined) for joined, _ in parts))

    def tidy():
        shutil.rmtree(made, ignore_errors=True)
        shutil.rmtree(copied, ignore_errors=True)

    _write_shards(done, tok, parts)
    contenders = dict(
        shards=lambda n: _write_shards(made, tok, parts), copy=lambda n: _copy_files(done, copied)
    )
    race = Race(contenders, before=lambda n: tidy()).run(rounds)
    tidy()
    shutil.rmtree(done)
    return race.each()


def bench_prep_table(
    r: dict,  # a receipt of `bench_prep`
) -> str:
    "The receipt in lines"
    clock = r["mb_per_second"]
    cpu = r["mb_per_cpu_second"]
    speeds = [[name, f"{speed:.1f}", f"{cpu[name]:.1f}"] for name, speed in clock.items()]
    stages = [[name, "", f"{speed:.1f}"] for name, speed in r["stages_mb_per_second"].items()]
    head = ["MB/s", "on the clock", "of the processor"]
    ratios = [[name.replace("_", " "), f"{ratio:.2f}"] for name, ratio in r["ratios"].items()]
    return "\n".join(
        [
            f"{r['mb']:.1f} MB, {r['documents']:,} documents: {r['text']}; vocabulary "
            f"{r['vocab']:,}, encoder {r['engine']}, one core",
            str(Table(head, speeds + stages, align="lr")),
            f"start-up {r['startup_seconds']:.2f} s",
            str(Table(["speed", "times"], ratios, align="lr")),
        ]
    )
