"""Every plan on every GPU of the table: it ends annealed within its money, or is refused in one
line before it starts; and a run that was stopped can be ended where it stands."""

import json
import threading
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
from kill import same_weights
from test_phases import TOY, quick, walk  # noqa: F401, one is a fixture

from gpub.cli.plans import run_command
from gpub.core import GpubError
from gpub.model.gpus import GPUS
from gpub.plans.allowances import Allowances
from gpub.plans.annealing import plan_recipe, plan_settings
from gpub.plans.bill import money
from gpub.plans.cost_forecast import (
    Overheads,
    ending_line,
    forecast_plan,
    plan_fate,
    plan_text,
    price_plan,
    refuse_hopeless,
)
from gpub.plans.gates import Gate
from gpub.plans.gpus import Machine, machine_for
from gpub.plans.paid_steps import paid_steps
from gpub.plans.phase_watch import PhaseLimits, PhaseRunner
from gpub.plans.phases import PLANS as ALL_PLANS
from gpub.plans.phases import read_plan
from gpub.plans.runner import PlanOptions, run_plan
from gpub.plans.verdicts import accepted_gates, paid_so_far, verdicts
from gpub.record.checkpoint import load_checkpoint
from gpub.record.ledger import KINDS
from gpub.train.config import stable_steps
from gpub.train.loop import lr_factor

PLANS = [name for name in ALL_PLANS if not read_plan(name).tuned]  # those that only pretrain
STRIDES = 5, 50  # steps that the stand-in does at once, in a short phase and in a long one


class FakeLedger:
    "Seconds as a forecast has them"

    def __init__(self, rate, setup):
        self.rate, self.before, self.seconds = rate, [], dict.fromkeys(KINDS, 0.0)
        self.seconds["setup"] = setup

    def usd(self):
        return sum(self.seconds.values()) * self.rate / 3600


class FakeRun:
    """Stands for a `Trainer`, its task and its open run on a GPU that is not here: steps take what
    the forecast says"""

    def __init__(self, plan, phase, machine, out, end):
        self.start, self.last = plan.span(phase)
        self.stride = STRIDES[self.last - self.start > 20_000]
        self.cfg = replace(plan_recipe(plan, end), log_every=self.stride)
        self.out, self.phase, self.lines = out, phase, []
        self.log = self.lines.append
        self.options = SimpleNamespace(usd_per_hour=machine.usd_per_hour)
        self.tok_s = machine.tok_s(phase.settings.get("grad_checkpoint"))
        self.beside = Overheads().seconds(plan, phase, end, self.tok_s)
        self.ledger = FakeLedger(machine.usd_per_hour, Overheads().setup)
        self.ledger.seconds["compile"] = Overheads().compile
        self.stop_requested, self.milestone_steps = threading.Event(), set()
        self.world = SimpleNamespace(size=1, main=True, on_main=lambda f: f())
        self.state = SimpleNamespace(row=None, step=self.start)
        self.task = self

    def save(self, s, wait=False):
        "Priced with the rest of what is no step"

    @contextmanager
    def opened(self):
        yield self

    def steps(self):
        rest = self.beside - Overheads().setup - Overheads().compile
        spent = self.ledger.seconds
        for n in range(self.start + self.stride, self.last + 1, self.stride):
            spent["train"] += self.stride * self.cfg.batch_tokens / self.tok_s
            spent["eval"] += rest * self.stride / (self.last - self.start)
            self.state.step = n
            self.state.row = dict(step=n, tok_s=self.tok_s)
            yield SimpleNamespace(n=n)
            if self.stop_requested.is_set():
                return


def walked(plan, machine, until, out, accept=frozenset()):
    "What the real runner says of every phase up to the first stop, and what was paid for it"
    end = plan.phase(until).until
    for phase in plan.phases[: plan.phases.index(plan.phase(until)) + 1]:
        run = FakeRun(plan, phase, machine, out, end)
        stop = PhaseRunner(plan, phase, run, PhaseLimits(accept=accept)).go()
        yield phase, stop, run.ledger.usd()
        if stop:
            return


# the rented card, one with little memory and one with much; the others in `make test-all`
FEW = {"A100-80", "L4", "H200"}


def ways():
    for name in PLANS:
        plan = read_plan(name)
        for card in GPUS:
            for until in (plan.phases[2].name, plan.phases[-1].name):
                often = () if card in FEW else pytest.mark.full
                yield pytest.param(name, card, until, id=f"{name}-{card}-{until}", marks=often)


@pytest.mark.parametrize("name, card, until", [*ways()])
def test_every_plan_on_every_gpu(name, card, until, tmp_path):
    plan = read_plan(name)
    try:
        machine = machine_for(plan.preset, card)
        plan = price_plan(plan, machine, until)
        refuse_hopeless(plan, machine, Allowances(until=until))
    except GpubError as e:
        said = str(e)
        assert "\n" not in said
        # with its budgets from the forecast only memory or an unknown price is in the way
        if name == "burn-1b":
            assert "does not fit" in said or "no price is known" in said, said
        return
    assert ": forecast $" in ending_line(plan, machine, until)
    for phase, stop, paid in walked(plan, machine, until, tmp_path):
        assert stop is None, (phase.name, stop)
        assert paid <= phase.usd, phase.name
    last = plan.phase(until)
    cfg = plan_recipe(plan, last.until)
    assert cfg.steps == last.until and lr_factor(last.until, cfg) == pytest.approx(cfg.floor)


def machines(plan):
    "Every card of the table that has room for the plan's model, and a price"
    for card in GPUS:
        try:
            yield machine_for(plan.preset, card)
        except GpubError as e:
            assert "\n" not in str(e) and card in str(e)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "burn-1b" else pytest.mark.full) for n in PLANS]
)
def test_every_stop_on_every_gpu_is_priced_and_annealed_or_refused_in_a_line(name):
    "All stops, by the forecast alone; of our own plan each card reaches all of them"
    plan, reached = read_plan(name), {}
    for machine in machines(plan):
        reached[machine.name] = []
        for stop in plan.phases:
            priced = price_plan(plan, machine, stop.name)
            try:
                refuse_hopeless(priced, machine, Allowances(until=stop.name))
            except GpubError as e:
                assert "\n" not in str(e) and machine.name in str(e)
                break
            told = forecast_plan(priced, machine, stop.name)
            assert all(f.spare >= f.reserve > 0 for f in told)
            reached[machine.name].append(stop.name)
    assert len(reached) >= 10
    if name == "burn-1b":  # with budgets from the forecast
        assert {len(stops) for stops in reached.values()} == {len(plan.phases)}


def test_the_cards_of_the_issue_finish_with_something_to_spare():
    plan = read_plan("burn-1b")
    for card in ("A100-80", "H100", "H200"):
        machine = machine_for("burn-1b", card)
        priced = price_plan(plan, machine, "push")
        told = forecast_plan(priced, machine, "push")
        assert all(f.spare > 0 and 0 < f.beside < f.usd for f in told)
        total, budget = told[-1].total, sum(f.budget for f in told)
        assert budget / total == pytest.approx(1 + plan.margin, rel=0.02)


def test_the_blogs_own_plan_and_its_fate():
    "At half of the peak its first gate on speed stops it; at its own speed its money does"
    blog = read_plan("burn-1b-blog")
    half = Machine("an A100 at 50%", dict(full=16_862.0, off=22_168.0), 1.49)
    last = plan_fate(blog, half)[-1]
    assert (last.word, last.phase, last.step) == ("change GPU", "proof", 301)
    assert "is 16,862 tokens a second, wanted at least 20,000 tokens a second" in last.reason
    published = Machine("the blog's A100", dict(full=24_066.0, off=28_300.0), 1.45)
    fate = plan_fate(blog, published)
    assert [v.word for v in fate] == ["continue"] * 3 + ["stop"]
    assert fate[-1].phase == "push" and 85_000 < fate[-1].step < 90_000
    with pytest.raises(GpubError, match="by the forecast on an A100 at 50% phase proof would stop"):
        refuse_hopeless(blog, half, Allowances())


def test_a_slow_machine_is_found_out_by_the_real_runner(tmp_path):
    "30% slower than the forecast: stopped at the first look, at a few cents"
    told = replace(machine_for("burn-1b", "A100-80"), timed=True)
    plan = price_plan(read_plan("burn-1b"), told, "push")
    slow = replace(told, speeds={m: v / 1.3 for m, v in told.speeds.items()})
    ((phase, stop, paid),) = list(walked(plan, slow, "push", tmp_path))
    assert stop and stop.word == "change GPU" and "usd_per_billion" in stop.reason and paid < 1
    quick_enough = replace(told, speeds={m: v / 1.2 for m, v in told.speeds.items()})
    assert all(stop is None for _, stop, _ in walked(plan, quick_enough, "push", tmp_path))


def test_a_gate_that_is_always_asked_is_passed_by_hand_once_and_on_the_record(tmp_path):
    told = replace(machine_for("burn-1b", "A100-80"), timed=True)
    plan = price_plan(read_plan("burn-1b"), told, "smoke")
    slow = Machine("slow", dict(off=17_700.0), 1.49)
    ((_, stop, _),) = walked(plan, slow, "smoke", tmp_path / "no")
    assert stop.word == "change GPU"
    (tmp_path / "yes").mkdir()
    by_hand = frozenset(["usd_per_billion"])
    ((_, stop, _),) = walked(plan, slow, "smoke", tmp_path / "yes", accept=by_hand)
    assert stop is None
    (row,) = verdicts(tmp_path / "yes")
    assert (row["word"], row["phase"]) == ("accepted", "smoke")
    accepted = accepted_gates(tmp_path / "yes", "smoke")
    assert json.loads(json.dumps(accepted)) == ["usd_per_billion"]  # as all processes hear of it
    said = "the price of a billion tokens is $23.38, wanted at most $23.34"
    assert row["reason"] == f"{said} (gate: usd_per_billion)"


def test_no_gate_asks_a_speed_that_nobody_timed(tmp_path):
    "By the forecast alone a slow machine goes on to its budget; no guess ends a run"
    told = machine_for("burn-1b", "A100-80")
    plan = price_plan(read_plan("burn-1b"), told, "push")
    assert not any(gate.when == "always" for phase in plan.phases for gate in phase.gates)
    slow = replace(told, speeds={m: 0.7 * v for m, v in told.speeds.items()})
    *_, (phase, stop, _) = walked(plan, slow, "push", tmp_path)
    assert (phase.name, stop.cause) == ("proof", "budget")
    assert "of the steps that the preflight times" in plan_text(read_plan("burn-1b"), told)
    assert "usd_per_billion" in plan_text(read_plan("burn-1b"), replace(told, timed=True))


def test_the_table_and_the_steps_of_a_page_forecast_the_same():
    "The last phase decays, so its steps and the table have to be worked out for the same end"
    machine = machine_for("burn-1b", "A100-80")
    plan = read_plan("burn-1b")
    rows = dict(
        line.split(maxsplit=1) for line in plan_text(plan, machine, "push").splitlines()[2:7]
    )
    steps = {step.name: step for step in paid_steps(plan, machine, "push")}
    for phase in plan.up_to("push"):
        assert money(steps[phase.name].usd) in rows[phase.name], phase.name


def test_a_short_phase_has_twenty_minutes_to_spare():
    machine = machine_for("burn-1b", "A100-80")
    plan = price_plan(read_plan("burn-1b"), machine, "push")
    smoke = forecast_plan(plan, machine, "push")[0]
    assert smoke.spare - smoke.reserve >= machine.usd_per_hour / 3 > 0.25 * smoke.usd


def test_at_half_of_the_peak_the_walk_goes_on(tmp_path):
    plan = price_plan(read_plan("burn-1b"), machine_for("burn-1b", "A100-80"), "smoke")
    half = Machine("an A100 at 50%", dict(full=16_862.0, off=22_168.0), 1.49)
    assert plan_fate(plan, half, "smoke")[-1].word == "continue"


_TO_PUSH = Allowances(until="push", max_usd=150, command="gpub run burn-1b --until push")


def test_a_ceiling_below_the_forecast_is_refused_and_says_what_fits():
    machine = machine_for("burn-1b", "A100-80")
    plan = price_plan(read_plan("burn-1b"), machine, "push")
    with pytest.raises(GpubError, match="--max-usd 150 would end .* --until grind") as e:
        refuse_hopeless(plan, machine, _TO_PUSH)
    assert "\n" not in str(e.value)


def test_the_budgets_of_a_plan_reach_the_run_on_a_gpu(monkeypatch, tmp_path):
    "On CUDA a plan without budgets is priced, and refused before a folder is made"
    import gpub.plans.runner as walk_module

    monkeypatch.setattr(walk_module, "pick_device", lambda name: SimpleNamespace(type="cuda"))
    monkeypatch.setattr(walk_module.torch.cuda, "get_device_name", lambda device: "Tesla T4")
    with pytest.raises(GpubError, match="burn-1b does not fit T4: one sequence needs") as e:
        run_plan("burn-1b", tmp_path / "run", PlanOptions(usd_per_hour=0.35))
    assert "\n" not in str(e.value) and not (tmp_path / "run").exists()
    monkeypatch.setattr(walk_module.torch.cuda, "get_device_name", lambda device: "NVIDIA A40")
    with pytest.raises(GpubError, match="by the forecast on A40 phase smoke would stop at step 51"):
        run_plan("burn-1b-blog", tmp_path / "run", PlanOptions(usd_per_hour=0.4))
    with pytest.raises(GpubError, match="--max-usd 50 would end the run before its learning"):
        run_plan("burn-1b", tmp_path / "run", PlanOptions(usd_per_hour=0.4, max_usd=50))
    assert not (tmp_path / "run").exists()


# -- anneal now ------------------------------------------------------------------------------------

SHORT = replace(TOY, settings=TOY.settings | dict(decay=0.2))


def stopping_in(name):
    "The toy, stopped by a gate soon after a phase began"
    gate = Gate(metric="tok_s", most=1, when="always", after=1)
    phases = [replace(p, gates=(gate,)) if p.name == name else p for p in SHORT.phases]
    return replace(SHORT, phases=tuple(phases))


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    out = tmp_path_factory.mktemp("plans") / "whole"
    assert walk(SHORT, out, text).step == 40
    return out


@pytest.mark.parametrize("name", [pytest.param("proof", marks=pytest.mark.full), "grind"])
def test_anneal_now_and_go_on_later(name, text, tmp_path, whole):
    out, said = tmp_path / "run", []
    v = walk(stopping_in(name), out, text, log=lambda s: said.append(str(s)))
    assert (v.phase, v.word) == (name, "change GPU")
    offer = said[-1]
    assert (
        offer.startswith("anneal now: this model is not finished")
        and "$" in offer
        and "\n" not in offer
    )
    before = load_checkpoint(out)
    end = walk(stopping_in(name), out, text, anneal=True)
    assert end.word == "annealed" and f"to step {end.step:,}," in offer
    cfg = plan_recipe(SHORT, end.step)
    assert stable_steps(cfg) == v.step and lr_factor(end.step, cfg) == pytest.approx(0)
    again = walk(stopping_in(name), out, text, anneal=True)
    assert again.reason == "was done before" and again.total == pytest.approx(end.total)
    assert walk(SHORT, out, text).word == "continue"
    same_weights(out, whole)
    branch = load_checkpoint(out / f"end-{end.step}")
    assert branch.step == end.step > before.step
    assert paid_so_far(out) > end.total


def test_an_annealing_that_was_interrupted_goes_on_to_its_end(text, tmp_path):
    out = tmp_path / "run"
    v = walk(stopping_in("grind"), out, text)
    broke = walk(stopping_in("grind"), out, text, anneal=True, max_usd=v.total * 1.0001)
    assert broke.cause == "ceiling"
    end = walk(stopping_in("grind"), out, text, anneal=True)
    assert end.word == "annealed" and end.step == -(-v.step * 5 // 4)


def test_what_cannot_be_annealed_is_one_line(text, tmp_path):
    with pytest.raises(GpubError, match="there is nothing to anneal in") as e:
        walk(SHORT, tmp_path / "none", text, anneal=True)
    assert "\n" not in str(e.value) and not (tmp_path / "none").exists()
    with pytest.raises(GpubError, match="leave --until out"):
        walk(SHORT, tmp_path / "none", text, anneal=True, until="grind")
    walk(SHORT, tmp_path / "run", text, until="proof")
    with pytest.raises(GpubError, match="falls already, to its end at step 12"):
        walk(SHORT, tmp_path / "run", text, anneal=True)


@pytest.mark.parametrize("name", PLANS)
def test_show_tells_the_truth(name, capsys):
    run_command.main([name, "--show"], standalone_mode=False)
    said = capsys.readouterr().out
    lines = [s for s in said.splitlines() if s.startswith(("A100-80", "H100", "H200"))]
    assert len(lines) == 3
    for line in lines:
        assert "the learning rate fully decayed" in line or "ends at step" in line
    run_command.main(
        [name, "--show", "--gpu", "H100", "--usd-per-hour", "2"], standalone_mode=False
    )
    assert "H100 at $2.00" in capsys.readouterr().out


def test_show_says_whether_the_money_is_enough(capsys):
    asked = ["burn-1b", "--show", "--gpu", "A100-80", "--until", "push", "--max-usd"]
    run_command.main([*asked, "225"], standalone_mode=False)
    assert "the learning rate fully decayed" in capsys.readouterr().out
    with pytest.raises(GpubError, match="--max-usd 100 would end the run before its learning"):
        run_command.main([*asked, "100"], standalone_mode=False)


def test_no_plan_of_ours_forces_checkpointing():
    plan = read_plan("burn-1b")
    for phase in plan.phases:
        asked = plan_settings(plan, phase, plan.steps)
        assert "grad_checkpoint" not in asked and "micro_batch" not in asked
