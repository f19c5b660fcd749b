"No stop of a plan is a dead end: the line that it prints is pasted, and the run goes on"

import json
import re
import shlex
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from click.testing import CliRunner

import gpub.plans.runner
from gpub.cli.plans import bill_command, run_command
from gpub.core import GpubError, write_atomic
from gpub.data.plays import plays
from gpub.plans.allowances import Allowances, ways_on
from gpub.plans.gates import Gate
from gpub.plans.gpus import machine_for
from gpub.plans.paid_steps import talk_folder
from gpub.plans.phases import read_plan
from gpub.plans.verdicts import PhaseVerdict, verdicts
from gpub.record.ledger import Ledger, read_ledger
from gpub.train.loop import Diverged, TrainStep
from gpub.train.timed_steps import TimedSteps, file_timed

pytestmark = pytest.mark.usefixtures("short_texts")

TOY = read_plan("burn-toy")
RATE = 1.0  # dollars an hour, so that a dollar more is enough on the slowest machine


def tiny(**changes):
    "Two phases of the toy, four steps each, whose first one is changed"
    smoke, proof = (replace(p, milestones=(), gates=(), usd=1000.0) for p in TOY.phases[:2])
    phases = replace(smoke, until=4, **changes), replace(proof, until=8)
    return replace(TOY, phases=phases, settings=TOY.settings | dict(batch_tokens=256, log_every=1))


@pytest.fixture
def typed(tmp_path, capsys, monkeypatch):
    "Types a command of gpub run as in a shell, and returns what was printed, with the last line"

    def run(line):
        words = shlex.split(line)
        assert words[:2] == ["gpub", "run"]
        monkeypatch.setattr(sys, "argv", words)
        refused = ""
        try:
            run_command.main(words[2:], standalone_mode=False)
        except GpubError as e:
            refused = str(e)
            assert "\n" not in refused
        return capsys.readouterr().out + refused

    return run


@pytest.fixture
def begun(tmp_path):
    "Writes a plan and returns the command that walks it"
    text = tmp_path / "text.txt"
    text.write_text(plays(30_000, seed=0), encoding="utf-8", newline="\n")

    def command(plan):
        write_atomic(tmp_path / "plan.json", json.dumps(plan.to_dict()))
        parts = ["gpub", "run", str(tmp_path / "plan.json"), "--out", str(tmp_path / "run")]
        parts += ["--data", str(text), "--usd-per-hour", str(RATE), "--device", "cpu"]
        return shlex.join(parts)

    return command


def lines_to_paste(printed):
    "The commands in what was printed, in their order"
    return [line.strip() for line in re.findall(r"gpub run [^;\n]+", printed)]


LOSS = Gate(metric="loss", most=0.1)
SLOW = Gate(metric="tok_s", least=1e12, when="always", after=1)
POOR = dict(usd=1e-5)


STOPS = {
    "loss": (tiny(gates=(LOSS,)), "", "STOP", 0, 8),
    "speed": (tiny(gates=(SLOW,)), "", "SLOW MACHINE", 1, 8),
    "everywhere": (tiny(gates=(SLOW,)), "", "SLOW MACHINE", 2, 8),
    "budget": (tiny(**POOR), "", "the budget of", 0, 8),
    "budgets": (tiny(**POOR), "", "over the budgets of smoke", 2, 8),
    "ceiling": (
        tiny(),
        "--max-usd 0.00001",
        "it ends before the limit of <$0.0001 for the run (--max-usd)",
        0,
        8,
    ),
    "end": (tiny(), "--max-usd 0.00001", "above its limit", 1, 8),
    "annealed": (tiny(gates=(SLOW,)), "--anneal", "FINISHED early, as asked", 0, 8),
    "max-usd": (tiny(), "--balance 1500", "above the balance of $1,500.00", 0, 8),
    "until": (tiny(), "--balance 1500", "above the balance of $1,500.00", 1, 4),
    "balance": (tiny(), "--balance 1500", "above the balance of $1,500.00", 2, 8),
}
# a gate, a limit and a balance; the others in `make test-all`
FIRST = {"loss", "end", "balance"}
CASES = [
    pytest.param(*stop, id=name, marks=() if name in FIRST else pytest.mark.full)
    for name, stop in STOPS.items()
]


@pytest.mark.parametrize("plan, options, word, which, ends", CASES)
def test_the_line_that_a_stop_prints_is_pasted_and_the_run_goes_on(
    plan, options, word, which, ends, begun, typed, tmp_path
):
    command = begun(plan)
    if options == "--anneal":  # where a gate stopped it
        assert "SLOW MACHINE" in typed(command)
        write_atomic(tmp_path / "plan.json", json.dumps(tiny().to_dict()))
    printed = typed(f"{command} {options}")
    assert word in printed
    line = lines_to_paste(printed)[which]
    printed = typed(line)
    assert "FINISHED" in printed, printed
    assert verdicts(tmp_path / "run")[-1]["step"] == ends


@pytest.mark.full(instead="test_the_line_that_a_stop_prints_is_pasted_and_the_run_goes_on")
def test_where_the_next_phase_cannot_be_paid_either_one_line_goes_to_the_end(
    begun, typed, tmp_path
):
    plan = tiny(gates=(SLOW,))
    first, second = plan.phases
    plan = replace(plan, phases=(first, replace(second, usd=1e-5)))
    printed = typed(begun(plan))
    assert "SLOW MACHINE" in printed and "over the budgets of proof" in printed
    (line,) = [line for line in lines_to_paste(printed) if "--more proof=" in line]
    assert "--accept all:tok_s" in line
    assert "FINISHED" in typed(line)
    assert verdicts(tmp_path / "run")[-1]["step"] == 8


@pytest.mark.parametrize(
    "options",
    [
        "--max-usd 0.00001",
        pytest.param("--balance 2500 --until proof", marks=pytest.mark.full),
    ],
    ids=str,
)
def test_where_a_run_stopped_its_rate_falls_after_the_line_that_says_so(
    options, begun, typed, tmp_path, monkeypatch
):
    "At a ceiling, and with less in the account than the plan's budgets: the fall is what counts"
    printed = typed(f"{begun(tiny(gates=(SLOW,)))} {options}")
    line = lines_to_paste(printed)[-1]
    assert "not finished" in printed and "--anneal" in line and "--until" not in line
    line = line.replace("--balance 2500", "--balance 1")
    # a known price of a step: what a busy machine takes for three of them is no budget
    monkeypatch.setattr(gpub.plans.runner, "step_cost", lambda run_dir: 0.01)
    assert "FINISHED early" in typed(line)
    assert verdicts(tmp_path / "run")[-1]["cause"] == "annealed"


@pytest.mark.full(instead="test_where_a_run_stopped_its_rate_falls_after_the_line_that_says_so")
def test_a_fall_above_the_balance_is_refused_and_the_way_on_is_possible(begun, typed):
    command = begun(tiny(gates=(SLOW,)))
    typed(command)
    printed = typed(f"{command} --anneal --balance 0.0000001")
    assert "letting the learning rate fall costs about" in printed
    (line,) = lines_to_paste(printed)
    assert "FINISHED early" in typed(line)


def unpriced(batch_tokens=256):
    "The same two phases without budgets: their price is worked out"
    plan = tiny()
    phases = tuple(replace(p, usd=None) for p in plan.phases)
    return replace(plan, phases=phases, settings=plan.settings | dict(batch_tokens=batch_tokens))


def timed_at(folder, plan, share):
    "Say that the steps of a plan were timed on this CPU, at a share of their forecast"
    forecast = machine_for(plan.preset, "cpu", RATE)
    steps = TimedSteps(
        preset=plan.preset,
        card="cpu",
        steps=20,
        tok_s=share * forecast.tok_s(),
        compiled=False,
        checkpointing=forecast.mode,
        ready_seconds=1.0,
    )
    file_timed(folder, steps)


def test_a_host_slower_than_its_forecast_is_said_first(begun, typed, tmp_path):
    "What the forecast announced is not passed unasked; each line to paste trains"
    plan = unpriced()
    timed_at(tmp_path / "run", plan, 1e-5)
    printed = typed(begun(plan))
    assert "which the forecast announced, would end the run" in printed
    assert "FINISHED" not in printed and "stop this pod, rent another" in printed
    assert not (tmp_path / "run" / "checkpoints").exists()
    (line,) = [line for line in lines_to_paste(printed) if "--max-usd" in line]
    # or its budgets would be those of the slow host; a machine with other work is within these
    timed_at(tmp_path / "run", plan, 0.01)
    assert "FINISHED" in typed(line)
    assert verdicts(tmp_path / "run")[-1]["step"] == 8


def test_a_machine_that_becomes_slower_is_told_by_its_price(begun, typed, tmp_path):
    "The gate is a quarter above what the steps cost when they were timed, whatever was forecast"
    plan = unpriced()
    timed_at(tmp_path / "run", plan, 1e5)
    printed = typed(begun(plan))
    assert "priced again by the steps timed here" in printed and "SLOW MACHINE" in printed
    line = next(line for line in lines_to_paste(printed) if "--accept all:usd_per_bill" in line)
    assert "FINISHED" in typed(line)


@pytest.mark.full(instead="test_the_line_that_a_stop_prints_is_pasted_and_the_run_goes_on")
def test_a_phase_that_is_behind_is_no_end_that_is_offered(begun, typed):
    command = begun(tiny())
    assert "FINISHED" in typed(f"{command} --until smoke")
    printed = typed(f"{command} --balance 1500")
    assert "above the balance" in printed and "--until smoke" not in printed


@pytest.mark.full(instead="test_phases.py::test_finished_phases_stay")
def test_where_nothing_is_left_to_do_the_cost_of_the_last_phase_is_said(begun, typed, tmp_path):
    command = begun(tiny())
    typed(command)
    printed = typed(command)
    assert "nothing to do: proof was finished at step 8 by an earlier run" in printed
    phase, run = re.search(r"Paid (\S+) for this phase, (\S+) for the run", printed).groups()
    assert "$0.00" not in (phase, run) and verdicts(tmp_path / "run")[-1]["usd"] > 0


@pytest.mark.full(instead="test_the_line_that_a_stop_prints_is_pasted_and_the_run_goes_on")
def test_what_was_accepted_once_is_accepted_for_good(begun, typed, tmp_path):
    command = begun(tiny(gates=(SLOW,)))
    assert "FINISHED" in typed(f"{command} --accept smoke:tok_s --until smoke")
    (accepted, *_) = verdicts(tmp_path / "run")
    assert (accepted["word"], accepted["failed"]) == ("accepted", ["tok_s"])
    assert "SLOW MACHINE" not in typed(command)


def test_a_loss_that_is_no_number_begins_again_with_half_the_rate(
    begun, typed, tmp_path, monkeypatch
):
    whole = TrainStep.row

    def lost(step):
        raise Diverged(f"the loss or its gradient is not a number at step {step.n}: stopped")

    monkeypatch.setattr(TrainStep, "row", lost)
    printed = typed(begun(tiny()))
    assert "is not a number" in printed
    (line,) = lines_to_paste(printed)
    monkeypatch.setattr(TrainStep, "row", whole)
    assert "FINISHED" in typed(line)
    config = json.loads((tmp_path / "run-2" / "config.json").read_text())
    before = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["train"]["lr"] == pytest.approx(before["train"]["lr"] / 2)


@pytest.mark.parametrize(
    "asked", ["--max-usd 150", "--balance 150", "--max-usd 400 --balance 150"], ids=str
)
def test_a_plan_that_is_refused_for_its_money_fits_after_the_line_it_prints(asked, typed):
    command = f"gpub run burn-1b --show --gpu A100-80 --until push {asked}"
    printed = typed(command)
    sooner = next(line for line in lines_to_paste(printed) if "--until push" not in line)
    assert "above the balance" in printed or "would end the run" in printed
    assert "would end" not in typed(sooner) and "above the balance" not in typed(sooner)


@pytest.mark.parametrize("usd", [200, 245, 300])
def test_every_way_to_fit_a_balance_is_accepted_next(usd, typed):
    printed = typed(f"gpub run burn-1b --show --gpu A100-80 --until push --balance {usd}")
    offered = lines_to_paste(printed)
    assert offered or "pay in before you start" in printed
    for line in offered:
        assert "pay in before you start" in typed(line), line
    if offered:  # a number alone pays nothing in
        enough = int(re.search(r"--balance (\d+)$", offered[-1])[1])
        assert f"first pay at least ${enough - usd}.00 into the account, and only then" in printed


def test_a_command_that_talks_names_its_base_and_lies_where_the_page_looks(typed):
    show = "gpub run burn-1b-chat --show --steps --gpu A100-80"
    assert "--base /workspace/train_1b/run" in typed(show)
    assert "--out /workspace/train_chat/burn-1b-chat/run" in typed(show)
    assert talk_folder("burn-1b-chat", "you/small") == "train_chat/burn-1b-chat-small"


def test_a_run_that_talks_finds_its_base_on_the_volume(typed, tmp_path):
    out = tmp_path / "train_chat" / "burn-1b-chat" / "run"
    printed = typed(f"gpub run burn-1b-chat --out {out} --usd-per-hour 1")
    assert f"no run of burn-1b has begun below {tmp_path}" in printed
    assert not out.exists()


@pytest.mark.parametrize(
    "verdict, setting",
    [
        (dict(cause="budget", missing=7.2), "MORE = {'grind': 9}"),
        (dict(cause="ceiling", missing=8.0), "RUN_MAX_USD = 110"),
        (dict(cause="gates", failed=("loss",)), "ACCEPT = {'grind': ['loss']}"),
        (dict(cause="annealed"), "ANNEAL = False"),
    ],
)
def test_a_page_is_told_the_setting(verdict, setting):
    page = Allowances(command="run this notebook again from the top")
    stopped = PhaseVerdict("stop", "grind", 100, "why", total=100.0, **verdict)
    (way, *_) = map(str, ways_on(stopped, page, "runs/none"))
    assert way.endswith(f"{setting}, then run this notebook again from the top")
    exec(setting)  # a line of Python, as it stands


@pytest.mark.parametrize(
    "options, words",
    [
        ("--accept smoke", "--accept takes PHASE:GATE, such as smoke:loss, got 'smoke'"),
        ("--accept smok:loss", "no phase 'smok'"),
        ("--accept smoke:los", "there is no such gate"),
        ("--more smoke", "--more takes PHASE=DOLLARS, such as grind=10, got 'smoke'"),
        ("--more smok=1", "no phase 'smok'"),
        ("--more smoke=-1", "--more smoke must be above 0, got -1"),
        ("--more smoke=nan", "--more smoke must be above 0, got nan"),
        ("--balance 0", "--balance must be above 0, got 0"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(options, words, begun, typed, tmp_path):
    assert words in typed(f"{begun(tiny())} {options}")
    assert not (tmp_path / "run").exists()


class Server(BaseHTTPRequestHandler):
    "Keeps what is posted to it"

    received = []

    def do_POST(self):
        Server.received.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(200)
        self.end_headers()

    def log_message(self, *words):
        "Says nothing"


def test_the_line_on_the_volume_and_on_the_phone_says_what_to_do(begun, typed, tmp_path):
    server = HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    typed(f"{begun(tiny(gates=(LOSS,)))} --notify http://127.0.0.1:{server.server_port}/night")
    server.shutdown()
    status = (tmp_path / "run" / "STATUS").read_text()
    assert "STOP: smoke, step 4: training loss is" in status and "--accept smoke:loss" in status
    assert [line for line in Server.received if line in status] == Server.received != []


def test_a_url_that_is_none_is_refused_before_a_folder_is_made(begun, typed, tmp_path):
    assert "--notify takes a URL" in typed(f"{begun(tiny())} --notify ntfy.sh/night")
    assert not (tmp_path / "run").exists()


def test_the_watch_fits_a_phone_and_ends_by_hand(tmp_path, monkeypatch):
    (tmp_path / "log.jsonl").write_text('{"step": 10, "loss": 2.0, "tokens": 1000}\n')
    (tmp_path / "STATUS").write_text("2027-01-05 03:10:00 smoke, step 10 of 200, it goes on\n")
    waited = []

    def wait(seconds):
        waited.append(seconds)
        if len(waited) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("gpub.cli.plans.time.sleep", wait)
    shown = CliRunner().invoke(bill_command, [str(tmp_path), "--watch"])
    assert shown.exit_code == 0 and shown.output.count("step 10, loss 2.000") == 2
    assert max(map(len, shown.output.splitlines())) <= 40


def test_a_gap_is_struck_out_and_the_bill_says_so_for_ever(tmp_path):
    now = [1000.0]
    hands = dict(wall=lambda: 1.7e9 + now[0], steady=lambda: now[0], boot="a")
    (tmp_path / "log.jsonl").write_text('{"step": 10, "loss": 2.0, "tokens": 1000}\n')
    for hours in (2, 1):
        with Ledger(tmp_path, 1.0, paid=True, **hands):
            now[0] += 3600
        now[0] += 3600 * hours
    assert "$4.00" in CliRunner().invoke(bill_command, [str(tmp_path)]).output
    for _ in range(2):
        shown = CliRunner().invoke(bill_command, [str(tmp_path), "--strike", "1"]).output
        assert (
            "$2.00" in shown
            and "nothing trained for 2.0 h after step 0; taken out of the bill by hand" in shown
        )
    shown = CliRunner().invoke(bill_command, [str(tmp_path), "--count", "1=0.5"]).output
    assert "0.5 h, $0.50 put into the bill by hand" in shown and "$2.50" in shown
    assert sum("gap" in row for row in read_ledger(tmp_path)) == 3
