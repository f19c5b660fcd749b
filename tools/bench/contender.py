"""One start of a contender, which `tools.bench.train.alone` runs in a process of its own.

The name of a function of that module is the first argument, its own arguments come as JSON in the
second. What it returns is the last line that is printed, as JSON.
"""

import json
import sys

from tools.bench import train


def main():
    name, arguments = sys.argv[1:]
    result = getattr(train, name)(**json.loads(arguments))
    print("\n" + json.dumps(result))


if __name__ == "__main__":
    main()
