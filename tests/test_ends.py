"""Where a run stops on purpose its learning rate has fallen, and a longer one goes on from before
the fall."""

import json
import shutil
from dataclasses import replace

import pytest
from kill import same_weights
from test_phases import TOY, quick, straight, walk  # noqa: F401, two are fixtures

from gpub.core import GpubError
from gpub.guards.doctor import doctor
from gpub.plans.annealing import given_up, plan_settings, schedule_from
from gpub.plans.gates import Gate
from gpub.plans.phases import PLANS, read_plan
from gpub.plans.verdicts import paid_so_far
from gpub.record.checkpoint import load_checkpoint
from gpub.record.checkpoint_folder import checkpoints
from gpub.record.ledger import account, read_ledger
from gpub.record.run import load_run
from gpub.train.config import TrainConfig, stable_steps
from gpub.train.decay import DECAY_TARGET, decay_integral
from gpub.train.loop import lr_factor
from gpub.train.presets import apply_settings, find_preset

STOPS = [(name, p.name) for name in PLANS for p in read_plan(name).pretraining]


@pytest.mark.parametrize("name, stop", STOPS)
def test_each_stop_of_each_plan_ends_at_the_floor(name, stop):
    plan = read_plan(name)
    last = plan.phase(stop)
    for phase in plan.phases[: plan.phases.index(last) + 1]:
        asked = plan_settings(plan, phase, last.until)
        cfg = apply_settings(find_preset(plan.preset), asked)[1]
        assert cfg.steps == last.until
        assert lr_factor(last.until, cfg) == pytest.approx(cfg.floor)
        assert lr_factor(last.until - 1, cfg) < cfg.floor + 1.01 / (cfg.decay * cfg.steps)
        assert lr_factor(stable_steps(cfg) - 1, cfg) == min(1, stable_steps(cfg) / cfg.warmup)
        if find_preset(plan.preset).decay_target and last.until > 1000:
            assert decay_integral(cfg) == pytest.approx(DECAY_TARGET, rel=1e-3)


def rates(out):
    rows = map(json.loads, (out / "log.jsonl").read_text().splitlines())
    return {r["step"]: r["lr"] / find_preset(TOY.preset).train.lr for r in rows}


def falls_to_the_end(out, end, share=0.6):
    "The logged rates are those of a fall to `end` over the last share of the steps"
    cfg = replace(find_preset(TOY.preset).train, steps=end, decay=share)
    found = rates(out)
    assert max(found) == end
    assert found == pytest.approx({n: lr_factor(n - 1, cfg) for n in found})


def alarms(out):
    return [f for f in doctor(out) if f.level == "alarm" and f.name in ("schedule", "weights")]


def test_a_stop_on_purpose_is_annealed(text, tmp_path):
    assert walk(TOY, tmp_path / "run", text, until="proof").step == 12
    falls_to_the_end(tmp_path / "run", 12)
    assert not alarms(tmp_path / "run")


def test_a_longer_end_goes_on_from_before_the_fall(straight, text, tmp_path):
    out, said = tmp_path / "run", []
    walk(TOY, out, text, until="grind")
    kept = {int(p.name[5:]) for p in checkpoints(out)}
    assert {9, 18, 24} <= kept
    short = load_checkpoint(out)
    before = paid_so_far(out)
    v = walk(TOY, out, text, log=said.append)
    assert (v.word, v.step) == ("continue", 40)
    same_weights(out, straight)
    falls_to_the_end(out, 40)
    line = next(s for s in said if "for a later end it goes on from step 9" in s)
    assert "\n" not in line and "end-24" in line
    kept = load_checkpoint(out / "end-24")
    assert kept.step == 24
    assert all((kept.model[k] == w).all() for k, w in short.model.items())
    assert load_run(out / "end-24")[2]["train"]["steps"] == 24
    assert load_run(out)[2]["train"]["steps"] == 40
    assert not alarms(out)
    assert paid_so_far(out) > before
    assert any(s.kind == "lost" and s.first >= 9 for s in account(read_ledger(out)))
    assert given_up(out, "grind") > 0 and given_up(out, "smoke") == 0
    again = walk(TOY, out, text)
    assert again.reason == "was done before"


def test_from_the_mirror_too(straight, text, tmp_path):
    out, drive = tmp_path / "run", tmp_path / "drive"
    walk(TOY, out, text, until="proof", mirror=str(drive))
    shutil.rmtree(out)
    walk(TOY, out, text, mirror=str(drive))
    for place in out, drive:
        same_weights(place, straight)
        assert checkpoints(place / "end-12")[0].name == "step-00000012"


def test_without_the_checkpoint_before_the_fall(text, tmp_path):
    out = tmp_path / "run"
    walk(TOY, out, text, until="proof")
    for folder in checkpoints(out)[1:]:
        shutil.rmtree(folder)
    with pytest.raises(GpubError, match="no whole checkpoint of step 4 or before") as e:
        walk(TOY, out, text)
    assert "\n" not in str(e.value) and "--out" in str(e.value)
    assert load_checkpoint(out).step == 12


def test_a_rate_that_fell_from_the_start_has_no_longer_end(text, tmp_path):
    out, settings = tmp_path / "run", dict(decay=1.0)
    walk(TOY, out, text, until="proof", settings=settings)
    with pytest.raises(GpubError, match="fell from the first step on") as e:
        walk(TOY, out, text, settings=settings)
    assert "\n" not in str(e.value)


def test_an_end_that_comes_nearer_falls_faster(text, tmp_path):
    out = tmp_path / "run"
    broke = replace(
        TOY, phases=tuple(replace(p, usd=1e-5) if p.name == "grind" else p for p in TOY.phases)
    )
    v = walk(broke, out, text)
    assert v.word == "stop" and 12 <= v.step <= 16
    walk(TOY, out, text, until="grind")
    falls_to_the_end(out, 24, share=1 - v.step / 24)
    assert not alarms(out)


@pytest.mark.full(instead="test_a_longer_end_goes_on_from_before_the_fall")
def test_a_run_of_before_that_was_to_end_with_the_plan(text, tmp_path):
    out, slow = tmp_path / "run", Gate(metric="tok_s", most=1, when="always", after=6)
    old = [replace(p, schedule_steps=40) for p in TOY.phases]
    old[2] = replace(old[2], gates=(slow,))
    v = walk(replace(TOY, phases=tuple(old)), out, text, until="grind")
    assert (v.phase, v.word, v.step) == ("grind", "change GPU", 21)
    v = walk(TOY, out, text, until="grind")
    assert (v.word, v.step) == ("continue", 24), v
    found = rates(out)
    at_21 = 1 - 5 / 24  # of a fall from 16 to 40; from there to 24
    assert found[20] == pytest.approx(1 - 3 / 24)
    assert found[22] == pytest.approx(at_21)
    assert found[24] == pytest.approx(at_21 / 3)


def test_a_forgotten_setting_is_still_another_run(text, tmp_path):
    walk(TOY, tmp_path / "run", text, until="smoke", settings=dict(seed=3))
    with pytest.raises(GpubError, match="holds another run: train.seed"):
        walk(TOY, tmp_path / "run", text, until="proof")


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("step", [50, 64, 70, 89])
def test_another_end_never_makes_the_rate_jump(schedule, step):
    then = TrainConfig(steps=160, decay=0.6, warmup=0, schedule=schedule)
    cfg = schedule_from(replace(then, steps=90), then, step)
    assert lr_factor(step, cfg) == pytest.approx(lr_factor(step, then))
    assert lr_factor(90, cfg) == pytest.approx(0)
    later = schedule_from(replace(then, steps=90), cfg, step + 1)
    assert later == cfg
    longer = schedule_from(then, cfg, step + 1)
    assert longer is None if step + 1 > stable_steps(cfg) else longer == then


def test_a_nearer_end_with_another_mix_is_planned_from_before_the_fall():
    mixes = dict(weights={"web": 1.0}, anneal_weights={"books": 1.0})
    then = TrainConfig(steps=160, decay=0.6, warmup=0, **mixes)
    falling = stable_steps(then) + 6
    assert schedule_from(replace(then, steps=90), then, falling) is None
    assert schedule_from(replace(then, steps=90), then, falling - 6) is not None
    plain = replace(then, anneal_weights=None)
    assert schedule_from(replace(plain, steps=90), plain, falling) is not None
