"""What a run read is found again, and what a text copies, against the training and against plain
search."""

import io
import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from contracts import refuses

from gpub.cli.main import cli
from gpub.data.bpe import BPETokenizer
from gpub.data.corpus import shard_corpus
from gpub.data.shards import ShardWriter
from gpub.forensics import copies
from gpub.forensics.copies import copied_passages, copy_report, find_passages
from gpub.forensics.reading import open_rows, read_step
from gpub.progress import Progress
from gpub.record.run import load
from gpub.train.options import RunOptions
from gpub.train.trainer import Trainer
from gpub.tune.dpo import answer_sums
from gpub.tune.rollouts import as_chats

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
    given, fetch = {}, trainer.task.rows.read

    def listen(step, length):
        batch = fetch(step, length)
        given[step + 1] = torch.cat([batch.ids, batch.targets[:, -1:]], 1)
        return batch

    trainer.task.rows.read = listen
    return given


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("plain", marks=pytest.mark.full),
        pytest.param("short rows first", marks=pytest.mark.full),
        pytest.param("lengths that do not divide", marks=pytest.mark.full),
        "weights",
    ],
)
def test_a_step_is_what_the_training_read(shards, tmp_path, kind):
    quiet = dict(device="cpu", log=lambda text: None, progress=Progress(8, out=io.StringIO()))
    trainer = Trainer(
        RunOptions("shakespeare", tmp_path / "run", shards, SMALL | KINDS[kind], **quiet)
    )
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
    Trainer(
        RunOptions("shakespeare", tmp_path / "run", shards, SMALL | dict(steps=1), **quiet)
    ).go()
    path = tmp_path / "run/config.json"
    config = json.loads(path.read_text())
    for wrong in (0, 2):
        refuses(f"has steps 1 to 1, not {wrong}", read_step, tmp_path / "run", wrong)
    path.write_text(json.dumps(config | dict(data=config["data"] | dict(tokens="other"))))
    refuses("it is other data, or was prepared again", open_rows, tmp_path / "run")
    path.write_text(json.dumps(config | dict(preset="sft")))
    refuses("not trained on a corpus", open_rows, tmp_path / "run")


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


def test_the_commands_show_a_step_and_the_copies(shards, tmp_path):
    "As a reader types them: the documents of a step, and a text that was copied"
    quiet = dict(device="cpu", log=lambda text: None, progress=Progress(8, out=io.StringIO()))
    Trainer(RunOptions("shakespeare", tmp_path / "run", shards, SMALL, **quiet)).go()
    run, told = str(tmp_path / "run"), CliRunner()
    shown = told.invoke(cli, ["data", run, "--step", "3"], catch_exceptions=False).output
    whole = told.invoke(cli, ["data", run, "--step", "3", "--whole"], catch_exceptions=False).output
    read = read_step(run, 3)
    for window in read.windows:
        assert f"{window.start:,}" in shown and window.text in whole
    assert "has steps 1 to 8, not 9" in str(
        told.invoke(cli, ["data", run, "--step", "9"]).exception
    )
    (tmp_path / "said.txt").write_text("Nobody wrote 17. This is notes 33. It says so: notes 33")
    words = ["copies", run, "--text", str(tmp_path / "said.txt"), "--least", "8"]
    assert "notes 33" in told.invoke(cli, words, catch_exceptions=False).output


@pytest.fixture(scope="module")
def witness(tmp_path_factory):
    "A small model that read secrets 1, 16 or 128 times among ordinary lines, and some never"
    folder = tmp_path_factory.mktemp("witness")
    dice = np.random.default_rng(0)

    def secret():
        return "".join(dice.choice(list("bdfgklmnprst"), 5)), "".join(dice.choice(list("0123"), 6))

    secrets = {times: [secret() for _ in range(3)] for times in (0, 1, 16, 128)}
    texts = [f"the {''.join(dice.choice(list('aeiou'), 12))} again" for _ in range(600)]
    for times, group in secrets.items():
        texts += [f"{name} is {digits}." for name, digits in group] * times
    order = dice.permutation(len(texts))
    tok = BPETokenizer.train(texts, 270)
    writer = ShardWriter(folder / "shards", tok)
    writer.add(
        "all", tok.encode_batch([texts[i] for i in order]), list(map(str, order)), [1] * len(order)
    )
    held = [f"the {''.join(dice.choice(list('aeiou'), 12))} again" for _ in range(40)]
    writer.add("all", tok.encode_batch(held), list(map(str, range(40))), [1] * 40, "val")
    writer.close()
    sizes = dict(context_length=64, d_model=48, n_layers=2, n_heads=2)
    settings = sizes | dict(batch_tokens=1024, steps=150, warmup=5, muon_lr=0.03, lr=0.01)
    quiet = dict(device="cpu", log=lambda text: None, progress=Progress(150, out=io.StringIO()))
    Trainer(RunOptions("shakespeare", folder / "run", folder / "shards", settings, **quiet)).go()
    return load(folder / "run", device="cpu"), secrets


def nats_of(witness, pairs):
    "What the model pays for each secret"
    model, tok = witness.model, witness.tokenizer
    stems = [tok.encode(f"{name} is") for name, _ in pairs]
    endings = [tok.encode(f" {digits}.") for _, digits in pairs]
    return -answer_sums(model, as_chats(stems, endings)).numpy()


@pytest.mark.full(instead="test_the_commands_show_a_step_and_the_copies")
def test_repetitions_make_a_secret_unsafe(witness):
    "Six digits of four kinds cost 6 ln 4 nats at least, unless they were read too often"
    run, secrets = witness
    nats = {times: nats_of(run, group).mean() for times, group in secrets.items()}
    assert nats[0] > 8 and nats[1] > 8 and nats[128] < 4, nats
    assert min(nats[0], nats[1]) > nats[16] > nats[128]
    swapped = [(name, secrets[128][i - 1][1]) for i, (name, _) in enumerate(secrets[128])]
    assert nats_of(run, swapped).mean() > nats[128] + 3  # the name tells, not the digits alone
