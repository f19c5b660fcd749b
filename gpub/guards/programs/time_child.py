"""The steps that `gpub.guards.preflight` times on a GPU, in a process that has the card for itself.

The fields of `RunOptions` come as JSON in the first argument; what was timed is the last line that
is printed, as JSON.
"""

import json
import sys
from dataclasses import asdict
from gpub.train.options import RunOptions
from gpub.train.timed_steps import time_steps
from gpub.train.trainer import Trainer


def main():
    given = json.loads(sys.argv[1])
    options = RunOptions(eval_tokens=65, log=lambda line: None, **given)
    print(json.dumps(asdict(time_steps(Trainer(options).task))))


if __name__ == "__main__":
    main()
