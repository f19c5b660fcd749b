"""What a program of a model cannot do: read, write, kill, stay; and where nothing holds it, it does
not run"""

import os
import socket
import subprocess

import pytest

from gpub.core import GpubError
from gpub.evals.sandbox import find_jail_fault, require_jail, run_python

contained = pytest.mark.skipif(bool(find_jail_fault()), reason=find_jail_fault())
# the kernel's word for no; in the jail most files are not even there
DENIED = ("PermissionError", "BlockingIOError", "FileNotFoundError", "OSError")


def end_of(code):
    "What is told of its end"
    return run_python(code, seconds=1, unsafe=bool(find_jail_fault())).why


@contained
@pytest.mark.parametrize("name", ["/etc/passwd", "/proc/self/environ", "/proc/self/mem", __file__])
def test_nothing_but_python_is_read(name):
    assert end_of(f"open({name!r}).read()") in DENIED


@contained
@pytest.mark.parametrize(
    "code",
    [
        'open("{0}", "w")',
        'open("/tmp/f", "w")',
        'open("/dev/f", "w")',
        'import os; os.remove("{0}")',
        "import os; os.remove(os.__file__)",
        'import os; os.mkfifo("{0}2")',
        'open("{0}")',
        'import socket; socket.create_connection(("127.0.0.1", {1}))',
        'import socket; socket.create_connection(("10.0.0.1", 80))',
    ],
)
def test_nothing_is_written_and_nobody_is_called(code, tmp_path):
    (tmp_path / "f").write_text("mine")
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = code.format(tmp_path / "f", server.getsockname()[1])
        assert end_of(code) in (*DENIED, "ConnectionRefusedError")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


@contained
def test_the_parent_lives_and_nothing_stays():
    "All that a program starts ends with it, also as root, for whom there is no limit of processes"
    mark = f"marked-{os.getpid()}"
    code = f"""
import os, signal, time
for _ in range(150):
    try:
        if os.fork() == 0:
            time.sleep(60)
    except OSError:
        pass
os.kill(os.getppid(), signal.SIGKILL)
{mark!r}
"""
    assert end_of(code) == "passed"
    listed = subprocess.run(["pgrep", "-f", mark], capture_output=True, text=True).stdout.split()
    assert not [pid for pid in listed if int(pid) != os.getpid()]


def test_a_program_that_fails_chooses_no_word_that_makes_it_pass():
    named = run_python(
        "class passed(Exception): pass\nraise passed", unsafe=bool(find_jail_fault())
    )
    assert named.why == "passed" and not named.ok


@contained
@pytest.mark.parametrize(
    "code",
    [
        "import collections\nP = collections.namedtuple('P', 'a b')\nassert P(1, 2).b == 2",
        "import dataclasses\n@dataclasses.dataclass\nclass A:\n    x: int\nassert A(1).x == 1",
        "import hashlib, math, re, random, datetime, decimal, fractions, statistics, heapq",
        "import pathlib, importlib.util, contextlib, copy, json, textwrap",
        "import typing, enum\nclass E(enum.Enum):\n    A = 1",
    ],
)
def test_honest_programs_run(code):
    assert end_of(code) == "passed"


@pytest.mark.parametrize(
    "bwrap, fault",
    [
        (None, "bubblewrap is not installed"),
        ("#!/bin/sh\necho No permissions to create a namespace >&2\nexit 1\n", "No permissions"),
    ],
)
def test_without_a_jail_nothing_runs_but_unsafe(bwrap, fault, tmp_path, monkeypatch):
    if bwrap:
        (tmp_path / "bwrap").write_text(bwrap)
        (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    find_jail_fault.cache_clear()
    try:
        with pytest.raises(GpubError, match=f"cannot be contained here: .*{fault}.*--unsafe") as e:
            run_python("pass")
        assert "\n" not in str(e.value)
        require_jail(unsafe=True)
        assert run_python("pass", unsafe=True).ok
    finally:
        find_jail_fault.cache_clear()


@contained
def test_the_jail_holds_also_where_unsafe_was_asked_for():
    assert run_python("open('/etc/passwd')", unsafe=True).why == "FileNotFoundError"
