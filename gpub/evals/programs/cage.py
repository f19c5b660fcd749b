"""What the process of `gpub.evals.sandbox.run_python` runs: a program, contained.

A job comes on standard input as JSON (code, seconds, bytes, word, jailed); on standard output comes
one line, `word` and how the program ended. Without code the line lists what contains it here. It
runs without gpub: nothing but Python's own library.

Linux has four walls: a user, process, network and mount namespace of its own (nobody to kill, no way
out, all ends with it), Landlock (nothing is written, and nothing read but Python's own library), a
filter of system calls (no process, no program, no limit of anybody changed), and limits on time and
memory. An audit hook refuses the same once more, and with it what could look into the frames of this
program, where `word` is: frames, and code that was not compiled from text. Other systems have the
limits and the hook only. The walls are the kernel's; `word` keeps Python code from calling itself
passed, not a program that finds a mistake of the interpreter and reads its memory.
"""

import json
import os
import struct
import sys
import types

NAMESPACES = {"process": 0x20000000, "network": 0x40000000, "mount": 0x20000, "ipc": 0x08000000}
NEW_USER = 0x10000000
NO_NEW_PRIVILEGES = 38
DIE_WITH_PARENT = 1
SET_SECCOMP = 22
FILTER = 2
SIGNALLED = 128  # an exit code above it: ended by that signal, as shells say it
REFUSED_CALLS = {  # what an exploit or a clumsy program would ask the kernel for, by machine
    "x86_64": (
        *(41, 42, 49, 50, 53),  # sockets
        *(56, 57, 58, 59, 322, 435),  # new processes and programs
        *(62, 200, 234, 129, 297, 424, 434, 438),  # signals, and handles of processes
        *(101, 310, 311, 302, 160),  # looking into others, and anybody's limits
        *(165, 166, 155, 161, 272, 308, 304, 303, 428, 429, 430, 442),  # mounts and namespaces
        *(29, 64, 68, 240, 319, 323, 425, 426, 427),  # shared memory, queues, rings
        *(248, 249, 250, 298, 321, 175, 313, 246, 320, 169, 167, 168),  # keys, probes, the kernel
        *(105, 106, 113, 114, 117, 119, 126, 135),  # other users, other personalities
    ),
    "aarch64": (
        *(198, 199, 203, 200, 201),
        *(220, 221, 281, 435),
        *(129, 130, 131, 138, 240, 424, 434, 438),
        *(117, 270, 271, 261, 164),
        *(40, 39, 41, 51, 97, 268, 265, 264, 428, 429, 430, 442),
        *(194, 186, 190, 180, 279, 282, 425, 426, 427),
        *(217, 218, 219, 241, 280, 105, 273, 104, 294, 142, 224, 225),
        *(146, 144, 145, 143, 147, 149, 91, 92),
    ),
}
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


class Refused(PermissionError):
    "What the audit hook does not allow"


class NoFrames(Refused, ValueError):
    "Frames are not shown; namedtuple and its like go on without them"


def libc() -> object | None:
    "The system's library with its error numbers; None where there is no Linux"
    if not sys.platform.startswith("linux"):
        return None
    try:
        import ctypes

        return ctypes.CDLL(None, use_errno=True)
    except (ImportError, OSError):
        return None


def separate(
    c: object,  # the system's library
) -> list[str]:
    "Namespaces of its own; the names of those that the system gave"
    together = NEW_USER | sum(NAMESPACES.values())
    if c.unshare(together) == 0:
        return [*NAMESPACES]
    return [name for name, flag in NAMESPACES.items() if c.unshare(NEW_USER | flag) == 0]


def wait_for(
    child: int,  # its process number
):
    "End as `child` ends: its exit code, or above `SIGNALLED` the number of its signal"
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(status if status >= 0 else SIGNALLED - status)


def become_inner(
    c: object,  # the system's library
):
    """Go on as a child inside the new process namespace. Its first process only waits: the kernel
    keeps signals from it, also the one that says that the time is over"""
    for _ in range(2):
        child = os.fork()
        if child:
            wait_for(child)
        c.prctl(DIE_WITH_PARENT, 9, 0, 0, 0)


def readable_places() -> list[str]:
    "Folders that Python itself reads while a program runs"
    library = os.path.dirname(os.__file__)
    places = [library, os.path.join(sys.base_exec_prefix, "lib"), "/usr/share/zoneinfo"]
    return [*places, "/usr/lib", "/usr/lib64", "/lib", "/lib64", "/dev/null", "/dev/urandom"]


def allow_reading_only_python(
    c: object,  # the system's library
) -> bool:
    "Landlock: no file is written, made, deleted or started, none read but Python's own; whether so"
    import ctypes

    create, add_rule, restrict = 444, 445, 446
    beneath = 1
    read_file, read_folder = 1 << 2, 1 << 3
    version = c.syscall(create, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    known = {1: 13, 2: 14}.get(version, 15)  # kinds of access to files
    everything = ctypes.c_uint64((1 << known) - 1)
    rules = c.syscall(create, ctypes.byref(everything), ctypes.c_size_t(8), 0)
    if rules < 0:
        return False
    for place in readable_places():
        try:
            folder = os.open(place, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # not on this system
        access = read_file | read_folder if os.path.isdir(place) else read_file
        rule = ctypes.create_string_buffer(struct.pack("=Qi", access, folder), 12)
        c.syscall(add_rule, rules, beneath, rule, 0)
        os.close(folder)
    c.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    done = c.syscall(restrict, rules, 0) == 0
    os.close(rules)
    return done


def filter_calls(
    c: object,  # the system's library
) -> bool:
    "seccomp: `REFUSED_CALLS` fail with EPERM from here on; whether so"
    import ctypes

    machine = os.uname().machine
    if machine not in REFUSED_CALLS:
        return False
    load, equals, at_least, give = 0x20, 0x15, 0x35, 0x06
    allow, refuse = 0x7FFF0000, 0x00050001
    numbers = REFUSED_CALLS[machine]
    steps = [
        (load, 0, 0, 4),  # which machine's calls are these
        (equals, 1, 0, AUDIT_ARCH[machine]),
        (give, 0, 0, refuse),
        (load, 0, 0, 0),  # the number of the call
        (at_least, len(numbers) + 1, 0, 0x40000000),  # those of 32 bits
    ]
    for place, number in enumerate(numbers):
        steps.append((equals, len(numbers) - place, 0, number))
    steps += [(give, 0, 0, allow), (give, 0, 0, refuse)]
    code = b"".join(struct.pack("=HBBI", *step) for step in steps)
    memory = ctypes.create_string_buffer(code, len(code))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(memory)))
    c.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    return c.prctl(SET_SECCOMP, FILTER, program, 0, 0) == 0


def limit_resources(
    seconds: int,  # of CPU time
    address_space: int,  # bytes
):
    "Where the system has limits: processor time, memory, files, processes"
    try:
        import resource
    except ImportError:
        return  # Windows
    limits = {
        "AS": (address_space, address_space),
        "CPU": (seconds, seconds + 1),  # first a signal, a second later the end
        "FSIZE": (4096, 4096),
        "CORE": (0, 0),
        "NPROC": (0, 0),
    }
    for name, soft_and_hard in limits.items():
        resource.setrlimit(getattr(resource, "RLIMIT_" + name), soft_and_hard)


def install_audit_hook():
    """Refuse sockets, processes, foreign libraries, files to be written, limits, other interpreters
    and whatever shows a frame or makes code that no compiler checked; it cannot be taken off"""
    barred = (
        *("socket.", "subprocess.", "ctypes.", "shutil.", "pty.", "ftplib.", "http.", "urllib."),
        *("winreg.", "mmap.", "signal.", "os.", "resource.", "cpython.", "sys.", "gc.", "syslog."),
        *("marshal.", "code.__new__"),
        *("fcntl.", "_thread.", "threading.", "telnetlib.", "sqlite3.", "msvcrt."),
    )
    allowed = ("os.listdir", "os.scandir", "os.walk", "os.fwalk", "cpython.run_stdin")
    libraries = (
        *("_posixsubprocess", "_ctypes", "_xxsubinterpreters", "_interpreters", "_interpchannels"),
        *("_testcapi", "_testinternalcapi", "_testlimitedcapi", "_xxtestfuzz", "_remote_debugging"),
    )
    frames = ("tb_frame", "gi_frame", "cr_frame", "ag_frame", "f_back", "f_locals")
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

    def refuse(event: str, args: tuple):
        if event.startswith("sys._getframe"):
            raise NoFrames("frames are not shown")
        bad = event.startswith(barred) and event not in allowed
        if event == "open":
            path, _, flags = args
            bad = isinstance(path, int) or (isinstance(flags, int) and flags & writing)
        if event == "import":
            name, file = args[0], args[1]
            stem = str(file or "").replace("\\", "/").rpartition("/")[2].partition(".")[0]
            bad = name.rpartition(".")[2] in libraries or stem in libraries
            event = "import of " + name
        if event == "object.__getattr__" and args[1] in frames:
            bad = True
        if event == "object.__setattr__" and args[1] == "__code__":
            bad = True
        if bad:
            raise Refused(event + " is refused")

    sys.addaudithook(refuse)


def silence():
    "Point the three standard streams at nothing"
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)


def contain(
    job: dict,  # its limits, and whether a jail is around it
) -> list[str]:
    "Put up every wall that this system has; their names"
    walls = ["jail"] if job["jailed"] else []
    c = libc()
    if c is not None:
        if not job["jailed"]:
            walls += separate(c)
            become_inner(c)
        if allow_reading_only_python(c):
            walls.append("files")
    limit_resources(job["seconds"], job["bytes"])
    if c is not None and filter_calls(c):  # no limit can be changed any more
        walls.append("calls")
    return walls


def known_exceptions() -> dict:
    "Python's own exceptions: the only names that are told of how a program ended"
    import builtins

    found = [kind for kind in vars(builtins).values() if isinstance(kind, type)]
    return {kind: kind.__name__ for kind in found if issubclass(kind, BaseException)}


def read_no_compiled_files():
    """Import from source from here on, so that nobody needs marshal: code from bytes could read any
    memory. What many programs import, and what is frozen into Python, is there before"""
    import importlib.machinery
    import importlib.util
    import ntpath
    import typing

    sys.implementation.cache_tag = None


def forget_the_way_in() -> dict:
    "What a program imports under these names is its own"
    for name in ("ctypes", "_ctypes", "struct", "resource"):
        sys.modules.pop(name, None)
    own = types.ModuleType("__main__")
    sys.modules["__main__"] = own
    return own.__dict__


def main():
    job = json.loads(sys.stdin.buffer.read())
    out = os.dup(1)
    # all that follows the program is a name of this frame, which the hook lets nobody see: the
    # program may replace anything else
    write, leave, kind_of, told, all_ones = os.write, os._exit, type, known_exceptions(), "passed"
    recursion, memory = RecursionError, MemoryError
    word, code = job["word"].encode(), job.pop("code")
    refused = {Refused: "refused", NoFrames: "refused"}
    ends = {kind: word + name.encode() for kind, name in (told | refused).items()}
    good, other = word + all_ones.encode(), word + b"an exception of its own"
    ends[memory] = word + b"memory"
    silence()
    walls = contain(job)
    if code is None:
        write(out, word + ",".join(walls).encode())
        leave(0)
    read_no_compiled_files()
    names = forget_the_way_in()
    install_audit_hook()
    ended = good
    try:
        exec(compile(code, "program", "exec", dont_inherit=True), names)
    except BaseException as e:
        ended = ends[kind_of(e)] if kind_of(e) in ends else other
    write(out, ended)
    leave(0)


if __name__ == "__main__":
    main()
