"""Shards that travel: what is damaged on the way gets no name, what a power cut leaves is noticed,
and a server that is busy is asked again."""

import shutil
from pathlib import Path

import fsspec
import pytest
from contracts import refuses

from gpub.core import GpubError
from gpub.data import transfer
from gpub.data.bpe import BPETokenizer
from gpub.data.corpus import load_corpus
from gpub.data.network import Backoff
from gpub.data.shards import ShardWriter, verify_shards
from gpub.data.transfer import compress, copy_shards, fetch_shards, unpack
from gpub.evals.training_text import corpus_of, held_out, training_texts


def quiet(line):
    pass


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    "A folder of three shards or more"
    folder = tmp_path_factory.mktemp("finished")
    texts = [f"Question {i}: to be or not to be, and for {i * i} days?" for i in range(60)]
    tok = BPETokenizer.train(texts, 300)
    writer = ShardWriter(folder, tok, shard_tokens=500)
    for i, text in enumerate(texts):
        split = "val" if i < 9 else "train"
        writer.add("a", tok.encode_batch([text]), [f"doc-{i}"], [len(text)], split)
    writer.close()
    return folder


@pytest.fixture
def shards(finished, tmp_path, monkeypatch):
    "A copy of it, and a cache of its own"
    monkeypatch.setenv("GPUB_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(finished, tmp_path / "shards"))


@pytest.fixture
def store(shards):
    "The same in an object store"
    memory = fsspec.filesystem("memory")
    memory.put(f"{shards}/", "/travel/", recursive=True)
    yield memory
    memory.rm("/travel", recursive=True)


def damage(data, how):
    return dict(
        flip=data[:50] + bytes([data[50] ^ 1]) + data[51:], cut=data[:-9], page=b"<html>log in"
    )[how]


@pytest.mark.parametrize("how", ["flip", "cut", "page"])
@pytest.mark.parametrize("name", ["train-00000.bin", "train-00000.docs", "tokenizer.json"])
def test_a_file_that_came_damaged_is_fetched_again(shards, store, tmp_path, name, how):
    whole = (shards / name).read_bytes()
    store.pipe(f"/travel/{name}", damage(whole, how))
    with pytest.raises(
        GpubError, match=f"memory://travel/{name} came damaged: .* fetches it again"
    ):
        fetch_shards("memory://travel", quiet)
    assert not [p for p in (tmp_path / "cache").rglob(f"{name}*")]
    store.pipe(f"/travel/{name}", whole)
    assert verify_shards(fetch_shards("memory://travel", quiet))["shards"]


def test_the_text_of_a_run_that_learned_from_a_url_is_read_back(shards, store):
    here = load_corpus(shards, 16, quiet)
    data = dict(source="memory://travel", tokenizer=here.tok.fingerprint, tokens=here.fingerprint)
    corpus = corpus_of(dict(data=data, model=dict(context_length=16)))
    assert corpus.source == "memory://travel"
    assert training_texts(corpus) == training_texts(here)
    assert held_out(corpus) == held_out(here)
    assert held_out(corpus)["a"]


def test_what_was_damaged_in_the_cache_is_fetched_again(shards, store):
    here = fetch_shards("memory://travel", quiet)
    before = (here / "tokenizer.json").stat().st_mtime_ns
    (here / "train-00000.bin").write_bytes(b"half")
    assert fetch_shards("memory://travel", quiet) == here
    verify_shards(here)
    assert (here / "tokenizer.json").stat().st_mtime_ns == before


class Busy(Exception):
    "What an HTTP library raises for an answer other than 200"

    def __init__(self, status):
        self.status = status


@pytest.mark.parametrize("status, tries", [(503, 2), (429, 2), (403, 1)])
def test_a_busy_server_is_asked_again(store, monkeypatch, status, tries):
    asked, waits, lines = [], [], []
    read = store.cat_file

    def cat_file(path):
        asked.append(path)
        if len(asked) == 1:
            raise Busy(status)
        return read(path)

    monkeypatch.setattr(store, "cat_file", cat_file)
    backoff = Backoff(sleep=waits.append)
    if status == 403:
        refuses("cannot be copied .Busy", fetch_shards, "memory://travel", lines.append, backoff)
    else:
        verify_shards(fetch_shards("memory://travel", lines.append, backoff))
        assert f"HTTP {status}, try 2 of 8" in lines[0]
    assert (len(asked), len(waits)) == (tries, tries - 1)


def test_a_mirror_that_a_power_cut_emptied_is_filled_again(shards, tmp_path):
    "The manifest is there, as it was written last; a shard has no bytes"
    mirror = tmp_path / "mirror"
    assert copy_shards(shards, mirror, quiet) and not copy_shards(shards, mirror, quiet)
    (mirror / "train-00000.bin").write_bytes(b"")
    assert copy_shards(shards, mirror, quiet)
    verify_shards(mirror)
    (mirror / "train-00001.docs").unlink()
    assert copy_shards(shards, mirror, quiet) and not copy_shards(shards, mirror, quiet)


def copied(shards, to):
    copy_shards(shards, to, quiet)


def restored(shards, to):
    compress(shards, shards.with_name("packed"))
    unpack(shards.with_name("packed"), to)


@pytest.mark.parametrize("make", [copied, compress, restored])
def test_a_file_is_on_the_disk_before_it_has_its_name(shards, tmp_path, monkeypatch, make):
    "And all names are before the manifest is"
    synced, named = [], []
    replace = transfer.os.replace

    def noted(part, path):
        named.append((str(part), str(path), list(synced)))
        replace(part, path)

    monkeypatch.setattr(transfer, "sync_to_disk", lambda path: synced.append(str(path)))
    monkeypatch.setattr(transfer.os, "replace", noted)
    make(shards, tmp_path / "to")
    files = [row for row in named if row[0].endswith(".part") and ".bin" in row[1]]
    assert len(files) >= 3
    assert all(part in before for part, _, before in files)
    last = [before for _, path, before in named if path == str(tmp_path / "to" / "manifest.json")]
    assert str(tmp_path / "to") in last[-1]
