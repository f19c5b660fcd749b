"What tests share that start a run in a process of its own and kill it"

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import forked
import torch

from gpub.record.checkpoint import load_checkpoint


def start(*argv, main="from gpub.cli.main import main; main()", before=(), **how):
    """Run a command in its own process; names in capitals are variables of its environment, the
    others are Popen's"""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **{k: how.pop(k) for k in [*how] if k.isupper()}}
    how = dict(text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) | how
    words = ["-c", main, *map(str, argv)]
    if before:
        return subprocess.Popen([*before, sys.executable, *words], env=env, **how)
    return forked.Python(words, env=env, **how)


def wait_for(out, step, proc):
    "Until the log has a row of `step` or later"
    log = Path(out) / "log.jsonl"
    while proc.poll() is None:
        if log.exists() and any(
            json.loads(l)["step"] >= step for l in log.read_text().splitlines() if l.endswith("}")
        ):
            return
        time.sleep(0.002)
    raise AssertionError(f"ended with {proc.returncode} before step {step}: {proc.communicate()}")


def same_weights(a, b):
    "The newest checkpoints of two runs are of one step and equal to the bit"
    x, y = load_checkpoint(a), load_checkpoint(b)
    assert (
        x.step == y.step
        and x.model.keys() == y.model.keys()
        and x.optimizer.keys() == y.optimizer.keys()
    )
    assert all(torch.equal(x.model[k], y.model[k]) for k in x.model) and all(
        torch.equal(x.optimizer[k], y.optimizer[k]) for k in x.optimizer
    )
