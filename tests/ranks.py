"""torchrun, started in a fork of fork_server.py: the processes it starts are forks as well, of this
one as it was before torchrun began."""

import os
import socket
from pathlib import Path

import fork_server
import forked
from torch.distributed import run
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler


def server_of_our_own():
    "Fork one; whoever asks it are the lines of torchrun that start a process"
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if not pid:
        ours.close()
        fork_server.serve_and_run(its)
    its.close()
    forked._servers[os.getpid()] = pid, ours, {}
    return pid, ours


def started(args, **how):
    "`Popen` of a command of torchrun: python -u, then -m MODULE or a file"
    python, unbuffered, *words = args
    if words[0] != "-m":
        words[0:1] = ["-c", Path(words[0]).read_text(encoding="utf-8")]
    return forked.Forked(words, **how)


def main(words):
    pid, ours = server_of_our_own()
    subprocess_handler.Popen = started
    try:
        run.main(words)
    finally:
        ours.close()
        os.waitpid(pid, 0)
