"""Run one program within limits and say how it ended: what `gpub.evals.sandbox.run_python` starts.

A job comes on standard input as JSON (code, seconds, bytes); on standard output comes one word,
`passed` or the name of an exception, and the exit code is 0 only for a program that passed. It runs
without gpub: nothing but Python's own library.

What the program may reach is bubblewrap's affair. This file sets limits on time, memory and files;
it is no wall against a program that sets out to look as if it had passed.
"""

import json
import os
import sys


def limit_resources(
    seconds: int,  # of CPU time
    address_space: int,  # bytes
):
    "Limit processor time, memory, files and processes, where the system knows limits"
    try:
        import resource
    except ImportError:
        return  # Windows
    resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    # first a signal, a second later the end
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def main():
    job = json.load(sys.stdin)
    out = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    limit_resources(job["seconds"], job["bytes"])
    end = "passed"
    exit_code = 0
    try:
        exec(compile(job["code"], "program", "exec"), {"__name__": "__main__"})
    except BaseException as e:
        end = type(e).__name__
        exit_code = 1
    os.write(out, end.encode())
    os._exit(exit_code)


if __name__ == "__main__":
    main()
