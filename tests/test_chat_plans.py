"""Plans that end in a model which answers: killed in every phase, stopped by money and by gates,
priced on three cards, refused in one line."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import forked
import pytest
import torch
from click.testing import CliRunner

from gpub.cli.guards import rehearse_command
from gpub.cli.plans import run_command
from gpub.core import GpubError, read_json, write_atomic
from gpub.device import machine
from gpub.files import shipped
from gpub.plans.allowances import Allowances
from gpub.plans.bases import PUBLIC_BASES
from gpub.plans.cost_forecast import forecast_plan, price_plan, refuse_hopeless
from gpub.plans.gates import Gate
from gpub.plans.gpus import machine_for
from gpub.plans.paid_steps import PaidPlace, paid_steps
from gpub.plans.phase_inputs import fetch_set, old_text
from gpub.plans.phases import PLANS, PublicSet, read_plan
from gpub.plans.runner import PlanOptions, run_plan, tuning_options
from gpub.plans.verdicts import paid_so_far, verdicts
from gpub.record.checkpoint_folder import checkpoints
from gpub.record.run import load
from gpub.train.parallel import World

ASKED = dict(device="cpu", usd_per_hour=1.49)


def small_plan():
    "The toy's phases on a model of a few thousand weights, without gates"
    toy = read_plan("chat-toy")
    shape = dict(n_layers=1, d_model=32, n_heads=2, context_length=64, batch_tokens=256)
    base = replace(toy.phases[0], until=6, gates=())
    data = dict(sft=("talks:200",), dpo=("sums:80",), grpo=("sums",))
    tuned = []
    for phase in toy.phases[1:]:
        few = dict(until=4, save_every=2, gates=(), settings=dict(batch_tokens=256))
        if phase.method == "dpo":
            # a model that is never right has no right answer to prefer, but all have odds
            few["labels"] = "odds"
        if phase.method == "grpo":
            few["grpo"] = replace(phase.grpo, questions_per_step=4, group=2)
        tuned.append(replace(phase, data=data[phase.name], **few))
    return replace(toy, settings=toy.settings | shape, save_every=1, phases=(base, *tuned))


def walked(plan, out, **asked):
    return run_plan(plan, out, PlanOptions(**ASKED | dict(log=lambda line: None) | asked))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    "The small plan from beginning to end, undisturbed"
    out = tmp_path_factory.mktemp("whole") / "chat"
    assert walked(small_plan(), out).word == "continue"
    return out


KILLED = """
import os, signal, sys
from gpub.plans.phase_watch import PhaseRunner
import gpub.plans.verdicts
import gpub.plans.runner
from gpub.train.trainer import OpenRun
from gpub.tune.steps import Tuning
phase, moment = sys.argv.pop(1).split(":")

def die(name, step):
    if name == phase and str(step) == moment:
        os.kill(os.getpid(), signal.SIGKILL)

look, log, judge = PhaseRunner.look, OpenRun._write_row, gpub.plans.runner.judge_phase
def looked(self, s):
    die("base", s.n)
    return look(self, s)
def written(self, row):
    log(self, row)
    if isinstance(self.task, Tuning):
        die(self.task.out.name, row["step"])
def judged(out, plan, p, *more):
    die(p.name, "verdict")
    return judge(out, plan, p, *more)
PhaseRunner.look, OpenRun._write_row, gpub.plans.runner.judge_phase = looked, written, judged
from gpub.cli.main import main
main()
"""
ALL = ["base:3", "base:verdict", "sft:1", "sft:3", "dpo:3", "dpo:verdict", "grpo:1", "grpo:3"]


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL")
@pytest.mark.parametrize(
    "kills",
    [["sft:3", "dpo:verdict", "grpo:3"], pytest.param(ALL)],
    ids=("some", "all"),
)
@pytest.mark.full(instead="test_talk.py::test_a_killed_command_goes_on_to_the_same_bits")
def test_killed_in_a_phase_it_goes_on_to_the_same_bits(whole, tmp_path, kills):
    "Killed with -9 again and again, one process after the other: weights, logs and samples"
    plan, out = tmp_path / "plan.json", tmp_path / "chat"
    plan.write_text(json.dumps(small_plan().to_dict()))
    words = ["run", plan, "--out", out, "--device", "cpu", "--usd-per-hour", 1.49]
    for kill in kills:
        child = forked.run(["-c", KILLED, kill, *words], capture_output=True, text=True)
        assert child.returncode == -9, (kill, child.stdout, child.stderr)
    assert walked(small_plan(), out).word == "continue"
    clocks = ("tok_s", "seconds", "usd", "mfu")
    for phase in small_plan().phases:
        one, other = (load(folder / phase.name, device="cpu") for folder in (whole, out))
        weights = other.model.state_dict()
        assert all(torch.equal(t, weights[k]) for k, t in one.model.state_dict().items())
        rows = [[{k: r[k] for k in r if k not in clocks} for r in run.log] for run in (one, other)]
        assert rows[0] == rows[1], phase.name
        samples = [(folder / phase.name / "samples.jsonl").read_text() for folder in (whole, out)]
        assert samples[0] == samples[1]
    found = {v["phase"]: v["word"] for v in verdicts(out)}
    assert found == {p.name: "continue" for p in small_plan().phases}
    assert "was done before" in walked(small_plan(), out).reason


def test_every_dollar_is_in_a_ledger(whole):
    last = verdicts(whole)[-1]
    assert last["total"] == pytest.approx(
        sum(paid_so_far(whole / p.name) for p in small_plan().phases), abs=1e-6
    )
    assert all(v["usd"] > 0 for v in verdicts(whole))


def with_phase(name, **change):
    plan = small_plan()
    return replace(
        plan, phases=tuple(replace(p, **change) if p.name == name else p for p in plan.phases)
    )


def copied(whole, tmp_path, *phases):
    "The first phases as they are, the others not begun"
    out = tmp_path / "chat"
    shutil.copytree(whole, out)
    for phase in small_plan().phases:
        if phase.name not in phases:
            shutil.rmtree(out / phase.name)
    kept = [row for row in verdicts(out) if row["phase"] in phases]
    (out / "phases.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    return out


def test_money_ends_a_phase_with_a_checkpoint_and_more_goes_on(whole, tmp_path):
    out = copied(whole, tmp_path, "base")
    dear = dict(usd_per_hour=3.6e6)  # a thousand dollars a second
    found = walked(with_phase("sft", usd=0.5), out, **dear)
    assert (found.phase, found.word) == (
        "sft",
        "stop",
    ) and "budget of $0.50 (0 min) is used up" in found.reason
    assert 0 < found.step < 4 and load(out / "sft", device="cpu").step == found.step
    again = walked(with_phase("sft", usd=0.5), out, **dear)
    assert again.step == found.step and again.cause == "budget"
    assert walked(with_phase("sft", usd=1e9), out, until="sft").word == "continue"
    same = (load(folder / "sft", device="cpu").model.state_dict() for folder in (whole, out))
    one, other = same
    assert all(torch.equal(t, other[k]) for k, t in one.items())
    ceiling = walked(small_plan(), out, **dear, max_usd=1.0)
    assert ceiling.cause == "ceiling" and ceiling.phase == "dpo"


@pytest.mark.full(instead="test_ends.py::test_from_the_mirror_too")
def test_a_lost_folder_comes_back_from_the_mirror(whole, tmp_path):
    "Every run of a plan has its own in the mirror, and the verdicts are there too"
    out, mirror = tmp_path / "chat", tmp_path / "mirror"
    asked = dict(mirror=mirror, keep=1)
    assert walked(small_plan(), out, until="sft", **asked).word == "continue"
    assert load(mirror / "sft", device="cpu").step == 4
    assert len(checkpoints(mirror / "sft")) == 1
    paid = verdicts(out)[-1]["total"]
    assert verdicts(mirror) == verdicts(out)
    shutil.rmtree(out)
    said = []
    again = walked(small_plan(), out, until="sft", log=said.append, **asked)
    # all but the moment that the last copy itself took is in the mirror's ledger
    assert again.reason == "was done before" and 0.8 * paid < again.total <= paid
    assert [line for line in said if "brought step 4 back" in line]
    shutil.rmtree(out / "sft")  # alone: the next phase starts from it
    assert walked(small_plan(), out, until="dpo", **asked).word == "continue"
    for name in ("sft", "dpo"):
        one, other = (load(folder / name, device="cpu").model for folder in (whole, out))
        weights = other.state_dict()
        assert all(torch.equal(t, weights[k]) for k, t in one.state_dict().items())


def test_a_plan_that_only_tunes_takes_the_options_of_a_run(whole, tmp_path):
    "--mirror, --keep and --set by the command; whoever draws and how processes share, handed on"
    plan = small_plan()
    plan = replace(plan, base=str(whole / "base"), settings={}, phases=plan.phases[1:2])
    file, out = tmp_path / "plan.json", tmp_path / "chat"
    file.write_text(json.dumps(plan.to_dict()))
    words = ["--out", out, "--device", "cpu", "--usd-per-hour", "1", "--mirror", tmp_path / "m"]
    words += ["--keep", "1", "--set", "batch_tokens=128", "--track", "none", "--parallel", "ddp"]
    done = typed(file, *words)
    assert done.exception is None, done.output
    assert read_json(out / "sft" / "config.json")["train"]["batch_tokens"] == 128
    assert len(checkpoints(out / "sft")) == len(checkpoints(tmp_path / "m" / "sft")) == 1
    given = dict(usd_per_hour=1.0, settings=dict(steps=9))
    options = PlanOptions(track="wandb", parallel="fsdp", **given)
    asked = tuning_options(plan, plan.phases[0], out, options, World())
    assert (asked.track, asked.parallel, asked.settings["steps"]) == ("wandb", "fsdp", 4)


@pytest.mark.full(instead="test_phases.py::test_planted_failures")
def test_gates_stop_the_walk_and_can_be_passed_by_hand(whole, tmp_path):
    out = copied(whole, tmp_path, "base", "sft")
    gate = Gate(metric="p_right", least=0.9)
    found = walked(with_phase("dpo", gates=(gate,)), out)
    assert found.word == "stop" and "gate: p_right" in found.reason and found.step == 4
    assert not (out / "grpo").exists()
    hacked = Gate(metric="reward", most=-1.0, when="always")
    passed = with_phase("dpo", gates=(gate,))
    plan = replace(
        passed,
        phases=tuple(replace(p, gates=(hacked,)) if p.name == "grpo" else p for p in passed.phases),
    )
    found = walked(plan, out, accept={"dpo": ["p_right"], "grpo": ["reward"]})
    # a gate that is always asked is passed too: said once, at its first step
    accepted = [v for v in verdicts(out) if v["word"] == "accepted"]
    assert [(v["phase"], v["step"]) for v in accepted] == [("grpo", 1)]
    assert found.word == "continue" and "reward is" in found.reason and found.step == 4
    assert "accepted by hand" in [v for v in verdicts(out) if v["phase"] == "dpo"][-1]["reason"]


def test_every_pair_that_the_reference_reads_is_in_the_forecast():
    "Also those that no step comes to; and the held-out ones, at every checkpoint"
    plan, machine = read_plan("burn-1b-chat"), machine_for("burn-1b", "A100-80")
    sets = [replace(s, records=2 * s.records) for s in plan.sets]
    told = forecast_plan(plan, machine)[1]
    larger = forecast_plan(replace(plan, sets=tuple(sets)), machine)[1]
    reads = 61_135 * 1000 / (3 * machine.tok_s("off") / 2)  # a forward pass, at half the speed
    assert told.judging == pytest.approx(reads) and told.reading < larger.judging
    assert larger.judging == pytest.approx(2 * reads) and larger.reading == told.reading
    assert larger.other - told.other == pytest.approx(10 * 0.05 * reads)
    # a plan that does not say how long its sets are: the pairs that are learned from
    silent = replace(plan, sets=tuple(replace(s, records=None) for s in plan.sets))
    assert forecast_plan(silent, machine)[1].judging == pytest.approx(told.reading / 3)


@pytest.mark.parametrize("card", ["A100-80", "H100", "H200"])
def test_the_1b_finishes_within_budgets_that_follow_from_the_forecast(card):
    plan, machine = read_plan("burn-1b-chat"), machine_for("burn-1b", card)
    priced = price_plan(plan, machine)
    told = forecast_plan(priced, machine)
    assert [f.name for f in told] == ["sft", "dpo", "grpo"] and all(f.enough for f in told)
    refuse_hopeless(priced, machine, Allowances())
    for phase, f in zip(priced.phases, told):
        needed = f.usd + f.reserve
        spare = max(0.25 * needed, machine.usd_per_hour / 3)  # twenty minutes at the least
        assert phase.usd == pytest.approx(needed + spare, abs=0.011)
    assert told[-1].total == pytest.approx(sum(f.usd for f in told))
    # only rewards are learned from answers that have to be written
    assert [f.writing > 0 for f in told] == [False, False, True]
    with pytest.raises(GpubError, match="--max-usd 1 would end the run early"):
        refuse_hopeless(priced, machine, Allowances(max_usd=1.0))
    poor = replace(plan, phases=(replace(plan.phases[0], usd=0.01), *plan.phases[1:]))
    with pytest.raises(GpubError, match="phase sft would stop at step"):
        refuse_hopeless(price_plan(poor, machine), machine, Allowances())


def typed(*words):
    return CliRunner().invoke(run_command, [str(w) for w in words])


def test_show_names_cards_sets_gates_and_off_ramps():
    said = typed("burn-1b-chat", "--show").output
    for card in ("A100-80", "H100", "H200"):
        line = next(line for line in said.splitlines() if line.startswith(card))
        assert re.search(r"; the budgets allow \$[\d.]+$", line)
    for word in ("Apache 2.0", "MIT", "pinned when a job begins", "--until sft", "forgotten"):
        assert word in said
    told = typed("burn-1b-chat", "--show", "--gpu", "A100-80").output
    assert "assumed" in told and "h reading" in told
    assert "chat-toy" in typed("--help").output


def test_a_price_that_nobody_gave_is_told_with_its_date(tmp_path):
    "A run on a card without a price says which one it counts in, and that there is a newer one"
    words = ["chat-toy", "--until", "nowhere", "--out", tmp_path / "run", "--gpu", "A100-80"]
    said = typed(*words).output
    assert "assumed to cost $1.49 an hour (RunPod, 2026-04-07, on demand)" in said
    assert "--usd-per-hour" in said and "RunPod asked $1.79 on 2026-11-09" in said
    assert "assumed to cost" in typed("burn-1b-chat", "--show", "--gpu", "A100-80").output
    assert "assumed to cost" not in typed(*words, "--usd-per-hour", "2").output
    without = typed(*words[:-2])
    assert without.exception and "assumed to cost" not in without.output
    asked = typed("chat-toy", "--device", "cpu", "--out", tmp_path / "run")
    assert "what does this machine cost?" in str(asked.exception)
    assert not (tmp_path / "run").exists()


def test_names_in_the_help_are_those_of_the_plans():
    said = " ".join(typed("--help").output.split())
    assert all(name in said for name in PLANS)
    assert all(shipped(f"recipes/{file}").is_file() for file in PLANS.values())


def test_a_set_that_changed_is_refused(tmp_path):
    source = PublicSet(file="a.jsonl", url="https://example.org/a", licence="MIT")
    (tmp_path / "a.jsonl").write_text("{}\n")
    assert fetch_set(source, tmp_path) == tmp_path / "a.jsonl"
    (tmp_path / "a.jsonl").write_text("{} \n")
    with pytest.raises(GpubError, match="move it away"):
        fetch_set(source, tmp_path)
    pinned = replace(source, file="b.jsonl", sha256="0" * 64)
    (tmp_path / "b.jsonl").write_text("{}\n")
    with pytest.raises(GpubError, match="learns from 000000000000"):
        fetch_set(pinned, tmp_path)


def test_the_old_text_holds_out_both_kinds():
    text = old_text(sums=400, characters=4000)
    assert text == old_text(sums=400, characters=4000)
    end = text[int(0.9 * len(text)) :]
    assert len(re.findall(r"^\d{3}\+\d{3}=\d{4}$", text, re.M)) == 400
    assert re.search(r"\d{3}\+\d{3}=\d{4}\n", end) and re.search("[a-z]{3}", end)


TOY = read_plan("chat-toy").to_dict()


@pytest.mark.parametrize(
    "change, said",
    [
        (dict(phases=[]), "at least one phase"),
        (dict(base="runs/x"), "not both"),
        (dict(phases=TOY["phases"][1:], settings={}), "give base"),
        (dict(phases=[TOY["phases"][0]] * 2), "two phases are called"),
        (dict(phases=[*TOY["phases"], TOY["phases"][0] | dict(name="b")]), "only the first"),
        (dict(old=None), "give the plan old"),
        (dict(margin=-1), "margin"),
        (dict(preset="shakespear"), "no preset"),
        (dict(colour="red"), "does not know 'colour'"),
    ],
)
def test_what_is_no_plan_is_refused_in_one_line(tmp_path, change, said):
    (tmp_path / "plan.json").write_text(json.dumps(TOY | change))
    error = typed(tmp_path / "plan.json", "--show").exception
    assert isinstance(error, GpubError) and said in str(error), error
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    "words, said",
    [
        (["chat-toy", "--anneal", "--usd-per-hour", "1"], "--anneal is for a plan that only"),
        (["chat-toy", "--until", "ppo", "--usd-per-hour", "1"], "no phase 'ppo'"),
        (["burn-toy", "--base", "x"], "leave --base out"),
        (["burn-1b-chat", "--device", "cpu", "--usd-per-hour", "1"], "no run of burn-1b has begun"),
    ],
)
def test_bad_requests_are_one_line(tmp_path, words, said):
    found = typed(*words, "--out", tmp_path / "out")
    assert isinstance(found.exception, GpubError), found.output
    assert said in str(found.exception) and "\n" not in str(found.exception)


REHEARSED = """
from dataclasses import replace
from gpub.plans.phases import read_plan
from gpub.guards.tuning_rehearsal import rehearse_tuning
plan = read_plan("burn-1b-chat")
phases = [*plan.phases]
few = replace(phases[2].grpo, questions_per_step=2, longest=16)
phases[1] = replace(phases[1], example_tokens=64)
phases[2] = replace(phases[2], grpo=few, example_tokens=40)
for found in rehearse_tuning(replace(plan, preset="burn-toy", phases=tuple(phases)), "A100-80"):
    print(found.phase.name, found.ready, sorted(found.peaks), found.problems)
"""


@pytest.mark.slow
def test_every_tuned_phase_is_rehearsed():
    "Steps of the very objectives on the stand-in, in a process of its own"
    done = subprocess.run([sys.executable, "-c", REHEARSED], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [[n, "True"] for n in ("sft", "dpo", "grpo")], (
        done.stdout + done.stderr
    )
    assert all("forward and backward" in line and "update" in line for line in lines)
    assert "answers" in lines[2]


def rehearse_typed(*words):
    return CliRunner().invoke(rehearse_command, [*words, "--gpu", "A100-80"])


def test_the_base_that_is_named_is_the_one_that_is_rehearsed(monkeypatch):
    "`gpub rehearse --base` takes the size of that base, and says why where it cannot"
    seen = []
    rehearse = "gpub.guards.tuning_rehearsal.rehearse_tuning"
    monkeypatch.setattr(rehearse, lambda plan, gpu: seen.append(plan) or [])
    small = PUBLIC_BASES[1]
    assert rehearse_typed("burn-1b-chat", "--base", small.name).exit_code == 0
    assert rehearse_typed("burn-1b-chat").exit_code == 0
    assert [plan.base for plan in seen] == [small.name, read_plan("burn-1b-chat").base]
    assert seen[0].model_config == small.config != seen[1].model_config


@pytest.mark.parametrize(
    "words, said",
    [
        (["burn-1b-chat", "--base", "you/small"], "gpub import you/small base"),
        (["chat-toy", "--base", "you/small"], "leave --base out"),
        (["burn-toy", "--base", "you/small"], "leave --base out"),
    ],
)
def test_a_base_that_cannot_be_rehearsed_is_one_line(words, said):
    error = rehearse_typed(*words).exception
    assert isinstance(error, GpubError) and said in str(error) and "\n" not in str(error)


def test_the_steps_rehearse_the_base_that_they_train():
    plan, place = read_plan("burn-1b-chat"), PaidPlace(base=PUBLIC_BASES[0].name)
    asked = machine_for(plan.preset, "A100-80", 1.5)
    steps = paid_steps(plan, asked, name="burn-1b-chat", place=place)
    (line,) = next(step.commands for step in steps if step.name == "rehearsal")
    assert line.endswith(f"--base {PUBLIC_BASES[0].name}")


def with_seed(seed):
    "The toy as it comes, from a base of another seed"
    toy = read_plan("chat-toy")
    return replace(toy, settings=toy.settings | dict(seed=seed))


def gates_of(walks, plan="chat-toy"):
    "By phase: its steps, its seconds, and what each of its gates was shown by every seed"
    found = {}
    for phase in read_plan(plan).phases:
        judged = [next(v for v in verdicts(out) if v["phase"] == phase.name) for out in walks]
        bills = [json.loads((out / phase.name / "bill.json").read_text()) for out in walks]
        gates = {}
        for n, gate in enumerate(phase.gates):
            values = [round(v["checks"][n][1], 4) for v in judged]
            gates[gate.metric] = dict(gate=gate.wanted(), values=values)
        seconds = [round(bill["seconds"]) for bill in bills]
        found[phase.name] = dict(steps=phase.until, seconds=seconds, gates=gates)
    return found


KILLS = [("dpo", 22), ("grpo", 44)]  # a phase, and the step after which it is killed


@pytest.mark.slow
def test_the_toy_walks_to_its_end_with_three_seeds(tmp_path):
    """At full scale every gate holds, from bases of three seeds; the first walk, killed with -9 in
    two phases, goes on to the same bits"""
    seeds, plan = [0, 1, 2], with_seed(0)
    for seed in seeds:
        found = walked(with_seed(seed), tmp_path / str(seed))
        assert found.word == "continue", found
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_dict()))
    killed = copied(tmp_path / "0", tmp_path / "killed", "base", "sft")
    words = ["run", tmp_path / "plan.json", "--out", killed, "--device", "cpu"]
    words += ["--usd-per-hour", ASKED["usd_per_hour"]]
    kills = []
    for name, step in KILLS:
        command = [sys.executable, "-c", KILLED, f"{name}:{step}", *map(str, words)]
        child = subprocess.run(command, capture_output=True, text=True)
        assert child.returncode == -9, child.stderr
        kept = load(killed / name, device="cpu").step
        assert 0 < kept < step
        kills.append(dict(phase=name, killed_after=step, went_on_from=kept))
    assert walked(plan, killed).word == "continue"
    for phase in plan.phases:
        one, other = (load(out / phase.name, device="cpu") for out in (tmp_path / "0", killed))
        weights = other.model.state_dict()
        assert all(torch.equal(t, weights[k]) for k, t in one.model.state_dict().items())
    if file := os.environ.get("CHAT_TOY_RECEIPT"):  # data/chat_toy.json is written by this test
        said = dict(machine=machine("cpu"), seeds=seeds)
        said |= dict(phases=gates_of([tmp_path / str(seed) for seed in seeds]))
        said |= dict(kills=kills, weights="equal")  # or the test had failed above
        write_atomic(file, json.dumps(said, indent=1) + "\n")


def check_receipt(receipt, plan):
    "Its phases and gates are those of the plan, and what every seed showed lies within them"
    seeds = len(receipt.get("seeds", [0]))
    assert [*receipt["phases"]] == [p.name for p in plan.phases] and seeds
    for phase in plan.phases:
        told = receipt["phases"][phase.name]
        assert told["steps"] == phase.until
        assert [*told["gates"]] == [gate.metric for gate in phase.gates]
        for gate in phase.gates:
            line = told["gates"][gate.metric]
            assert line["gate"] == gate.wanted() and len(line["values"]) == seeds
            assert all(map(gate.holds, line["values"])), (phase.name, gate.metric)


def test_the_receipt_of_the_toy_is_of_its_plan():
    receipt = read_json(shipped("chat_toy.json"))
    check_receipt(receipt, read_plan("chat-toy"))
    assert receipt["seeds"]
    assert receipt["weights"] == "equal" and receipt["kills"]
