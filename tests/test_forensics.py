"""What a run read is found again, and what a text copies, against the training and against plain
search."""

import io, json
import numpy as np
import pytest
import torch
from gpub.core import GpubError
from gpub.data.corpus import shard_corpus
from gpub.data.shards import ShardWriter
from gpub.data.tokenizer import BPETokenizer
from gpub.forensics import copies
from gpub.forensics.copies import copied_passages, copy_report, find_passages
from gpub.forensics.reading import open_rows, read_step
from gpub.progress import Progress
from gpub.train.trainer import Trainer

SMALL = dict(context_length=32, d_model=16, n_layers=1, n_heads=1, batch_tokens=128, steps=8)
KINDS = {
    "plain": {},
    "short rows first": dict(stages=((0.0, 16), (0.5, 32))),
    "lengths that do not divide": dict(stages=((0.0, 16), (0.5, 24)), batch_tokens=96),
    "weights": dict(weights=dict(notes=0.75, sums=0.25)),
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    "Two sources whose documents say which they are"
    folder = tmp_path_factory.mktemp("forensics") / "shards"
    texts = {
        "notes": [f"This is notes {i}. It says so: notes {i}, and no other." for i in range(60)],
        "sums": [f"The sums {i}: {i} + {i} = {2 * i}; sums {i} again." for i in range(40)],
    }
    tok = BPETokenizer.train([text for part in texts.values() for text in part], 320)
    writer = ShardWriter(folder, tok)
    for source, part in texts.items():
        for split, some in (("train", part[5:]), ("val", part[:5])):
            names = [" ".join(text.replace(".", ":").split(":")[0].split()[-2:]) for text in some]
            sizes = [len(text) for text in some]
            writer.add(source, tok.encode_batch(some), names, sizes, split)
    writer.close()
    return folder


def listened(trainer):
    "What a run was given at each step, from 1"
    given, fetch = {}, trainer.batches

    def listen(step, length):
        x, y = fetch(step, length)
        given[step + 1] = torch.cat([x, y[:, -1:]], 1)
        return x, y

    trainer.batches = listen
    return given


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_what_the_training_read(shards, tmp_path, kind):
    quiet = dict(device="cpu", log=lambda text: None, progress=Progress(8, out=io.StringIO()))
    trainer = Trainer("shakespeare", tmp_path / "run", shards, SMALL | KINDS[kind], **quiet)
    given = listened(trainer)
    trainer.go()
    assert sorted(given) == list(range(1, 9))
    for step, rows in given.items():
        found = read_step(tmp_path / "run", step)
        assert torch.equal(found.rows, rows)
        for window in found.windows:
            for name in window.documents[1:-1]:  # whole ones
                assert name in window.text
    assert not torch.equal(given[1], given[8])


def test_what_cannot_be_read_again_is_refused(shards, tmp_path):
    quiet = dict(device="cpu", log=lambda text: None, progress=Progress(8, out=io.StringIO()))
    Trainer("shakespeare", tmp_path / "run", shards, SMALL | dict(steps=1), **quiet).go()
    path = tmp_path / "run/config.json"
    config = json.loads(path.read_text())
    for wrong in (0, 2):
        with pytest.raises(GpubError, match=f"has steps 1 to 1, not {wrong}"):
            read_step(tmp_path / "run", wrong)
    path.write_text(json.dumps(config | dict(data=config["data"] | dict(tokens="other"))))
    with pytest.raises(GpubError, match="it is other data, or was prepared again"):
        open_rows(tmp_path / "run")
    path.write_text(json.dumps(config | dict(preset="sft")))
    with pytest.raises(GpubError, match="not trained on a corpus"):
        open_rows(tmp_path / "run")


def plain_passages(text, corpus, least):
    "The same by looking at every pair of places"
    found = []
    for there in range(len(corpus)):
        for here in range(len(text)):
            n = 0
            while (
                there + n < len(corpus)
                and here + n < len(text)
                and corpus[there + n] == text[here + n]
            ):
                n += 1
            before = there and here and corpus[there - 1] == text[here - 1]
            if n >= least and not before:
                found.append([there, here, n])
    return sorted(found)


@pytest.mark.parametrize("letters, least", [(2, 5), (3, 1), (4, 2), (50_000, 2)])
def test_passages_are_those_of_plain_search(monkeypatch, letters, least):
    "Also where a passage lies across the border of two pieces, and with ids of two bytes"
    monkeypatch.setattr(copies, "PIECE_TOKENS", 16)
    dice = np.random.default_rng(letters)
    corpus = dice.integers(0, letters, 150).astype(np.uint16)
    text = np.concatenate([corpus[40:75], dice.integers(0, letters, 20).astype(np.uint16)])
    found = sorted(find_passages(text, corpus, least).tolist())
    assert found == plain_passages(text.tolist(), corpus.tolist(), least)
    assert any(length >= 35 for _, _, length in found)


def test_hashes_that_agree_by_chance_are_no_passages(monkeypatch):
    monkeypatch.setattr(copies, "run_hashes", lambda ids, n: np.zeros(len(ids) - n + 1, np.uint64))
    assert find_passages(np.arange(9), np.arange(100, 160), 3).tolist() == []
    assert find_passages(np.arange(3, 9), np.arange(10), 3).tolist() == [[3, 0, 6]]


def test_runs_that_are_everywhere_are_not_followed(monkeypatch):
    monkeypatch.setattr(copies, "COMMON", 20)
    spaces = np.full(60, 7)
    assert find_passages(spaces[:10], spaces, 4).tolist() == []
    rare = np.concatenate([spaces, [1, 2, 3, 4], spaces])
    assert find_passages(np.array([1, 2, 3, 4]), rare, 4).tolist() == [[60, 0, 4]]


def test_a_passage_knows_its_document(shards):
    corpus = shard_corpus(shards, 32)
    text = "Nobody wrote 17 and so: notes 33, and no other. Then The sums 12: 12 + 12 = 24; sums"
    passages = copied_passages(corpus.tok.encode(text), corpus, 8)
    assert [p.document for p in passages][-1] == "sums 12"
    assert "notes 33" in {p.document for p in passages}
    report = copy_report(text, corpus, 8, controls=2)
    assert 0 < report.share <= 1 and len(report.table(corpus.tok).rows) == len(report.passages)
