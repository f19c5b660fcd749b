"Each question of the preflight, each with a planted defect that makes exactly that line fail"

import os
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

from gpub.cli.guards import preflight_command
from gpub.core import GpubError, read_json
from gpub.guards import preflight as pf
from gpub.guards.check import Check, check_line, run_check
from gpub.guards.preflight import (
    PREFLIGHT_CHECKS,
    PreflightRun,
    preflight,
    spark,
)
from gpub.model.gpt import GPT, fused_attention
from gpub.train.timed_steps import read_timed

SMALL = dict(n_layers=1, d_model=32, context_length=32, batch_tokens=1024)
RESUME = "save, kill, resume"


def failing(settings=None, skip=(RESUME,), **kw):
    "Names of the lines that fail"
    said = []
    for name in skip:
        PREFLIGHT_CHECKS.pop(name, None)
    checks = preflight(
        "shakespeare", settings=SMALL | (settings or {}), device="cpu", log=said.append, **kw
    )
    said = [line for line in said if not line.startswith("no network")]
    assert (
        len(checks) == len(PREFLIGHT_CHECKS)
        and len(said) == 2 + len(checks)
        and all(isinstance(c, Check) and c.seconds >= 0 for c in checks)
    )
    assert said[1].startswith("weight decay") and said[2:] == [*map(check_line, checks)]
    return [c.question for c in checks if not c.ok]


@pytest.fixture(autouse=True)
def own_checks(monkeypatch, forks):
    "What a test takes away comes back"
    for name, f in list(PREFLIGHT_CHECKS.items()):
        monkeypatch.setitem(PREFLIGHT_CHECKS, name, f)


@pytest.mark.full(instead="test_a_broken_model")
def test_a_healthy_run_passes_all_eight_on_one_screen():
    began = sum(os.times()[:4])
    said = []
    checks = preflight("shakespeare", settings=SMALL, device="cpu", log=said.append)
    assert sum(os.times()[:4]) - began < 60, "more than a minute of work"
    lines = "\n".join(said).splitlines()
    assert all(c.ok for c in checks) and len(checks) == 8, lines
    assert len(lines) <= 24 and max(map(len, lines)) < 240


@pytest.mark.full(instead="test_a_broken_model")
def test_a_large_preset_is_examined_through_its_twin():
    PREFLIGHT_CHECKS.pop(RESUME)
    lines = []
    checks = preflight(
        "shakespeare",
        settings=dict(n_layers=12, d_model=768, n_heads=12, context_length=512, batch_tokens=4096),
        device="cpu",
        log=lines.append,
    )
    assert all(c.ok for c in checks), lines
    assert {c.question for c in checks if "twin: 2 x 128" in c.finding} == {
        "initial loss",
        "sees only the past",
        "learning rate",
        "learns one batch",
        "device and reference",
    }
    assert any("12 x 768" in line for line in lines) and "assumed" in checks[-1].finding


class Loud(GPT):
    "An embedding ten times too wide"

    def reset(self):
        super().reset()
        with torch.no_grad():
            self.tok.weight.mul_(10)


class Bigram(GPT):
    "Looks at nothing but the last token"

    def forward(self, ids_bt):
        return self.norm(self.tok(ids_bt)) @ self.tok.weight.T


def open_eyes(q, k, v):
    return (q @ k.mT / q.size(-1) ** 0.5).softmax(-1) @ v


def wrong_kernel(q, k, v):
    return fused_attention(q, k, v) * (1 if q.dtype == torch.float64 else 3)


@pytest.mark.parametrize(
    "line, model",
    [
        pytest.param("initial loss", Loud, marks=pytest.mark.full),
        ("sees only the past", partial(GPT, attention=open_eyes)),
        ("learns one batch", Bigram),
        pytest.param(
            "device and reference",
            partial(GPT, attention=wrong_kernel),
            marks=pytest.mark.full,
        ),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_broken_model(monkeypatch, line, model):
    monkeypatch.setattr(pf, "build_model", model)
    assert failing() == [line]


@pytest.mark.full(instead="test_ids_beyond_the_vocabulary")
def test_targets_that_are_not_shifted(monkeypatch):
    real = PreflightRun.rows

    def unshifted(*asked):
        batch = real(*asked)
        return replace(batch, targets=batch.ids)

    monkeypatch.setattr(PreflightRun, "rows", unshifted)
    assert failing(dict(tied=False)) == ["three rows of data"]


def test_special_tokens_are_seen():
    s = PreflightRun("shakespeare", settings=SMALL, device="cpu", log=lambda line: None)
    text = s.task.corpus.tok
    # the newline plays the end of a document
    tok = SimpleNamespace(
        specials={"<|end|>": 0},
        decode=lambda ids: "".join("<|end|>" if i == 0 else text.decode([i]) for i in ids),
    )
    other = SimpleNamespace(corpus=SimpleNamespace(tok=tok))
    asked = SimpleNamespace(rows=s.rows, cfg=s.cfg, task=other)
    c = run_check("three rows of data", pf.check_data, asked)
    shown = c.finding.splitlines()[1:]
    assert c.ok and len(shown) == 3 and all("<|end|>" in line for line in shown)
    assert (
        int(c.finding.split(";")[1].split()[0])
        == int((s.rows(0, 32, 32).ids == 0).any(1).sum())
        > 3
    )


def test_ids_beyond_the_vocabulary(monkeypatch):
    s = PreflightRun("shakespeare", settings=SMALL, device="cpu", log=lambda line: None)
    batch = s.rows(0, 32)
    batch.ids[0, 0] = 65
    s.rows = lambda *a: batch
    c = run_check("three rows of data", pf.check_data, s)
    assert not c.ok and "ids up to 65" in c.finding


@pytest.mark.parametrize(
    "settings",
    [
        dict(lr=0.8, muon_lr=3.0, weight_decay=0.0),
        pytest.param(dict(lr=0.0, muon_lr=0.0), marks=pytest.mark.full),
    ],
    ids=["too high", "zero"],
)
def test_a_bad_learning_rate(settings):
    assert failing(settings) == ["learning rate"]


@pytest.mark.full(instead="test_a_card_that_is_too_small")
def test_no_room_on_the_disk(monkeypatch):
    monkeypatch.setattr(
        pf.shutil, "disk_usage", lambda p: namedtuple("U", "total used free")(10, 10, 0)
    )
    assert failing() == ["forecast"]


def test_the_disk_is_that_of_the_run(monkeypatch, tmp_path, root):
    "Not that of the folder one happens to stand in; the page, the script and the command say which"
    asked = []

    def usage(place):
        asked.append(Path(place))
        return namedtuple("U", "total used free")(10**12, 0, 10**12)

    monkeypatch.setattr(pf.shutil, "disk_usage", usage)
    out = tmp_path / "volume"
    out.mkdir()
    how = ["--device", "cpu", "--out", str(out / "not yet" / "run")]
    only = {"forecast": PREFLIGHT_CHECKS["forecast"]}
    monkeypatch.setattr(pf, "PREFLIGHT_CHECKS", only)
    done = CliRunner().invoke(preflight_command, ["burn-toy", *how])
    assert done.exit_code == 0 and asked == [out], done.output
    # twenty steps of the real shape, timed where the run will be, for the plan that is priced there
    timed = read_timed(out / "not yet" / "run", "burn-toy", "cpu")
    assert timed.steps == 20 and str(timed) in done.output
    notebook = read_json(root / "nbs/train_1b.ipynb")
    page = "".join("".join(c["source"]) for c in notebook["cells"])
    assert "ask_before_steps(plan, UNTIL, paid.run, shards" in page
    assert '--data "$data" --out "$run"' in (root / "scripts/runpod.sh").read_text()


@pytest.mark.full(instead="test_the_disk_is_that_of_the_run")
def test_on_a_gpu_the_steps_are_timed_in_a_process_of_their_own(monkeypatch, tmp_path):
    "Which is given the run as it would start; its failure is a line with what to do"
    s = PreflightRun("burn-toy", settings=SMALL, device="cpu", out=tmp_path, log=lambda line: None)
    monkeypatch.setattr(s, "device", SimpleNamespace(type="cuda", __str__=lambda d: "cpu"))
    monkeypatch.setattr(pf.torch.cuda, "empty_cache", lambda: None)
    programs = pf.read_packaged
    here = programs("guards/programs/time_child.py").replace(
        "json.loads(sys.argv[1])", ('{**json.loads(sys.argv[1]), "device": "cpu"}')
    )
    monkeypatch.setattr(pf, "read_packaged", lambda name: here)
    timed = pf.timed_here(s)
    assert timed == read_timed(tmp_path, "burn-toy", "cpu") and timed.steps == 20
    monkeypatch.setattr(pf, "read_packaged", lambda name: 'import sys; sys.exit("no memory")')
    check = run_check("forecast", pf.timed_here, s)
    assert not check.ok and "own steps fail: no memory" in check.finding


def test_a_card_that_is_too_small():
    s = PreflightRun(
        "shakespeare",
        settings=dict(n_layers=96, d_model=12288, n_heads=96, context_length=512),
        gpu="T4",
        device="cpu",
        log=lambda line: None,
    )
    c = run_check("forecast", pf.check_forecast, s)
    assert not c.ok and "T4" in c.finding
    s = PreflightRun(
        "shakespeare",
        settings=SMALL,
        gpu="T4",
        usd_per_hour=2.0,
        device="cpu",
        log=lambda line: None,
    )
    c = run_check("forecast", pf.check_forecast, s)
    assert c.ok and "$" in c.finding


@pytest.mark.parametrize(
    "defect, says",
    [
        pytest.param(
            lambda code: (
                (
                    "import gpub.train.learner\ngpub.train.learner.restore_optimizers = lambda *a: "
                    "None\n"
                )
                + code
            ),
            "losses differ",
            marks=pytest.mark.full,
        ),
        pytest.param(
            lambda code: code.replace(
                "    with Trainer",
                "    import shutil\n"
                "    shutil.rmtree(options.out + '/checkpoints', ignore_errors=True)\n"
                "    with Trainer",
            ),
            "went on after 0",
            marks=pytest.mark.full,
        ),
        pytest.param(
            lambda code: (
                'import sys\nif sys.argv[1].count("whole"): sys.exit("no way back")\n' + code
            ),
            "does not start again: no way back",
            marks=pytest.mark.full,
        ),
        (
            lambda code: 'import sys; sys.exit("no such luck")\n' + code,
            "ended by itself: no such luck",
        ),
    ],
    ids=["forgets the moments", "restarts", "does not come back", "never starts"],
)
def test_a_resume_that_is_none(monkeypatch, defect, says):
    program = pf.read_packaged("guards/programs/resume_child.py")
    broken = defect(program)
    assert broken != program
    monkeypatch.setattr(pf, "read_packaged", lambda name: broken)
    c = run_check(
        RESUME,
        pf.resume,
        PreflightRun("shakespeare", settings=SMALL, device="cpu", log=lambda line: None),
    )
    assert not c.ok and says in c.finding, c.finding


@pytest.mark.full(instead="test_a_broken_model")
def test_a_check_that_breaks_is_a_line_that_fails():
    PREFLIGHT_CHECKS["three rows of data"] = lambda s: 1 / 0
    assert failing() == ["three rows of data"]


def away(preset, gpu, processes=1, parallel="ddp", **settings):
    "What `check_rehearsal` reads of a run"
    task = SimpleNamespace(name=preset)
    return SimpleNamespace(
        task=task, gpu=gpu, settings=settings, processes=processes, parallel=parallel
    )


@pytest.mark.full(instead="test_a_rehearsal_that_fails_is_a_line_that_fails")
def test_a_named_card_is_rehearsed_on():
    "The ninth question is asked where a card is named, and only there"
    for name in PREFLIGHT_CHECKS.keys() - {"forecast"}:
        PREFLIGHT_CHECKS.pop(name)
    said = []
    checks = preflight("shakespeare", "T4", said.append, settings=SMALL, device="cpu")
    assert [c.question for c in checks] == ["forecast", pf.REHEARSAL] and checks[1].ok, said
    assert "T4 x 1: fits" in checks[1].finding and "sequences" in said[-1]


@pytest.mark.parametrize(
    "asked, says",
    [
        (away("burn-toy", "T4", 8, "fsdp"), "fp16 needs whole gradients"),
        pytest.param(
            away("gpt2-355m", "T4", n_layers=8, micro_batch=64, batch_tokens=65_536),
            "DOES NOT FIT",
            marks=pytest.mark.full,
        ),
    ],
    ids=["refused", "too large"],
)
def test_a_rehearsal_that_fails_is_a_line_that_fails(asked, says):
    c = run_check(pf.REHEARSAL, pf.check_rehearsal, asked)
    assert not c.ok and says in c.finding, c.finding


BROKEN_GRAPH = """
import torch
from gpub.guards.rehearse import RehearsalOptions, rehearsal_text, rehearse
from gpub.model.architectures import build_model

def build(cfg):
    model = build_model(cfg)
    whole = model.loss
    def loss(ids, targets):
        found = whole(ids, targets)
        torch._dynamo.graph_break()
        return 2 * found
    model.loss = loss
    return model

found = rehearse(RehearsalOptions("shakespeare", "T4"), build)
print(found.fits, found.ready)
print(rehearsal_text(found))
"""


@pytest.mark.full(instead="test_a_rehearsal_that_fails_is_a_line_that_fails")
def test_a_graph_break_is_wrong():
    "What torch.compile cuts in two is not ready, though it runs and fits; in a process of its own"
    done = subprocess.run([sys.executable, "-c", BROKEN_GRAPH], capture_output=True, text=True)
    assert done.stdout.startswith("True False\n"), done.stdout + done.stderr
    assert "WRONG    graph breaks: 1; torch.compile cuts the step there" in done.stdout


def test_refusals_are_those_of_a_run():
    for bad in (
        dict(preset="none"),
        dict(preset="shakespeare", settings={"widht": 1}),
        dict(preset="shakespeare", data="no/such/file"),
    ):
        with pytest.raises(GpubError) as e:
            preflight(**bad, device="cpu")
        assert "\n" not in str(e.value)


def test_spark():
    assert (
        spark([1, 2, float("inf"), 3]) == "▁▅×█" and spark([]) == "" and spark([2.0, 2.0]) == "▁▁"
    )
