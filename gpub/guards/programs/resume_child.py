"""The run that `gpub.guards.preflight.resume` kills and starts again.

The arguments of a `Trainer`, and its folders as `outs`, come as JSON in the first argument. It
prints `step N` when the batch of a step is fetched, and `began at N` when a run is over.
"""

import json
import sys
from gpub.train.trainer import Trainer


def train_one(out: str, how: dict):
    "One run, with little to validate and nothing to write at milestones"
    seen = []

    def watch(step: int, context_length: int):
        "Every step whose batch is fetched is printed"
        seen.append(step)
        print("step", step, flush=True)

    little = dict(
        eval_steps={how["settings"]["steps"]},
        milestone_steps=(),
        eval_tokens=65,
        before_batch=watch,
        save_every=2,
        log=lambda line: None,
    )
    run = Trainer(out=out, **little, **how)
    run.go()
    print("began at", min(seen), flush=True)


def main():
    how = json.loads(sys.argv[1])
    for out in how.pop("outs"):
        train_one(out, how)


if __name__ == "__main__":
    main()
