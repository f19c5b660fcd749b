"""The run that `gpub.guards.preflight.resume` kills and starts again.

The arguments of a `Trainer`, and its folders as `outs`, come as JSON in the first argument. It
prints `step N` when the batch of a step is fetched, and `began at N` when a run is over.
"""

import json
import sys
from dataclasses import replace
from gpub.train.trainer import Trainer


def watch_batches(run):
    "Print every step whose batch is fetched; the list that comes back grows with them"
    seen = []
    fetch = run.batches

    def batches(step, context_length):
        seen.append(step)
        print("step", step, flush=True)
        return fetch(step, context_length)

    run.batches = batches
    return seen


def train_one(out, how):
    "One run, with little to validate and nothing to write at milestones"
    run = Trainer(out=out, save_every=2, log=lambda line: None, **how)
    run.corpus = replace(run.corpus, val=run.corpus.val[:65])
    run.evals = {run.cfg.steps}
    run.milestones = set()
    seen = watch_batches(run)
    run.go()
    print("began at", min(seen), flush=True)


def main():
    how = json.loads(sys.argv[1])
    for out in how.pop("outs"):
        train_one(out, how)


if __name__ == "__main__":
    main()
