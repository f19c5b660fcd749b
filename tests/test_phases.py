"Plans and the ledger: bad input, planted failures, kills in every phase, ceilings"

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import kill
import pytest
from kill import same_weights, wait_for
from marks import first_ones

import gpub.train.pretraining as pretraining
import gpub.train.trainer as trainer
from gpub.cli.plans import bill_command, run_command
from gpub.core import GpubError, read_json
from gpub.plans.bill import bill, bill_text
from gpub.plans.gates import Gate
from gpub.plans.phases import read_plan
from gpub.plans.prices import find_price
from gpub.plans.runner import PlanOptions, run_plan
from gpub.plans.verdicts import paid_so_far, verdicts
from gpub.progress import Progress
from gpub.record.checkpoint import load_checkpoint
from gpub.record.folder import append_row
from gpub.record.ledger import KINDS, Ledger, account, gaps, read_ledger
from gpub.train.memory import Cut
from gpub.train.options import RunOptions
from gpub.train.rows import RunRows
from gpub.train.trainer import Trainer


def shrink(p, until, milestones):
    return replace(
        p,
        until=until,
        milestones=milestones,
        gates=tuple(
            replace(g, metric="gap", least=None, most=2.0)
            if g.metric in ("sample", "learned")
            else g
            for g in p.gates
        ),
    )


# the toy plan's six phases in 40 steps of 256 tokens
TOY = replace(
    read_plan("burn-toy"),
    settings=dict(decay=0.6, log_every=2, compile="no", precision="fp32", batch_tokens=256),
    save_every=4,
    phases=tuple(
        shrink(p, u, m)
        for p, u, m in zip(
            read_plan("burn-toy").phases, (4, 12, 24, 32, 36, 40), ((), (), (18, 24), (), (), (40,))
        )
    ),
)


def with_phase(name, **kw):
    return replace(TOY, phases=tuple(replace(p, **kw) if p.name == name else p for p in TOY.phases))


def argv(text, out, *more):
    plan = Path(text).parent / "toy-plan.json"
    plan.write_text(json.dumps(TOY.to_dict()))
    return [
        plan,
        "--data",
        str(text),
        "--out",
        str(out),
        "--device",
        "cpu",
        "--usd-per-hour",
        "1.45",
        *map(str, more),
    ]


SILENT = open(os.devnull, "w")


@pytest.fixture(scope="module", autouse=True)
def quick():
    "What every start measures, and every end draws, is tested elsewhere"
    with pytest.MonkeyPatch.context() as m:
        m.setattr(trainer, "known_peak", lambda *a: 1e12)
        m.setattr("gpub.report.page.write_report", empty_report)
        m.setattr(pretraining, "SAMPLING", replace(pretraining.SAMPLING, n=20))
        yield


def gpub_run(*argv):
    run_command.main([*map(str, argv)], standalone_mode=False)


def start(*argv):
    return kill.start(*argv, main="from gpub.cli.plans import run_command; run_command()")


def empty_report(out):
    "Stands in for the report, which takes longer to draw than these runs take"
    path = Path(out) / "report.html"
    path.write_text("")
    return path


def walk(plan, out, text, **kw):
    asked = dict(usd_per_hour=1.45, device="cpu", log=lambda s: None, progress=SILENT) | kw
    return run_plan(plan, out, PlanOptions(data=text, **asked))


def losses(out):
    return [
        (r["step"], r["loss"])
        for r in map(json.loads, (Path(out) / "log.jsonl").read_text().splitlines())
    ]


@pytest.fixture(scope="module")
def straight(text, tmp_path_factory):
    "The plan's run by `Trainer` alone: no phases, no stops"
    out = tmp_path_factory.mktemp("runs") / "straight"
    r = Trainer(
        RunOptions(
            "burn-toy",
            out,
            text,
            TOY.settings | dict(steps=TOY.steps),
            "cpu",
            save_every=100,
            log=lambda s: None,
            progress=Progress(TOY.steps, out=open(os.devnull, "w")),
        )
    )
    r.go()
    return out


def test_phases_equal_one_run(straight, text, tmp_path):
    v = walk(TOY, tmp_path / "run", text)
    assert v.word == "continue" and v.step == TOY.steps
    same_weights(tmp_path / "run", straight)
    assert dict(losses(straight)).items() <= dict(losses(tmp_path / "run")).items()
    assert [(v["phase"], v["word"]) for v in verdicts(tmp_path / "run")] == [
        (p.name, "continue") for p in TOY.phases
    ]
    kept = {int(p.name[5:]) for p in (tmp_path / "run" / "checkpoints").iterdir()}
    assert {m for p in TOY.phases for m in p.milestones} <= kept
    b = bill(tmp_path / "run")
    assert (
        [p["name"] for p in b["phases"]] == [p.name for p in TOY.phases]
        and sum(p["usd"] for p in b["phases"]) == pytest.approx(b["usd"])
        and "lost" not in bill_text(b)
    )


def killed(phases, straight, text, out):
    for p in phases:
        start_ = dict((n, a) for n, a, _ in TOY.bounds())[p.name]
        proc = start(*argv(text, out))
        wait_for(out, (start_ + p.until) // 2, proc)
        proc.kill()
        proc.communicate()
    assert "done" not in (v := walk(TOY, out, text)).reason and v.step == TOY.steps
    same_weights(out, straight)
    assert losses(out)[-1] == losses(straight)[-1]
    rows = read_ledger(out)
    spans = account(rows)
    live = [s for s in spans if s.kind not in ("lost", "idle")]
    assert sum(bool(r.get("open")) for r in rows) >= 6 + len(phases) and all(
        s.kind in KINDS for s in spans
    )
    steps = sorted((s.first, s.last) for s in live if s.kind == "train" and s.last > s.first)
    assert steps[0][0] == 0 and all(a[1] == b[0] for a, b in zip(steps, steps[1:])), (
        "every step counts exactly once"
    )


@pytest.mark.slow
def test_killed_in_the_middle_of_every_phase(straight, text, tmp_path):
    killed(TOY.phases, straight, text, tmp_path / "run")


@pytest.mark.slow
def test_stopped_from_outside(straight, text, tmp_path):
    p = start(*argv(text, tmp_path / "run"))
    wait_for(tmp_path / "run", 8, p)
    p.send_signal(signal.SIGTERM)
    out, err = p.communicate(timeout=120)
    # the command line makes 130 of it
    assert (
        p.returncode == 1 and "Interrupted: stopped at step" in err and "go on with: gpub " in err
    )
    step = load_checkpoint(tmp_path / "run").step
    assert 8 <= step < 40 and not [v for v in verdicts(tmp_path / "run") if v["word"] != "continue"]
    walk(TOY, tmp_path / "run", text, until="proof")
    assert load_checkpoint(tmp_path / "run").step == max(12, step)


@pytest.mark.full(instead="test_ends.py::test_from_the_mirror_too")
def test_a_lost_machine_comes_back_from_the_mirror(straight, text, tmp_path):
    walk(TOY, tmp_path / "run", text, until="proof", mirror=str(tmp_path / "drive"))
    before = paid_so_far(tmp_path / "drive")
    shutil.rmtree(tmp_path / "run")
    v = walk(TOY, tmp_path / "run", text, mirror=str(tmp_path / "drive"))
    assert v.step == 40
    same_weights(tmp_path / "run", straight)
    same_weights(tmp_path / "drive", straight)
    assert paid_so_far(tmp_path / "run") > before > 0


PLANTED = [
    (
        with_phase("smoke", gates=(Gate(metric="learned", least=0.0),)),
        dict(settings=dict(lr=1.0, muon_lr=2.0, warmup=0)),
        "smoke",
        "stop",
        "(gate: learned)",
    ),
    (
        with_phase("grind", gates=(Gate(metric="sample", least=2.5),)),
        {},
        "grind",
        "stop",
        "(gate: sample)",
    ),
    (TOY, dict(settings=dict(lr=1e30, warmup=0)), "smoke", "stop", "not a number"),
    (
        with_phase("smoke", gates=(Gate(metric="val_loss", most=1.0),)),
        {},
        "smoke",
        "stop",
        "(gate: val_loss)",
    ),
    (
        with_phase("smoke", gates=(Gate(metric="grad_norm", most=1e-9, when="always", after=1),)),
        {},
        "smoke",
        "stop",
        "(gate: grad_norm)",
    ),
    (
        with_phase("smoke", gates=(Gate(metric="usd_per_nat", most=1e-9),)),
        {},
        "smoke",
        "stop",
        "(gate: usd_per_nat)",
    ),
    (
        with_phase("grind", gates=(Gate(metric="next_usd", most=1e-12),)),
        {},
        "grind",
        "stop",
        "(gate: next_usd)",
    ),
    (
        with_phase("smoke", usd=1e-7),
        {},
        "smoke",
        "stop",
        "the budget of <$0.0001 (0 min) is used up; the remaining",
    ),
]
NAMES = ("rates", "sample", "overflow", "validation", "gradients", "point", "next", "budget")
# a gate, a number that is none and a budget; the others in `make test-all`
FIRST = {"overflow", "validation", "budget"}
PLANTED = [
    pytest.param(*failure, id=name, marks=() if name in FIRST else pytest.mark.full)
    for name, failure in zip(NAMES, PLANTED, strict=True)
]


@pytest.mark.parametrize("plan, kw, phase, word, why", PLANTED)
def test_planted_failures(plan, kw, phase, word, why, text, tmp_path):
    v = walk(plan, tmp_path / "run", text, **kw)
    assert (v.phase, v.word) == (phase, word) and why in v.reason, v
    assert verdicts(tmp_path / "run")[-1]["reason"] == v.reason
    if "number" in why or "grad_norm" in why:
        return  # these are met again on the way, the others are asked before anything is spent
    before = paid_so_far(tmp_path / "run")
    assert (
        walk(plan, tmp_path / "run", text, **kw).word == word
        and paid_so_far(tmp_path / "run") == before
    )


@pytest.mark.full(
    instead="test_ways_on.py::test_a_machine_that_becomes_slower_is_told_by_its_price"
)
def test_a_slow_machine(text, tmp_path, monkeypatch, straight):
    whole = RunRows.read

    def slow(self, step, context_length):
        return (time.sleep(0.1), whole(self, step, context_length))[1]

    monkeypatch.setattr(RunRows, "read", slow)
    plan = with_phase(
        "proof", gates=(Gate(metric="tok_s", least=256 / 0.1, when="always", after=2),)
    )
    v = walk(plan, tmp_path / "run", text)
    assert (v.phase, v.word) == ("proof", "change GPU") and 4 < v.step < 12 and "tok_s" in v.reason
    monkeypatch.setattr(RunRows, "read", whole)
    v = walk(TOY, tmp_path / "run", text)
    assert v.word == "continue"
    same_weights(tmp_path / "run", straight)  # on another machine it goes on


def test_money_that_came_later(text, tmp_path, straight):
    v = walk(with_phase("grind", usd=1e-5), tmp_path / "run", text)
    assert (v.phase, v.word) == ("grind", "stop") and 12 <= v.step < 24 and v.cause == "budget"
    v = walk(TOY, tmp_path / "run", text, until="grind")
    assert (v.phase, v.word, v.step) == ("grind", "continue", 24)


@pytest.fixture
def clockwork(monkeypatch):
    "A machine at a dollar a second: 50 s to get ready, 10 a step, 30 a checkpoint, 5 a validation"
    now = [0.0]
    parts = (RunRows, "read", 10), (trainer.OpenRun, "_write_checkpoint", 30)

    def ledger(d, usd, step=0, since=None, paid=False):
        now[0] += 40
        return Ledger(d, usd, step, now[0] - 40, paid, lambda: 1.7e9 + now[0], lambda: now[0])

    def after(seconds, f):
        return lambda *a, **kw: (now.__setitem__(0, now[0] + seconds), f(*a, **kw))[1]

    monkeypatch.setattr(trainer, "Ledger", ledger)
    monkeypatch.setattr(pretraining, "evaluate", after(5, pretraining.evaluate))
    for owner, name, seconds in parts:
        monkeypatch.setattr(owner, name, after(seconds, getattr(owner, name)))


@pytest.mark.parametrize("limit", first_ones(2, range(150, 450, 58)))
def test_the_ceiling_holds(limit, text, tmp_path, clockwork):
    plan = replace(TOY, phases=tuple(replace(p, usd=1e6, gates=()) for p in TOY.phases))
    v = walk(plan, tmp_path / "run", text, max_usd=limit, usd_per_hour=3600)
    assert (
        v.cause == "ceiling"
        and v.word == "stop"
        and "max-usd" in v.reason
        and limit - 160 <= paid_so_far(tmp_path / "run") == v.total <= limit
    )
    assert (
        load_checkpoint(tmp_path / "run").step == v.step > 0
        and sum(s.seconds for s in account(read_ledger(tmp_path / "run")) if s.kind == "lost") == 0
    )
    # at once, for nothing
    assert (
        walk(plan, tmp_path / "run", text, max_usd=limit, usd_per_hour=3600).cause == "ceiling"
        and paid_so_far(tmp_path / "run") == v.total
    )


def test_a_phase_that_changes_checkpointing_keeps_its_micro_batch(text, tmp_path):
    "Found once, by running out of memory, it is not looked for again in each phase"
    seen = {}

    def shrink_once(run, phase):
        if phase.name == "smoke":
            run.learner.micro_batcher.use(Cut(mode="full", micro=2))
        seen[phase.name] = run.learner.micro_batcher.cut

    walk(TOY, tmp_path / "run", text, until="grind", each=shrink_once)
    assert seen["proof"] == Cut(mode="full", micro=2)
    assert seen["grind"] == Cut(mode="off", micro=2)


@pytest.mark.parametrize("lost", ["never written", "gone later"])
def test_a_finished_plan_writes_a_missing_report_again(text, tmp_path, monkeypatch, lost):
    "The disk is full at the report of the last phase, or somebody removes it: the same command"
    first = replace(TOY, phases=TOY.phases[:1])
    report, calls = tmp_path / "run" / "report.html", []

    def write(out):
        calls.append(out)
        if lost == "never written" and len(calls) == 1:
            raise OSError(28, "No space left on device")
        report.write_text("a report")
        return report

    monkeypatch.setattr("gpub.report.page.write_report", write)
    if lost == "never written":
        with pytest.raises(GpubError, match="the disk is full"):
            walk(first, tmp_path / "run", text)
        assert verdicts(tmp_path / "run") == []
    else:
        walk(first, tmp_path / "run", text)
        report.unlink()
    weights = load_checkpoint(tmp_path / "run").path
    assert walk(first, tmp_path / "run", text).word == "continue"
    assert report.is_file() and load_checkpoint(tmp_path / "run").path == weights
    assert len(verdicts(tmp_path / "run")) == 1
    assert walk(first, tmp_path / "run", text).reason == "was done before" and len(calls) == 2


def test_a_schedule_that_ends_with_its_phase(text, tmp_path):
    plan = with_phase("proof", schedule_steps=12)
    walk(plan, tmp_path / "run", text, until="grind")
    lr = {
        r["step"]: r["lr"]
        for r in map(json.loads, (tmp_path / "run" / "log.jsonl").read_text().splitlines())
    }
    # it fell to nothing, and the next phase follows the plan's again
    assert lr[12] < 0.2 * max(lr.values()) and lr[14] > 2 * lr[12]


def test_finished_phases_stay(text, tmp_path):
    walk(TOY, tmp_path / "run", text, until="smoke")
    with pytest.raises(
        GpubError, match="finished phase smoke at step 4, but this plan has no such phase"
    ):
        walk(with_phase("smoke", until=3), tmp_path / "run", text)
    with pytest.raises(GpubError, match="holds another run: train.lr"):
        walk(TOY, tmp_path / "run", text, settings=dict(lr=0.5))
    v = walk(TOY, tmp_path / "run", text, until="proof")
    assert v.word == "continue" and v.step == 12


@pytest.mark.parametrize(
    "change, words",
    [
        (
            lambda d: d["phases"][1].update(start=2),
            "phase proof (steps 2 to 12) overlaps smoke, which runs to 4",
        ),
        (lambda d: d["phases"][1].update(until=4), "overlaps smoke"),
        (
            lambda d: d["phases"][1].update(start=8),
            "steps 4 to 8, before phase proof, belong to no phase",
        ),
        (
            lambda d: d["phases"][2].update(usd=-1),
            "phase grind: usd must be a budget in dollars, above 0, got -1",
        ),
        (
            lambda d: d["phases"][2].update(usd=float("nan")),
            "a budget in dollars, above 0, got nan",
        ),
        (
            lambda d: d["phases"][0]["gates"][0].update(metric="los"),
            "a gate on 'los', which is not logged; there are: loss",
        ),
        (lambda d: d["phases"][0]["gates"][0].update(maximum=3), "Gate does not know 'maximum'"),
        (lambda d: d.update(phases=[]), "at least one phase"),
        (lambda d: d.update(phases="all"), "is not a plan"),
        (lambda d: d.update(preset="burn-9b"), "no preset 'burn-9b'"),
        (lambda d: d["settings"].update(steps=5), "leave steps out"),
    ],
)
def test_bad_plans(change, words, text, tmp_path):
    d = json.loads(json.dumps(TOY.to_dict()))
    change(d)
    (tmp_path / "plan.json").write_text(json.dumps(d))
    with pytest.raises(GpubError) as e:
        gpub_run(tmp_path / "plan.json", *argv(text, tmp_path / "run")[1:])
    assert words in str(e.value) and "\n" not in str(e.value) and not (tmp_path / "run").exists()


def test_a_plan_that_is_no_json(text, tmp_path):
    (tmp_path / "plan.json").write_text('{"phases": [')
    with pytest.raises(GpubError, match="is not valid JSON"):
        gpub_run(tmp_path / "plan.json")
    for rate, words in ((0, "must be above 0, got 0.0"), (-1, "must be above 0")):
        with pytest.raises(GpubError, match=words):
            gpub_run("burn-toy", "--usd-per-hour", rate)
    with pytest.raises(GpubError, match="no price is known for 'GTX 970': give --usd-per-hour"):
        gpub_run("burn-toy", "--gpu", "GTX 970")


def test_the_published_plan():
    blog, ours = read_plan("burn-1b-blog"), read_plan("burn-1b")
    assert [(p.name, p.until, p.usd) for p in blog.phases[:4]] == [
        ("smoke", 200, 5.0),
        ("proof", 10_000, 25.0),
        ("grind", 60_000, 100.0),
        ("push", 90_000, 50.0),
    ]
    assert [p.until for p in ours.phases] == [p.until for p in blog.phases]
    assert ours.steps == 160_000 and ours.preset == blog.preset == "burn-1b"
    forced = [p.settings["grad_checkpoint"] for p in blog.phases]
    assert forced == ["full"] * 2 + ["off"] * 4
    # ours: money from the forecast, checkpointing from memory
    assert {p.usd for p in ours.phases} == {None} and not any(p.settings for p in ours.phases)
    assert not [g for p in ours.phases for g in p.gates if g.when == "always"]


@pytest.fixture
def short(text, tmp_path):
    walk(TOY, tmp_path / "short", text, until="proof")
    return tmp_path / "short"


def test_a_ledger_cut_in_the_middle_is_refused_and_left_alone(short, text):
    path = short / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) > 4
    for damage, words in (
        (lines[:2] + lines[3:], "line 3 has number 3 where 2 belongs"),
        (lines[:1] + [lines[1][:20] + "\n"] + lines[2:], "line 2 is not a row of a ledger"),
    ):
        path.write_text("".join(damage))
        checkpoints = sorted(p.name for p in (short / "checkpoints").iterdir())
        for f in (
            lambda: walk(TOY, short, text),
            lambda: bill(short),
            lambda: Trainer(
                RunOptions(
                    "burn-toy",
                    short,
                    text,
                    TOY.settings | dict(steps=12),
                    "cpu",
                    log=lambda s: None,
                )
            ).go(),
        ):
            with pytest.raises(GpubError) as e:
                f()
            assert (
                words in str(e.value)
                and "the bill begins anew" in str(e.value)
                and "\n" not in str(e.value)
            )
        assert path.read_text() == "".join(damage) and checkpoints == sorted(
            p.name for p in (short / "checkpoints").iterdir()
        )
    path.write_text("".join(lines) + lines[1][:30])
    before = bill(short)["usd"]  # the last line torn: as if it had not been begun
    assert (
        walk(TOY, short, text, until="grind").word == "continue"
        and bill(short)["usd"] > before
        and len(read_ledger(short)) > len(lines)
    )


def test_logs_of_one_row_and_none(short):
    log = short / "log.jsonl"
    one = log.read_text().splitlines()[0] + "\n"
    log.write_text(one)
    b = bill(short)
    assert (
        "1 logged loss, at least 12" in b["next"]["why"]
        and "it rose" not in bill_text(b)
        and b["phases"][0]["usd_per_nat"] is None
        and bill_text(b)
    )
    for text, words in (
        ("", "is empty"),
        ('{"step": 2, "loss": 1.0}\n', "line 1 has no step, loss or tokens"),
    ):
        log.write_text(text)
        with pytest.raises(GpubError, match=words):
            bill(short)
    log.unlink()
    with pytest.raises(GpubError, match="no log.jsonl"):
        bill(short)


def test_clock_jumps(tmp_path, capsys):
    now, off = [0.0], [1.7e9]
    hands = dict(wall=lambda: off[0] + now[0], steady=lambda: now[0])
    (tmp_path / "log.jsonl").write_text('{"step": 10, "loss": 2.0, "tokens": 1000}\n')
    with Ledger(tmp_path, 3600.0, **hands) as book:
        book.switch("train")
        now[0] += 10
        off[0] -= 86_400
        book.mark_step(10)  # a day back
    off[0] += 2 * 86_400
    with Ledger(tmp_path, 3600.0, step=10, **hands):
        now[0] += 1  # and two ahead, between processes
    bill_command.main([str(tmp_path)], standalone_mode=False)
    said = capsys.readouterr().out
    assert (
        "jumped by -86,400 s between steps 0 and 10" in said
        and "$11.00" in said
        and bill(tmp_path)["seconds"] == 11
    )


def test_a_date_that_jumps_between_two_processes_costs_nothing(tmp_path):
    "While the machine runs on, its own clock says how long nobody trained, whatever the date says"
    for paid in (False, True):
        with Ledger(tmp_path, 1.0, paid=paid):
            pass
    rows = read_ledger(tmp_path)
    if "boot" not in rows[0]:
        pytest.skip("this system does not tell when it was started")
    second = next(i for i, row in enumerate(rows) if row.get("open") and i)
    jumped = [*rows[:second], *(row | dict(at=row["at"] + 86_400) for row in rows[second:])]

    def idle(rows):
        return sum(s.seconds for s in account(rows) if s.kind == "idle")

    assert idle(jumped) == pytest.approx(idle(rows), abs=0.01)
    restarted = [*jumped[:second], *(row | dict(boot="another") for row in jumped[second:])]
    assert idle(restarted) == 0  # it was off, and nobody charges for that
    assert not gaps(restarted)[0].stayed_on
    assert gaps(restarted)[0].seconds == pytest.approx(86_400, abs=60)


@pytest.mark.parametrize(
    "boots, seconds_off, paid",
    [
        (("a", "a"), 60 * 3600, 60 * 3600),  # on all along, with no process
        (("a", "b"), 60 * 3600, 0),  # a weekend off
        (("a", ""), 60 * 3600, 0),  # one of them cannot tell
        (("", ""), 600, 0),  # none can: a person is asked
    ],
)
def test_a_gap_is_paid_for_only_while_the_machine_stayed_on(boots, seconds_off, paid, tmp_path):
    now = [1000.0]
    hands = dict(wall=lambda: 1.7e9 + now[0], steady=lambda: now[0])
    with Ledger(tmp_path, 1.49, boot=boots[0], **hands):
        now[0] += 1800
    now[0] += seconds_off
    with Ledger(tmp_path, 1.49, paid=True, boot=boots[1], **hands) as book:
        assert (book.gap.seconds, book.gap.paid) == (seconds_off, paid)
        assert ("If it was off, do nothing" in book.gap_note()) == (paid == 0)
        now[0] += 60
        assert book.usd() == pytest.approx((1800 + paid + 60) * 1.49 / 3600)
    append_row(tmp_path / "log.jsonl", dict(step=1, tokens=1, loss=1.0))
    notes = " ".join(bill(tmp_path)["notes"])
    assert f"pause 1: nothing trained for {seconds_off / 3600:.1f} h after step 0" in notes
    assert (f"gpub bill {tmp_path} --count 1=HOURS" in notes) == (paid == 0)
    assert (f"gpub bill {tmp_path} --strike 1" in notes) == (paid > 0)


def test_a_machine_that_counts_anew_was_off():
    "The same name of a start, but less time since it: no machine does that"
    first = dict(n=0, open=True, at=10.0, step=0, usd_per_hour=1.0, boot="a", up=500.0)
    again = first | dict(n=1, at=100.0, up=5.0, paid=True)
    assert account([first, again]) == [] and gaps([first, again])[0].seconds == 90.0


def test_paid_gaps_are_idle(tmp_path):
    now = [0.0]
    hands = dict(wall=lambda: 1.7e9 + now[0], steady=lambda: now[0])
    with Ledger(tmp_path, 2.0, boot="a", **hands):
        now[0] += 1800
    now[0] += 3600
    with Ledger(tmp_path, 1.0, paid=True, boot="a", **hands) as book:
        now[0] += 1800
        assert book.usd() == pytest.approx(1 + 2 + 0.5)
    kinds = {s.kind: s.usd for s in account(read_ledger(tmp_path))}
    assert kinds["idle"] == pytest.approx(2.0)  # at the price of the machine that stood there


def test_a_run_without_a_ledger_has_a_bill(root, capsys):
    bill_command.main(
        [str(root / "data" / "runs" / "shakespeare"), "--usd-per-hour", "1"], standalone_mode=False
    )
    said = capsys.readouterr().out
    assert "no ledger.jsonl" in said and "the next 0.01 of loss" in said and "950 steps" in said


def test_every_run_keeps_a_ledger(straight):
    spans = account(read_ledger(straight))
    wall = read_json(straight / "bill.json")["seconds"]
    by = {k: sum(s.seconds for s in spans if s.kind == k) for k in KINDS}
    assert (
        by["lost"] == by["idle"] - by["idle"] == 0
        and all(by[k] > 0 for k in ("train", "eval", "save", "setup"))
        and wall <= sum(by.values()) < 3 * wall + 10
    )


def test_prices(tmp_path):
    table = tmp_path / "p.json"
    table.write_text(
        json.dumps([dict(gpu="H100", usd_per_hour=0, provider="x", date="2027-01-01")])
    )
    with pytest.raises(GpubError, match="entry 1: usd_per_hour must be a number above 0, got 0"):
        find_price("H100", table)
    table.write_text(
        json.dumps(
            [
                dict(gpu="H100", usd_per_hour=1.5, date="2026-12-01", note="spot, floor"),
                dict(gpu="H100", usd_per_hour=2.5, date="2026-11-01", provider="x"),
            ]
        )
    )
    assert find_price("H100 SXM", table) == (2.5, "x, 2026-11-01")
    with pytest.raises(GpubError, match="give --usd-per-hour"):
        find_price("RTX 3050", table)
    table.write_text(
        json.dumps(
            [
                dict(gpu="H100", usd_per_hour=9.0),
                dict(gpu="H100", usd_per_hour=2, date="2026-11-01"),
            ]
        )
    )
    assert find_price("H100", table) == (2.0, "2026-11-01")  # no date is older than any


@pytest.mark.parametrize(
    "text, words",
    [
        ("[", "is not valid JSON"),
        ("7", "is no table of prices"),
        ('{"prices": []}', "is no table of prices"),
        ("null", "is no table of prices"),
        (
            '["H100 2.99"]',
            "entry 1: a price is an object with gpu and usd_per_hour, got 'H100 2.99'",
        ),
        ('[{"usd_per_hour": 1}]', "entry 1: gpu must be the name of a card, got None"),
        ('[{"gpu": {"H100": 1}, "usd_per_hour": 1}]', "entry 1: gpu must be"),
        *(
            (
                f'[{{"gpu": "T4", "usd_per_hour": 1}}, {{"gpu": "H100", "usd_per_hour": {v}}}]',
                f"entry 2: usd_per_hour must be a number above 0, got {said}",
            )
            for v, said in (
                ('"1.49"', "'1.49'"),
                ("null", "None"),
                ("true", "True"),
                ("[1]", r"\[1\]"),
                ("NaN", "nan"),
                ("1e999", "inf"),
                ("-1", "-1"),
                ("0", "0"),
            )
        ),
        *(
            (f'[{{"gpu": "H100", "usd_per_hour": 1, "{k}": {v}}}]', f"entry 1: {k} must be")
            for k, v in (
                ("date", "20260407"),
                ("date", '"7.4.2026"'),
                ("provider", "5"),
                ("note", '["spot"]'),
                ("source", '"s2-01"'),
                ("source", "[1]"),
                ("source", '{"a": 1}'),
            )
        ),
    ],
)
def test_a_damaged_price_table_is_one_line(text, words, tmp_path):
    table = tmp_path / "p.json"
    table.write_text(text)
    with pytest.raises(GpubError, match=words) as e:
        find_price("H100", table)
    assert str(table) in str(e.value) and "\n" not in str(e.value)


@pytest.mark.slow
def test_two_processes_walk_together(text, tmp_path, straight):
    code = "import sys; from gpub.cli.plans import run_command; run_command()"
    (tmp_path / "go.py").write_text(code)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc_per_node=2",
            str(tmp_path / "go.py"),
            *argv(text, tmp_path / "run", "--mirror", tmp_path / "drive"),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert [v["word"] for v in verdicts(tmp_path / "run")] == ["continue"] * 6 and sum(
        bool(r.get("open")) for r in read_ledger(tmp_path / "run")
    ) == 6
    a, b = dict(losses(tmp_path / "run")), dict(losses(straight))
    assert all(abs(a[k] - b[k]) < 1e-2 for k in b)
