"""The notebook that teaches a model to talk, killed in a phase and run again from the top: from its
own base, and from one that is given; too little money, a missing base, a plan that is not ready."""

import ast
import json
import os
import re
import shutil
import subprocess
from dataclasses import replace

import forked
import pytest
import torch
from kill import wait_for
from test_chat_plans import small_plan, walked
from test_train_1b import PAID_GAPS, clock_and_bill, env, shown

from gpub.cli.main import cli
from gpub.core import GpubError, read_json, write_atomic
from gpub.guards import before_paying
from gpub.plans import bases
from gpub.plans.allowances import Allowances
from gpub.plans.cost_forecast import forecast_plan, price_plan, refuse_hopeless
from gpub.plans.gpus import machine_for
from gpub.plans.paid_steps import disk_needed
from gpub.plans.phases import read_plan
from gpub.record.ledger import read_ledger
from gpub.record.log import read_log
from gpub.record.run import load
from gpub.share.hub import export_run


def sources(root):
    "The code of the notebook, cell by cell"
    notebook = json.loads((root / "nbs" / "train_chat.ipynb").read_text(encoding="utf-8"))
    return ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]


def cells(root, plan, **settings):
    "The code with another plan, and other values of the cell of decisions"
    found = sources(root)
    settings = dict(PLAN=str(plan)) | settings
    first = next(i for i, c in enumerate(found) if "WHEN_DONE = None" in c)
    for name, value in settings.items():
        (at,) = [i for i in (first, first + 1) if f"\n{name} = " in f"\n{found[i]}"]
        lines = found[at].splitlines()
        (line,) = [i for i, line in enumerate(lines) if line.startswith(f"{name} = ")]
        lines[line] = f"{name} = {value!r}"
        found[at] = "\n".join(lines)
    return found


def as_script(src, home, until=None):
    "All cells in one process, killed when the log of `until[0]` reaches step `until[1]`"
    child = forked.Python(
        ["-c", "\n".join(map(shown, src))],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=home,
        env=env(home),
    )
    if until:
        wait_for(until[0], until[1], child)
        child.kill()
        child.communicate()
        return None
    out, err = child.communicate(timeout=600)
    return out, err, child.returncode


def written(tmp_path, plan):
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_dict()))
    return tmp_path / "plan.json"


def same_phases(one, other, phases):
    "Whether two walks left the same weights"
    for phase in phases:
        a, b = (load(folder / phase.name, device="cpu").model for folder in (one, other))
        weights = b.state_dict()
        assert all(torch.equal(t, weights[k]) for k, t in a.state_dict().items()), phase.name


def run_folder(home):
    return home / "train_chat" / "plan" / "run"


def functions_of(root, name, **around):
    "The functions of the cell that defines `name`, as they would be among these values"
    src = next(c for c in sources(root) if f"def {name}(" in c)
    found = [n for n in ast.parse(src).body if isinstance(n, ast.FunctionDef)]
    space = dict(around)
    exec(compile(ast.Module(found, []), "train_chat", "exec"), space)
    return space


@pytest.fixture(scope="module")
def page(root, tmp_path_factory):
    "The page on the toy, killed in a phase and run again from the top: (its home, what it said)"
    home = tmp_path_factory.mktemp("page")
    src = cells(root, written(home, small_plan()))
    as_script(src, home, until=(run_folder(home) / "sft", 3))
    begun = run_folder(home) / "grpo"
    assert not begun.exists(), "it was to be killed before the last phase"
    out, err, code = as_script(src, home)
    assert code == 0, err[-3000:]
    return home, out


@pytest.mark.full(instead="test_talk.py::test_a_killed_command_goes_on_to_the_same_bits")
def test_killed_in_a_phase_it_goes_on_to_the_same_weights(root, page, tmp_path):
    home, out = page
    shortened = functions_of(root, "shortened", replace=replace)["shortened"]
    plan = shortened(small_plan())
    assert walked(plan, tmp_path / "whole").word == "continue"
    same_phases(run_folder(home), tmp_path / "whole", plan.phases)
    processes = [r for r in read_ledger(run_folder(home) / "sft") if r.get("open")]
    assert len(processes) == 2 and "nothing to do" not in out
    assert "step 4/4" in out and "FINISHED" in out


@pytest.mark.slow
def test_killed_in_every_phase_it_ends_with_the_same_weights_and_an_exact_bill(root, tmp_path):
    "Every second from the first phase to the last is on the bill, those between two kills too"
    home = tmp_path / "home"
    home.mkdir()
    src = [PAID_GAPS, *cells(root, written(home, small_plan()))]
    shortened = functions_of(root, "shortened", replace=replace)["shortened"]
    plan = shortened(small_plan())
    kills = []
    for phase in plan.phases:
        step = max(1, phase.until // 2)
        as_script(src, home, until=(run_folder(home) / phase.name, step))
        kills.append(dict(phase=phase.name, killed_after=step))
    out, err, code = as_script(src, home)
    assert code == 0, err[-3000:]
    assert walked(plan, tmp_path / "whole").word == "continue"
    same_phases(run_folder(home), tmp_path / "whole", plan.phases)
    folders = [run_folder(home) / phase.name for phase in plan.phases]
    for folder in folders:
        assert sum(bool(row.get("open")) for row in read_ledger(folder)) >= 2, folder
    clock, billed = clock_and_bill(folders)
    assert billed == pytest.approx(clock, abs=1)
    if file := os.environ.get("TWIN_RECEIPT"):  # data/twin.json is written by these tests
        said = dict(kills=kills, weights="equal")
        said |= dict(clock_seconds=round(clock, 2), bill_seconds=round(billed, 2))
        write_atomic(file, json.dumps(read_json(file) | dict(chat=said), indent=1) + "\n")


@pytest.mark.full(instead="test_too_little_money_is_said_and_the_machine_is_given_back")
def test_the_page_ends_with_a_conversation_and_a_bill(page):
    home, out = page
    assert out.count("you:") == 3 and out.count("model:") == 3
    assert re.search(r"^all .*\$[\d.]+ *$", out, re.M) and "pay in before you start: $" in out
    for phase in small_plan().phases:
        assert re.search(rf"^{phase.name} .*\$[\d.]+ *$", out, re.M), phase.name
    talk = (home / "train_chat/plan/talk.html").read_text(encoding="utf-8")
    assert '"chat"' in talk


@pytest.mark.full(instead="test_too_little_money_is_said_and_the_machine_is_given_back")
@pytest.mark.parametrize(
    "kind, old",
    [("hugging face", "plays-and-sums.txt"), pytest.param("run", None, marks=pytest.mark.full)],
)
def test_a_base_that_is_given_is_tuned_and_taken_home(root, page, tmp_path, kind, old):
    there, base = run_folder(page[0]), run_folder(page[0]) / "base"
    if kind == "hugging face":
        base = export_run(base, tmp_path / "model")
    first = replace(small_plan().phases[1], replay=0.25)
    plan = replace(small_plan(), base="given", phases=(first,))
    settings = dict(BASE=str(base), OLD=old and str(there / old), QUESTIONS=["12+3"])
    out, err, code = as_script(cells(root, written(tmp_path, plan), **settings), tmp_path)
    assert code == 0, err[-3000:]
    assert "would upload" in out and "base: " in out
    assert ("old text:" in out) == bool(old)
    assert ("forgotten" in read_log(run_folder(tmp_path) / "sft")[-1]) == bool(old)


def test_without_a_base_nothing_is_fetched(root, tmp_path):
    plan = replace(small_plan(), base="given", phases=(small_plan().phases[1],))
    src = cells(root, written(tmp_path, plan), BASE=str(tmp_path / "nowhere"))
    out, err, code = as_script(src, tmp_path)
    assert code == 1 and "nowhere is no folder here" in err.splitlines()[-1]
    assert not run_folder(tmp_path).exists()


def test_too_little_money_is_said_and_the_machine_is_given_back(root, tmp_path):
    ended = f"echo done >> {tmp_path / 'ended'}"
    plan = written(tmp_path, small_plan())
    src = cells(root, plan, RUN_MAX_USD=1e-9, WHEN_DONE=ended)
    out, err, code = as_script(src, tmp_path)
    assert code == 1 and "GpubError: nothing that talks was learned yet" in err
    assert "for the run (--max-usd)" in err
    assert (tmp_path / "ended").read_text().split() == ["done"]


def test_a_ceiling_below_the_forecast_is_refused_first(root):
    plan = read_plan("burn-1b-chat")
    rented = machine_for(plan.preset, "A100-80")
    with pytest.raises(GpubError, match="--max-usd 1 would end the run early"):
        refuse_hopeless(price_plan(plan, rented), rented, Allowances(max_usd=1.0))
    asking = "ask_before_renting(paid", "fetch_set("
    at = [i for i, c in enumerate(sources(root)) if any(word in c for word in asking)]
    refusal, _ = at  # the refusal comes first
    assert "ask_before_renting(paid" in sources(root)[refusal]


def test_a_public_base_is_priced_by_its_own_size(tmp_path, monkeypatch):
    "Three dollars and an hour are enough for one that talks"
    base = bases.PUBLIC_BASES[1]
    plan = bases.fit_plan(read_plan("burn-1b-chat"), base.name, base.config, "llama")
    machine = machine_for(plan.priced_model, "A100-80", 1.49)
    forecasts = forecast_plan(plan, machine)
    assert forecasts[-1].total < 3 and sum(f.hours for f in forecasts) < 1.25
    assert disk_needed(plan).each == pytest.approx(12 * 361_821_120 / 1e9, rel=0.01)
    asked = tmp_path / "plan.json"
    asked.write_text(json.dumps(plan.to_dict()))
    assert read_plan(asked) == plan


def test_our_base_is_found_wherever_it_lies(root, tmp_path):
    "The page's folder, another name, the mirror: the run that is furthest"
    with pytest.raises(GpubError, match="no run of shakespeare has begun"):
        bases.find_base("shakespeare", tmp_path)
    near, far = tmp_path / "home/train_1b/run", tmp_path / "drive/1b"
    for place in (near, far):
        place.parent.mkdir(parents=True)
        shutil.copytree(root / "data/runs/shakespeare", place)
    assert bases.find_base("shakespeare", tmp_path / "home") == near
    log = near / "log.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:5]))
    assert bases.find_base("shakespeare", tmp_path / "home", far.parent) == far


def test_a_torch_that_cannot_rehearse_is_no_failed_rehearsal(monkeypatch):
    "torch 2.6 to 2.9 lack what the stand-in device is made with; the page goes on and says so"
    from gpub.guards import standin

    monkeypatch.delattr(standin.backend_registration, standin.SET_UP)
    assert not standin.can_rehearse()
    answer = before_paying.rehearse_apart("burn-1b-chat", "A100-80")
    assert (
        answer.ready is None
        and "needs torch 2.10" in answer.text
        and "training works" in answer.text
    )
    monkeypatch.undo()
    assert standin.can_rehearse()


def test_the_notebook_opens_in_colab_and_keeps_torch(root):
    text = (root / "nbs" / "train_chat.ipynb").read_text(encoding="utf-8")
    assert "https://colab.research.google.com/github/gpuburnout/gpub/blob/main/nbs/" in text
    setup = next(c for c in sources(root) if "SOURCE =" in c)
    assert '"-c", "/tmp/keep.txt"' in setup and "torch=={metadata" in setup


def test_names_of_the_commands_are_real(root):
    "Every command of the last table is one that `gpub` has"
    cell = (root / "nbs" / "train_chat.ipynb").read_text(encoding="utf-8")
    named = set(re.findall(r"`gpub (\w+)", cell))
    assert {"run", "rehearse", "bill", "chat", "export", "demo"} <= named <= set(cli.commands)
