"""Two processes for test_lost_process.py: the second hangs, or dies, after its third step."""

import os
import signal
import sys
from datetime import timedelta

import torch

from gpub.core import GpubError
from gpub.train import lost_process, parallel

parallel.PATIENCE = timedelta(seconds=3)
lost_process.GRACE = timedelta(seconds=1)
world = parallel.World.from_env()
if world.main:  # torchrun sends it when a process is killed, and a run does not end at once
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with world.joined(torch.device("cpu")):
    try:
        with lost_process.explain_lost_process(world, "the same command"):
            for step in range(1, 6):
                if step == 4 and world.rank == 1:
                    if sys.argv[1] == "killed":
                        os.kill(os.getpid(), signal.SIGKILL)
                    signal.pause()
                world.mean(torch.ones(1))
                lost_process.note_step(world, step)
    except GpubError as e:
        os.write(1, f"{e}\n".encode())
        os._exit(1)
