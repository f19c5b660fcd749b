"""What the process of `gpub.evals.sandbox.run_python` runs: a program, contained.

A job comes on standard input as JSON (code, seconds, bytes, word); on standard output comes one
line, `word` and how the program ended. It runs without gpub: nothing but Python's own library.
"""

import json
import os
import sys


def silence():
    "Point the three standard streams at nothing"
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)


def lock_out():
    """Linux: a user and network namespace of its own (no way out, not even to localhost), and
    Landlock (the kernel lets nothing be written, made, deleted or started); elsewhere nothing"""
    clone_newuser_and_newnet = 0x50000000
    landlock_create_ruleset = 444
    landlock_restrict_self = 446
    ask_for_version = 1
    set_no_new_privileges = 38
    all_but_reading = 0x1FF3
    truncate = 1 << 14  # known from version 3 on
    try:
        import ctypes

        c = ctypes.CDLL(None)
        c.unshare(clone_newuser_and_newnet)
        version = c.syscall(landlock_create_ruleset, None, 0, ask_for_version)
        handled = all_but_reading | (truncate if version > 2 else 0)
        attributes = ctypes.byref(ctypes.c_uint64(handled))
        rules = c.syscall(landlock_create_ruleset, attributes, 8, 0)
        if rules >= 0:
            c.prctl(set_no_new_privileges, 1, 0, 0, 0)
            c.syscall(landlock_restrict_self, rules, 0)
    except (ImportError, OSError, AttributeError, TypeError):
        pass  # not Linux: the audit hook and the limits remain


def limit_resources(seconds: int, address_space: int):
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
    "Refuse sockets, processes, foreign libraries and files to be written; it cannot be taken off"
    barred = (
        "socket.",
        "subprocess.",
        "ctypes.",
        "shutil.",
        "pty.",
        "ftplib.",
        "http.",
        "urllib.",
        "winreg.",
        "mmap.",
        "signal.",
        "os.",
    )
    allowed = ("os.listdir", "os.scandir", "os.walk", "os.fwalk")
    libraries = ("_posixsubprocess", "_ctypes")
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

    def refuse(event: str, args: tuple):
        bad = event.startswith(barred) and event not in allowed
        if event == "open":
            path, _, flags = args
            bad = isinstance(path, int) or (isinstance(flags, int) and flags & writing)
        if event == "import" and args[0] in libraries:
            bad = True
            event = "import of " + args[0]
        if bad:
            raise PermissionError(f"{event} is refused")

    sys.addaudithook(refuse)
    for name in ("ctypes", "_ctypes"):
        sys.modules.pop(name, None)


def run(code: str, word: str) -> str:
    "Run the program, and say how it ended"
    try:
        exec(compile(code, "program", "exec", dont_inherit=True), {"__name__": "__main__"})
    except MemoryError:
        return word + "memory"
    except BaseException as e:
        return f"{word}{type(e).__name__}: {e}"[:300]
    return word + "passed"


def main():
    job = json.loads(sys.stdin.buffer.read())
    out = os.dup(1)
    write, leave = os.write, os._exit  # before the program can replace them
    silence()
    lock_out()
    limit_resources(job["seconds"], job["bytes"])
    install_audit_hook()
    ended = run(job["code"], job["word"])
    write(out, ended.encode("utf-8", "replace"))
    leave(0)


if __name__ == "__main__":
    main()
