"""The plan of the toy that learns to talk, walked without replay until a gate stops it.

python tools/forgetting.py     about three minutes of one core

writes data/forgetting.json: what the phase of examples measured at its checkpoints when no old text
is read again, and the verdict."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

from gpub.core import write_atomic
from gpub.device import machine, use_threads
from gpub.plans.phases import read_plan
from gpub.plans.runner import PlanOptions, run_plan
from gpub.record.log import read_log

RECEIPT = Path(__file__).resolve().parent.parent / "data/forgetting.json"
PHASE = "sft"
MEASURED = ("step", "forgotten", "p_right", "val_loss", "well_formed")


def without_replay():
    "The toy's plan whose examples are learned without old text"
    plan = read_plan("chat-toy")
    phases = tuple(replace(p, replay=None) if p.name == PHASE else p for p in plan.phases)
    return replace(plan, phases=phases)


def main():
    use_threads()
    plan = without_replay()
    with tempfile.TemporaryDirectory() as out:
        options = PlanOptions(usd_per_hour=1.0, device="cpu", until=PHASE)
        verdict = run_plan(plan, out, options)
        rows = [
            row for row in read_log(plan.folder(Path(out), plan.phase(PHASE))) if "forgotten" in row
        ]
    receipt = dict(
        machine=machine("cpu"),
        plan="chat-toy, replay left out",
        phase=verdict.phase,
        word=verdict.word,
        failed=list(verdict.failed),
        reason=verdict.reason,
        rows=[{key: row[key] for key in MEASURED} for row in rows],
    )
    write_atomic(RECEIPT, json.dumps(receipt, indent=1) + "\n")


if __name__ == "__main__":
    main()
