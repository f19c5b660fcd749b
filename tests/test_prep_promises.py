"What a preparation promises beside its bytes: twins, tokenizers that lose text, what stays known"

import json
import mmap

import numpy as np
import pytest
from contracts import refuses

from gpub.core import GpubError
from gpub.data.bpe import BPETokenizer
from gpub.data.char import CharTokenizer
from gpub.data.shards import ShardWriter, open_shard, read_manifest
from gpub.prep import contamination
from gpub.prep.config import PrepConfig
from gpub.prep.contamination import Benchmarks
from gpub.prep.pipeline import Encoder, encode_chunk, prepare, setup
from gpub.prep.store import (
    Document,
    chunk_files,
    chunk_path,
    document_columns,
    load_chunk,
    save_chunk,
)

WORDS = "a page of some words that says enough to be kept by every rule there is, number"


def quiet(*a):
    pass


def texts(count):
    return [f"{WORDS} {i}\nand a second line of it, {i} again" for i in range(count)]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tok")
    BPETokenizer.train(texts(50), 400).save(folder)
    return folder


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.full)])
def test_twins_with_other_line_ends_are_one_document(tmp_path, tokenizer, workers):
    "They differ until they are cleaned, and lie in other files"
    write(tmp_path / "unix.jsonl", [dict(text=t) for t in texts(60)])
    twins = [dict(text=t.replace("\n", "\r\n")) for t in texts(60)]
    write(tmp_path / "windows.jsonl", twins[::-1])
    cfg = PrepConfig(
        sources=(f"web={tmp_path}/*.jsonl",), tokenizer=str(tokenizer), val=0, chunk_mb=0.002
    )
    m = prepare(cfg, tmp_path / "out", workers, log=quiet)
    assert m["counts"]["web"]["dropped"]["duplicate"] == m["counts"]["web"]["kept"] == 60


class Deaf(CharTokenizer):
    "Knows no capital letters, and passes over them in silence"

    tokens = None
    end = 0

    def encode_batch(self, texts):
        kept = ["".join(c for c in t if c in self.chars) for t in texts]
        return [np.array([self.chars.index(c) for c in t], np.uint16) for t in kept]


def test_a_tokenizer_that_loses_characters_is_refused(tmp_path):
    "Its pattern does not cover all text, so no error tells: bytes are counted"
    chars = "".join(sorted(set("".join(texts(10)).lower())))
    tok = Deaf(chars)
    sizes = np.ones(len(chars), np.int64)
    for text, whole in ((WORDS, True), (WORDS + " AND CAPITALS", False)):
        path = chunk_path(tmp_path / str(whole) / "documents", "web", 0)
        save_chunk(path, document_columns([Document(text)]), {})
        encoder = Encoder(tok, tmp_path / str(whole), "deaf", sizes)
        if whole:
            encode_chunk(encoder, path)
            continue
        refuses("the tokenizer loses characters of 'a page", encode_chunk, encoder, path)


def test_the_store_keeps_what_a_source_says(tmp_path, tokenizer):
    about = dict(url="https://www.example.com/a", license="CC-BY-4.0", id="17")
    rows = [dict(text=t) | about | dict(id=str(i)) for i, t in enumerate(texts(30))]
    write(tmp_path / "a.jsonl", rows)
    store = tmp_path / "store"
    cfg = PrepConfig(
        sources=(f"web={tmp_path}/a.jsonl",), tokenizer=str(tokenizer), val=0, store=str(store)
    )
    prepare(cfg, tmp_path / "out", log=quiet)
    (folder,) = (store / "documents").iterdir()
    (path,) = chunk_files(store / "documents", folder.name)
    names = "text", "id", "url", "licence", "family", "name"
    columns = dict(zip(names, (c.to_pylist() for c in load_chunk(path, *names))))
    assert columns["text"] == texts(30) and columns["id"] == [str(i) for i in range(30)]
    assert set(columns["url"]) == {about["url"]} and set(columns["licence"]) == {"CC-BY-4.0"}
    assert set(columns["family"]) == {"example.com"}
    assert columns["name"][4] == "a.jsonl 0.5"


def test_a_saved_index_of_benchmarks_is_not_made_again(tmp_path, monkeypatch):
    item = "which of these planets has the largest number of moons known today in our system"
    write(tmp_path / "bench.jsonl", [dict(question=item)])
    monkeypatch.setenv("GPUB_CACHE", str(tmp_path / "cache"))
    cfg = PrepConfig(sources=("web=x",), benchmarks=(str(tmp_path / "bench.jsonl"),))
    args = cfg.to_dict(), str(tmp_path / "store"), dict(web="web")
    first = setup(*args).bench

    def never(*a):
        raise AssertionError("made again")

    monkeypatch.setattr(contamination, "_Builder", never)
    again = setup(*args).bench
    assert isinstance(again, Benchmarks) and again.fingerprint == first.fingerprint
    assert [m.item for m in again.find(f"He asked {item}, and left.")] == [0]


def test_training_maps_its_shards_for_reading_here_and_there(tmp_path, monkeypatch, tokenizer):
    tok = BPETokenizer.train(texts(50), 400)
    writer = ShardWriter(tmp_path / "shards", tok)
    writer.add("web", tok.encode_batch(texts(50)), [str(i) for i in range(50)], [9] * 50)
    manifest = writer.close()
    advice = []

    class Watched(mmap.mmap):
        def madvise(self, what, *a):
            advice.append(what)
            return super().madvise(what, *a)

    monkeypatch.setattr(mmap, "mmap", Watched)
    for at_random in (False, True):
        open_shard(
            tmp_path / "shards",
            manifest,
            read_manifest(tmp_path / "shards")["shards"][0],
            at_random,
        )
    assert advice == ([mmap.MADV_RANDOM] if hasattr(mmap, "MADV_RANDOM") else [])


def test_a_disk_that_is_too_small_is_refused_before_anything_is_read(
    tmp_path, tokenizer, monkeypatch
):
    from collections import namedtuple

    write(tmp_path / "a.jsonl", [dict(text=t) for t in texts(400)])
    cfg = PrepConfig(sources=(f"a={tmp_path}/a.jsonl",), tokenizer=str(tokenizer))
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("gpub.prep.job.shutil.disk_usage", lambda folder: usage(9, 8, 1))
    with pytest.raises(GpubError, match="needs about 0.00 GB, 0.00 GB are free: make room") as e:
        prepare(cfg, tmp_path / "out", log=quiet)
    assert "\n" not in str(e.value) and not (tmp_path / "out").exists()
    monkeypatch.undo()
    assert prepare(cfg, tmp_path / "out", log=quiet)["shards"]


def test_the_room_that_is_asked_for_is_near_what_is_written(tmp_path, tokenizer):
    "The store is there while the shards are written; at most twice of it is asked for"
    from gpub.prep.job import Job, needed_bytes

    write(tmp_path / "a.jsonl", [dict(text=t) for t in texts(4000)])
    store = tmp_path / "store"
    cfg = PrepConfig(sources=(f"a={tmp_path}/a.jsonl",), tokenizer=str(tokenizer), store=str(store))
    needed = needed_bytes(Job(cfg, tmp_path / "out", log=quiet))
    prepare(cfg, tmp_path / "out", log=quiet)
    files = [*store.rglob("*.arrow"), *(tmp_path / "out").glob("*.bin")]
    written = sum(f.stat().st_size for f in files)
    assert written / 2 < needed < 4 * written


def test_a_long_job_is_foretold_before_anything_is_read(tmp_path, tokenizer, monkeypatch):
    "With its disk, of which near duplicates take more, and its time"
    from dataclasses import replace

    from gpub.prep import job

    write(tmp_path / "a.jsonl", [dict(text=t) for t in texts(400)])
    plain = PrepConfig(sources=(f"a={tmp_path}/a.jsonl",), tokenizer=str(tokenizer))
    near = replace(plain, near=0.8)
    both = [job.Job(cfg, tmp_path / "out", workers=4, log=quiet) for cfg in (plain, near)]
    disks = [job.needed_bytes(each) for each in both]
    assert disks[0] < disks[1]
    assert 0 < job.foretold_seconds(both[0]) < job.foretold_seconds(both[1])  # rules take time
    said = []
    prepare(plain, tmp_path / "short", log=said.append)
    assert not any(line.startswith("forecast") for line in said)
    monkeypatch.setattr(job, "WORTH_SAYING", 0.0)
    said.clear()
    prepare(plain, tmp_path / "long", 4, log=said.append)
    assert said[0].startswith("forecast: 0.0 GB of text") and "with 4" in said[0]
