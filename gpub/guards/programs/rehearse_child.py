"""The rehearsal that `gpub.guards.preflight.check_rehearsal` asks for.

It needs a process that has computed no gradients. What is asked comes as JSON in the first
argument, what was found is printed as JSON; a refusal is printed as one line, with exit code 1.
"""

import json
import sys
from gpub.core import GpubError
from gpub.guards.rehearse import RehearsalOptions, rehearsal_record, rehearse


def main():
    try:
        found = rehearse(RehearsalOptions(**json.loads(sys.argv[1])))
    except GpubError as e:
        sys.exit(str(e))
    print(json.dumps(rehearsal_record(found)))


if __name__ == "__main__":
    main()
