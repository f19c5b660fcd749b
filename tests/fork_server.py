"""A Python that has imported what the commands need and forks a child for each that is asked for:
a process of its own, as `python -c` makes one, without the seconds that torch takes to import.
Started by forked.py, which sends it one message for each child."""

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import types
from pathlib import Path

STREAMS = dict(stdin="r", stdout="w", stderr="w")
# what most children import, and what takes most of their time: the first step of an optimizer
# asks for torch._dynamo, a report for pyplot, a run in slices for torch's checkpoints
NEEDED = ["torch._dynamo", "torch.distributed.checkpoint", "matplotlib.pyplot"]
NEEDED += ["gpub.cli.main", "gpub.train.trainer", "gpub.record.run"]


def reap(reports):
    "Write how each child that has ended ended, into the pipe of the one who asked for it"
    while reports:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        pipe = reports.pop(pid)
        os.write(pipe, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(pipe)


def serve(asking):
    """Fork for each message. Returns in a child: the message and its standard streams; and, with
    nothing, in the server when nobody is left who could ask"""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever runs the tests
    signal.set_wakeup_fd(wake)
    reports = {}  # pid -> where its exit code is to be written
    while True:
        ready, _, _ = select.select([asking, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            reap(reports)
        if asking not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(asking, 1 << 20, 4)
        if not message:
            return None
        *streams, report = descriptors
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            for other in (woken, wake, report, asking.detach(), *reports.values()):
                os.close(other)
            return json.loads(message), streams
        reports[pid] = report
        for one in streams:
            os.close(one)
        asking.send(str(pid).encode())


def forget_another_copy(found):
    "A folder `gpub` where a program runs is what the program would import"
    ours = [name for name in sys.modules if name.partition(".")[0] == "gpub"]
    if found.is_dir() and not found.samefile(Path(sys.modules["gpub"].__file__).parent):
        for name in ours:
            del sys.modules[name]


def become(asked, streams):
    "What a fresh interpreter would be: streams, environment, folder, signals, words"
    for number, one in enumerate(streams):
        os.dup2(one, number)
    for one in set(streams) - {0, 1, 2}:
        os.close(one)
    asked_for, _, handler = asked["env"].get("PYTHONIOENCODING", "").partition(":")
    for number, (name, mode) in enumerate(STREAMS.items()):
        stream = open(number, mode + "b", closefd=False)
        lines = name == "stderr" or os.isatty(number)
        errors = "backslashreplace" if name == "stderr" else handler or None
        wrapped = io.TextIOWrapper(stream, asked_for or "utf-8", errors, line_buffering=lines)
        setattr(sys, name, wrapped)
        setattr(sys, f"__{name}__", wrapped)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    forget_another_copy(Path("gpub"))
    if asked["new_session"]:
        os.setsid()
    sys.path[0] = ""
    sys.argv = asked["argv"]


def run_program(asked):
    "Run what was asked for as the main module; its exit code"
    try:
        if asked["module"]:
            runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)
        else:
            program = types.ModuleType("__main__")
            sys.modules["__main__"] = program
            exec(compile(asked["code"], "<string>", "exec"), program.__dict__)
    except SystemExit as e:
        if e.code is None or isinstance(e.code, int):
            return e.code or 0
        print(e.code, file=sys.stderr)
        return 1
    except BaseException as e:
        sys.excepthook(*sys.exc_info())
        return -signal.SIGINT if isinstance(e, KeyboardInterrupt) else 1
    return 0


def end(code):
    """End as an interpreter does, without taking apart what was imported: that takes longer than
    most tests"""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a reader that has gone, a closed stream
            stream.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


def serve_and_run(asking):
    "Serve; in a child, run the program. Never returns"
    gc.freeze()  # what is there stays where it is, in the memory that all share
    found = serve(asking)
    if not found:
        os._exit(0)
    asked, streams = found
    become(asked, streams)
    end(run_program(asked))


def main():
    for name in NEEDED:
        importlib.import_module(name)
    serve_and_run(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    itself = sys.modules["__main__"]  # kept while `main` runs in its names
    main()
