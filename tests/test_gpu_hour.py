"""One paid hour, at toy size on a CPU: receipts at once, on after a failure, on after a stop, and
what pages read of them"""

import copy
import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from gpub.core import GpubError, read_json
from gpub.guards.before_paying import measured_on
from gpub.guards.rehearse import measured_peak
from gpub.model.gpu_plan import find_receipt, receipts
from gpub.model.gpus import find_gpu
from gpub.plans.gpus import informed_plan
from gpub.plans.published import judge_all, load_claims
from tools.fp8 import use_fp8
from tools.gpu_hour import (
    NOT_YET,
    Hour,
    _chosen,
    hour_table,
    parts_of,
    spend_hour,
    step_kinds,
    train_in_fp8,
)

WORDS = ["--toy"]


def toy(folder):
    "An hour at toy size, and the options that its parts' processes are told"
    return Hour(folder, "cpu", "cpu", toy=True), [*WORDS, "--out", str(folder)]


def measured(table, line):
    "What stands in the last column of a line"
    return next(row[-1] for row in table.rows if row[0] == line)


def test_a_part_that_fails_is_filed_and_the_same_command_goes_on(tmp_path, forks, capsys):
    hour, words = toy(tmp_path)
    machine, smoke = _chosen(parts_of(hour), ["machine", "smoke"])
    (tmp_path / "work").write_text("a file where the folder of the run should be")
    late = replace(machine, minutes=0.001)
    assert spend_hour(hour, [smoke, late], words) == ["smoke", "machine"]
    assert "work" in read_json(hour.failure("smoke"))["failed"]
    assert "its limit" in read_json(hour.failure("machine"))["failed"]
    assert not hour.receipt("smoke").exists() and not hour.receipt("machine").exists()
    assert measured(hour_table(hour), "smoke").startswith("failed: ")

    (tmp_path / "work").unlink()
    assert spend_hour(hour, [machine, smoke], words) == []
    filed = read_json(hour.receipt("machine"))
    assert filed["machine"]["torch"] and filed["matmul_tflops"]["fp32"]
    capsys.readouterr()
    assert spend_hour(hour, [machine], words) == []
    assert "machine: has its receipt" in capsys.readouterr().out
    assert read_json(hour.receipt("machine")) == filed
    assert not hour.failure("machine").exists() and not hour.failure("smoke").exists()
    run = tmp_path / "runs/smoke-cpu"
    assert {path.name for path in run.iterdir()} >= {"log.jsonl", "samples.jsonl"}
    assert receipts(tmp_path) == [], "200 steps are no whole run"
    steps = [json.loads(line)["step"] for line in (run / "samples.jsonl").open()]
    assert steps == [0, 1, 4] and measured(hour_table(hour), "smoke").startswith("loss ")

    assert spend_hour(hour, [machine], words, minutes=0, again=["machine"]) == ["machine"]
    assert read_json(hour.failure("machine"))["failed"] == "the hour was over"


@pytest.mark.full(instead="test_a_part_that_fails_is_filed_and_the_same_command_goes_on")
def test_the_whole_hour_as_a_toy(tmp_path, forks):
    hour, words = toy(tmp_path)
    parts = parts_of(hour)
    assert spend_hour(hour, parts, words) == []
    assert {p.name for p in (tmp_path / "bench").iterdir()} == {
        hour.receipt(part.name).name for part in parts
    }
    table = hour_table(hour)
    assert NOT_YET not in str(table) and "failed" not in str(table)
    assert "losses equal" in measured(table, "kill")
    for kind in step_kinds(hour):
        row = next(row for row in table.rows if row[0] == f"{kind.name}, peak GB")
        assert row[1] and row[2], "rehearsed and forecast"
    assert math.isfinite(read_json(hour.receipt("sft"))["last"]["val_loss"])


def test_an_unknown_part_is_refused_by_name(tmp_path):
    hour, _ = toy(tmp_path)
    with pytest.raises(GpubError, match="no part 'smok'; there are: machine, .*smoke"):
        _chosen(parts_of(hour), ["smok"])


def made_up_step(folder, compiled, mode, tok_s, peak_gb):
    "A receipt that NOBODY MEASURED, in a temporary folder: what the hour would file on an H100"
    name = f"step-burn-1b-{'compiled' if compiled else 'eager'}-{mode}-h10080.json"
    speed = dict(preset="burn-1b", tok_s=tok_s, mode=mode, compiled=compiled, peak_gb=peak_gb)
    who = dict(cpu="made up", gpu="NVIDIA H100 80GB HBM3", torch="made up", threads=1)
    (folder / "bench").mkdir(exist_ok=True)
    (folder / "bench" / name).write_text(json.dumps(dict(machine=who, speed=speed)))


def test_what_pages_call_not_measured_fills_itself(tmp_path):
    "With receipts in the folder that a reader is given, its column has them; without, it says so"
    card = find_gpu("H100")
    assert measured_peak("burn-1b", card, tmp_path) == NOT_YET
    assert informed_plan("burn-1b", card, "1B", folder=tmp_path).kind == "forecast"
    made_up_step(tmp_path, False, "full", 31_000, 30.0)
    made_up_step(tmp_path, False, "off", 40_000, 60.0)
    made_up_step(tmp_path, True, "off", 50_000, 50.0)

    assert len(receipts(tmp_path)) == 3
    assert find_receipt("burn-1b", card, tmp_path).tok_s == 50_000, "the fastest counts"
    plan = informed_plan("burn-1b", card, "1B", folder=tmp_path)
    assert plan.kind == "measured" and "step-burn-1b-compiled-off" in plan.speed
    row = next(row for row in plan.rows if row.checkpointing == "off")
    assert row.tok_s == pytest.approx(50_000) and plan.compiled_gb == 50.0
    table = measured_on("burn-1b", card, tmp_path)
    assert table["tokens a second"] == "50,000 tok/s"
    assert table["memory at its fullest"] == "50 GB, compiled"
    # what is rehearsed is not compiled
    assert measured_peak("burn-1b", card, tmp_path).startswith("60.00 GB (eager")


def test_a_made_up_ladder_answers_the_claims_that_wait_for_one(tmp_path):
    claims = [c for c in load_claims() if c.id in ("liger-0", "checkpointing-measured")]
    for name in ("published", "runs"):
        (tmp_path / name).symlink_to(shipped_folder(name))
    assert {v.status for v in judge_all(claims, tmp_path)} == {NOT_YET}
    rows = [dict(rung="no checkpointing", gain=1.18), dict(rung="Liger", gain=1.0)]
    who = dict(cpu="made up", gpu="NVIDIA A100-SXM4-80GB")
    (tmp_path / "bench").mkdir()
    receipt = dict(kind="ladder", preset="burn-1b", machine=who, rows=rows)
    (tmp_path / "bench/ladder-burn-1b-a10080.json").write_text(json.dumps(receipt))
    assert {v.status for v in judge_all(claims, tmp_path)} == {"agrees"}


def shipped_folder(name):
    from gpub.files import shipped

    return shipped(name)


def test_products_in_fp8_are_near_and_so_are_their_gradients():
    torch.manual_seed(0)
    layer = nn.Linear(64, 48, bias=False)
    narrow = nn.Sequential(copy.deepcopy(layer), nn.Linear(48, 7, bias=False))
    assert use_fp8(narrow) == 1, "7 is no multiple of 16"
    x = torch.randn(2, 16, 64, requires_grad=True)
    back = torch.randn(2, 16, 48)
    results = []
    for f in (layer, narrow[0]):
        x.grad = None
        out = f(x)
        out.backward(back)
        results.append((out.detach(), x.grad, f.weight.grad))
    for exact, rounded in zip(*results):
        apart = (exact - rounded).norm() / exact.norm()
        assert 1e-4 < apart < 0.06, "it rounds, and to two or three bits"


def test_the_same_steps_in_fp8_come_to_nearly_the_same_loss(tmp_path):
    receipt = train_in_fp8(toy(tmp_path)[0])
    wide, narrow = receipt["bf16"], receipt["fp8"]
    assert receipt["fp8_layers"] == 5, "of the one block: qkv, out, gate, up, down"
    assert wide["first_loss"] == pytest.approx(narrow["first_loss"], rel=1e-2)
    assert wide["last_loss"] != narrow["last_loss"], "nothing was rounded"
    assert wide["last_loss"] == pytest.approx(narrow["last_loss"], rel=2e-2)
    with pytest.raises(GpubError, match="no fp8 matmul in the hardware"):
        train_in_fp8(Hour(tmp_path, "cpu", "cpu"))
