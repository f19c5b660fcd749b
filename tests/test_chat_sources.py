"""Chats from Parquet, packed JSON lines and the Hub are those of a JSON file with the same rows."""

import gzip
import io
import json
import os
from pathlib import Path
from types import SimpleNamespace

import forked
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contracts import refuses
from stand_in_hub import Hub

from gpub.chat.conversations import MalformedCounts, read_conversations
from gpub.data.bpe import BPETokenizer
from gpub.tune.sets import open_chats, open_pairs, open_records
from gpub.tune.start import TuneStart

ROWS = [
    dict(
        prompt=f"{n}?",
        messages=[
            dict(role="user", content=f"{n}?"),
            dict(role="assistant", content=f"{n}!", name=None),
        ],
        chosen=[dict(role="user", content=f"{n}?"), dict(role="assistant", content=f"{n}!")],
        rejected=[dict(role="user", content=f"{n}?"), dict(role="assistant", content="No.")],
        score=float(n),
    )
    for n in range(120)
]


def parquet(rows):
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


def packed(text, ending):
    return gzip.compress(text) if ending == "gz" else pa.compress(text, "zstd", asbytes=True)


@pytest.fixture
def files(tmp_path):
    "The same rows in each kind of file"
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(packed(lines, "gz"))
    (tmp_path / "c.jsonl.zst").write_bytes(packed(lines, "zst"))
    (tmp_path / "d.parquet").write_bytes(parquet(ROWS))
    return sorted(tmp_path.iterdir())


def test_each_kind_of_file_says_the_same(files):
    tok = BPETokenizer.train(["0123456789?! No."], vocab_size=270)
    model = SimpleNamespace(cfg=SimpleNamespace(context_length=64))
    start = TuneStart(model, tok, {}, Path("base"))
    opened = []
    for file in files:
        chats = open_chats(str(file), start, log=lambda line: None)
        pairs = open_pairs(str(file), start, log=lambda line: None)
        assert chats.facts["source"] == str(file) and len(chats.facts["sha256"]) == 64
        ids = [[c.ids.tolist() for c in part] for part in (chats.train, chats.val)]
        opened.append((ids, [[p.rejected.ids.tolist() for p in pairs.train]]))
    assert len(opened) == 4 and all(one == opened[0] for one in opened)
    assert sum(map(len, opened[0][0])) == len(ROWS)


def test_files_that_hold_no_chats_are_one_line(tmp_path):
    def read(name, content):
        (tmp_path / name).write_bytes(content)
        return list(read_conversations(open_records(str(tmp_path / name)).records, name))

    refuses("a.parquet: not a readable Parquet file", read, "a.parquet", b"PAR1 no")
    refuses("a.jsonl.gz: cannot be read past byte 0", read, "a.jsonl.gz", b"no")
    refuses(
        "b.jsonl.gz, record 2 is no JSON",
        read,
        "b.jsonl.gz",
        packed(b'{"question": "a", "answer": "b"}\n{\n', "gz"),
    )
    refuses("a.txt.gz is no file of chats: give .jsonl", read, "a.txt.gz", packed(b"a", "gz"))
    refuses("cannot be read .no such file", open_records, str(tmp_path / "none.parquet"))
    refuses("is a URL", open_records, "s3://bucket/a.parquet")
    malformed = MalformedCounts(0.5)
    (tmp_path / "c.parquet").write_bytes(parquet([*ROWS[:1], dict(prompt="x", messages=[])]))
    records = open_records(str(tmp_path / "c.parquet")).records
    assert len(list(read_conversations(records, "c", malformed))) == 1
    assert malformed.text("c") == "1 no turns"


CARD = b"""---
configs:
- config_name: default
  data_files:
  - split: train_prefs
    path: data/train_prefs-*
---
"""
COMMIT = "a" * 40
PROGRAM = """
import sys
sys.path.insert(0, {root!r})
from gpub.core import GpubError
from gpub.chat.conversations import read_preferences
from gpub.tune.sets import open_records
assert not {{"pyarrow", "datasets"}} & {{*sys.modules}}
opened = open_records("hf:some/set#train_prefs")
pairs = list(read_preferences(opened.records, opened.name))
print(opened.facts(), len(pairs), pairs[7].prompt[0].content, pairs[7].rejected)
for name in ("hf:some/set", "hf:some/other"):
    try:
        list(read_preferences(open_records(name).records, name))
    except GpubError as e:
        print(e)
"""


def test_a_dataset_of_the_hub_by_its_name(tmp_path, root):
    "Its commit is kept; a split or a name that is not there is one line that says how to give it"
    hub = Hub({COMMIT: {"README.md": CARD, "data/train_prefs-0.parquet": parquet(ROWS)}})
    around = os.environ | dict(HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="0", HF_HOME=str(tmp_path))
    around.pop("GPUB_HUB", None)
    try:
        said = forked.run(
            ["-c", PROGRAM.format(root=str(root))], capture_output=True, text=True, env=around
        )
    finally:
        hub.shutdown()
    assert said.returncode == 0, said.stderr[-2000:]
    pairs, split, name = said.stdout.splitlines()
    facts = dict(source="hf:some/set#train_prefs", revision=COMMIT)
    assert pairs == f"{facts} 120 7? No."
    assert "train_prefs" in split and "the split (hf:some/set#SPLIT)" in split
    assert "some/other" in name and "check the name" in name
