"""The recipe of the large presets: weight decay from its integral, and the first cut of a step on
CUDA."""

from dataclasses import replace

import pytest
import torch

import gpub.train.trainer as trainer
from gpub.cli.plans import plan_command
from gpub.core import GpubError
from gpub.guards.preflight import preflight
from gpub.model.architectures import SHAPES
from gpub.model.step_memory import memory_forecast
from gpub.record.folder import Interrupted
from gpub.train.config import TrainConfig
from gpub.train.decay import DECAY_TARGET, decay_for, decay_integral, decay_text, schedule_sum
from gpub.train.kernels import matmul_size
from gpub.train.learner import first_cut
from gpub.train.loop import lr_factor
from gpub.train.memory import Cut
from gpub.train.options import RunOptions
from gpub.train.presets import PRESETS, apply_settings
from gpub.train.trainer import Trainer

pytestmark = pytest.mark.usefixtures("short_texts")

LARGE_NAMES = ["burn-1b", "burn-2b", "burn-3b", "gpt2-134m", "gpt2-124m", "gpt2-355m"]


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
@pytest.mark.parametrize("warmup, decay, floor", [(0, 1.0, 0.0), (500, 0.6, 0.1), (3000, 0.9, 0.0)])
def test_the_sum_of_the_schedule_is_that_of_its_steps(schedule, warmup, decay, floor):
    cfg = TrainConfig(steps=2500, schedule=schedule, warmup=warmup, decay=decay, floor=floor)
    assert schedule_sum(cfg) == pytest.approx(
        sum(lr_factor(n, cfg) for n in range(2500)), rel=1e-12
    )


def test_the_sum_of_a_schedule_too_long_to_walk():
    short = TrainConfig(steps=10**5, warmup=50, decay=0.6)
    long = replace(short, steps=10**8, warmup=50 * 10**3)
    assert schedule_sum(long) == pytest.approx(schedule_sum(short) * 10**3, rel=1e-4)


@pytest.mark.parametrize("name", LARGE_NAMES)
def test_large_presets_have_the_integral_of_tuned_runs(name):
    assert decay_integral(PRESETS[name].train) == pytest.approx(DECAY_TARGET, rel=1e-3)
    assert 4 < DECAY_TARGET < 5.5


@pytest.mark.parametrize(
    "settings",
    [
        dict(steps="90000"),
        dict(muon_lr="0.01", warmup="500"),
        dict(optimizer="adamw"),
        dict(decay="0.2"),
    ],
)
def test_the_decay_follows_what_the_user_changes(settings):
    _, cfg = apply_settings(PRESETS["burn-1b"], settings)
    assert decay_integral(cfg) == pytest.approx(DECAY_TARGET, rel=1e-3)


def test_an_explicit_decay_wins():
    _, cfg = apply_settings(PRESETS["burn-1b"], dict(weight_decay="0.1", steps="90000"))
    assert cfg.weight_decay == 0.1
    assert decay_integral(cfg) > 5 * DECAY_TARGET


def test_small_presets_keep_their_decay():
    decays = {k: p.train.weight_decay for k, p in PRESETS.items() if k not in LARGE_NAMES}
    assert decays == {"shakespeare": 0.1, "shakespeare-short": 0.0, "medium": 0.1, "burn-toy": 0.0}
    assert apply_settings(PRESETS["shakespeare"], dict(steps="9", lr="0.1"))[1].weight_decay == 0.1


def test_a_run_of_a_few_steps_is_not_shrunk_to_nothing():
    _, cfg = apply_settings(PRESETS["burn-1b"], dict(steps=8))
    assert cfg.muon_lr * cfg.weight_decay <= 0.01
    assert decay_for(TrainConfig(steps=5, muon_lr=0.0), 4.6) == 0


def test_plan_and_preflight_print_the_integral(text):
    from click.testing import CliRunner

    done = CliRunner().invoke(plan_command, ["burn-1b", "--gpu", "A100-80", "--tokens", "21B"])
    assert "summed over all steps: 4.6" in done.output
    done = CliRunner().invoke(plan_command, ["shakespeare", "--gpu", "A100-80", "--tokens", "1B"])
    assert isinstance(done.exception, GpubError)
    assert "rate x decay over the run is 366" in str(done.exception)
    said = []
    with pytest.raises(
        GpubError, match="rate x decay over the run is 2,.* give --set weight_decay="
    ):
        asked = dict(settings=dict(weight_decay=200), device="cpu")
        preflight("shakespeare", data=text, log=said.append, **asked)
    assert not said


def test_the_text_of_a_fair_decay():
    line = decay_text(PRESETS["burn-1b"].train)
    assert line.startswith("weight decay 0.00827") and "4.6" in line and "\n" not in line


@pytest.fixture
def large(monkeypatch):
    "A preset as small as a test needs, with the target of the large ones"
    recipe = replace(PRESETS["burn-toy"].train, decay=0.6, warmup=2, steps=6, batch_tokens=256)
    small = replace(PRESETS["burn-toy"], train=recipe, decay_target=DECAY_TARGET)
    monkeypatch.setitem(PRESETS, "burn-toy", small)
    monkeypatch.setattr(trainer, "known_peak", lambda *a: 1e12)
    monkeypatch.setattr("gpub.report.page.write_report", lambda out: out / "report.html")
    return small


def toy(out, text, settings, said):
    how = dict(compile="no", precision="fp32")
    return Trainer(
        RunOptions("burn-toy", out, text, how | settings, "cpu", save_every=2, log=said.append)
    )


def interrupt(trainer, step):
    "Stop a run after a step; it saves the next one and ends"
    with pytest.raises(Interrupted):
        with trainer.opened() as run:
            for s in run.steps():
                if s.n == step:
                    run.stop_requested.set()


def test_another_decay_by_hand_is_another_run(large, text, tmp_path):
    toy(tmp_path / "run", text, {}, []).go()
    with pytest.raises(GpubError, match="holds another run: train.weight_decay"):
        toy(tmp_path / "run", text, {"weight_decay": 0.1}, []).go()


def test_the_ceiling_of_mfu_is_a_matmul_that_fills_the_card():
    assert matmul_size(torch.device("cuda")) == 8192
    assert matmul_size(torch.device("cpu")) == matmul_size(torch.device("mps")) == 1024


ONE_B = SHAPES["burn-1b"].config
A100 = 0.9 * 80e9


def cut(room, rows=64, **settings):
    _, cfg = apply_settings(PRESETS["burn-1b"], settings)
    return first_cut(ONE_B, cfg, rows, ONE_B.context_length, room, half=True)


def test_the_first_cut_comes_from_the_forecast():
    mode, micro = cut(A100)
    how = dict(mode=mode, half=True, accumulate=True, chunked=True)
    assert mode == "off" and 1 < micro < 64
    assert (
        memory_forecast(ONE_B, micro, **how)["peak"]
        <= A100
        < memory_forecast(ONE_B, 2 * micro, **how)["peak"]
    )
    assert cut(1e15) == ("off", 64)
    assert cut(A100, grad_checkpoint="full")[0] == "full"
    assert cut(A100, grad_checkpoint="full")[1] > micro
    assert cut(0.9 * 24e9)[0] == "off"
    assert cut(0.9 * 20e9)[0] != "off"
    assert cut(1e9) == ("full", 1)


def test_pieces_are_of_one_size():
    most = cut(A100)[1]
    rows = 3 * most
    assert cut(A100, rows=rows)[1] * 3 == rows
    assert (most, cut(A100, rows=20)[1]) == (8, 7)


def stand_in(monkeypatch, room):
    "A device with so many bytes, as if it were a GPU; None: no such limit"
    monkeypatch.setattr("gpub.train.learner.device_room", lambda device: room)


def opened(out, text, settings, said):
    with toy(out, text, dict(batch_tokens=2048) | settings, said).opened() as run:
        return run


def half_room(run, rows):
    "Memory in which half the rows of a step fit, and not all of them"
    half = memory_forecast(run.task.model_cfg, rows // 2, accumulate=True)["peak"]
    assert half < memory_forecast(run.task.model_cfg, rows)["peak"]
    return half


def test_a_run_on_a_device_with_little_memory_starts_small(large, text, tmp_path, monkeypatch):
    stand_in(monkeypatch, None)
    whole = opened(tmp_path / "cpu", text, {}, [])
    assert whole.learner.micro_batcher.cut == Cut()
    context_length = whole.task.model_cfg.context_length
    rows = 2048 // context_length
    stand_in(monkeypatch, half_room(whole, rows))
    said = []
    run = opened(tmp_path / "small", text, {}, said)
    assert run.learner.micro_batcher.cut == Cut(micro=rows // 2)
    assert any(
        line.startswith(f"{rows // 2} sequences of {context_length} tokens at once")
        for line in said
    )
    asked = opened(tmp_path / "asked", text, dict(micro_batch=3), [])
    assert asked.learner.micro_batcher.cut == Cut(micro=3)


def test_going_on_keeps_the_cut_that_was_saved(large, text, tmp_path, monkeypatch):
    stand_in(monkeypatch, None)
    whole = opened(tmp_path / "cpu", text, {}, [])
    rows = 2048 // whole.task.model_cfg.context_length
    stand_in(monkeypatch, half_room(whole, rows))
    out = tmp_path / "run"
    interrupt(toy(out, text, dict(batch_tokens=2048), []), 3)
    stand_in(monkeypatch, 80e9)
    again = opened(out, text, {}, [])
    assert again.state.step == 4
    assert again.learner.micro_batcher.cut == Cut(micro=rows // 2)
    changed = opened(out, text, dict(grad_checkpoint="full"), [])
    assert changed.learner.micro_batcher.cut == Cut(mode="full", micro=rows // 2)
