"""The walk to a 1B as somebody new takes it, on a simulated pod: an ordinary night, and each thing
that ends one. Of each: what is printed, the line to paste, which is pasted, minutes and dollars."""

import json
import os
import re
import shlex
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from pod import (
    FORECAST,
    PLAN,
    USD_PER_HOUR,
    Pod,
    quota_used_up,
    rented,
    stop_by_hand,
    take_away,
)

from gpub.cli.plans import bill_command
from gpub.core import read_json, write_atomic
from gpub.files import shipped
from gpub.guards import before_paying, standin
from gpub.plans.bill import bill, money

AGAIN = "the same command, on a new pod with the same volume"
BEFORE = 1000  # steps before the end of a phase, at which a copy of the ordinary run is kept
STORY = "event printed line minutes usd".split()


def lines_to_paste(printed):
    "The commands in what was printed, in their order"
    return [line.strip() for line in re.findall(r"gpub run [^;\n]+", printed)]


def options_of(line):
    "The options of a command, each with its value"
    words = shlex.split(line)
    return [(a, b) for a, b in zip(words, words[1:]) if a.startswith("--") and a != "--paid-gaps"]


def added(line, typed):
    "What a line has other than the one that was typed before"
    known = options_of(typed)
    more = [" ".join(pair) for pair in options_of(line) if pair not in known]
    return f"the same command, with `{' '.join(more)}`" if more else "the same command"


def said(printed, words, pod):
    "The line of what was printed that has these words, as on a real volume"
    line = next(line for line in printed.splitlines() if words in line)
    short = line.replace(str(pod.folder), "/workspace").removeprefix("gpub: ")
    return short.partition(" Choose one: ")[0].partition(" Nothing is training now")[0]


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory):
    "The walk without an event, and copies of it shortly before the end of each phase"
    folder = tmp_path_factory.mktemp("ordinary")
    copies = {}
    pod = Pod(folder)

    def keep(phase):
        def copy(run):
            copies[phase.name] = pod.snapshot(folder / phase.name)
            copies[phase.name].run_ends = phase.until

        return copy

    for phase in PLAN.up_to("push")[1:]:
        pod.happens[phase.until - BEFORE + 50] = keep(phase)
    with pytest.MonkeyPatch.context() as patch, rented(pod, patch):
        pod.preflight()
        pod.rents()
        printed = pod.type(pod.line())
    pod.copies = copies
    pod.printed = printed
    pod.controls = {name: undisturbed(copies[name], folder / f"control-{name}") for name in copies}
    return pod


def undisturbed(copy, folder):
    "What the provider has counted at each step of a pod that goes on with a copy, and no event"
    control = copy.snapshot(folder)
    control.happens[copy.run_ends + 50] = stop_by_hand
    with pytest.MonkeyPatch.context() as patch, rented(control, patch):
        control.type(control.line())
    return control.paid_at


@pytest.fixture
def stories(ordinary, request):
    "Files a line of the table, and compares it with the receipt that the page shows"
    told = []

    def tell(event, printed, line, minutes, pod, step):
        usd = (pod.paid_at[step] - pod.control[step]) / 3600 * USD_PER_HOUR
        row = [event, printed, line, round(minutes), round(usd, 2)]
        told.append(dict(zip(STORY, row)))

    yield tell
    file = os.environ.get("POD_RECEIPT")
    if file:  # data/paid_walk.json is written by these tests
        rows = json.loads(open(file).read())["stories"] if os.path.exists(file) else []
        fresh = {row["event"]: row for row in [*rows, *told]}
        total = round(ordinary.on_seconds / 3600 * USD_PER_HOUR, 2)
        walk = dict(usd=total, hours=round(ordinary.on_seconds / 3600, 1))
        receipt = dict(card=FORECAST.name, ordinary=walk, stories=[*fresh.values()])
        write_atomic(file, json.dumps(receipt, indent=1) + "\n")
        return
    known = {row["event"]: row for row in read_json(shipped("paid_walk.json"))["stories"]}
    for row in told:
        assert known[row["event"]] == row, "run these tests with POD_RECEIPT=data/paid_walk.json"


@pytest.fixture
def pod(ordinary, tmp_path, monkeypatch):
    "Rents a pod that goes on shortly before the end of a phase; without one, a new one"

    def rent(phase=None, **more):
        new = ordinary.copies[phase].snapshot(tmp_path / phase) if phase else Pod(tmp_path, **more)
        new.control = ordinary.controls[phase] if phase else ordinary.paid_at
        held.append(rented(new, monkeypatch))
        held[-1].__enter__()
        return new

    held = []
    yield rent
    for context in held:
        context.__exit__(None, None, None)


@pytest.mark.full(instead="test_phases.py::test_phases_equal_one_run")
def test_an_ordinary_night(ordinary):
    "All phases, by one line; the ledger has what the provider asks for, but for what was before"
    said = [line for line in ordinary.printed.splitlines() if " is done (step" in line]
    assert [line.partition("):")[0] for line in said] == [
        "smoke is done (step 200",
        "proof is done (step 10,000",
        "grind is done (step 60,000",
        "FINISHED: push is done (step 90,000",
    ]
    assert said[0].endswith("The next phase, proof, starts now.")
    assert "Nothing is training now; a machine that is rented costs $1.49 an hour" in said[-1]
    before = 900 + 600  # preflight, and the clicks
    ledger = bill(ordinary.run)["seconds"]
    assert ledger == pytest.approx(ordinary.on_seconds - before, abs=1)
    assert "push is done (step 90,000)" in (ordinary.run / "STATUS").read_text()
    assert "push is done (step 90,000)" in (ordinary.run / "gpub.log").read_text()


@pytest.mark.full(instead="test_run.py::test_kill_9")
def test_a_pod_that_is_taken_away(pod, stories):
    machine = pod("grind")
    machine.happens[59_800] = take_away
    machine.happens[60_050] = stop_by_hand
    printed = machine.type(machine.line())
    assert "STOP" not in printed
    assert "training grind, step 59,750 of 60,000" in (machine.run / "STATUS").read_text()
    machine.is_off(0.5)
    began = machine.now
    machine.rents()
    printed, _ = machine.goes_on(machine.line(), 59_750)
    assert "is not in the bill" in printed and "grind is done (step 60,000)" in printed
    minutes = (machine.stood - began) / 60
    stories(
        "the pod is taken away, 250 steps after a checkpoint",
        "nothing; STATUS keeps the last step and its time",
        AGAIN,
        minutes,
        machine,
        60_000,
    )


GATES = [
    ("smoke", "loss", dict(loss=9.5)),
    ("proof", "loss", dict(loss=4.6)),
    ("proof", "val_loss", dict(val_loss=4.7)),
    ("proof", "gap", dict(val_loss=4.4)),
    ("proof", "sample", dict(sample="the the " * 200)),
    ("grind", "loss", dict(loss=3.1)),
    ("grind", "gap", dict(val_loss=3.9)),
    ("grind", "sample", dict(sample="the the " * 200)),
    ("push", "loss", dict(loss=2.8)),
    ("push", "gap", dict(val_loss=3.9)),
]


# a number and a text; the others in `make test-all`
FIRST = {("grind", "loss"), ("grind", "sample")}
GATES = [pytest.param(*gate, marks=() if gate[:2] in FIRST else pytest.mark.full) for gate in GATES]


@pytest.mark.full(instead="test_phases.py::test_planted_failures")
@pytest.mark.parametrize("phase, metric, planted", GATES, ids=lambda x: x if type(x) is str else "")
def test_a_gate_that_does_not_hold(phase, metric, planted, pod, stories):
    "What it asked is said, and the first line below passes it, on the record"
    machine = pod(phase if phase != "smoke" else None)
    if phase == "smoke":
        machine.preflight()
        machine.rents()
    end = PLAN.phase(phase).until
    machine.rows[phase] = planted
    printed = machine.type(machine.line())
    verdict = said(printed, f"STOP: {phase}, step {end:,}", machine)
    assert f"(gate: {metric})" in verdict and "wanted" in verdict
    failed = re.findall(r"\(gate: (\w+)\)", verdict)
    line = lines_to_paste(printed)[0]
    assert all(f"--accept {phase}:{name}" in line for name in failed)
    assert f"--accept {phase}:{metric}" in (machine.run / "STATUS").read_text()
    last = end == PLAN.phase("push").until
    later = end if last else end + 50
    machine.happens[later] = stop_by_hand
    printed, minutes = machine.goes_on(line, end)
    assert f"{phase} is done (step {end:,}): accepted by hand" in printed
    minutes = 0.0 if last else minutes  # nothing is left to train
    assert minutes < 10
    stories(
        f"the gate on {metric} stops {phase}",
        verdict,
        added(line, machine.line()),
        minutes,
        machine,
        later,
    )


@pytest.mark.full(
    instead="test_ways_on.py::test_a_machine_that_becomes_slower_is_told_by_its_price"
)
def test_a_host_that_becomes_slower(pod, stories, tmp_path):
    "Found out by the price that its own steps had; another host, or its price is accepted"
    machine = pod("grind")
    machine.preflight()
    machine.tok_s *= 0.7
    machine.happens[60_050] = stop_by_hand
    printed = machine.type(machine.line())
    verdict = said(printed, "SLOW MACHINE", machine)
    assert "a billion tokens is $" in verdict and "(gate: usd_per_billion)" in verdict
    host, accept, *_ = lines_to_paste(printed)
    assert (
        added(host, machine.line()) == "the same command"
        and "--accept grind:usd_per_billion" in accept
    )
    copied = machine.snapshot(tmp_path / "accepts")
    began = machine.now
    step = int(re.search(r"step ([\d,]+)", verdict)[1].replace(",", ""))
    machine.rents()
    machine.tok_s = FORECAST.tok_s()
    printed, _ = machine.goes_on(host, step)
    assert "grind is done (step 60,000)" in printed
    minutes = (machine.stood - began) / 60
    stories(
        "a host becomes slower by 30%",
        verdict,
        "the same command, on another host",
        minutes,
        machine,
        60_000,
    )
    copied.happens[60_050] = stop_by_hand
    with pytest.MonkeyPatch.context() as patch, rented(copied, patch):
        printed = copied.type(accept.replace(str(machine.folder), str(copied.folder)))
    assert "grind is done (step 60,000)" in printed


@pytest.mark.full(instead="test_run.py::test_kill_9")
def test_a_weekend_with_the_pod_switched_off(pod, stories):
    "WHEN_DONE has stopped the pod: the hours are said, and are not on the bill"
    machine = pod("grind")
    machine.happens[59_700] = stop_by_hand
    machine.happens[60_050] = stop_by_hand
    machine.type(machine.line())
    paid = bill(machine.run)["usd"]
    machine.is_off(60)
    printed, minutes = machine.goes_on(machine.line(), 59_700)
    gap = said(printed, "60.0 h after step", machine)
    assert "is not in the bill" in gap and "grind is done (step 60,000)" in printed
    assert bill(machine.run)["usd"] - paid < 2
    event = "a weekend with the pod switched off"
    stories(event, gap, "the same command", minutes, machine, 60_000)


@pytest.mark.full(
    instead="test_ways_on.py::test_the_line_that_a_stop_prints_is_pasted_and_the_run_goes_on"
)
def test_a_weekend_with_the_pod_left_on(pod, stories):
    "The provider asks for it, so it is on the bill; the budget that it used up is raised by a line"
    machine = pod("grind")
    machine.happens[59_700] = stop_by_hand
    machine.happens[60_050] = stop_by_hand
    machine.type(machine.line())
    machine.passes(60 * 3600)
    printed = machine.type(machine.line())
    verdict = said(printed, "is used up", machine)
    line = next(line for line in lines_to_paste(printed) if "--more grind=" in line)
    printed, minutes = machine.goes_on(line, 59_700)
    assert "grind is done (step 60,000)" in printed, printed
    event = "a weekend with the pod left on (the volume keeps the run)"
    stories(event, verdict, added(line, machine.line()), minutes, machine, 60_000)


@pytest.mark.full(instead="test_ways_on.py::test_a_gap_is_struck_out_and_the_bill_says_so_for_ever")
def test_a_gap_that_was_not_paid_is_struck_out_and_the_budget_is_there_again(pod):
    machine = pod("grind")
    machine.happens[59_700] = stop_by_hand
    machine.happens[60_050] = stop_by_hand
    machine.type(machine.line())
    machine.now += 60 * 3600  # the same boot, and nobody asks for money
    printed = machine.type(machine.line())
    assert "is used up" in printed
    gaps = CliRunner().invoke(bill_command, [str(machine.run)]).output
    strike = re.search(r"60.0 h .*(gpub bill \S+ --strike \d+)", gaps)
    shown = CliRunner().invoke(bill_command, shlex.split(strike[1])[2:])
    assert shown.exit_code == 0 and "taken out of the bill by hand" in shown.output
    assert "grind is done (step 60,000)" in machine.type(machine.line())


@pytest.mark.full(instead="test_ways_on.py::test_a_host_slower_than_its_forecast_is_said_first")
def test_a_host_at_35_percent_of_the_peak(pod, stories, tmp_path):
    "Said by the preflight's steps before the first that counts; another host, or its price"
    slow = 0.7 * FORECAST.tok_s()
    machine = pod(tok_s=slow)
    began = machine.now
    machine.rents()
    machine.preflight()
    printed = machine.type(machine.line())
    refusal = said(printed, "which the forecast announced", machine)
    assert "35% of its peak" in refusal and not (machine.run / "checkpoints").exists()
    host, dearer, sooner = lines_to_paste(printed)
    assert added(host, machine.line()) == "the same command"
    assert "--max-usd" in dearer and "--until" in sooner
    other = machine.snapshot(machine.folder / "dearer")
    machine.rents()
    machine.tok_s = FORECAST.tok_s()
    machine.preflight()
    machine.happens[210] = stop_by_hand
    printed, _ = machine.goes_on(host, 0)
    assert "smoke is done (step 200)" in printed
    minutes = (machine.stood - began) / 60
    event = "a host at 35% of the peak instead of 50%"
    stories(event, refusal, "the same command, on another host", minutes, machine, 200)
    for line in (dearer, sooner):  # whoever stays on it pays what was said
        stays = other.snapshot(tmp_path / str(line == sooner))
        stays.happens[210] = stop_by_hand
        with pytest.MonkeyPatch.context() as patch, rented(stays, patch):
            printed = stays.type(line.replace(str(machine.folder), str(stays.folder)))
        assert "smoke is done (step 200)" in printed


@pytest.mark.full(instead="test_run.py::test_disk_full_while_saving")
def test_a_volume_that_is_full_by_its_quota(pod, stories, monkeypatch):
    "df shows room: the line says quota; the run goes on where its last whole checkpoint is"
    machine = pod("grind")
    machine.happens[60_050] = stop_by_hand
    with quota_used_up(monkeypatch):
        printed = machine.type(machine.line())
    refusal = said(printed, "Disk quota exceeded", machine)
    assert "earlier checkpoints are whole" in refusal
    began = machine.now
    machine.passes(300)  # the volume is made larger in the browser
    printed, _ = machine.goes_on(machine.line(), 59_500)
    assert "grind is done (step 60,000)" in printed
    minutes = (machine.stood - began) / 60
    event = "the volume is full by its quota"
    stories(event, refusal, "the same command, with a larger volume", minutes, machine, 60_000)


@pytest.mark.full(instead="test_run.py::test_kill_9")
def test_an_account_that_becomes_empty(pod, stories):
    "The provider stops the pod; after paying in it is a pod that was taken away"
    machine = pod("grind")
    machine.happens[59_800] = take_away
    machine.happens[60_050] = stop_by_hand
    machine.type(machine.line())
    machine.is_off(12)
    began = machine.now
    machine.passes(600)
    printed, _ = machine.goes_on(machine.line(), 59_750)
    assert "grind is done (step 60,000)" in printed
    minutes = (machine.stood - began) / 60
    event = "the account is empty, and 12 hours later somebody pays in"
    stories(
        event, "nothing; STATUS keeps the last step and its time", AGAIN, minutes, machine, 60_000
    )


@pytest.mark.full(
    instead="test_ways_on.py::test_the_line_that_a_stop_prints_is_pasted_and_the_run_goes_on"
)
def test_a_balance_below_the_ceiling(pod, stories):
    "Refused before a step; the first line ends sooner and is accepted"
    machine = pod()
    began = machine.now
    machine.rents()
    machine.preflight()
    printed = machine.type(machine.line("--balance 200"))
    refusal = said(printed, "above the balance", machine)
    assert not (machine.run / "checkpoints").exists()
    line = lines_to_paste(printed)[0]
    machine.happens[210] = stop_by_hand
    printed, _ = machine.goes_on(line, 0)
    assert "smoke is done (step 200)" in printed
    minutes = (machine.stood - began) / 60
    event = "$200 in the account"
    new = added(line, machine.line("--balance 200"))
    stories(event, refusal, new, minutes, machine, 200)


@pytest.mark.full(
    instead="test_ways_on.py::test_the_line_that_a_stop_prints_is_pasted_and_the_run_goes_on"
)
def test_a_ceiling_that_is_reached(pod, stories):
    "Because of what was lost on the way; one line goes on, another lets the rate fall"
    machine = pod("push")
    paid = bill(machine.run)["usd"]
    machine.happens[90_000] = lambda run: None
    printed = machine.type(machine.line(f"--max-usd {paid + 0.9:.2f}"))
    verdict = said(printed, "it ends before the limit of", machine)
    line = next(line for line in lines_to_paste(printed) if "--max-usd" in line)
    step = int(re.search(r"step ([\d,]+)", verdict)[1].replace(",", ""))
    printed, minutes = machine.goes_on(line, step)
    assert "push is done (step 90,000)" in printed
    event = "--max-usd is reached"
    stories(event, verdict, added(line, machine.line()), minutes, machine, 90_000)


@pytest.mark.full(
    instead="test_train_chat.py::test_a_torch_that_cannot_rehearse_is_no_failed_rehearsal"
)
def test_an_old_torch(ordinary, monkeypatch, stories):
    "The rehearsal says that it cannot, and the walk goes on"
    monkeypatch.delattr(standin.backend_registration, standin.SET_UP)
    answer = before_paying.rehearse_apart("burn-1b", "A100-80")
    assert answer.ready is None
    free = SimpleNamespace(paid_at=ordinary.paid_at, control=ordinary.paid_at)
    stories("torch 2.6 to 2.9", answer.text, "nothing", 0.0, free, 200)


def test_the_page_shows_every_story(root):
    "And none of them is a dead end"
    receipt = read_json(shipped("paid_walk.json"))
    assert len(receipt["stories"]) >= 18
    assert all(row["line"] and row["minutes"] < 120 for row in receipt["stories"])
    page = (root / "nbs/what_survives.ipynb").read_text(encoding="utf-8")
    assert "paid_walk.json" in page
    assert money(receipt["ordinary"]["usd"]).removeprefix("$") in page.replace("\\", "")
