"""What is promised of many things alike: a command that writes goes on, a door refuses in one line.

`goes_on` holds for every command in `tools/faults/jobs.py`; `refuses` for whatever reads what
others wrote."""

import re
import sys
from pathlib import Path

import pytest

from gpub.core import GpubError

FAULTS = Path(__file__).resolve().parent.parent / "tools" / "faults"
sys.path.insert(0, str(FAULTS))
import jobs  # noqa: E402
import sweep  # noqa: E402

JOBS = jobs.JOBS
linux = pytest.mark.skipif(
    sys.platform != "linux" or sweep.compiler() is None,
    reason="a fault is injected by a library in front of libc: Linux with a C compiler",
)


def broken(cases):
    "What broke, with the fault that did it"
    named = ("job", "call", "number", "error", "lasts")
    return [([case[k] for k in named], case["wrong"]) for case in cases if case["wrong"]]


def goes_on(job, cases):
    """After each of these faults the same command, typed again, came to the files of an undisturbed
    one; every kind of fault was among them, and at least one was felt"""
    kinds = {"killed", "signal", "write"}
    if JOBS[job].has_checkpoints:
        kinds.add("damaged")
    assert {case["kind"] for case in cases} == kinds
    assert sweep.KILLED in {case["code"] for case in cases}
    assert not broken(cases)


def refuses(words, door, *given, **named):
    "The door says in one line what is wrong, with each of these words (patterns) in it; the line"
    with pytest.raises(GpubError) as refusal:
        door(*given, **named)
    said = str(refusal.value)
    assert "\n" not in said
    words = [words] if isinstance(words, str) else words
    missing = [word for word in words if not re.search(word, said)]
    assert not missing, f"{missing} not in: {said}"
    return said
