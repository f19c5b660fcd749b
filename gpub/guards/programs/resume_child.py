"""The run that `gpub.guards.preflight.resume` kills and starts again.

The fields of `RunOptions`, and the run folders as `outs`, come as JSON in the first argument. It
prints `step N` when the batch of a step is read, and `began at N` when a run is over.
"""

import json
import sys
from gpub.data.batch import Batch
from gpub.train.options import RunOptions
from gpub.train.trainer import Trainer


class WatchedTrainer(Trainer):
    "Prints every step whose batch is read"

    first_step: int | None = None

    def batches(self, step: int, context_length: int) -> Batch:
        "Read this process's rows of a step"
        if self.first_step is None:
            self.first_step = step
        print("step", step, flush=True)
        return super().batches(step, context_length)


def train_one(options: RunOptions):
    "One run, with little to validate and nothing to write at milestones"
    run = WatchedTrainer(options)
    run.go()
    print("began at", run.first_step, flush=True)


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
