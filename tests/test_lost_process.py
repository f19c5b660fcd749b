"""Two processes train together and one hangs or dies: the other says which, and how far it was."""

import subprocess
import sys
from pathlib import Path

import forked
import pytest

PROGRAM = Path(__file__).with_name("hanging.py")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pause")
@pytest.mark.parametrize(
    "end", ["hangs", pytest.param("killed", marks=pytest.mark.full(instead="[hangs]"))]
)
def test_the_lost_process_is_named_with_its_last_step(end):
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process = forked.torchrun([PROGRAM, end], 2, **pipes)
    output, errors = process.communicate(timeout=120)
    assert process.returncode != 0, errors[-3000:]
    [line] = output.splitlines()
    assert line.startswith("process 0 lost contact with the others"), line
    assert "process 1 (3 steps done) hangs, was killed" in line
    assert line.endswith("go on with: the same command")
