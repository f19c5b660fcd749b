"""Runs that begin with weights of others, by the command: the first loss tells whose weights they
are, an interruption changes nothing, and what does not go together is one line."""

import json
import shutil
import time

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from commands import log_rows, output_of

from gpub.cli.main import cli
from gpub.data.plays import plays
from gpub.record.checkpoint import load_checkpoint
from gpub.record.ledger import account, read_ledger
from gpub.record.run import load
from gpub.train.loop import evaluate

pytestmark = pytest.mark.usefixtures("short_texts")

SMALL = "context_length=32 d_model=32 n_layers=2 n_heads=2 batch_tokens=512 warmup=0 log_every=1"


def sets(text):
    return [word for pair in text.split() for word in ("--set", pair)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    "A finished run of 40 steps, a Llama of 2, and two texts"
    place = tmp_path_factory.mktemp("initial")
    for name, seed in (("a", 0), ("b", 1)):
        (place / f"{name}.txt").write_text(plays(40_000, seed))
    words = ["train", "shakespeare", "--data", place / "a.txt", "--out", place / "run", "--quiet"]
    output_of(*words, "--steps", 40, "--device", "cpu", *sets(SMALL))
    words = ["train", "burn-toy", "--data", place / "a.txt", "--out", place / "llama", "--quiet"]
    llama = f"{SMALL} n_layers=1 n_kv_heads=1 d_ff=48"
    output_of(*words, "--steps", 2, "--device", "cpu", *sets(llama))
    return place


def trained(place, out, *words, code=0):
    words = ["train", "--out", out, "--device", "cpu", *words]
    return output_of(*words, code=code)


def test_another_text_from_these_weights(place, tmp_path):
    "The first batch's loss is that of the run's weights, to the last digit that is logged"
    out = tmp_path / "tuned"
    words = ["--init", place / "run", "--data", place / "b.txt", "--steps", 6]
    said = trained(place, out, *words)
    assert f"begins with the weights of step 40 of {place / 'run'}" in said
    ours, config = load(place / "run"), json.loads((out / "config.json").read_text())
    assert config["init"]["step"] == 40 and config["train"]["muon_lr"] == 0.03
    assert "0 alarms" in output_of("doctor", out) and "begins with the weights" in said
    assert load(out).tokenizer.fingerprint == ours.tokenizer.fingerprint
    assert log_rows(out)[0]["step"] == 1 and len(log_rows(out)) == 6
    text = (place / "b.txt").read_text()
    ids = ours.tokenizer.encode(text[: int(0.9 * len(text))]).astype(np.int64)
    assert abs(log_rows(out)[0]["loss"] - evaluate(ours.model, ids, 32)) < 0.15


@pytest.mark.full(instead="test_killed_in_its_first_save_the_same_command_begins_again")
def test_interrupted_it_needs_its_source_no_more(place, tmp_path):
    "Resumed after the source is gone, it gives the rows of a run that was never interrupted"
    source = shutil.copytree(place / "run", tmp_path / "source")
    words = ["--init", source, "--data", place / "b.txt", "--steps", 12, "--save-every", 3]
    whole = trained(place, tmp_path / "whole", *words) and log_rows(tmp_path / "whole")
    trained(place, tmp_path / "cut", *words)
    shutil.rmtree(source)
    for kept in sorted((tmp_path / "cut/checkpoints").glob("step-*")):
        if int(kept.name[5:]) > 9:
            shutil.rmtree(kept)
    (tmp_path / "cut/LATEST").unlink(missing_ok=True)
    output_of("resume", tmp_path / "cut", "--device", "cpu")
    assert [(r["step"], r["loss"]) for r in log_rows(tmp_path / "cut")] == [
        (r["step"], r["loss"]) for r in whole
    ]
    words = ["--init", place / "run", "--data", place / "b.txt", "--steps", 12]
    said = trained(place, tmp_path / "cut", *words, code=1)
    assert "holds another run" in said and "init.source" in said
    said = output_of("train", "shakespeare", "--out", tmp_path / "cut", code=1)
    assert "began with the weights of" in said


def plant_killed_save(out, step):
    "What a kill during the first save leaves: a config, and a checkpoint that is none"
    shutil.rmtree(out / "checkpoints")
    (out / "LATEST").unlink()
    (out / "checkpoints" / f".tmp-step-{step:08d}").mkdir(parents=True)


@pytest.mark.parametrize(
    "how",
    [
        "--init",
        *(pytest.param(how, marks=pytest.mark.full) for how in ("--warm", "--extend", "grow")),
    ],
)
def test_killed_in_its_first_save_the_same_command_begins_again(place, tmp_path, how):
    "And ends as the run that nobody disturbed"
    out, source = tmp_path / "out", place / ("llama" if how == "grow" else "run")
    words = ["train", "--init", source, "--steps", 3, "--data", place / "a.txt"]
    if how == "--warm":
        words += ["--warm"]
    if how == "--extend":
        words = ["train", "--init", source, "--extend", 3]
    if how == "grow":
        words = ["grow", source, *sets("n_layers=2 steps=3")]
    words += ["--out", out, "--device", "cpu"]
    output_of(*words)
    whole = load(out, device="cpu")
    plant_killed_save(out, 3)
    if how == "--extend":  # its settings come after its first checkpoint
        (out / "config.json").unlink()
    output_of(*words)
    again = load(out, device="cpu")
    for a, b in zip(whole.model.parameters(), again.model.parameters()):
        assert torch.equal(a, b)
    assert [row["loss"] for row in again.log] == [row["loss"] for row in whole.log]


@pytest.mark.full(instead="test_another_text_from_these_weights")
def test_a_warm_optimizer_goes_on(place, tmp_path):
    "Same weights, same first loss, another second one; AdamW does not go on with Muon's memory"
    words = ["--init", place / "run", "--steps", 3, "--data", place / "a.txt"]
    trained(place, tmp_path / "fresh", *words)
    trained(place, tmp_path / "warm", *words, "--warm")
    fresh, warm = log_rows(tmp_path / "fresh"), log_rows(tmp_path / "warm")
    assert fresh[0]["loss"] == warm[0]["loss"] and fresh[1]["loss"] != warm[1]["loss"]
    words += ["--warm", "--set", "optimizer=adamw"]
    assert "goes on with an optimizer as it was: muon" in trained(
        place, tmp_path / "odd", *words, code=1
    )
    assert not (tmp_path / "odd").exists()


def test_a_branch_is_the_run_with_a_later_end(place, tmp_path):
    "The rows of the run, then rows as if it had been planned so long; the run stays as it is"
    before = {p: p.read_bytes() for p in (place / "run").rglob("*") if p.is_file()}
    out = tmp_path / "longer"
    output_of("train", "--init", place / "run", "--extend", 10, "--out", out, "--device", "cpu")
    assert {p: p.read_bytes() for p in (place / "run").rglob("*") if p.is_file()} == before
    old, new = log_rows(place / "run"), log_rows(out)
    assert new[:40] == old and [r["step"] for r in new[40:]] == [*range(41, 51)]
    assert new[40]["lr"] > old[-1]["lr"] and new[40]["tokens"] == 41 * 512
    configs = [json.loads((run / "config.json").read_text()) for run in (place / "run", out)]
    assert configs[0]["run_id"] != configs[1]["run_id"]
    assert configs[1]["branch"]["run_id"] == configs[0]["run_id"]
    first = load_checkpoint(out, 40)
    last = load_checkpoint(place / "run", 40)
    for name, t in (last.model | last.optimizer).items():
        assert torch.equal((first.model | first.optimizer)[name], t)
    assert "longer" in output_of("ls", tmp_path) and "finished" in output_of("ls", tmp_path)
    assert "$" in output_of("bill", out)
    assert "17 checks: 0 alarms" in output_of("doctor", out)


def test_no_block_that_has_learned_is_put_to_sleep(tmp_path):
    "A recipe whose blocks wake one after the other silences the sleepers: not those of --init"
    text = tmp_path / "a.txt"
    text.write_text(plays(40_000, 0))
    words = ["shakespeare-short", "--data", text, "--steps", 6]
    trained(None, tmp_path / "source", *words, *sets(f"{SMALL} n_layers=4 batch_tokens=64"))
    trained(None, tmp_path / "next", "--init", tmp_path / "source", "--data", text, "--steps", 1)
    for run in ("source", "next"):
        weights = load_checkpoint(tmp_path / run, optimizer=False).model
        assert all(weights[f"blocks.{i}.attn.proj.weight"].any() for i in range(4)), run


@pytest.mark.parametrize(
    "words, code, says",
    [
        (["--extend", 5], 2, "--extend needs --init RUN"),
        (["--init", "RUN", "--extend", 5, "--steps", 9], 2, "leave steps out"),
        (["--init", "RUN", "--data", "TEXT", "--set", "n_layers=3"], 1, "n_layers is 2, not 3"),
        (
            ["--init", "RUN", "--data", "TEXT", "--set", "context_length=64"],
            1,
            "a vector for each of its 32",
        ),
        (["--init", "RUN", "--data", "TEXT", "--set", "depths=[[0,1]]"], 1, "leave depths out"),
        (["shakespeare", "--warm"], 1, "need --init RUN"),
        (["--init", "/nowhere/at/all"], 1, "there is no folder"),
    ],
)
def test_what_does_not_go_together(place, tmp_path, words, code, says):
    named = dict(RUN=place / "run", TEXT=place / "b.txt")
    words = [named.get(word, word) for word in words]
    said = output_of("train", *words, "--out", tmp_path / "odd", code=code)
    assert says in said and not (tmp_path / "odd/config.json").exists()


def test_a_stopped_run_is_resumed_not_extended(place, tmp_path):
    run = shutil.copytree(place / "run", tmp_path / "run")
    shutil.rmtree(run / "checkpoints/step-00000040")
    said = output_of("train", "--init", run, "--extend", 5, code=1)
    assert f"let it finish first, with gpub resume {run}" in said


@pytest.mark.parametrize(
    "method",
    ["resume", "sft", *(pytest.param(name, marks=pytest.mark.full) for name in ("train", "grow"))],
)
def test_a_bill_counts_from_the_beginning_of_the_command(place, tmp_path, method):
    "As `main` hands it in: an hour ago; a command inside another program counts its own time"
    out, source = tmp_path / "out", place / "llama"
    words = ["train", "burn-toy", "--data", place / "a.txt", "--steps", 1, "--out", out]
    words += sets(SMALL.replace("n_layers=2", "n_layers=1 n_kv_heads=1 d_ff=48"))
    if method == "resume":
        shutil.copytree(source, out)
        words = ["resume", out]
    if method == "grow":
        words = ["grow", source, *sets("n_layers=2 steps=1"), "--out", out]
    if method == "sft":
        (tmp_path / "talk.jsonl").write_text('{"question": "a", "answer": "b"}\n' * 3)
        words = ["sft", source, "--data", tmp_path / "talk.jsonl", "--steps", 1, "--out", out]
    hour_ago = time.perf_counter() - 3600
    words = [str(word) for word in [*words, "--device", "cpu"]]
    done = CliRunner().invoke(cli, words, obj=hour_ago)
    assert done.exit_code == 0, (done.output, done.exception)
    spans = account(read_ledger(out))
    setup = sum(span.seconds for span in spans if span.kind == "setup")
    assert 3600 < setup < 4000
