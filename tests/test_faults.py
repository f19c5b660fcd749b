"""Every write, fsync, rename and open of five small commands fails, one at a time: what went wrong
is said in one line, logs are never behind a checkpoint, and the same command goes on to the same
end. `tools/faults/sweep.py` does it; all of it runs at night."""

import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parent.parent / "tools" / "faults"
sys.path.insert(0, str(TOOLS))
from sweep import compiler, sweep  # noqa: E402

linux = pytest.mark.skipif(
    sys.platform != "linux" or compiler() is None,
    reason="a fault is injected by a library in front of libc: Linux with a C compiler",
)


def broken(cases):
    "What broke, in words"
    named = ("job", "kind", "number", "error", "lasts")
    return [([case[k] for k in named], case["wrong"]) for case in cases if case["wrong"]]


@linux
def test_a_few_faults():
    "Every 20th of each job's: the sweep itself works"
    cases = sweep(["train", "export", "prep"], quick=True, every=20)
    assert {case["job"] for case in cases} == {"train", "export", "prep"}
    assert {case["code"] for case in cases} == {0, 1}, "no fault was met, or none was absorbed"
    assert not broken(cases)


@linux
@pytest.mark.full
@pytest.mark.parametrize("job", ["train", "run", "prep", "export", "eval"])
def test_every_call_fails_once(job):
    cases = sweep([job], quick=True)
    assert len(cases) > 25
    assert not broken(cases)
