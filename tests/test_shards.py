"""Shards and batches: every window once, the same rows however they are read, nothing silent."""

import errno
import json
import os
import signal
import sys

import numpy as np
import pytest
import torch
from contracts import refuses
from hypothesis import given, settings
from hypothesis import strategies as st

from gpub.core import GpubError
from gpub.data import transfer as parts
from gpub.data.batches import AnnealMix, Batches
from gpub.data.char import CharTokenizer
from gpub.data.sampler import WindowOrder, scramble, shuffled
from gpub.data.shards import (
    OpenShards,
    ShardWriter,
    checksum,
    documents_at,
    join_documents,
    manifest_fingerprint,
    read_manifest,
    verify_shards,
)
from gpub.data.transfer import compress, unpack
from gpub.data.windows import HostIds

pytest.importorskip("xxhash")
pytest.importorskip("zstandard")
fast = settings(max_examples=40, deadline=None, database=None)


class Tok(CharTokenizer):
    "Small, and with an end token: character 'z'"

    end = 25


TOK = Tok("abcdefghijklmnopqrstuvwxyz")


def docs(n, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 25, rng.integers(1, 30)).astype(np.uint16) for _ in range(n)]


def fill(folder, n=60, upto=None, chunk=7, commit=True, **kw):
    "A writer fed from its cursor on, committing after every chunk"
    w = ShardWriter(folder, TOK, **{"shard_tokens": 100, **kw})
    d = docs(n)
    for i in range(w.cursor or 0, n if upto is None else upto, chunk):
        for source in "edu", "code":
            mine = [j for j in range(i, min(i + chunk, n)) if (j % 3 == 0) == (source == "code")]
            for split in "train", "val":
                part = [j for j in mine if (j % 5 == 0) == (split == "val")]
                if part:
                    w.add(
                        source,
                        [d[j] for j in part],
                        [f"{source}/{j}" for j in part],
                        [2 * len(d[j]) for j in part],
                        split=split,
                    )
        w.drop("edu", "too short")
        if commit:
            w.commit(i + chunk)
    return w


@pytest.fixture
def folder(tmp_path):
    fill(tmp_path / "data").close()
    return tmp_path / "data"


def content(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@fast
@given(n=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
def test_shuffled_is_a_permutation(n, key):
    assert sorted(shuffled(np.arange(n), n, key)) == list(range(n))


def test_shuffled_at_a_trillion():
    n = 10**12
    out = shuffled(np.arange(10**5) + 5 * 10**11, n, 3)
    assert (
        len(set(out)) == 10**5
        and abs(out.mean() / n - 0.5) < 0.01
        and 0 <= out.min()
        and out.max() < n
    )


def test_shuffled_is_even():
    """Each of the 24 orders of four things, and each place of 50 for one of them, as often as
    chance allows (chi-squared, 5 sigma)"""

    def chi(counts):
        e = np.mean(counts)
        return (np.sum((counts - e) ** 2) / e - len(counts) + 1) / np.sqrt(2 * (len(counts) - 1))

    orders = np.array([shuffled(np.arange(4), 4, k) @ [64, 16, 4, 1] for k in range(1200)])
    _, n = np.unique(orders, return_counts=True)
    places = np.bincount([shuffled(np.array([17]), 50, k)[0] for k in range(2000)], minlength=50)
    neighbours = np.concatenate([np.diff(shuffled(np.arange(1000), 1000, k)) for k in range(20)])
    assert (
        len(n) == 24
        and chi(n) < 5
        and chi(places) < 5
        and abs(np.mean(neighbours > 0) - 0.5) < 0.02
        and np.mean(np.abs(neighbours) < 10) < 0.03
    )


# on another machine or in a later version: a resumed run would read other rows
def test_order_never_changes():
    assert [hex(int(x)) for x in scramble(7, np.arange(2))] == [
        "0xb8b4c2977eabce45",
        "0x3d41bf495cd3075f",
    ] and shuffled(np.arange(6), 6, 2**64 - 1, 3).tolist() == [5, 1, 2, 4, 3, 0]


@fast
@given(
    n=st.integers(2, 300),
    context_length=st.integers(1, 40),
    key=st.integers(0, 99),
    cuts=st.lists(st.integers(0, 300), max_size=4),
)
def test_epochs_are_exact(n, context_length, key, cuts):
    if n <= context_length:
        return
    ids = np.arange(n, dtype=np.uint16)
    s = WindowOrder(n, context_length, (key, 0))
    deal = n - context_length
    starts = s.starts(0, 2 * deal)
    epochs = np.array([s.epoch(w) for w in range(2 * deal)])
    # in ctx epochs every place once
    assert sorted(starts[:deal]) == sorted(starts[deal:]) == list(range(deal))
    for e in np.unique(epochs):  # in one epoch: no overlap, no gap
        own = np.sort(starts[epochs == e])
        assert (
            (np.diff(own) == context_length).all()
            and own[0] < context_length
            and own[-1] + 2 * context_length >= n - 1
            and len(own) == (n - 1 - own[0]) // context_length
        )
    for w in range(0, deal, 7):
        assert s.starts(w, w + 1)[0] == starts[w]
    parts = np.split(ids, sorted(min(c, n) for c in cuts))
    windows = HostIds(parts, context_length).gather(starts).numpy()
    assert (windows == starts[:, None] + np.arange(context_length + 1)).all()


def test_batches_are_a_function_of_seed_and_step():
    ids = np.arange(5000, dtype=np.uint16)

    def make(**kw):
        return Batches(ids, **{**dict(context_length=16, batch=8, seed=5), **kw})

    a = make()
    forward = [a[s].ids for s in range(90)]
    assert all(torch.equal(make()[s].ids, forward[s]) for s in (89, 3, 41))
    assert all(torch.equal(a[s].ids, forward[s]) for s in (50, 2, 88))
    x, y = a[0].ids, a[0].targets
    assert (
        x.shape == y.shape == (8, 16)
        and x.dtype == y.dtype == torch.int64
        and (y[:, :-1] == x[:, 1:]).all()
        and (y == x + 1).all()
    )
    assert not torch.equal(make(seed=6)[0].ids, forward[0])
    assert make(seed=-1)[0].ids.shape == (8, 16)
    epochs = [a.epoch(step) for step in (38, 39, 80)]
    assert epochs[0] == 0 and epochs[1] in (0, 1) and epochs[2] == 2
    for ask in (a.__getitem__, a.trace_rows, a.epoch):
        with pytest.raises(IndexError, match="steps count from 0, not -1"):
            ask(-1)
        with pytest.raises(TypeError, match="slice"):
            ask(slice(0, 2))


def test_a_fingerprint_tells_equal_bytes_of_another_dtype_apart():
    def fingerprint(ids):
        return Batches(ids, context_length=8, batch=1).fingerprint

    pairs = np.tile(np.array([1, 0], dtype=np.uint16), 50)
    wide = pairs.view(np.uint32)
    assert pairs.tobytes() == wide.tobytes() and fingerprint(pairs) != fingerprint(wide)
    assert fingerprint(pairs) == fingerprint(pairs.copy())


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_share_the_rows_of_one_process(world):
    ids = np.arange(3000, dtype=np.uint16)
    one = Batches(ids, context_length=8, batch=8)
    for s in 0, 7, 300:
        assert (
            torch.cat(
                [
                    Batches(ids, context_length=8, batch=8, rank=r, world_size=world)[s].targets
                    for r in range(world)
                ]
            )
            == one[s].targets
        ).all()


@fast
@given(
    w=st.lists(st.floats(0.01, 1), min_size=2, max_size=5),
    steps=st.integers(1, 60),
    batch=st.integers(1, 9),
)
def test_mixture_shares_hold_at_every_step(w, steps, batch):
    names = [f"s{i}" for i in range(len(w))]
    b = Batches(
        {n: np.full(50, i, np.uint16) for i, n in enumerate(names)},
        context_length=4,
        batch=batch,
        weights=dict(zip(names, w)),
    )
    got = np.zeros(len(w))
    for s in range(steps):
        got += np.bincount(b[s].ids[:, 0], minlength=len(w))
    assert (
        got.tolist() == b.mixture.windows_per_source(steps * batch)
        and np.abs(got - steps * batch * np.array(w) / sum(w)).max() <= len(w) / 2 + 0.01
    )


def test_other_shares_for_the_end_need_shares_before():
    ids = dict(edu=np.arange(99), math=np.arange(99))
    with pytest.raises(GpubError, match="anneal .* give weights, too"):
        Batches(ids, context_length=4, batch=1, anneal=AnnealMix(dict(edu=1, math=3), 8))
    refuses("first_step", AnnealMix, dict(edu=1.0), -1)
    refuses("weights", AnnealMix, {}, 0)


def test_mixture_at_a_billion():
    b = Batches(
        dict(edu=np.arange(99), math=np.arange(99), code=np.arange(99)),
        context_length=4,
        batch=1,
        weights=dict(edu=0.87, math=0.1, code=0.03),
    )
    assert np.allclose(
        np.array(b.mixture.windows_per_source(10**9)) / 10**9, [0.87, 0.1, 0.03], atol=1e-8
    )


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int64])
def test_device_resident_ids_keep_their_value(dtype):
    ids = (
        np.arange(60_000, 65_536).astype(dtype)
        if dtype == np.uint16
        else np.arange(2**31 - 3000, 2**31 + 3000).astype(dtype)
    )
    for s in 0, 9:
        assert (
            Batches(ids, context_length=32, batch=4, device="cpu")[s].targets
            == Batches(ids, context_length=32, batch=4)[s].targets
        ).all()


def test_ids_of_two_formats_keep_their_value_on_a_device():
    "NumPy joins uint64 and int64 to float64"
    ids = dict(a=np.arange(99, dtype=np.uint64), b=np.arange(99, 200))
    on_device = Batches(ids, context_length=4, batch=8, device="cpu")
    assert torch.equal(on_device[0].ids, Batches(ids, context_length=4, batch=8)[0].ids)


def test_batches_refuse():
    ids = np.arange(10)
    bad = [
        (dict(context_length=10), "10 tokens.*context_length=10 needs 11"),
        (dict(batch=0), "batch must be a whole number of at least 1, got 0"),
        (dict(context_length=0), "context_length must be .* got 0"),
        (dict(batch=3, world_size=2), "batch=3.*world_size=2"),
        (dict(rank=2, world_size=2), "rank 2"),
        (dict(weights=dict(math=1)), "math.*text"),
        (dict(weights=dict(text=0)), "above zero"),
        (dict(weights=dict(text=float("inf"))), "above zero"),
        (dict(weights=dict(text=float("nan"))), "above zero"),
    ]
    for kw, line in bad:
        refuses(line, Batches, ids, **{**dict(context_length=4, batch=2), **kw})
    assert Batches(ids, context_length=9, batch=2)[5].ids.tolist() == [list(range(9))] * 2


def test_folder(folder):
    m = read_manifest(folder)
    d = docs(60)
    ends = {}
    assert (
        m["dtype"] == "uint16"
        and m["vocab"] == 26
        and m["tokenizer"] == TOK.fingerprint
        and not list(folder.glob("*.part"))
        and not list(folder.glob(".*"))
    )
    for s in m["shards"]:
        ids = np.fromfile(folder / s["file"], "<u2")
        assert (
            len(ids) == s["tokens"]
            and (ids == 25).sum() == s["documents"]
            and ids[-1] == 25
            and checksum(folder / s["file"]).hexdigest() == s["xxh3"]
        )
        names = documents_at(folder / s["file"].replace(".bin", ".docs"), 0, len(ids))
        assert [n.split("/")[0] for n in names] == [s["source"]] * s["documents"]
        assert (
            ids == np.concatenate([np.append(d[int(n.split("/")[1])], 25) for n in names])
        ).all()
        ends[s["split"], s["source"]] = len(ids)
        assert all((int(n.split("/")[1]) % 5 == 0) == (s["split"] == "val") for n in names)
    assert all(
        s["tokens"] >= 100 for s in m["shards"] if ends[s["split"], s["source"]] != s["tokens"]
    )
    for name in "edu", "code":
        own = [s for s in m["shards"] if s["source"] == name]
        assert m["sources"][name]["tokens"] == sum(s["tokens"] for s in own) and m["sources"][name][
            "documents"
        ] == sum(s["documents"] for s in own)
    assert (
        m["sources"]["edu"]["dropped"] == {"too short": 9}
        and sum(s["documents"] for s in m["sources"].values()) == 60
    )


@pytest.mark.parametrize("chunk", [1, 60])
def test_chunks_do_not_show_in_one_source(tmp_path, chunk):
    def write(to, chunk):
        w = ShardWriter(to, TOK, shard_tokens=100)
        for i in range(0, 60, chunk):
            w.add(
                "edu",
                docs(60)[i : i + chunk],
                list(map(str, range(i, min(i + chunk, 60)))),
                [1] * len(docs(60)[i : i + chunk]),
            )
        w.close()
        return content(to)

    assert write(tmp_path / "a", chunk) == write(tmp_path / "b", 7)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process")
@pytest.mark.parametrize("commit", [pytest.param(True), False])
@pytest.mark.full(instead="test_goes_on.py::test_goes_on")
def test_killed_at_every_call_that_touches_the_disk(tmp_path, commit):
    kw = dict(n=24, chunk=12, shard_tokens=150, commit=commit)
    fill(tmp_path / "whole", **kw).close()
    want, at = content(tmp_path / "whole"), 0
    while True:
        at += 1
        folder = tmp_path / f"k{at}"
        pid = os.fork()
        if pid == 0:
            try:
                _die_at(at)
                fill(folder, **kw).close()
            finally:
                os._exit(0)
        killed = os.WIFSIGNALED(os.waitpid(pid, 0)[1])
        if killed and not (folder / "manifest.json").exists():
            refuses("no manifest", verify_shards, folder)
        w = ShardWriter(folder, TOK, shard_tokens=150)
        w = w if w.done else fill(folder, **kw)
        w.close()
        assert {k: v for k, v in content(folder).items() if k[0] != "."} == want, at
        if not killed:
            break
    assert at > 25


def _die_at(n):  # in the child: SIGKILL itself at the n-th call that changes a file
    left = [n]

    def deadly(f):
        def call(*a, **kw):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return f(*a, **kw)

        return call

    for name in "fsync", "replace", "truncate":
        setattr(os, name, deadly(getattr(os, name)))
    OpenShards.append = deadly(OpenShards.append)
    OpenShards._attach = deadly(OpenShards._attach)


def test_uncommitted_tail_is_cut(tmp_path):
    w = fill(tmp_path / "a", upto=21)
    w.add("edu", docs(9, seed=9), ["lost"] * 9, [1] * 9)
    fill(tmp_path / "a").close()
    fill(tmp_path / "b").close()
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_full_disk_is_one_line_and_nothing_is_lost(tmp_path, monkeypatch):
    def full(fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    w = fill(tmp_path / "a", upto=21)
    with monkeypatch.context() as m:
        m.setattr(os, "fsync", full)
        with pytest.raises(GpubError, match="No space left on device.*goes on"):
            w.add("edu", docs(9), ["x"] * 9, [1] * 9)
            w.commit(99)
    fill(tmp_path / "a").close()
    fill(tmp_path / "b").close()
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_writer_refuses(tmp_path, folder):
    w = ShardWriter(tmp_path / "x", TOK)
    for args, line in [
        (("edu", [np.array([26])], ["a"], [1]), "id 26.*26"),
        (("edu", docs(2), ["a"], [1, 1]), "2 documents.*1 names"),
        (("edu", docs(1), ["a"], [1], "test"), "'test'"),
    ]:
        refuses(line, w.add, *args)
    refuses("finished", ShardWriter(folder, TOK, shard_tokens=100).add, "edu", docs(1), ["a"], [1])
    refuses("shard_tokens: 100 there, 200 now", ShardWriter, folder, TOK, shard_tokens=200)
    refuses("tokenizer: ", ShardWriter, folder, CharTokenizer("abc"), shard_tokens=100)
    fill(tmp_path / "y", upto=7, settings=dict(filter=1))
    refuses("settings: .*1.*2", fill, tmp_path / "y", settings=dict(filter=2))
    (folder / "manifest.json").unlink()
    refuses("no manifest", ShardWriter, folder, TOK)


def _edit(folder, **change):
    p = folder / "manifest.json"
    p.write_text(json.dumps({**json.loads(p.read_text()), **change}))


def _shard(folder, **change):
    m = json.loads((folder / "manifest.json").read_text())
    m["shards"][0].update(change)
    _edit(folder, shards=m["shards"])


def _write(folder, cut=None, last=None):
    p = folder / "train-00000.bin"
    raw = p.read_bytes()
    p.write_bytes(raw[:cut] if last is None else raw[:-2] + last)


def _own_checksum(folder):
    _write(folder, last=b"\x30\x00")
    _shard(folder, xxh3=checksum(folder / "train-00000.bin").hexdigest())


@pytest.mark.parametrize(
    "damage, line",
    [
        (lambda f: _write(f, cut=-2), r"train-00000.bin: expected \d+ bytes, found \d+"),
        (
            lambda f: _write(f, last=b"\x00\x00"),
            r"train-00000.bin: expected xxh3 \w{16}, found \w{16}",
        ),
        (
            lambda f: CharTokenizer("abc").save(f),
            r"manifest.json: expected tokenizer \w+, found \w+",
        ),
        (_own_checksum, "train-00000.bin: expected ids below 26, found 48"),
        (lambda f: _edit(f, format=2), "manifest.json: expected format 1, found 2"),
        (lambda f: _edit(f, dtype="uint32"), "expected dtype uint16.*found 'uint32'"),
        (lambda f: (f / "train-00000.bin").unlink(), "train-00000.bin is missing"),
        (lambda f: (f / "train-00000.docs").unlink(), "train-00000.docs cannot be read"),
        (
            lambda f: (f / "val-00000.docs").write_text("1 renamed\n"),
            r"val-00000.docs: expected xxh3 \w{16}, found \w{16}",
        ),
        (lambda f: (f / "manifest.json").unlink(), "no manifest.json"),
        (lambda f: (f / "tokenizer.json").unlink(), "tokenizer"),
        (lambda f: _shard(f, file="../../etc/passwd"), "is no name of a shard"),
        (lambda f: _shard(f, split="val"), "train-00000.bin is said to be of split 'val'"),
        (lambda f: (f / "manifest.json").write_text('{"format": 1'), "not valid JSON"),
        (lambda f: (f / "manifest.json").write_text('{"format": 1}'), "lacks dtype"),
    ],
)
def test_reader_refuses(folder, damage, line):
    verify_shards(folder)
    damage(folder)
    refuses(line, verify_shards, folder)


@pytest.mark.parametrize("odd", [None, 5, "x", 1.5, True, [1], {"a": 1}], ids=str)
def test_a_manifest_of_odd_types(folder, odd):
    "Whatever an editor made of a value: one line that names the manifest, before a token is read"
    m = read_manifest(folder)
    shard, *more = m["shards"]
    (name, source), *_ = m["sources"].items()
    edited = [
        (m, odd),
        *(
            (m[k], m | {k: odd})
            for k in ("format", "dtype", "vocab", "tokenizer", "shards", "sources")
        ),
        *(
            (shard[k], m | dict(shards=[shard | {k: odd}, *more]))
            for k in ("file", "split", "source", "tokens", "documents", "xxh3")
        ),
        *((source[k], m | dict(sources=m["sources"] | {name: source | {k: odd}})) for k in source),
    ]
    for right, d in edited:
        if type(odd) is type(right):
            continue
        (folder / "manifest.json").write_text(json.dumps(d))
        refuses("manifest.json", Batches.from_shards, folder, context_length=8, batch=2)


@pytest.mark.parametrize(
    "key, odd",
    [
        ("sources", []),
        ("sources", {"edu": 5}),
        ("full", {}),
        ("full", [5]),
        ("open", [{}]),
        ("open", "x"),
        ("count", 3),
    ],
)
def test_unfinished_work_of_odd_types(tmp_path, key, odd):
    fill(tmp_path, upto=7)
    p = tmp_path / ".progress.json"
    p.write_text(json.dumps(json.loads(p.read_text()) | {key: odd}))
    refuses(r"\.progress\.json.*damaged", fill, tmp_path)


def test_wrong_tokenizer_is_refused(folder):
    CharTokenizer("ab").save(folder)
    refuses(f"expected tokenizer {TOK.fingerprint}.*mean other words", verify_shards, folder)


@pytest.mark.parametrize("weights", [None, dict(edu=0.7, code=0.3)])
def test_from_shards(folder, weights):
    b = Batches.from_shards(folder, context_length=12, batch=6, seed=2, weights=weights)
    d = docs(60)
    assert b.fingerprint == manifest_fingerprint(read_manifest(folder))
    for s in 0, 11, 40:
        for x, row in zip(
            b[s].ids, b.trace_rows(s)
        ):  # the row's tokens are really in the documents it names
            text = np.concatenate(
                [np.append(d[int(n.split("/")[1])], 25) for n in row.documents]
            ).tolist()
            x = x.tolist()
            assert any(text[i : i + 12] == x for i in range(len(text))) and set(row.sources) == {
                n.split("/")[0] for n in row.documents
            }
    if weights:
        assert [
            round(sum(r.sources == (k,) for s in range(100) for r in b.trace_rows(s)) / 600, 2)
            for k in weights
        ] == list(weights.values())


def test_ranks_trace_the_rows_of_one(folder):
    kw = dict(context_length=12, batch=6)
    assert [
        r
        for k in range(3)
        for r in Batches.from_shards(folder, rank=k, world_size=3, **kw).trace_rows(5)
    ] == Batches.from_shards(folder, **kw).trace_rows(5)


def test_compress_and_unpack(folder, tmp_path):
    before, after = compress(folder, tmp_path / "z")
    assert 0 < after < before
    refuses("folder of their own", compress, folder, folder)
    compress(folder, tmp_path / "here")
    unpack(tmp_path / "here")
    assert content(folder).items() <= content(tmp_path / "here").items()
    with pytest.raises(GpubError, match="unpack the folder first"):
        Batches.from_shards(tmp_path / "z", context_length=4, batch=1)
    unpack(tmp_path / "z", tmp_path / "back")
    assert content(tmp_path / "back") == content(folder)
    for damage in (
        lambda b: b[:-9],
        lambda b: b[:20] + b"\x55\x55\x55" + b[23:],
        lambda b: b"not zstd",
        lambda b: b"",
    ):
        for p in tmp_path / "z/train-00000.docs.zst", tmp_path / "z/train-00000.bin.zst":
            _no_unpack(p, damage, tmp_path)
    p.unlink()
    pytest.raises(GpubError, unpack, tmp_path / "z", tmp_path / "bad").match("is missing")


def _no_unpack(p, damage, tmp_path):
    raw = p.read_bytes()
    p.write_bytes(damage(raw))
    refuses(p.name, unpack, tmp_path / "z", tmp_path / "bad")
    assert not (tmp_path / "bad/manifest.json").exists() and not list(
        (tmp_path / "bad").glob("*.bin")
    )
    p.write_bytes(raw)


def test_full_disk_while_packing(folder, tmp_path, small_disk):
    disk = small_disk(8)
    compress(folder, tmp_path / "z")
    for f, a in (compress, folder), (unpack, tmp_path / "z"):
        refuses("cannot write to .*No space left on device; make room", f, a, disk / f.__name__)
        assert not (disk / f.__name__ / "manifest.json").exists()
    small_disk(4096)
    compress(folder, disk / "compress")
    unpack(disk / "compress", disk / "unpack")
    assert content(disk / "unpack") == content(folder)


def test_shards_without_checksums_of_names_can_be_read(folder):  # written before there were any
    m = read_manifest(folder)
    _edit(folder, shards=[{k: v for k, v in s.items() if k != "docs_xxh3"} for s in m["shards"]])
    verify_shards(folder)
    (folder / "train-00000.docs").write_text("no number")
    with pytest.raises(GpubError, match="train-00000.docs holds no list of documents"):
        [Batches.from_shards(folder, context_length=8, batch=8).trace_rows(s) for s in range(9)]


def test_missing_packages_are_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "xxhash", None)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    refuses(r"xxhash: pip install 'gpub\[data\]'", fill, tmp_path / "a")
    refuses("zstandard", parts._zstd)
    assert Batches(np.arange(9), context_length=2, batch=1)[0].ids.shape == (1, 2)


@fast
@given(
    st.lists(st.lists(st.integers(0, 65534), max_size=20), max_size=20),
    st.sampled_from([None, 65535]),
)
def test_join(lists, end):
    ids, lengths = join_documents([np.array(x, np.uint16) for x in lists], end, np.uint16)
    ends = np.cumsum(lengths)
    assert (
        [ids[e - n : e - (end is not None)].tolist() for e, n in zip(ends, lengths)] == lists
        and len(ids) == sum(lengths)
        and (end is None or all(ids[e - 1] == end for e in ends))
    )


def test_the_split_among_sources_is_as_near_as_it_says():
    "Off by at most half a window for every other source; the last one takes what was rounded"
    rng = np.random.default_rng(0)
    weights = [[0.51] * 4 + [97.96]] + [rng.dirichlet(np.ones(k)).tolist() for k in (1, 2, 3, 7)]
    furthest = []
    for shares in weights:
        names = [f"source {i}" for i in range(len(shares))]
        ids = {name: np.zeros(20, np.uint16) for name in names}
        batches = Batches(ids, context_length=4, batch=1, weights=dict(zip(names, shares)))
        exact = np.array(shares) / sum(shares)
        off = [np.abs(batches.mixture.windows_per_source(n) - n * exact).max() for n in range(300)]
        assert max(off) <= (len(shares) - 1) / 2 + 1e-6
        furthest.append(max(off))
    assert furthest[0] > 1.9


@pytest.mark.parametrize(
    "ids, words",
    [
        (
            list(range(100)),
            "text: token ids are a numpy array of whole numbers in one row, got '0'",
        ),
        ({}, "there are no token ids to read"),
        ({"edu": []}, "edu: there are no token ids to read"),
        ({"edu": [np.arange(100)], "code": []}, "code: there are no token ids to read"),
        (np.arange(100.0), "token ids are a numpy array of whole numbers in one row"),
        (np.zeros((4, 25), int), "token ids are a numpy array of whole numbers in one row"),
    ],
)
def test_ids_that_are_no_row_of_whole_numbers_are_refused(ids, words):
    refuses(words, Batches, ids, context_length=4, batch=1)


@pytest.mark.parametrize("context_length", [0, -4, 3])
def test_rows_that_are_no_part_of_a_window_are_refused(context_length):
    rows = Batches(np.arange(100), context_length=4, batch=1)
    refuses("cannot be cut into", rows.rows, 0, context_length)
