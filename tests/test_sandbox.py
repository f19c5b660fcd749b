"""What a program of a model cannot do: read, kill, forge a pass, stay; and where nothing holds it,
it does not run"""

import os
import shutil
import subprocess
import sys
import time

import pytest

from gpub.core import GpubError
from gpub.evals import sandbox
from gpub.evals.sandbox import find_jail, missing_walls, need_walls, run_python
from gpub.templates import read_packaged

contained = pytest.mark.skipif(bool(missing_walls()), reason="this system has not all the walls")
# the kernel's word for no; in bubblewrap's jail the file is not even there
DENIED = ("PermissionError", "BlockingIOError", "FileNotFoundError")
HOOK = "    sys.addaudithook(refuse)\n"


@pytest.fixture
def without_hook(monkeypatch):
    "The kernel's walls alone"
    cage = read_packaged("evals/programs/cage.py")
    assert HOOK in cage
    monkeypatch.setattr(sandbox, "read_packaged", lambda name: cage.replace(HOOK, ""))


def ends(code, **how):
    "What is told of its end"
    return run_python(code, seconds=1, unsafe=bool(missing_walls()), **how).why


@contained
@pytest.mark.parametrize("name", ["/etc/passwd", "/proc/self/environ", __file__])
def test_nothing_but_python_is_read(name):
    assert ends(f"open({name!r}).read()") in DENIED


@contained
@pytest.mark.parametrize(
    "code",
    [
        'open("{0}", "w")',
        'import os; os.remove("{0}")',
        'import os; os.mkfifo("{0}2")',
        'import subprocess; subprocess.run(["true"])',
        "import os; os.fork()",
        "import os; os.posix_spawn('/bin/true', ['true'], {{}})",
        'open("{0}")',
        "import socket; socket.socket()",
        "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
        "import resource as r; r.prlimit(1, r.RLIMIT_CPU, (0, 0))",
    ],
)
def test_the_kernel_alone_contains_them_too(code, tmp_path, without_hook):
    (tmp_path / "f").write_text("mine")
    assert ends(code.format(tmp_path / "f")) in DENIED
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


@contained
def test_the_parent_lives_and_nothing_stays(tmp_path, without_hook):
    "All that a program starts ends with it, also as root, for whom there is no limit of processes"
    mark = f"marked-{os.getpid()}"
    code = f"""
import os, time
for _ in range(150):
    try:
        if os.fork() == 0:
            time.sleep(60)
    except OSError:
        pass
{mark!r}
"""
    assert ends(code) == "passed"
    time.sleep(0.2)
    left = subprocess.run(["pgrep", "-f", mark], capture_output=True, text=True).stdout.split()
    assert not [pid for pid in left if int(pid) != os.getpid()]


# reads a name of whoever called it: a function whose first name has a number below 0
PATCHED = """
import dis, os, {module}
def f():
    x = 1
    return x
raw = bytearray(f.__code__.co_code)
at = max(i for i in range(0, len(raw), 2) if dis.opname[raw[i]] == "LOAD_FAST")
number = (-{offset}) & 0xffffffff
wide = bytes(x for k in (24, 16, 8) for x in (dis.EXTENDED_ARG, number >> k & 255))
changed = wide + bytes([raw[at], number & 255]) + bytes(raw[at + 2 : ])
code = marshal.dumps(f.__code__)
changed = bytes(raw[:at]) + changed
size = len(raw).to_bytes(4, "little")
data = code.replace(size + bytes(raw), len(changed).to_bytes(4, "little") + changed)
assert data != code
{load}
found = type(f)(made, {{}})()
for descriptor in range(3, 9):
    try:
        os.write(descriptor, found)
    except OSError:
        pass
os._exit(0)
"""
FROM_A_FILE = """
from importlib.machinery import SourcelessFileLoader
from importlib.util import MAGIC_NUMBER
class Mine(SourcelessFileLoader):
    def get_data(self, path):
        return MAGIC_NUMBER + bytes(12) + data
made = Mine("mine", "mine.pyc").get_code("mine")
"""
FORGERIES = {
    "code from bytes": PATCHED.format(
        module="marshal", offset=38, load="made = marshal.loads(data)"
    ),
    "code from a file": PATCHED.format(module="marshal", offset=38, load=FROM_A_FILE),
    "frozen code": PATCHED.format(
        module="marshal, _imp", offset=38, load="made = _imp.get_frozen_object('mine', data)"
    ),
    "frames": "import sys\nprint(sys._getframe(1).f_locals['good'])",
    "tracebacks": """
try:
    1 / 0
except ZeroDivisionError as e:
    frame = e.__traceback__.tb_frame.f_back
""",
    "generators": "g = (x for x in [1])\ng.gi_frame.f_back",
    "garbage": "import gc\n[o for o in gc.get_objects() if isinstance(o, bytes)]",
    "profiles": "import sys\nsys.setprofile(lambda frame, *rest: None)",
    "tracing": "import sys\nsys.settrace(lambda frame, *rest: None)",
    "all frames": "import sys\nsys._current_frames()",
    "code": "def f(): pass\nf.__code__ = (lambda: 1).__code__",
    "new code": "def f(): pass\nf.__code__.replace(co_code=b'')",
    "subinterpreters": "import _xxsubinterpreters as s\ns.create()",
    "new subinterpreters": "import _interpreters as s\ns.create()",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_pass_cannot_be_forged(name):
    "The word that says passed is in a frame, and frames are not shown"
    assert ends(FORGERIES[name]) == "refused"


def test_the_cage_is_not_the_programs_main():
    "Its functions cannot be replaced"
    assert ends("import __main__\nassert not hasattr(__main__, 'contain')") == "passed"


def test_what_is_replaced_does_not_decide():
    code = """
import builtins, os
builtins.type = lambda *given: 1 / 0
os.write = os._exit = lambda *given: 1 / 0
raise KeyError("mine")
"""
    assert ends(code) == "KeyError"


def test_only_the_names_of_pythons_own_exceptions_are_told():
    "A program that fails chooses no word of a receipt"
    assert ends("class Passed(Exception): pass\nraise Passed('passed')") == (
        "an exception of its own"
    )
    assert ends("raise ValueError('all tests passed')") == "ValueError"


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
    assert ends(code) == "passed"


def test_without_walls_nothing_runs(monkeypatch):
    monkeypatch.setattr(sandbox, "missing_walls", lambda: ("seccomp",))
    with pytest.raises(GpubError, match="lacks seccomp.*--unsafe"):
        run_python("")
    need_walls(unsafe=True)


# a jail that is installed: the kernel's namespaces by util-linux stand for it, and take its options
JAIL = """#!/bin/sh
echo "$(basename "$0")" >> {seen}
while [ "$1" != {python} ]; do shift; done
exec unshare --user --map-current-user --pid --net --fork "$@"
"""
NONE = """#!/bin/sh
echo "$(basename "$0")" >> {seen}
while [ "$1" != {python} ]; do shift; done
exec "$@"
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    "Jails on a PATH of our own, and which of them were started"
    (tmp_path / "bin").mkdir()
    seen = tmp_path / "seen"
    seen.touch()
    rest = os.environ["PATH"].split(os.pathsep)
    rest = [d for d in rest if not any(os.path.exists(f"{d}/{j}") for j in ("bwrap", "nsjail"))]
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path / "bin"), *rest]))

    def install(**jails):
        for name, text in jails.items():
            python = os.path.realpath(sys.executable)
            (tmp_path / "bin" / name).write_text(text.format(seen=seen, python=python))
            (tmp_path / "bin" / name).chmod(0o755)
        return seen

    caches = find_jail, missing_walls
    for cached in caches:
        cached.cache_clear()
    yield install
    for cached in caches:
        cached.cache_clear()


@contained
@pytest.mark.skipif(shutil.which("unshare") is None, reason="util-linux is not installed")
@pytest.mark.parametrize(
    "jails, wanted",
    [
        (dict(bwrap=JAIL, nsjail=JAIL), "bwrap"),
        (dict(nsjail=JAIL), "nsjail"),
        (dict(bwrap="#!/bin/sh\nexit 1\n", nsjail=JAIL), "nsjail"),
        (dict(bwrap=NONE), None),  # it starts programs, and separates them from nothing
        ({}, None),
    ],
)
def test_a_jail_that_is_installed_is_preferred(installed, jails, wanted):
    seen = installed(**jails)
    found = find_jail()
    assert (os.path.basename(found[0]) if found else None) == wanted
    before = seen.read_text().count("\n")
    assert ends("assert 1 + 1 == 2") == "passed" and ends("open('/etc/passwd')") in DENIED
    assert (seen.read_text().count("\n") > before) == bool(found)


def test_a_system_that_lacks_all_says_so(installed, monkeypatch):
    "No jail, no namespaces, no Landlock, no seccomp: gpub eval names them, and wants --unsafe"
    cage = read_packaged("evals/programs/cage.py")
    whole, lacking = "    walls = contain(job)\n", "    contain(job)\n    walls = []\n"
    assert whole in cage
    monkeypatch.setattr(sandbox, "read_packaged", lambda name: cage.replace(whole, lacking))
    installed()
    assert {*missing_walls()} == {*sandbox.WALLS.values()}
    with pytest.raises(GpubError, match="lacks process namespaces, .*seccomp.*with --unsafe"):
        run_python("pass")
    assert run_python("pass", unsafe=True).ok


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_bubblewrap_is_preferred():
    assert find_jail()[0].endswith("bwrap") and not missing_walls()
    assert ends("import sys; sys.exit(0)") == "SystemExit"
    assert ends("while True: pass") == "time"
