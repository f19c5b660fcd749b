"""The run that `gpub.guards.preflight.resume` kills and starts again.

The fields of `RunOptions`, and the run folders as `outs`, come as JSON in the first argument. It
prints `step N` when so many steps are done, and `began at N` when a run is over.
"""

import json
import sys
from gpub.train.options import RunOptions
from gpub.train.trainer import Trainer


def train_one(options: RunOptions):
    "One run, with little to validate and nothing to write at milestones"
    with Trainer(options).opened() as run:
        began = run.state.step
        for step in run.steps():
            print("step", step.n, flush=True)
    print("began at", began, flush=True)


def main():
    given = json.loads(sys.argv[1])
    for out in given.pop("outs"):
        options = RunOptions(
            out=out,
            eval_steps={given["settings"]["steps"]},
            milestone_steps=(),
            eval_tokens=65,
            save_every=2,
            log=lambda line: None,
            **given,
        )
        train_one(options)


if __name__ == "__main__":
    main()
