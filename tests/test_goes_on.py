"""Every command that writes is killed, stopped by Ctrl-C, out of disk, its newest checkpoint
damaged: typed again, it comes to the same files. A command is tried here by standing in
`tools/faults/jobs.py`; `test_faults.py` does the same at every call."""

import pytest
from contracts import JOBS, goes_on, linux, sweep

# the others in `make test-all`
FIRST = {"train"}


@pytest.fixture(scope="module")
def disturbed(request):
    "Command -> its cases, for the commands whose tests are to run"
    wanted = [item.callspec.params.get("job") for item in request.session.items if is_one(item)]
    names = list(dict.fromkeys(name for name in wanted if name))
    cases = sweep.sweep_few(names)
    return {name: [case for case in cases if case["job"] == name] for name in names}


def is_one(item):
    "Whether a test is of this file, once for each job"
    return item.path.name == "test_goes_on.py" and hasattr(item, "callspec")


@linux
@pytest.mark.parametrize("job", sorted(FIRST))
def test_goes_on(job, disturbed):
    goes_on(job, disturbed[job])


@linux
@pytest.mark.full(instead="test_goes_on")
@pytest.mark.parametrize("job", sorted(JOBS.keys() - FIRST))
def test_each_command_goes_on(job, disturbed):
    goes_on(job, disturbed[job])


def test_a_difference_is_found():
    "Scratch is passed over; after Ctrl-C an older checkpoint too, the newest one never"
    old, new = "checkpoints/step-00000002/a", "checkpoints/step-00000004/a"
    assert sweep.difference({"a": "1", ".b.part": "2"}, {"a": "1"}) == ""
    assert sweep.difference({"a": "1"}, {"a": "1", "c": "2"}) == "c"
    stopped = dict(code=sweep.STOPPED)
    assert sweep.difference({old: "1", new: "1"}, {new: "1"}) == old
    assert sweep.difference({old: "1", new: "1"}, {new: "1"}, stopped) == ""
    assert sweep.difference({old: "1", new: "1"}, {old: "1", new: "2"}, stopped) == new
    rows = "run/log.jsonl"
    assert sweep.difference({new: "1", rows: "1"}, {new: "1", rows: "2"}, stopped) == rows
