"Rows from an object store are those of a folder, at every step, whatever was read before"

import json
import re
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
import pytest
import torch
from gpub.core import GpubError
from gpub.data.batches import Batches
from gpub.data.corpus import load_corpus
from gpub.data.shards import read_manifest
from gpub.forensics.reading import read_step
from gpub.train.trainer import Trainer

pytest.importorskip("litdata", reason="litdata is not installed: pip install 'gpub[stream]'")
from gpub.data.streaming import ShardStream  # noqa: E402


class Store:
    "As much of S3 as a reader asks of it: GET of an object, or of a range of it"

    def __init__(self, folder: Path):
        self.whole, self.ranges = [], []
        self.damage = lambda data: data
        store = self

        class Answers(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self):
                self.do_GET(body=False)

            def do_GET(self, body=True):
                path = folder / self.path.split("?")[0].removeprefix("/bucket/shards/")
                if not path.is_file():
                    self.send_response(404)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                data, asked = path.read_bytes(), self.headers.get("Range")
                self.send_response(206 if asked else 200)
                if asked:
                    first, last = map(int, re.match(r"bytes=(\d+)-(\d+)", asked).groups())
                    last = min(last, len(data) - 1)
                    self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
                    data = store.damage(data[first : last + 1])
                    store.ranges.append((path.name, len(data)))
                elif body:
                    store.whole.append(path.name)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("ETag", '"1"')
                self.send_header("Accept-Ranges", "bytes")
                self.send_header("Last-Modified", "Sun, 22 Nov 2026 00:00:00 GMT")
                self.end_headers()
                if body:
                    self.wfile.write(data)

            def log_message(self, *a):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def store(two_sources, cache, monkeypatch):
    "The folder as s3://bucket/shards, over HTTP"
    store = Store(two_sources)
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "nobody")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    yield store
    store.server.shutdown()
    store.server.server_close()


@pytest.mark.parametrize("weights", [None, dict(edu=0.6, math=0.4)])
@pytest.mark.parametrize("borders", [False, True])
def test_rows_are_those_of_the_folder(two_sources, cache, weights, borders):
    how = dict(context_length=32, batch=8, seed=5, weights=weights, borders=borders)
    here, there = (
        Batches.from_shards(two_sources, **how),
        Batches.from_stream(ShardStream(two_sources), **how),
    )
    assert here.fingerprint == there.fingerprint
    for step in (0, 1, 400, 17):
        assert torch.equal(here.tokens(step), there.tokens(step))
        assert here.what(step) == there.what(step)
    assert torch.equal(here.read(512, 256, 16), there.read(512, 256, 16))
    halves = [
        Batches.from_stream(ShardStream(two_sources), rank=r, world=2, **how).tokens(3)
        for r in (0, 1)
    ]
    assert sorted(torch.cat(halves).tolist()) == sorted(here.tokens(3).tolist())


def test_of_a_store_only_the_rows_are_read(two_sources, store, cache):
    stream = ShardStream("s3://bucket/shards")
    how = dict(context_length=32, batch=8, seed=5)
    here, there = Batches.from_shards(two_sources, **how), Batches.from_stream(stream, **how)
    for step in range(4):
        assert torch.equal(here.tokens(step), there.tokens(step))
    rows = 4 * 8
    assert rows <= len(store.ranges) == stream.requests <= 2 * rows
    assert sum(size for _, size in store.ranges) == stream.bytes == rows * 33 * 2
    assert store.whole == ["manifest.json"]
    assert not [*cache.rglob("*.bin")]


SETTINGS = dict(
    steps=10,
    batch_tokens=128,
    d_model=16,
    n_layers=1,
    n_heads=2,
    context_length=32,
    log_every=2,
    precision="fp32",
    compile="no",
)


def losses(out):
    rows = map(json.loads, (Path(out) / "log.jsonl").read_text().splitlines())
    return {row["step"]: (row["loss"], row.get("val_loss")) for row in rows}


@pytest.mark.parametrize("mask", ["false", "true"])
def test_a_run_from_a_store_is_a_run_from_the_folder(two_sources, store, cache, tmp_path, mask):
    settings = SETTINGS | dict(document_mask=mask)
    quiet = dict(device="cpu", log=lambda line: None)
    Trainer("shakespeare", tmp_path / "here", two_sources, settings, **quiet).go()
    url, out = "stream:s3://bucket/shards", tmp_path / "there"
    half = Trainer("shakespeare", out, url, settings, save_every=4, **quiet)
    for step in half.steps():
        if step.n == 6:
            break
    Trainer("shakespeare", out, url, settings, **quiet).go()
    assert losses(out) == losses(tmp_path / "here")
    assert not [p for p in cache.rglob("train-*.bin")]
    assert [*cache.rglob("val-*.bin")]
    read = read_step(out, 3)
    assert torch.equal(read.rows, read_step(tmp_path / "here", 3).rows)
    assert [w.documents for w in read.windows] == [
        w.documents for w in read_step(tmp_path / "here", 3).windows
    ]


def test_what_is_kept_is_checked(two_sources, cache, tmp_path):
    folder = shutil.copytree(two_sources, tmp_path / "store")
    held = next(s["file"] for s in read_manifest(folder)["shards"] if s["split"] == "val")
    raw = (folder / held).read_bytes()
    (folder / held).write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(GpubError, match=f"{held}: expected xxh3"):
        load_corpus(f"stream:{folder}", 32)
    (folder / held).write_bytes(raw)  # uploaded again: the same command goes on
    assert load_corpus(f"stream:{folder}", 32).remote


def test_what_is_not_there_is_one_line(store, two_sources, cache, tmp_path):
    for url in ("s3://bucket/none", str(tmp_path / "none")):
        with pytest.raises(GpubError, match="cannot be read") as error:
            ShardStream(url)
        assert "\n" not in str(error.value)


def test_a_damaged_store_is_one_line(two_sources, store, cache):
    batches = Batches.from_stream(ShardStream("s3://bucket/shards"), context_length=32, batch=8)
    store.damage = lambda data: data[:9]
    with pytest.raises(GpubError, match="cannot be read|not what was uploaded"):
        batches.tokens(0)
    store.damage = lambda data: b"\xff" * len(data)
    with pytest.raises(GpubError, match="are not what was uploaded"):
        batches.tokens(0)


def test_without_the_package_it_says_which(monkeypatch, two_sources, cache):
    monkeypatch.setitem(__import__("sys").modules, "litdata.streaming.downloader", None)
    with pytest.raises(GpubError, match=r"pip install 'gpub\[stream\]'"):
        ShardStream(two_sources)
