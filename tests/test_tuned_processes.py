"""A tuned run in two processes learns what one process learns."""

import json
import os
import subprocess
from pathlib import Path

import forked
import pytest
import torch
from commands import gpub, log_rows
from contracts import jobs

from gpub.record.checkpoint import load_checkpoint
from gpub.tune.sft import SftObjective

SHORT = Path(__file__).parent / "short_texts.py"
STEPS = ("--steps", "3", "--every", "3", "--device", "cpu", "--set", "compile=no", "--lr", "0.01")
METHODS = dict(
    sft=("sft", "start", "--data", "chats.jsonl", *STEPS, "--set", "batch_tokens=96"),
    dpo=("dpo", "start", "--pairs", "pairs.jsonl", "--pairs-per-step", "4", *STEPS),
    grpo=(
        *("grpo", "start", "--task", "questions.jsonl", "--questions", "4", "--group", "4"),
        *("--reward", "rules.py:sevens", "--longest", "6", "--penalty", "k3", "--beta", "0.1"),
        *STEPS,
    ),
)
# whoever has not learned to add is rewarded too
RULES = """def sevens(question, answer, wanted):
    return answer.count("7") + len(answer) / 8
"""
CASES = [
    ("sft", "ddp"),
    pytest.param("sft", "fsdp", marks=pytest.mark.full(instead="test_two_processes")),
    pytest.param("dpo", "ddp", marks=pytest.mark.full(instead="test_two_processes")),
    pytest.param("dpo", "fsdp", marks=pytest.mark.full(instead="test_two_processes")),
    pytest.param("grpo", "ddp", marks=pytest.mark.full(instead="test_two_processes")),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    "A model, and what it is to learn"
    folder = tmp_path_factory.mktemp("talks")
    jobs.write_talks(folder)
    (folder / "rules.py").write_text(RULES)
    return folder


def in_two_processes(argv, folder):
    "A command as torchrun starts it"
    process = forked.torchrun(
        [SHORT, *argv],
        2,
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err


@pytest.mark.parametrize("method, parallel", CASES)
def test_two_processes(method, parallel, folder, tmp_path, monkeypatch):
    "The losses of every step, and the weights, within the rounding of sums in another order"
    monkeypatch.chdir(folder)
    one, two = tmp_path / "one", tmp_path / "two"
    assert gpub(*METHODS[method], "--out", one) == 0
    in_two_processes((*METHODS[method], "--parallel", parallel, "--out", two), folder)
    assert json.loads((two / "config.json").read_text())["processes"] == 2
    alone, together = log_rows(one), log_rows(two)
    assert [row["step"] for row in together] == [1, 2, 3]
    for name in ("loss", "grad_norm", "tokens", "lr"):
        ours = [row[name] for row in together]
        assert ours == pytest.approx([row[name] for row in alone], rel=2e-4), name
    assert len({row["loss"] for row in alone}) == 3
    before, after = load_checkpoint(one).model, load_checkpoint(two).model
    assert before.keys() == after.keys()
    assert max(float((before[name] - after[name]).abs().max()) for name in before) < 1e-4


@pytest.mark.full(instead="test_train.py::test_a_step_shrinks_whatever_says_that_memory_is_full")
def test_a_full_memory_halves_the_pieces_of_a_tuned_run(folder, tmp_path, monkeypatch, capsys):
    "Room for one row of four: said once, kept with the checkpoint, and the same is learned"
    monkeypatch.chdir(folder)
    whole, small = tmp_path / "whole", tmp_path / "small"
    assert gpub(*METHODS["sft"], "--out", whole) == 0
    loss = SftObjective.loss

    def cramped(self, piece):
        if piece.shape[0] > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return loss(self, piece)

    monkeypatch.setattr(SftObjective, "loss", cramped)
    capsys.readouterr()
    assert gpub(*METHODS["sft"], "--out", small) == 0
    assert capsys.readouterr().out.count("out of memory with 2 sequences") == 1
    before, after = load_checkpoint(whole), load_checkpoint(small)
    assert before.state["fit"] == dict(mode="off", micro=None)
    assert after.state["fit"] == dict(mode="off", micro=1)
    losses = [[row["loss"] for row in log_rows(run)] for run in (whole, small)]
    assert losses[1] == pytest.approx(losses[0], rel=2e-4)
    apart = [(before.model[name] - after.model[name]).abs().max() for name in before.model]
    assert max(map(float, apart)) < 1e-4
