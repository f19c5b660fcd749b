"The index beside a shard, and borders that a document mask has from it"

import json
import shutil
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from gpub.core import GpubError
from gpub.data.batches import Batches
from gpub.data.borders import BORDER, borders_at_ends, has_border, without_borders
from gpub.data.document_index import INDEX_HEAD, index_bytes, open_index
from gpub.data.shards import open_documents, read_docs, read_manifest, verify_shards
from gpub.data.transfer import compress, copy_shards, unpack
from gpub.guards.verify import verify_folder_of_shards
from gpub.train.trainer import Trainer

quick = settings(max_examples=60, deadline=None, database=None)


@pytest.fixture
def folder(two_sources, tmp_path):
    return shutil.copytree(two_sources, tmp_path / "shards")


def without_indexes(folder):
    "The folder as it was written before there were any"
    manifest = read_manifest(folder)
    for shard in manifest["shards"]:
        del shard["index_xxh3"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    for path in folder.glob("*.idx"):
        path.unlink()


@quick
@given(lengths=st.lists(st.integers(0, 2**40), max_size=20))
def test_what_is_written_is_read(lengths, tmp_path_factory):
    path = tmp_path_factory.mktemp("idx") / "train-00000.idx"
    path.write_bytes(index_bytes(np.array(lengths, np.int64)))
    ends = open_index(path, len(lengths), sum(lengths))
    assert ends.tolist() == np.cumsum(lengths, dtype=np.int64).tolist()
    assert path.stat().st_size == INDEX_HEAD + 8 * len(lengths)


def test_every_shard_has_one_with_its_checksum(two_sources):
    manifest = read_manifest(two_sources)
    assert len(manifest["shards"]) > 6
    for shard in manifest["shards"]:
        ends = open_documents(two_sources, shard)
        sizes, _ = read_docs(two_sources / shard["file"].replace(".bin", ".docs"))
        ids = np.fromfile(two_sources / shard["file"], manifest["dtype"])
        assert ends.tolist() == np.cumsum(sizes).tolist()
        assert (ids[ends - 1] == manifest["end"]).all() and len(ends) == shard["documents"]
        assert len(shard["index_xxh3"]) == 16


DAMAGE = {
    "missing": lambda path: path.unlink(),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-8]),
    "another kind": lambda path: path.write_bytes(b"x" * path.stat().st_size),
    "another version": lambda path: path.write_bytes(
        path.read_bytes()[:8] + b"\2" + path.read_bytes()[9:]
    ),
    "one bit": lambda path: path.write_bytes(
        path.read_bytes()[:-6] + bytes([path.read_bytes()[-6] ^ 1]) + path.read_bytes()[-5:]
    ),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_one_is_one_line(folder, how):
    DAMAGE[how](folder / "train-00001.idx")
    with pytest.raises(GpubError, match="train-00001.idx") as error:
        verify_shards(folder)
    assert "\n" not in str(error.value)
    parts = verify_folder_of_shards(folder)
    assert [p for p in parts if not p.whole and "train-00001" in p.what]


@pytest.mark.parametrize("mode", ["mmap", "ram", "device"])
@pytest.mark.parametrize("weights", [None, dict(edu=0.6, math=0.4)])
def test_borders_are_those_that_a_search_finds(two_sources, mode, weights):
    how = dict(context_length=32, batch=8, seed=5, weights=weights, mode=mode)
    plain = Batches.from_shards(two_sources, **how)
    marked = Batches.from_shards(two_sources, borders=True, **how)
    end = read_manifest(two_sources)["end"]
    assert marked.borders and marked.fingerprint == plain.fingerprint
    for step in (0, 1, 17, 400):
        ids = plain.tokens(step)
        assert not has_border(ids).any()
        assert torch.equal(marked.tokens(step), borders_at_ends(ids, end))
        assert torch.equal(without_borders(marked.tokens(step)), ids)
    read = marked.read(256, 256, 16)
    assert torch.equal(read, borders_at_ends(plain.read(256, 256, 16), end))


def test_the_index_is_what_counts_not_the_ids(folder):
    "An end token inside of a document is no border, where there is an index"
    manifest = read_manifest(folder)
    shard = next(s for s in manifest["shards"] if s["split"] == "train")
    ids = np.fromfile(folder / shard["file"], manifest["dtype"])
    inside = np.setdiff1d(np.arange(len(ids)), open_documents(folder, shard) - 1)
    ids[inside[:50]] = manifest["end"]
    ids.tofile(folder / shard["file"])
    how = dict(context_length=32, batch=8, seed=5, full=False, borders=True)
    marked = torch.cat([Batches.from_shards(folder, **how).tokens(s) for s in range(20)])
    ends = without_borders(marked) == manifest["end"]
    assert (ends & ~has_border(marked)).any() and not (has_border(marked) & ~ends).any()


def test_shards_without_indexes_are_read_as_before(folder, two_sources):
    without_indexes(folder)
    verify_shards(folder)
    how = dict(context_length=32, batch=8, seed=5, borders=True)
    old, new = Batches.from_shards(folder, **how), Batches.from_shards(two_sources, **how)
    assert not old.borders and old.fingerprint == new.fingerprint
    for step in (0, 3, 99):
        assert torch.equal(old.tokens(step), new.tokens(step))


def test_they_travel_with_the_shards(folder, tmp_path):
    compress(folder, tmp_path / "packed")
    unpack(tmp_path / "packed", tmp_path / "unpacked")
    copy_shards(folder, tmp_path / "copied", log=lambda line: None)
    for place in ("unpacked", "copied"):
        for path in folder.glob("*.idx"):
            assert (tmp_path / place / path.name).read_bytes() == path.read_bytes()
        assert len([*(tmp_path / place).glob("*.idx")]) == len(read_manifest(folder)["shards"])


def test_targets_that_are_not_asked_for_stay():
    ids = torch.tensor([-100, 0, 7 + BORDER])
    assert without_borders(ids).tolist() == [-100, 0, 7]


SETTINGS = dict(
    steps=8,
    batch_tokens=128,
    d_model=16,
    n_layers=1,
    n_heads=2,
    context_length=32,
    log_every=2,
    precision="fp32",
    document_mask="true",
    compile="no",
)


def test_a_run_learns_the_same_with_and_without_indexes(folder, two_sources, tmp_path):
    without_indexes(folder)
    logs = []
    for name, data in (("new", two_sources), ("old", folder)):
        run = Trainer("shakespeare", tmp_path / name, data, SETTINGS, "cpu", log=lambda t: None)
        run.go()
        rows = map(json.loads, (tmp_path / name / "log.jsonl").read_text().splitlines())
        logs.append([(row["loss"], row.get("val_loss")) for row in rows])
        assert not has_border(run.rows.tokens(0, 32)).any()  # who asks for ids sees ids
        assert has_border(run.batches(0, 32)[0]).any()
    assert logs[0] == logs[1] and logs[0][-1][1]
