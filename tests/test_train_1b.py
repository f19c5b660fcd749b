"""The final notebook, killed in the middle of each phase and run again from the top; the script for
a pod."""

import ast
import json
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys

import forked
import pytest
import torch
from kill import same_weights, wait_for
from test_phases import SILENT, TOY, losses, quick  # noqa: F401, quick is a fixture

from gpub.core import read_json, write_atomic
from gpub.device import machine
from gpub.files import shipped
from gpub.guards import before_paying
from gpub.host import usable_cores
from gpub.plans import bases
from gpub.plans.annealing import steps_reached
from gpub.plans.cost_forecast import forecast_plan
from gpub.plans.gpus import machine_for
from gpub.plans.paid_steps import PaidPlace, beside_run, disk_needed, paid_steps, tokens_read
from gpub.plans.phases import read_plan
from gpub.plans.runner import PlanOptions, run_plan
from gpub.plans.verdicts import verdicts
from gpub.prep import obtain
from gpub.prep.pipeline import PrepConfig, prepare
from gpub.record.checkpoint import load_checkpoint
from gpub.record.ledger import account, read_ledger


def cells(root, plan):
    "The notebook's code cells, on a plan of ours"
    src = [
        "".join(c["source"])
        for c in json.loads((root / "nbs" / "train_1b.ipynb").read_text(encoding="utf-8"))["cells"]
        if c["cell_type"] == "code"
    ]
    old = 'PLAN = "burn-1b" if CUDA else "burn-toy"'
    assert sum(c.count(old) for c in src) == 1
    return [c.replace(old, f"PLAN = {str(plan)!r}") for c in src]


# a twin costs nothing while no process runs; here it is paid for as a rented machine is
PAID_GAPS = """
from gpub.plans import paid_walk
whole_options = paid_walk.PlanOptions
paid_walk.PlanOptions = lambda **given: whole_options(**(given | dict(paid=True)))
"""


def clock_and_bill(folders):
    """Seconds between the first moment of the first ledger and the last write of the last one, and
    what all of them have on the bill"""
    began = min(read_ledger(folder)[0]["at"] for folder in folders)
    ended = max((folder / "ledger.jsonl").stat().st_mtime for folder in folders)
    return ended - began, sum(s.seconds for f in folders for s in account(read_ledger(f)))


def env(home):
    return {
        **os.environ,
        "GPUB_HOME": str(home),
        "IN_TEST": "1",
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


def as_script(src, home, step=None):
    "All cells in one process, killed when the log reaches `step`; what it said"
    k = forked.Python(
        ["-c", "\n".join(src)],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=home,
        env=env(home),
    )
    if step:
        wait_for(home / "plan" / "run", step, k)
        k.kill()
        k.communicate()
        return ""
    out, err = k.communicate(timeout=600)
    assert k.returncode == 0, err[-3000:]
    return out


def shown(cell):
    "A cell that prints the value of its last line, as a notebook shows it"
    tree = ast.parse(cell)
    if not isinstance(tree.body[-1], ast.Expr):
        return cell
    last = ast.unparse(tree.body.pop())
    return f"{ast.unparse(tree)}\n_ = {last}\nif _ is not None:\n    print(_)"


def as_notebook(src, home, step=None):
    "Cell after cell in a Jupyter kernel, which is killed when the log reaches `step`; what it said"
    from jupyter_client import KernelManager

    km = KernelManager(kernel_name="python3")
    km.start_kernel(
        cwd=str(home), env=env(home) | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    )
    kc = km.client()
    kc.start_channels()
    said, log = [], home / "plan" / "run" / "log.jsonl"
    try:
        kc.wait_for_ready(timeout=120)
        for c in src:
            asked = kc.execute(c)
            busy = True
            while busy:
                if (
                    step
                    and log.exists()
                    and any(
                        json.loads(l)["step"] >= step
                        for l in log.read_text().splitlines()
                        if l.endswith("}")
                    )
                ):
                    return km.signal_kernel(signal.SIGKILL)
                try:
                    m = kc.get_iopub_msg(timeout=0.02)
                except queue.Empty:
                    assert km.is_alive(), c
                    continue
                if m["parent_header"].get("msg_id") != asked:
                    continue
                assert m["msg_type"] != "error", "\n".join(m["content"]["traceback"])
                said.append(
                    m["content"].get("text", "")
                    if m["msg_type"] == "stream"
                    else m["msg_type"] + " "
                )
                busy = m["content"].get("execution_state") != "idle"
    finally:
        kc.stop_channels()
        km.shutdown_kernel(now=True)
    assert not step, f"all cells were done before step {step}"
    return "".join(said)


def killed_and_run_again(kernel, root, plan, phases, tmp_path):
    "(what it said at last, [what it went on from after each kill])"
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_dict()))
    src, home = [PAID_GAPS, *cells(root, tmp_path / "plan.json")], tmp_path / "plan"
    bounds, kills = {n: (a, b) for n, a, b in plan.bounds()}, []
    for p in phases:
        kernel(src, tmp_path, sum(bounds[p]) // 2)
        begins_at = steps_reached(home / "run", log=lambda s: None)
        assert begins_at < bounds[p][1]
        kills.append(dict(phase=p, killed_after=sum(bounds[p]) // 2, went_on_from=begins_at))
    out = kernel(src, tmp_path)
    assert (
        "asked before: the run has begun" in out
        and f"{phases[-1]}" in out
        and "would upload" in out
    )
    options = PlanOptions(
        usd_per_hour=1.45,
        data=str(home / "shards"),
        device="cpu",
        log=lambda s: None,
        progress=SILENT,
    )
    run_plan(plan, tmp_path / "whole", options)
    same_weights(home / "run", tmp_path / "whole")
    assert dict(losses(home / "run")) == dict(losses(tmp_path / "whole")) and [
        v["word"] for v in verdicts(home / "run")
    ] == ["continue"] * len(plan.phases)
    assert sum(bool(r.get("open")) for r in read_ledger(home / "run")) >= len(plan.phases) + len(
        phases
    )
    clock, billed = clock_and_bill([home / "run"])
    assert billed == pytest.approx(clock, abs=1), "every second between two kills is on the bill"
    return out, kills, dict(clock_seconds=round(clock, 2), bill_seconds=round(billed, 2))


@pytest.mark.full(instead="test_run.py::test_kill_9")
def test_killed_in_the_middle_of_a_phase(root, tmp_path):
    killed_and_run_again(as_script, root, TOY, ["grind"], tmp_path)


@pytest.mark.slow
def test_jupyter_kernel_killed_in_the_middle_of_every_phase(root, tmp_path):
    plan = read_plan("burn-toy")
    names = [p.name for p in plan.phases]
    out, kills, seconds = killed_and_run_again(as_notebook, root, plan, names, tmp_path)
    assert "display_data" in out  # the picture
    if file := os.environ.get("TWIN_RECEIPT"):  # data/twin.json is written by this test
        said = dict(machine=machine("cpu"), cells=len(cells(root, "any")), kills=kills)
        said |= dict(weights="equal", losses="equal", **seconds)  # or the test had failed above
        said |= {k: v for k, v in read_json(file).items() if k == "chat"}  # by the other page
        write_atomic(file, json.dumps(said, indent=1) + "\n")


def test_a_recipe_reads_no_more_of_the_hub_than_it_needs(tmp_path, monkeypatch):
    "FineWeb-Edu is 1.3 trillion tokens; here it is 4 MB, of which 20,000 tokens are asked for"
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = tmp_path / "hub/HuggingFaceFW/fineweb-edu/data"
    data.mkdir(parents=True)
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 9))) for _ in range(500)]
    pq.write_table(
        pa.table({"text": [" ".join(rng.choices(words, k=30)) for _ in range(20_000)]}),
        data / "train-00000.parquet",
    )
    (data.parent / "README.md").write_text(
        "---\nconfigs:\n- config_name: sample-100BT\n  data_files: data/*\n---\n"
    )
    monkeypatch.setenv("GPUB_HUB", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    cfg = PrepConfig(
        sources=("web=fineweb-edu:1",),
        vocab_size=500,
        sample_mb=0.05,
        chunk_mb=0.05,
        val=0.01,
        tokens=20_000,
    )
    m = prepare(cfg, tmp_path / "out", log=lambda s: None)
    read = m["counts"]["web"]["bytes_in"]
    assert (
        sum(s["tokens"] for s in m["shards"] if s["split"] == "train")
        == pytest.approx(20_000, rel=0.02)
        and m["mix"]["web"]["train"]["epochs"] <= 1
        and 6 * 20_000 <= read < 1e6
    ), read


TROUBLE = """
import torch
from torch.utils import backend_registration

# as in a torch of before: the page needs nothing of what a rehearsal needs
vars(backend_registration).pop('_setup_privateuseone_for_python_backend', None)

def broken(*args, **kw):
    raise RuntimeError('no compiler on this machine')

torch.compile = lambda f, **how: broken
"""

CRAMPED = """
from gpub.model.llama import Llama
whole = Llama.loss

def cramped(self, x, y):
    if len(x) > 2 and torch.is_grad_enabled():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    return whole(self, x, y)

Llama.loss = cramped
"""


def test_what_goes_wrong_is_said_and_the_machine_is_given_back(root, tmp_path):
    """A compilation and a mirror that fail, and a step that shrinks, are lines on the page and in
    its log; the cell that then ends in an error ends the rent too"""
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(TOY.to_dict() | dict(settings=TOY.settings | dict(compile="yes"))))
    (tmp_path / "in the way").touch()
    src = cells(root, plan)
    for old, new in (
        ("MIRROR = None", f"MIRROR = {str(tmp_path / 'in the way')!r}"),
        ("WHEN_DONE = None", "WHEN_DONE = 'echo done >> ended'"),
    ):
        assert sum(c.count(old) for c in src) == 1
        src = [c.replace(old, new) for c in src]
    train = next(i for i, c in enumerate(src) if "LossPicture(" in c)
    command = ["-c", "\n".join([TROUBLE, *src[:train], CRAMPED, *src[train:]])]
    done = forked.run(
        command, text=True, capture_output=True, cwd=tmp_path, env=env(tmp_path), timeout=600
    )
    assert done.returncode == 1 and "GpubError: the run is safe in" in done.stderr, done.stderr[
        -2000:
    ]
    log = (tmp_path / "plan/run/gpub.log").read_text(encoding="utf-8")
    for line in (
        "torch.compile failed (RuntimeError: no compiler on this machine)",
        "is behind: Not a directory; the training goes on",
        "out of memory with 4 sequences",
    ):
        assert line in done.stdout, line
    assert "GpubError: the run is safe in" in log  # why it ended outlives the machine
    assert (tmp_path / "ended").read_text().split() == ["done"]


ERRORS = """
import json, sys
from pathlib import Path
from IPython.core.interactiveshell import InteractiveShell

shell, stages = InteractiveShell.instance(), []
for text in json.loads(Path(sys.argv[1]).read_text()):
    Path("ended").unlink(missing_ok=True)  # the last cell ends the rent by itself
    assert shell.run_cell(text).success, text
    if "when_done" in shell.user_ns:
        shell.run_cell("raise RuntimeError('injected')")
        stages.append(Path("ended").exists())
        shell.user_ns["when_done"].ran = False
print("stages", len(stages), "ended", sum(stages))
"""


@pytest.mark.slow
def test_an_exception_after_any_cell_ends_the_rent(root, tmp_path):
    "All cells in a shell of IPython; after each one that follows the decisions an error is thrown"
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(TOY.to_dict()))
    old, new = "WHEN_DONE = None", "WHEN_DONE = 'echo done >> ended'"
    src = [c.replace(old, new) for c in cells(root, plan)]
    decided = next(i for i, c in enumerate(src) if new in c)
    # armed before anything in that cell can fail
    assert src[decided].index("when_done = WhenDone(") < src[decided].index("pick_device")
    (tmp_path / "cells.json").write_text(json.dumps(src))
    command = ["-c", ERRORS, tmp_path / "cells.json"]
    done = forked.run(
        command, text=True, capture_output=True, cwd=tmp_path, env=env(tmp_path), timeout=900
    )
    n = len(src) - decided
    assert f"stages {n} ended {n}" in done.stdout, done.stdout[-1500:] + done.stderr[-1500:]


@pytest.fixture(scope="module")
def whole_page(root, tmp_path_factory):
    "The page from top to bottom on the twin: (its home, what it said)"
    home = tmp_path_factory.mktemp("page")
    plan = home / "plan.json"
    plan.write_text(json.dumps(TOY.to_dict()))
    return home, as_script([*map(shown, cells(root, plan))], home)


@pytest.mark.full(instead="test_parallel.py::test_a_damaged_slice_is_named_and_passed_over")
def test_a_damaged_checkpoint_is_said_when_the_page_is_opened_again(root, whole_page, tmp_path):
    home = tmp_path / "home"
    shutil.copytree(whole_page[0], home)
    newest = load_checkpoint(home / "plan/run").path
    weights = max(newest.iterdir(), key=lambda f: f.stat().st_size)
    weights.write_bytes(weights.read_bytes()[:-8])
    src = cells(root, home / "plan.json")
    opened = next(i for i, c in enumerate(src) if "steps_reached(paid.run, MIRROR" in c)
    said = as_script(src[: opened + 1], home)
    (line,) = [line for line in said.splitlines() if newest.name in line]
    assert weights.name in line


@pytest.mark.full(instead="test_what_goes_wrong_is_said_and_the_machine_is_given_back")
def test_the_page_beside_a_real_command_line(root, whole_page):
    "What the page leaves behind is a run for gpub bill, gpub run and gpub run --show"
    tmp_path, out = whole_page
    plan = tmp_path / "plan.json"
    assert (
        "the learning rate fully decayed" in out
        and "Training stops before the run has cost $1.00" in out
    )
    assert re.search(r"^pay in before you start: \$[\d,]+\.\d\d = ", out, re.M)
    assert re.search(r"^1 +account and volume ", out, re.M) and "delete the volume" in out
    # every prompt of the blog at every milestone
    for milestone in (m for p in TOY.phases for m in p.milestones):
        assert len(re.findall(rf"^{milestone} .*`", out, re.M)) == len(BLOG), milestone
    assert all(out.count(f"`{prompt}") >= 3 for prompt in BLOG)

    def gpub(*argv):
        command = ["-m", "gpub", *argv]
        done = forked.run(
            command, text=True, capture_output=True, cwd=tmp_path, env=env(tmp_path), timeout=300
        )
        assert done.returncode == 0, done.stderr[-1500:]
        return done.stdout

    run, data = tmp_path / "plan/run", tmp_path / "plan/shards"
    assert f"step {TOY.steps}" in gpub("bill", run) or f"{TOY.steps} steps" in gpub("bill", run)
    how = "--out", run, "--data", data, "--device", "cpu", "--usd-per-hour", "1.49"
    assert "nothing to do: " in gpub("run", plan, *how)
    assert "at today's table" in gpub("run", plan, "--out", run, "--show")


BLOG = [
    "The capital of France is",
    "def fibonacci(n):",
    "In a shocking discovery, scientists found that",
    "To be, or not to be",
]


def test_the_corpus_is_prepared_with_the_cores_there_are(tmp_path, monkeypatch):
    "All of them: of the container, not of the server around it; and whatever is said is heard"
    asked, said = [], []
    monkeypatch.setattr(os, "cpu_count", lambda: 999)

    def prepared(recipe, folder, workers, log):
        asked.append((recipe, workers))
        log("a stage")

    monkeypatch.setattr(obtain, "prepare", prepared)
    recipe = obtain.corpus_recipe(21 * 10**9, (), "/mnt/drive/burn-1b-shards")
    obtain.obtain_shards(recipe, tmp_path, said.append)
    ((recipe, workers),) = asked
    assert workers == usable_cores() < 999 and said == ["a stage"]
    assert recipe.mirror == "/mnt/drive/burn-1b-shards" and recipe.tokens == 21 * 10**9
    web, _, python = (s.hub for s in recipe.parsed)
    assert web.config == "sample-100BT" and python.column == "text"


def test_one_volume_holds_the_run_its_data_and_the_phases_that_talk():
    "Up to where the page stops by itself; and the step that rents it asks for a tenth more"
    need = disk_needed(read_plan("burn-1b"), "push")
    talk = disk_needed(read_plan("burn-1b-chat"))
    assert need.checkpoints * need.each < need.total and need.preparing <= need.total
    whole = need.total + talk.total
    machine = machine_for("burn-1b", "A100-80", 1.49)
    place = PaidPlace(spare_gb=talk.total)
    volume, *_ = paid_steps(read_plan("burn-1b"), machine, "push", place=place)
    (size,) = re.findall(r"(\d+) GB", volume.commands[0])
    assert 1.1 * whole < float(size) < 1.1 * whole + 12
    assert volume.usd == pytest.approx(0.07 * float(size))


@pytest.mark.parametrize("stop", [p.name for p in read_plan("burn-1b").phases])
def test_the_tokens_prepared_are_those_that_the_phases_read(stop):
    "Not those of the whole plan: of the phases up to where the page stops, and some to hold out"
    plan = read_plan("burn-1b")
    needed = tokens_read(plan, stop)
    assert needed == pytest.approx(1.01 * plan.phase(stop).until * 131_072, abs=1)
    assert needed <= 12 * 10**9 or stop in ("longer", "chinchilla")
    machine = machine_for("burn-1b", "A100-80", 1.49)
    data = next(s for s in paid_steps(plan, machine, stop) if s.name.startswith("data"))
    assert any(f"--tokens {needed}" in command for command in data.commands)


def test_the_balance_to_have_holds_the_ceiling_and_everything_beside_the_run():
    plan = read_plan("burn-1b")
    steps = paid_steps(plan, machine_for("burn-1b", "A100-80", 1.49), "push")
    beside = beside_run(steps, plan)
    phases = {"smoke", "proof", "grind", "push"}
    paid_for = {s.name for s in steps if s.usd} - phases - {"account and volume"}
    assert beside.keys() == paid_for | {"the volume, for one month"}
    assert sum(beside.values()) == pytest.approx(
        sum(s.usd for s in steps) - sum(s.usd for s in steps if s.name in phases)
    )


@pytest.mark.parametrize("stop", ["smoke", "push"])
def test_the_preflight_prices_the_steps_up_to_where_the_page_stops(stop, tmp_path, monkeypatch):
    plan, asked = read_plan("burn-1b"), []
    monkeypatch.setattr(
        before_paying, "preflight", lambda preset, **run: asked.append(run["settings"]) or []
    )
    before_paying.ask_before_steps(plan, stop, tmp_path, "shards", 1.49)
    assert asked == [plan.settings | dict(steps=plan.phase(stop).until)]


def test_the_figures_of_the_readme_are_those_of_the_forecast(root):
    "Hours and dollars of both pages, at the price that it names"
    text = (root / "README.md").read_text(encoding="utf-8")
    table = re.findall(r"([\d.]+) hours, \$([\d.]+)", text.partition("an A100 80GB at $1.79")[2])
    talk, smol = read_plan("burn-1b-chat"), bases.PUBLIC_BASES[1]
    tuned = bases.fit_plan(talk, smol.name, smol.config, "llama")
    for (hours, usd), (plan, until) in zip(
        table, [(read_plan("burn-1b"), "push"), (tuned, "dpo"), (talk, "dpo")], strict=True
    ):
        machine = machine_for(plan.priced_model, "A100-80", 1.79)
        forecasts = forecast_plan(plan, machine, until)
        assert float(usd) == pytest.approx(forecasts[-1].total, abs=0.006)
        assert float(hours) == pytest.approx(sum(f.hours for f in forecasts), abs=0.51)


@pytest.mark.full(instead="test_the_script_asks_for_the_price")
@pytest.mark.skipif(os.name == "nt" or not shutil.which("bash"), reason="a shell script")
def test_the_data_are_prepared_on_a_machine_without_a_gpu(root, tmp_path):
    "The script ends when they are there, says what is next, and asks no card"
    shards = tmp_path / "train_1b/shards"
    shards.mkdir(parents=True)
    (shards / "manifest.json").write_text("{}")
    asked = dict(DATA_ONLY="1", NO_TMUX="1", PYTHON=sys.executable, HOME_DIR=str(tmp_path))
    done = subprocess.run(
        ["bash", "scripts/runpod.sh"],
        cwd=root,
        capture_output=True,
        text=True,
        env=env(tmp_path) | asked,
        timeout=120,
    )
    assert done.returncode == 0 and f"the data lie in {shards}" in done.stdout, done.stderr


def test_every_setting_of_the_page_is_handed_on(root):
    "What stands in the cell of decisions is read by a cell after it"
    src = cells(root, "any")
    at = next(i for i, c in enumerate(src) if "WHEN_DONE = None" in c)
    names = {n.targets[0].id for n in ast.parse(src[at]).body if named(n)}
    after = {n.id for c in src[at + 1 :] for n in ast.walk(ast.parse(c)) if isinstance(n, ast.Name)}
    assert names - after == {"WHEN_DONE"} and "ACCEPT" in names


@pytest.mark.parametrize("name", ["train_1b", "train_chat"])
def test_the_page_is_short(root, name):
    "At most twelve cells to look at, of fewer than fifteen lines; imports and places are folded"
    page = json.loads((root / f"nbs/{name}.ipynb").read_text(encoding="utf-8"))
    src = ["".join(c["source"]) for c in page["cells"] if c["cell_type"] == "code"]
    seen = [c for c in src if not c.startswith(("#| hide", "#| code-fold"))]
    assert 8 < len(seen) <= 12
    assert all(len(c.splitlines()) < 15 for c in seen)
    assert not any(line.startswith(("import ", "from ")) for c in seen for line in c.splitlines())


def test_page_script_and_talk_keep_one_log_and_one_line_beside_the_run(root):
    "gpub.log and STATUS in the run's folder, whoever trains"
    for name in ("train_1b", "train_chat"):
        page = (root / f"nbs/{name}.ipynb").read_text(encoding="utf-8")
        assert "when_done.keep_log(paid.run, NOTIFY)" in page and "notebook.log" not in page
    script = (root / "scripts/runpod.sh").read_text(encoding="utf-8")
    assert "run=$home/run" in script and "log=$run/gpub.log" in script
    assert "$run/STATUS" in script and "GPUB_NOTIFY=$NOTIFY" in script


def named(node):
    "Whether a statement gives one name a value"
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)


def test_fetched_shards_are_asked_for_again(tmp_path, monkeypatch):
    "The Hub that answers 503 once has not ended a night's work"
    import huggingface_hub

    from gpub.data import network

    answers, said = [ConnectionError("503"), ConnectionError("reset"), "a folder"], []

    def download(repo, **how):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def unpacked(packed, to):
        packed.mkdir()
        return "a manifest"

    monkeypatch.setattr(network, "PATIENT", network.Backoff(sleep=lambda seconds: None))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(obtain, "unpack", unpacked)
    where, manifest = obtain.obtain_shards("some/shards", tmp_path / "to", said.append)
    assert (where, manifest) == (tmp_path / "to", "a manifest") and len(said) == 2


def test_prompts_are_published_ones_and_none_ends_with_a_space(root):
    src = next(c for c in cells(root, "any") if "milestone_table(" in c)
    (asked,) = [ast.literal_eval(n) for n in ast.walk(ast.parse(src)) if isinstance(n, ast.List)]
    assert asked == BLOG and all(p == p.strip() for p in asked)
    published = {p["prompt"] for p in read_json(shipped("published/prompts.json"))["prompts"]}
    assert published > set(asked)


def test_the_page_says_what_receipts_say_of_a_card_and_nothing_else(root, tmp_path):
    "A bench and a run that are planted are read; on another card nothing is known"
    from gpub.core import read_config
    from gpub.model.gpus import GPUS

    measured = before_paying.measured_on
    assert measured("burn-1b", GPUS["A100-80"], shipped()) == {}  # until somebody paid for it
    assert before_paying.twin_words(tmp_path) == (before_paying.NOT_YET,) * 2

    (tmp_path / "bench").mkdir()
    on = dict(gpu="NVIDIA A100-SXM4-80GB", cpu="x")
    speed = dict(preset="burn-1b", tok_s=30_123.0, peak_gb=51.2, compiled=True)
    (tmp_path / "bench/a.json").write_text(json.dumps(dict(machine=on, speed=speed)))
    assert measured("burn-1b", GPUS["A100-80"], tmp_path) == {
        "tokens a second": "30,123 tok/s",
        "memory at its fullest": "51.2 GB, compiled",
    }
    assert measured("burn-1b", GPUS["H100"], tmp_path) == {}
    run = tmp_path / "runs/burn-1b"
    shutil.copytree(root / "data/runs/shakespeare", run)
    config = json.loads((run / "config.json").read_text()) | dict(preset="burn-1b", machine=on)
    (run / "config.json").write_text(json.dumps(config))
    assert read_config(run)["preset"] == "burn-1b"
    bill = json.loads((run / "bill.json").read_text()) | dict(hours=117.6, usd=175.2)
    (run / "bill.json").write_text(json.dumps(bill))
    found = measured("burn-1b", GPUS["A100-80"], tmp_path)
    assert found["every cell of this page"] == "118 h, $175.20"
    assert found["the final loss"].startswith(f"{bill['val_loss']:.3f}")
    assert found["memory at its fullest"] == "51.2 GB, compiled" and "compiling" not in found


def test_the_published_curve_and_the_gates_lie_behind_the_live_one():
    "Every published loss at its step, a bar at the end of a phase for every gate on the loss"
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from gpub.plans.live_picture import draw_expected
    from gpub.plans.loss_forecast import published_curve

    plan, curve = read_plan("burn-1b"), dict(published_curve("s2-1b"))
    fig, ax = plt.subplots()
    draw_expected(ax, plan)
    drawn = [line.get_xydata().tolist() for line in ax.lines]
    wanted = [[tokens / 131_072, loss] for tokens, loss in curve.items()]
    assert wanted in drawn and len(wanted) > 5
    gates = [
        [[p.until, g.least], [p.until, g.most]]
        for p in plan.phases
        for g in p.gates
        if g.metric == "loss"
    ]
    assert len(gates) == 4 and all(bar in drawn for bar in gates) and len(drawn) == 5
    plt.close(fig)


@pytest.mark.full(instead="alone/test_rehearse.py::test_a_healthy_run_has_nothing_to_say")
@pytest.mark.parametrize(
    "preset", ("shakespeare", pytest.param("gpt2-124m", marks=pytest.mark.full))
)
def test_the_page_rehearses_in_a_process_of_its_own(tmp_path, monkeypatch, forks, preset):
    """Whatever this kernel did before; what cannot be rehearsed is a line, and nothing was
    rehearsed"""
    for name, value in env(tmp_path).items():
        monkeypatch.setenv(name, value)
    torch.ones(1, requires_grad=True).sum().backward()
    answer = before_paying.rehearse_apart(preset, "A100-80")
    (found,) = answer.records
    assert answer.ready and found["ready"] and found["gpu"] == "A100-80" and "ready" in answer.text
    assert before_paying.rehearsal_words(answer.records) == (
        f"rehearsed: {len(found['peaks'])} parts of a step, problems found: none"
    )


@pytest.mark.full(instead="test_train_chat.py::test_a_ceiling_below_the_forecast_is_refused_first")
@pytest.mark.skipif(os.name == "nt" or not shutil.which("bash"), reason="a shell script")
def test_a_ceiling_that_is_too_low_is_refused_before_a_byte_is_downloaded(root, tmp_path):
    "By the page, in the cell of the forecast, and by the script; up to push, as both go by default"
    src = cells(root, "any")
    refusal = next(i for i, c in enumerate(src) if "ask_before_renting(paid" in c)
    assert refusal < next(
        i for i, c in enumerate(src) if "obtain_shards(" in c and "import" not in c
    )
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA A100-SXM4-80GB'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    asked = dict(USD_PER_HOUR="1.49", MAX_USD="100", NO_TMUX="1", PYTHON=sys.executable)
    asked |= dict(HOME_DIR=str(tmp_path), WHEN_DONE=f"touch {tmp_path / 'ended'}; exit 3")
    asked["PATH"] = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "scripts/runpod.sh"],
        cwd=root,
        capture_output=True,
        text=True,
        env=env(tmp_path) | asked,
        timeout=300,
    )
    assert done.returncode == 1 and (tmp_path / "ended").is_file()
    (line,) = [line for line in done.stdout.splitlines() if "would end the run" in line]
    assert "$100 would end the run before" in line.replace("--max-usd ", "$")
    assert "to the end of push" in line and "--until grind" not in line
    home = tmp_path / "train_1b"
    assert not (home / "shards").exists() and "the learning rate fully decayed" in done.stdout
    # the reason outlives the pod: all that was printed, and one line
    assert (home / "run/gpub.log").read_text() == done.stdout and not done.stderr
    status = (home / "run/STATUS").read_text()
    assert (
        "ended with code 1" in status
        and line in status
        and "start the same line again" in status
        and "WHEN_DONE failed (code 3): this machine is still on" in status
    )


@pytest.mark.skipif(os.name == "nt", reason="a shell script stands in for nvidia-smi")
def test_a_gpu_that_torch_cannot_use_is_no_reason_for_the_twin(root, tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA A100-SXM4-80GB, 470.57.02'\n")
    tool.chmod(0o755)
    around = env(tmp_path) | dict(PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    del around["CUDA_VISIBLE_DEVICES"]
    code = "\n".join(
        [
            "import torch",
            "torch.cuda.is_available = lambda: False",
            *cells(root, tmp_path / "no plan"),
        ]
    )
    done = forked.run(
        ["-c", code],
        text=True,
        capture_output=True,
        cwd=tmp_path,
        env=around,
        timeout=300,
    )
    assert (
        done.returncode == 1
        and "470.57.02" in done.stderr.splitlines()[-1]
        and "--device cpu" in done.stderr
    )


def test_the_notebook_opens_in_colab_and_keeps_torch(root):
    cells = [
        "".join(c["source"])
        for c in json.loads((root / "nbs" / "train_1b.ipynb").read_text(encoding="utf-8"))["cells"]
    ]
    assert (
        "https://colab.research.google.com/github/gpuburnout/gpub/blob/main/nbs/train_1b.ipynb"
        in "\n".join(cells)
    )
    setup = next(c for c in cells if "SOURCE =" in c)
    assert '"-c", "/tmp/keep.txt"' in setup and "torch=={metadata" in setup
    assert "gpub run burn-1b" in cells[-2] and "--mirror" in cells[-2] and "--max-usd" in cells[-2]


@pytest.mark.skipif(os.name == "nt" or not shutil.which("bash"), reason="a shell script")
def test_the_script_asks_for_the_price(root):
    done = subprocess.run(
        ["bash", "scripts/runpod.sh"],
        cwd=root,
        capture_output=True,
        text=True,
        env={k: v for k, v in os.environ.items() if k != "USD_PER_HOUR"},
    )
    assert (
        done.returncode == 1
        and "what does this machine cost an hour? USD_PER_HOUR=1.49" in done.stderr
    )


CRASH = """import sys
if sys.argv[1:2] == ['run']:
    from pathlib import Path
    from gpub.plans.phase_watch import PhaseRunner
    look, hit = PhaseRunner.look, Path({hit!r})
    def once(runner, s):
        if s.n == 35 and not hit.exists():
            hit.touch()
            raise RuntimeError('CUDA error: unspecified launch failure')
        return look(runner, s)
    PhaseRunner.look = once
# as sitecustomize.py: the first `gpub run` that gets to step 35 dies of an exception that nobody
# expects
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt" or not shutil.which("bash"), reason="a shell script")
def test_the_script_on_the_twin(root, tmp_path):
    ended = tmp_path / "ended"
    (tmp_path / "sitecustomize.py").write_text(CRASH.format(hit=str(tmp_path / "hit")))

    def script(home, code, **more):
        env = {
            **os.environ,
            "TOY": "1",
            "USD_PER_HOUR": "1.49",
            "MAX_USD": "1",
            "NO_TMUX": "1",
            "HOME_DIR": str(tmp_path / home),
            "PYTHON": sys.executable,
            "WHEN_DONE": f"touch {ended}",
            "RETRY_SECONDS": "0",
            "PYTHONPATH": str(tmp_path),
            **more,
        }
        ended.unlink(missing_ok=True)
        done = subprocess.run(
            ["bash", "scripts/runpod.sh"],
            cwd=root,
            capture_output=True,
            text=True,
            env=env,
            timeout=600,
        )
        assert done.returncode == code and ended.is_file(), done.stdout[-2000:]
        return done

    done = script("a", 0)
    # an accident: on from the last checkpoint
    assert (
        "CUDA error" in done.stdout
        and done.stdout.count("attempt") == 1
        and "with code 70 (attempt 1 of 5)" in done.stdout
    )
    assert (
        "FINISHED: chinchilla is done (step 200)" in done.stdout
        and "a billion tokens" in done.stdout
        and "done again" in done.stdout
        and steps_reached(tmp_path / "a/train_toy/run") == 200
    )
    # all phases are done: nothing to pay
    assert "attempt" not in script("a", 0, MAX_USD="0.000001").stdout
    done = script("a", 1, MAX_USD="-1")
    # refused
    assert (
        "attempt" not in done.stdout
        and done.stdout.strip() == "gpub: --max-usd must be above 0, got -1.0"
    )
    done = script("b", 1, USD_PER_HOUR="100000", MAX_USD="")
    # a verdict
    assert "attempt" not in done.stdout and "the budget of $0.50 (0 min) is used up" in done.stdout
