"""python tools/limit.py SECONDS COMMAND...: runs a command, and says in words why it was stopped
when its time is up.

It is interrupted as by Ctrl-C first, so that pytest names the test that ran; ten seconds later it
is killed with all it started. 0 seconds: no limit. Exits as the command did, 124 when the time was
up, 137 when it was killed.
"""

import os
import signal
import subprocess
import sys
import time

GRACE = 10  # seconds between Ctrl-C and the end
TIME_UP, KILLED = 124, 137


def signal_all(process, number):
    "Send a signal to a command and all it started"
    if os.name == "nt":
        process.kill()
        return
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass  # all of them have ended


def end(process):
    "Interrupt a command, then kill what is left of it"
    signal_all(process, signal.SIGINT)
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        pass  # it does not listen
    if os.name != "nt":
        signal_all(process, signal.SIGKILL)  # also workers that outlive the command
    process.wait()


def in_words(seconds):
    "A time as people say it"
    n, unit = (seconds // 60, "minute") if seconds % 60 == 0 else (seconds, "second")
    return f"{n} {unit}" + ("" if n == 1 else "s")


def run(seconds, command):
    "The exit code of a command that may take so many seconds (0: any number)"
    # signals that arrived; an exception out of a handler could come before the command is known
    told = []
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, frame: told.append(number))
    process = subprocess.Popen(command, start_new_session=True)
    up = time.monotonic() + seconds
    while True:
        try:
            code = process.wait(0.1)
            return 128 - code if code < 0 else code
        except subprocess.TimeoutExpired:
            pass
        if told:
            end(process)
            return 128 + told[0]
        if seconds and time.monotonic() >= up:
            end(process)
            print(
                f"{command[0]}: stopped after {in_words(seconds)}, its limit, before it had "
                "finished. A busy or slow machine needs longer: the same command with "
                f"LIMIT={2 * seconds} (seconds), or LIMIT=0 for none. If it hangs on a quiet "
                "machine too, the lines above say where.",
                file=sys.stderr,
            )
            return TIME_UP


def main(seconds, *command):
    "Run what was asked for, with its limit"
    if not (seconds.isascii() and seconds.isdigit()):
        print(
            f"LIMIT is {seconds!r}: give whole seconds, such as LIMIT=3600, or LIMIT=0 for none",
            file=sys.stderr,
        )
        return 2
    code = run(int(seconds), command)
    if code == KILLED:
        print(
            f"{command[0]}: killed from outside, most often for want of memory: "
            "close other programs and give the same command again",
            file=sys.stderr,
        )
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
