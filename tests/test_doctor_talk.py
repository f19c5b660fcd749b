"""The doctor of runs that learn to talk: each failure is planted in a run and named, a healthy run
passes in silence."""

import json

import pytest
import torch

from gpub.data.batch import Batch
from gpub.data.char import CharTokenizer
from gpub.guards.doctor import doctor
from gpub.model.llama import Llama, LlamaConfig
from gpub.record.checkpoint import save_checkpoint
from gpub.train import learner
from gpub.tune import sft
from gpub.tune.dpo import DpoConfig
from gpub.tune.grpo import GrpoConfig
from gpub.tune.methods import DpoOptions, GrpoOptions, SftOptions
from gpub.tune.start import with_marks
from gpub.tune.steps import Tuner


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    "A fresh model, conversations with one answer to everything, and a model that learned them"
    folder = tmp_path_factory.mktemp("world")
    torch.manual_seed(0)
    tok = with_marks(CharTokenizer("0123456789yesno!"))[0]
    cfg = LlamaConfig(
        vocab_size=tok.vocab_size,
        context_length=16,
        d_model=32,
        n_layers=1,
        n_heads=2,
        n_kv_heads=1,
        d_ff=32,
    )
    base = folder / "base"
    tok.save(base)
    save_checkpoint(base, 0, Llama(cfg).state_dict(), {}, {})
    said = dict(
        format=3,
        architecture="llama",
        model=cfg.to_dict(),
        data=dict(tokenizer=tok.fingerprint),
        prompt="1",
    )
    rates = dict(optimizer="adamw", lr=0.05, muon_lr=0.05, batch_tokens=128)
    (base / "config.json").write_text(json.dumps(said | dict(pretrained=rates)))
    talks = [dict(question=str(n), answer="no" if n % 3 else "yes!") for n in range(200)]
    pairs = [dict(question=str(n), chosen="yes!", rejected="yes") for n in range(200)]
    for name, rows in dict(chats=talks, pairs=pairs).items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text)
    sft_in(folder, base, folder / "sft")
    return folder


def quiet(line):
    pass


def options(run, out, n, **more):
    place = dict(run=str(run), out=str(out), device="cpu", log=quiet)
    return dict(steps=n, every=n // 4, **place, **more)


def sft_in(folder, run, out):
    asked = SftOptions(data=str(folder / "chats.jsonl"), **options(run, out, 24))
    return Tuner(asked).go()


def dpo_in(folder, out, lr, beta, nll=0.0):
    cfg = DpoConfig(beta=beta, pairs_per_step=16, nll_weight=nll)
    pairs = str(folder / "pairs.jsonl")
    asked = DpoOptions(pairs=pairs, dpo=cfg, **options(folder / "sft", out, 40, lr=lr))
    return Tuner(asked).go()


def grpo_in(folder, run, out, rule, lr=0.002):
    cfg = GrpoConfig(questions_per_step=8, group=4, longest=6)
    asked = options(run, out, 12, lr=lr)
    task = str(folder / "chats.jsonl")
    return Tuner(GrpoOptions(task=task, grpo=cfg, rule=rule, **asked)).go()


def alarms(run):
    return {f.question: f.finding for f in doctor(run) if f.level == "alarm"}


@pytest.mark.full(instead="test_doctor.py::test_a_healthy_run_gives_only_ok")
def test_healthy_runs_pass_in_silence(world, tmp_path):
    assert alarms(world / "sft") == {}
    assert alarms(dpo_in(world, tmp_path / "dpo", 0.001, 0.5)) == {}
    rule = lambda asked, said, wanted: float(said == wanted)  # noqa: E731
    assert alarms(grpo_in(world, world / "sft", tmp_path / "grpo", rule)) == {}


def masked(monkeypatch, change):
    "Train on other targets than those of the conversations"
    real = sft.packed_batch

    def planted(rows, size):
        batch = real(rows, size)
        targets_bt = change(batch.ids, batch.targets.clone())
        return Batch(batch.ids, targets_bt, batch.segments)

    monkeypatch.setattr(sft, "packed_batch", planted)


def test_a_mask_that_is_off_by_one(world, tmp_path, monkeypatch):
    def late(ids_bt, targets_bt):
        asked = targets_bt != -100
        before = torch.roll(asked, 1, 1)
        before[:, 0] = False
        targets_bt[asked & ~before] = -100
        return targets_bt

    masked(monkeypatch, late)
    found = alarms(sft_in(world, world / "base", tmp_path / "run"))
    assert set(found) == {"first word"} and "is not learned" in found["first word"]


def test_a_stop_that_nobody_learned(world, tmp_path, monkeypatch):
    def endless(ids_bt, targets_bt):
        asked = targets_bt != -100
        after = torch.roll(asked, -1, 1)
        after[:, -1] = False
        targets_bt[asked & ~after] = -100
        return targets_bt

    masked(monkeypatch, endless)
    found = alarms(sft_in(world, world / "base", tmp_path / "run"))
    assert set(found) == {"end of answers"} and "does not stop" in found["end of answers"]


def test_a_rate_with_the_wrong_sign(world, tmp_path, monkeypatch):
    real = learner.make_optimizers

    def backwards(*given):
        opts = real(*given)
        for group in (group for optimizer in opts for group in optimizer.param_groups):
            group["initial_lr"] *= -0.1
        return opts

    monkeypatch.setattr(learner, "make_optimizers", backwards)
    found = alarms(sft_in(world, world / "base", tmp_path / "run"))
    assert "the wrong way" in found["direction"]


@pytest.mark.full(instead="test_groups_that_teach_nothing")
def test_better_answers_that_fade(world, tmp_path):
    "The loss of DPO falls, and both answers go; with their own surprise in the loss they stay"
    run = dpo_in(world, tmp_path / "dpo", 0.02, 0.02)
    found = alarms(run)
    assert (
        set(found) == {"better answers"}
        and "--nll" in [f.remedy for f in doctor(run) if f.question == "better answers"][0]
    )
    cured = dpo_in(world, tmp_path / "cured", 0.02, 0.02, nll=1.0)
    assert "better answers" not in alarms(cured)


def test_groups_that_teach_nothing(world, tmp_path):
    found = alarms(grpo_in(world, world / "sft", tmp_path / "run", lambda *said: 0.0))
    assert set(found) == {"groups"} and "teach nothing" in found["groups"]
