"""Two processes train together and one hangs or dies: the other says which, and how far it was."""

import subprocess
import sys
from pathlib import Path

import forked
import pytest

from gpub.core import GpubError
from gpub.train import lost_process
from gpub.train.lost_process import explain_lost_process
from gpub.train.parallel import World

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


@pytest.mark.parametrize(
    "lost, error, told",
    [
        ([], "mine", None),  # everybody is there: somebody's own error
        ([], "[gloo] Connection closed by peer", "one of them hangs"),
        (["process 1 (3 steps done)"], "mine", "process 1 .3 steps done. hangs"),
    ],
)
def test_an_error_of_the_block_is_no_lost_process(monkeypatch, lost, error, told):
    monkeypatch.setattr(lost_process, "find_lost", lambda world: lost)
    with pytest.raises(GpubError if told else RuntimeError, match=told or error):
        with explain_lost_process(World(0, 2), "the same command"):
            raise RuntimeError(error)
