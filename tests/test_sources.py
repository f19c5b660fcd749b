"""Readers: what comes out is what went in, whatever the container; dirt is counted, half a file
refused."""

import errno
import gzip
import json
import os
import random
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from contracts import refuses
from hypothesis import given, settings
from hypothesis import strategies as st

from gpub.core import GpubError
from gpub.data.network import Backoff
from gpub.files import shipped
from gpub.prep import sources
from gpub.prep.config import load_recipe
from gpub.prep.sources import (
    BLOCK,
    NAMED,
    Hub,
    Reading,
    Source,
    chunks,
    cut_lines,
    cut_pieces,
    cut_text,
    fetch_blob,
    find_files,
    from_utf16,
    hub_blocks,
    records,
)

TEXTS = [f"document {i}: " + "naïve façade ☂ " * (i % 40) for i in range(300)]


def texts_of(path, **kw):
    return [
        t
        for c in chunks(Source(name="s", path=str(path)), **kw)
        for b in c.blocks
        for t, _, why in records(b)
        if why is None
    ]


@pytest.fixture
def lines():
    return "".join(json.dumps({"text": t}) + "\n" for t in TEXTS).encode()


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"])
def test_every_container_gives_the_same_texts(tmp_path, lines, name):
    p = tmp_path / name
    if name.endswith("gz"):
        # two members, as `cat a.gz b.gz` makes
        p.write_bytes(gzip.compress(lines[:999]) + gzip.compress(lines[999:]))
    elif name.endswith("zst"):
        p.write_bytes(zstandard.compress(lines[:999]) + zstandard.compress(lines[999:]))
    elif name.endswith("parquet"):
        pq.write_table(pa.table({"id": range(len(TEXTS)), "text": TEXTS}), p, row_group_size=64)
    else:
        p.write_bytes(lines)
    assert texts_of(p) == TEXTS


@pytest.mark.parametrize("copies", [1, 60])
def test_a_column_with_a_dictionary_is_read(tmp_path, copies):
    "As pandas writes categories; also where it is larger than a block"
    texts = [f"{text} {i % 7}" * 9 for i, text in enumerate(TEXTS[:99] * copies)]
    sites = [f"https://site{i % 3}.example/" for i in range(len(texts))]
    columns = {
        name: pa.array(c).dictionary_encode() for name, c in dict(text=texts, url=sites).items()
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    blocks = list(sources.file_blocks(tmp_path / "a.parquet"))
    read = [document for block in blocks for document in sources.documents(block)]
    assert [d.text for d in read] == texts and [d.url for d in read] == sites


@pytest.mark.parametrize("codec", ["gz", "zst"])
def test_a_truncated_file_is_refused(tmp_path, lines, codec):
    big = lines * 20
    packed = gzip.compress(big) if codec == "gz" else zstandard.compress(big)
    p = tmp_path / f"a.jsonl.{codec}"
    p.write_bytes(packed[: len(packed) // 2])
    refuses(f"a.jsonl.{codec}.*ends in the middle", texts_of, p)
    p.write_bytes(b"this is not compressed at all")
    refuses(f"a.jsonl.{codec}", texts_of, p)


def test_a_broken_parquet_file_and_a_missing_column(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 nothing")
    refuses("not a readable Parquet", texts_of, tmp_path / "a.parquet")
    pq.write_table(pa.table({"body": ["x"]}), tmp_path / "b.parquet")
    refuses("no column 'text', it has body", texts_of, tmp_path / "b.parquet")


def test_folders_and_globs_read_each_file_once_and_name_doubles(tmp_path, lines):
    for d in "ab":
        (tmp_path / d).mkdir()
        (tmp_path / d / "x.jsonl").write_bytes(lines)
    (tmp_path / "a" / ".hidden.jsonl").write_bytes(lines)
    (tmp_path / "a" / "empty.txt").touch()
    (tmp_path / "a" / "picture.png").write_bytes(b"x")
    said = []
    assert (
        len(find_files(str(tmp_path), said.append)) == 3 and "'x.jsonl' occurs 2 times" in said[0]
    )
    assert (
        texts_of(tmp_path, reading=Reading(log=said.append))
        == TEXTS * 2
        == texts_of(f"{tmp_path}/**/*.jsonl", reading=Reading(log=said.append))
    )


def test_a_path_that_is_there_may_hold_a_hash_sign(tmp_path):
    (tmp_path / "c#1.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "c#2.jsonl").write_text('{"body": "b"}\n')
    for spec, path, column in (
        ("c#1.jsonl", "c#1.jsonl", "text"),
        ("c#2.jsonl#body", "c#2.jsonl", "body"),
        ("c#?.jsonl", "c#?.jsonl", "text"),
        ("c.jsonl#body", "c.jsonl", "body"),
    ):
        for weight in ("", ":0.5"):
            s = Source.parse(f"a={tmp_path}/{spec}{weight}")
            assert (s.path, s.column, s.weight) == (
                f"{tmp_path}/{path}",
                column,
                0.5 if weight else None,
            )
    assert len(find_files(f"{tmp_path}/c#?.jsonl")) == 2


@pytest.mark.parametrize("where", ["", "below"])
def test_a_folder_that_may_not_be_read_is_one_line(tmp_path, monkeypatch, where):
    """Not an empty folder: its texts would be missing and nobody would know; a hidden one is none
    of ours"""
    for d in ("below", ".hidden"):
        (tmp_path / d).mkdir()
    (tmp_path / "a.txt").write_text("text")
    real, closed = os.scandir, {str(tmp_path / where), str(tmp_path / ".hidden")}

    def scandir(p):
        if str(p) in closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(p))
        return real(p)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(GpubError, match="cannot be read: Permission denied") as e:
        find_files(str(tmp_path))
    assert str(tmp_path / where) in str(e.value) and "\n" not in str(e.value)
    closed.remove(str(tmp_path / where))
    assert [f.name for f in find_files(str(tmp_path))] == ["a.txt"]


@pytest.mark.skipif(os.name == "nt", reason="symbolic links need a privilege there")
def test_of_two_names_of_one_file_the_first_counts(tmp_path):
    (tmp_path / "b.txt").write_text("text")
    (tmp_path / "a.txt").symlink_to(tmp_path / "b.txt")
    (tmp_path / "c.txt").symlink_to(tmp_path / "b.txt")
    assert [f.name for f in find_files(str(tmp_path))] == ["a.txt"]


def test_dirt_in_jsonl_is_counted(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(
        b'{"text": "good"}\nnot json\n{"body": 1}\n{"text": "caf\xe9"}\n{"text": "nul \\u0000"}\r\n'
        b'\n{"text": "half \\ud83d"}\n{"text": "cut o'
    )
    got = [
        r
        for c in chunks(Source(name="s", path=str(tmp_path / "a.jsonl")))
        for b in c.blocks
        for r in records(b)
    ]
    assert [why for *_, why in got] == [
        None,
        "not JSON",
        "no text in 'text'",
        None,
        None,
        None,
        "not JSON",
    ]
    assert [(t, fix) for t, fix, why in got if not why] == [
        ("good", None),
        ("café", "cp1252"),
        ("nul \0", None),
        ("half \ud83d", None),
    ]


def test_a_line_of_100_mb_is_skipped_in_bounded_memory(tmp_path):
    p = tmp_path / "a.jsonl"
    with open(p, "wb") as f:
        f.write(b'{"text": "before"}\n{"text": "')
        for _ in range(100):
            f.write(b"x" * 2**20)
        f.write(b'"}\n{"text": "after"}\n')
    biggest, got = 0, []
    for c in chunks(Source(name="s", path=str(p))):
        biggest = max(biggest, c.size)
        got += [r for b in c.blocks for r in records(b)]
    assert (
        [t for t, _, why in got if not why] == ["before", "after"]
        and [why for *_, why in got if why] == ["line over the limit"]
        and biggest < 8 * 2**20
    )


def test_a_text_line_of_100_mb_is_cut(tmp_path):
    p = tmp_path / "a.txt"
    p.write_bytes("ü".encode() * (8 * BLOCK))
    pieces, longest = 0, 0
    for c in chunks(Source(name="s", path=str(p))):
        for b in c.blocks:
            for t, fix, why in records(b):
                assert fix is None and why is None
                pieces += len(t)
                longest = max(longest, len(t))
    assert pieces == 8 * BLOCK and longest <= 16_000


def test_utf16_and_mixed_encodings(tmp_path):
    (tmp_path / "u.txt").write_bytes("Grüße aus dem Süden".encode("utf-16"))
    assert texts_of(tmp_path / "u.txt") == ["Grüße aus dem Süden"]
    (tmp_path / "m.txt").write_bytes("é ☂\n".encode() + "naïve\n".encode("cp1252"))
    assert texts_of(tmp_path / "m.txt") == ["é ☂\nnaïve\n"]


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=600), st.integers(1, 80), st.integers(1, 100))
def test_cutting_loses_nothing(data, size, limit):
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    assert (
        b"".join(b for ok, b in cut_lines(pieces, limit=10**6)) == data
        and b"".join(cut_text(pieces)) == data
    )
    whole = data.split(b"\n")
    assert all(
        l in whole
        for ok, b in cut_lines(pieces, limit=limit)
        if ok
        for l in b.removesuffix(b"\n").split(b"\n")
    )


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=300), st.integers(2, 50))
def test_pieces_and_utf16_round_trip(text, size):
    assert "".join(cut_pieces(text, size)) == text and all(
        0 < len(p) <= size for p in cut_pieces(text, size)
    )
    raw = text.encode("utf-16", "surrogatepass")
    if text and "\ud800" <= max(text):
        text = raw.decode("utf-16", "replace")
    assert b"".join(from_utf16([raw[i : i + size] for i in range(0, len(raw), size)])).decode(
        "utf-8", "surrogatepass"
    ) == raw.decode("utf-16", "replace")


LAYOUT = {
    "fineweb-edu": (
        "HuggingFaceFW/fineweb-edu",
        "sample-100BT",
        dict(text=None, id="urn", dump="CC-MAIN-2024-10", url="http://x", score=3.2, int_score=3),
    ),
    "finemath": (
        "HuggingFaceTB/finemath",
        "finemath-4plus",
        dict(url="http://x", text=None, token_count=9, char_count=9, score=4.1),
    ),
    "python-edu": (
        "HuggingFaceTB/smollm-corpus",
        "python-edu",
        dict(blob_id=None, repo_name="a/b", path="/x.py", length_bytes=9, score=4.2, int_score=4),
    ),
    "python-edu-text": (
        "Avelina/python-edu-cleaned",
        "default",
        dict(blob_id="x", repo_name="a/b", path="/x.py", length_bytes=9, text=None),
    ),
}


@pytest.mark.parametrize("name", LAYOUT)
def test_named_datasets_from_local_files_of_the_same_layout(tmp_path, monkeypatch, name):
    repo, config, row = LAYOUT[name]
    column = NAMED[name].column
    assert (NAMED[name].repo, NAMED[name].config) == (repo, config) and row[column] is None
    data = tmp_path / "hub" / repo / (config or "data")
    data.mkdir(parents=True)
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    if config:
        (tmp_path / "hub" / repo / "README.md").write_text(
            f"---\nconfigs:\n- config_name: {config}\n  data_files:\n  - split: train\n    path: "
            f"{config}/*\n---\n"
        )
    keys = [f"{i:040x}" for i in range(len(TEXTS))] if column == "blob_id" else TEXTS
    for k, t in zip(keys, TEXTS):
        column == "blob_id" and k[-1] != "7" and (blobs / k).write_bytes(gzip.compress(t.encode()))
    half = len(keys) // 2
    for i, part in enumerate((keys[:half], keys[half:])):
        pq.write_table(
            pa.Table.from_pylist([row | {column: k} for k in part]),
            data / f"train-{i:05d}-of-00002.parquet",
        )
    monkeypatch.setenv("GPUB_HUB", str(tmp_path / "hub"))
    monkeypatch.setenv("GPUB_BLOBS", blobs.as_uri() + "/")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    want = [t for k, t in zip(keys, TEXTS) if column != "blob_id" or k[-1] != "7"]
    assert texts_of(name) == want
    parts = [texts_of(name, reading=Reading(task=r, tasks=2)) for r in (0, 1)]
    assert sorted(parts[0] + parts[1]) == sorted(want) and abs(len(parts[0]) - len(parts[1])) < 20


def test_a_stream_that_breaks(tmp_path, monkeypatch):
    data = tmp_path / "hub" / "some" / "set" / "data"
    data.mkdir(parents=True)
    for i in range(2):
        pq.write_table(pa.table({"text": TEXTS}), data / f"train-{i:05d}.parquet")
    raw = (data / "train-00001.parquet").read_bytes()
    (data / "train-00001.parquet").write_bytes(
        raw[:200] + b"\x55" * (len(raw) - 1200) + raw[-1000:]
    )
    monkeypatch.setenv("GPUB_HUB", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    refuses("some/set: the stream broke .*run the same command again", texts_of, "hf:some/set")


def test_a_dataset_that_is_not_there(tmp_path, monkeypatch):
    import datasets.config
    import huggingface_hub.constants

    monkeypatch.setenv("GPUB_HUB", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    refuses("nobody/nothing: cannot be opened", texts_of, "hf:nobody/nothing")


@pytest.fixture
def waits():
    return []


@pytest.fixture
def quick(monkeypatch, waits):
    "Six tries that wait in name only; what every reader of the network uses now"
    backoff = Backoff(tries=6, sleep=waits.append)
    monkeypatch.setattr(sources, "PATIENT", backoff)
    return backoff


@pytest.fixture
def archive(monkeypatch):
    "A server of blobs: its `moods` says what it answers to the next requests, 200 afterwards"

    class Moody(BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.rpartition("/")[2]
            server.asked.append(name)
            mood = server.moods.pop(0) if server.moods else 200
            if mood == 200 and name not in server.blobs:
                mood = 404
            body = server.blobs[name] if mood in (200, "cut off") else b""
            if mood == "reset":
                self.connection.close()
                return
            self.send_response(200 if mood == "cut off" else mood)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:10] if mood == "cut off" else body)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Moody)
    server.asked, server.moods = [], []
    server.blobs = {"whole": gzip.compress(b"print(1)"), "damaged": b"no gzip file"}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("GPUB_BLOBS", f"http://127.0.0.1:{server.server_port}/")
    yield server
    server.shutdown()


@pytest.mark.parametrize("moods", [[503], [503, 429, 500, 502, 504], ["reset"], ["cut off", 503]])
def test_a_blob_is_asked_for_again_while_the_archive_is_busy(archive, quick, waits, moods):
    archive.moods = list(moods)
    state = random.getstate()
    assert fetch_blob("whole") == "print(1)"
    assert len(archive.asked) == len(moods) + 1 and len(waits) == len(moods)
    for i, seconds in enumerate(waits):
        assert 0.5 * 2**i <= seconds <= 2**i
    assert random.getstate() == state  # the seeds of a run do not depend on the network


def test_what_no_waiting_helps_is_not_asked_for_again(archive, quick, waits):
    assert fetch_blob("missing") is None and archive.asked == ["missing"] and not waits
    archive.moods = [403]
    assert fetch_blob("whole") is None and archive.asked == ["missing", "whole"] and not waits


def test_a_damaged_blob_is_a_counted_drop(archive, quick):
    block = sources.RecordBlock(
        "blobs", sources.to_arrow(["whole", "damaged", "missing"]), "f", "blob_id"
    )
    why = "no text in 'blob_id'"
    assert list(records(block)) == [("print(1)", None, None), ("", None, why), ("", None, why)]


def test_an_archive_that_stays_busy_is_one_line(archive, quick, waits):
    archive.moods = [503] * 99
    with pytest.raises(GpubError, match="503.*after 6 tries; run the same command again") as e:
        fetch_blob("whole")
    assert "\n" not in str(e.value) and len(archive.asked) == 6 and len(waits) == 5


class FlakyStream:
    "What `open_hub` gives, over so many rows; it breaks at the rows that `breaks` still names"

    def __init__(self, rows, breaks, column):
        self.rows, self.breaks, self.column, self.at = rows, breaks, column, 0

    def load_state_dict(self, state):
        self.at = state["at"]

    def state_dict(self):
        return dict(at=self.at)

    def __iter__(self):
        while self.at < self.rows:
            if self.breaks and self.at == self.breaks[0][0]:
                raise self.breaks.pop(0)[1]
            self.at += 1
            yield {self.column: f"document {self.at}"}


def passing():
    return ConnectionResetError("reset by peer")


@pytest.mark.parametrize("at", [0, 3, 500, 700, 1199])
def test_a_stream_that_breaks_goes_on_where_it_was(monkeypatch, quick, waits, at):
    """Whatever the row, what is read is the same, each row once, and so are the states to resume
    from"""
    hub = NAMED["fineweb-edu"]
    want = list(hub_blocks_of(monkeypatch, hub, []))
    breaks = [(at, passing()), (at, passing()), (1100, TimeoutError())]
    breaks.sort(key=lambda place: place[0])
    got = list(hub_blocks_of(monkeypatch, hub, breaks))
    assert got == want and len(waits) == 3
    rows = [t for b, _ in got for t, *_ in records(b)]
    assert rows == [f"document {i + 1}" for i in range(1200)]


def hub_blocks_of(monkeypatch, hub, breaks):
    monkeypatch.setattr(
        sources, "open_hub", lambda hub, *how: FlakyStream(1200, breaks, hub.column)
    )
    return hub_blocks(hub)


def test_a_stream_that_stays_broken_is_one_line(monkeypatch, quick, waits):
    blocks = hub_blocks_of(monkeypatch, NAMED["fineweb-edu"], [(700, passing())] * 99)
    assert next(blocks)[1] == dict(at=500)
    with pytest.raises(GpubError, match="the stream broke .*run the same command again") as e:
        next(blocks)
    assert "\n" not in str(e.value) and len(waits) == 5


def test_a_damaged_stream_is_not_read_again(monkeypatch, quick, waits):
    blocks = hub_blocks_of(monkeypatch, NAMED["fineweb-edu"], [(0, pa.ArrowInvalid("no Parquet"))])
    refuses("the stream broke", next, blocks)
    assert not waits


def test_a_hub_that_is_busy_while_a_dataset_is_opened(tmp_path, monkeypatch, quick, waits):
    "The library hides the server's answer behind a missing file; it is found"
    import datasets

    data = tmp_path / "some" / "set"
    data.mkdir(parents=True)
    pq.write_table(pa.table({"text": TEXTS}), data / "train.parquet")
    monkeypatch.setenv("GPUB_HUB", str(tmp_path))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    real, answers = datasets.load_dataset_builder, [503, 429]

    class Answer(OSError):
        pass

    def busy(*args, **how):
        if not answers:
            return real(*args, **how)
        answer = Answer("server error")
        answer.response = type(
            "Response", (), dict(status_code=answers.pop(0), headers={"Retry-After": "9"})
        )
        try:
            raise answer
        except Answer:
            raise FileNotFoundError("not cached") from None

    monkeypatch.setattr(datasets, "load_dataset_builder", busy)
    assert texts_of("hf:some/set") == TEXTS and waits == [9, 9]
    answers[:] = [404, 503]
    refuses("some/set: cannot be opened", texts_of, "hf:some/set")
    assert answers == [503]


def test_the_shipped_recipe_reads_text_from_all_years():
    "Not the first crawls of FineWeb-Edu, not one request for each Python file"
    recipe = load_recipe(shipped("recipes/burn1b.json"))
    web, _, python = (s.hub for s in recipe.parsed)
    assert (web.repo, web.config) == ("HuggingFaceFW/fineweb-edu", "sample-100BT")
    assert python.column != "blob_id" and {s.name for s in recipe.parsed} == {
        "fineweb-edu",
        "finemath",
        "python-edu",
    }


def test_a_named_dataset_may_name_another_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    s = Source.parse("web=fineweb-edu@CC-MAIN-2024-10:0.5")
    assert (s.hub.repo, s.hub.config, s.weight) == (
        "HuggingFaceFW/fineweb-edu",
        "CC-MAIN-2024-10",
        0.5,
    )
    assert Source.parse("web=fineweb-edu").hub == NAMED["fineweb-edu"]
    assert Source.parse("web=nobody@knows").hub is None
    (tmp_path / "fineweb-edu@mine").touch()
    assert Source.parse("web=fineweb-edu@mine").hub is None


def test_the_files_of_a_named_dataset_are_read_in_a_drawn_order(tmp_path, monkeypatch):
    """Each holds a few crawls: in the order of their names, the first tokens would all be old.
    Interrupted or not, the order is one"""
    data = tmp_path / "hub" / "HuggingFaceTB" / "finemath" / "finemath-4plus"
    data.mkdir(parents=True)
    (data.parent / "README.md").write_text(
        "---\nconfigs:\n- config_name: finemath-4plus\n  data_files: finemath-4plus/*\n---\n"
    )
    for i in range(12):
        pq.write_table(
            pa.table({"text": [f"crawl {i}, page {k}" for k in range(600)]}),
            data / f"train-{i:05d}.parquet",
        )
    monkeypatch.setenv("GPUB_HUB", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    blocks = list(hub_blocks(NAMED["finemath"]))
    texts = [t for b, _ in blocks for t, *_ in records(b)]
    crawls = list(dict.fromkeys(t.partition(",")[0] for t in texts))
    assert len(texts) == len(set(texts)) == 12 * 600 and len(crawls) == 12
    assert crawls != [f"crawl {i}" for i in range(12)]
    rest = [t for b, _ in hub_blocks(NAMED["finemath"], state=blocks[4][1]) for t, *_ in records(b)]
    assert rest == texts[5 * 500 :]
    listed = texts_of("hf:HuggingFaceTB/finemath@finemath-4plus")
    assert listed == [f"crawl {i}, page {k}" for i in range(12) for k in range(600)]


CELL = """
import resource, sys
from gpub.prep.sources import Source, chunks, records
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
kept = [
    (len(t), why)
    for c in chunks(Source(name="s", path=sys.argv[1]))
    for b in c.blocks
    for t, _, why in records(b)
]
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(kept, (after - before) / (2**20 if sys.platform == "darwin" else 2**10))
"""


@pytest.mark.full(instead="test_a_line_of_100_mb_is_skipped_in_bounded_memory")
@pytest.mark.skipif(sys.platform == "win32", reason="asks the system for the peak of memory")
@pytest.mark.parametrize("mb", [80, pytest.param(200, marks=pytest.mark.full)])
def test_a_parquet_cell_over_the_limit_is_skipped_in_bounded_memory(tmp_path, mb):
    "Four times its size before; a cell over the limit is a counted drop, as a line is"
    path = tmp_path / "a.parquet"
    cells = pa.array(["before", "x" * (mb << 20), None, "after"], pa.large_string())
    pq.write_table(pa.table({"text": cells}), path)
    del cells
    done = subprocess.run(
        [sys.executable, "-c", CELL, str(path)], capture_output=True, text=True, check=True
    )
    kept, _, grown = done.stdout.strip().rpartition(" ")
    assert kept == str(
        [(6, None), (200, "cell over the limit"), (0, "no text in 'text'"), (5, None)]
    )
    assert float(grown) < 4 * mb, "the reader of the format holds the cell three times, we never"


def test_a_stream_is_cut_by_bytes_too(monkeypatch, quick):
    "500 rows of a megabyte each would be half a gigabyte in one block"

    class Large(FlakyStream):
        def __iter__(self):
            for row in super().__iter__():
                yield {self.column: row[self.column] + "x" * 2**20}

    monkeypatch.setattr(sources, "open_hub", lambda hub, *how: Large(9, [], hub.column))
    blocks = list(hub_blocks(NAMED["fineweb-edu"]))
    assert max(len(b.data) for b, _ in blocks) < 4 * 2**20 and len(blocks) > 3
    assert [s["at"] for _, s in blocks][-1] == 9


def test_named_datasets_are_pinned_and_any_may_be():
    for hub in NAMED.values():
        assert hub.config and re.fullmatch("[0-9a-f]{40}", hub.revision)
    mine = Source.parse("x=hf:a/b@c@main#d:0.5")
    assert mine.hub == Hub(repo="a/b", config="c", revision="main", column="d")
    assert Source.parse("x=hf:a/b@@v1").hub == Hub(repo="a/b", revision="v1")
    assert Source.parse("x=finemath@finemath-3plus@main").hub.revision == "main"
    assert Source.parse(mine.spec) == mine


def test_a_moving_dataset_is_pinned_when_the_job_begins(monkeypatch):
    """A branch is resolved to the commit it has now; a commit is not asked for, nor a folder in
    the place of the Hub"""
    import huggingface_hub

    asked = []

    class Api:
        def dataset_info(self, repo, revision=None):
            asked.append((repo, revision))
            return type("Info", (), dict(sha="5" * 40))

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.delenv("GPUB_HUB", raising=False)
    assert sources.pinned(Hub(repo="a/b", revision="main")).revision == "5" * 40
    assert sources.pinned(Hub(repo="a/b")).revision == "5" * 40
    assert asked == [("a/b", "main"), ("a/b", None)]
    assert sources.pinned(NAMED["finemath"]) == NAMED["finemath"] and len(asked) == 2
