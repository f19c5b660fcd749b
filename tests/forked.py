"""Processes of their own for tests, forked from one that has torch imported already
(fork_server.py): `Python(["-c", code, ...])` and `run(...)` are `subprocess.Popen` and
`subprocess.run` of this Python, and take the long way where a fork could not tell the truth."""

import json
import os
import select
import socket
import subprocess
import sys
from pathlib import Path

SERVER = Path(__file__).with_name("fork_server.py")
# options of `Popen` that a fork can follow
FOLLOWED = {"env", "cwd", "text", "stdin", "stdout", "stderr", "start_new_session", "bufsize"}
# what an interpreter or a library reads once, when it starts
READ_AT_START = "PYTHON", "OMP_", "MKL_", "LD_", "LC_", "LANG", "MPL", "TORCH"
# what torch sets by itself as soon as a test compiles something, and reads whenever it compiles
# (PYTHONIOENCODING is followed)
READ_LATER = {"TORCHINDUCTOR_CACHE_DIR", "PYTHONIOENCODING"}
AT_IMPORT = dict(os.environ)  # what a server starts with, whatever a test has set since
POPEN = subprocess.Popen
_servers = {}  # pid of a process of the tests -> (its fork server, the socket to ask it)


def _server():
    "The fork server of this process of the tests, and the socket to ask it"
    if os.getpid() not in _servers:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        env = {**AT_IMPORT, "OMP_NUM_THREADS": "1"}
        words = [sys.executable, str(SERVER), str(its.fileno())]
        how = dict(env=env, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)
        process = subprocess.Popen(words, **how)
        its.close()
        _servers[os.getpid()] = process, ours, _start_values(env)
    return _servers[os.getpid()]


def _start_values(env):
    "What matters to an interpreter when it starts"
    return {
        name: value
        for name, value in env.items()
        if name.startswith(READ_AT_START) and name not in READ_LATER
    }


class Forked(subprocess.Popen):
    "A `Popen` of a program in Python whose process is a fork of the server's"

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *more):
        startupinfo, creationflags, shell, *pipes = more[:9]
        restore_signals, gid, gids, uid, umask, new_session, *_ = more[9:]
        child_end = [pipes[0], pipes[3], pipes[5]]
        streams = [fd if fd != -1 else number for number, fd in enumerate(child_end)]
        flag, program, *words = args
        asked = dict(
            module=program if flag == "-m" else None,
            code=program,
            argv=[program if flag == "-m" else "-c", *words],
            env=dict(os.environ if env is None else env),
            cwd=os.fspath(cwd or os.getcwd()),
            new_session=bool(new_session),
        )
        _, asking, _ = _server()
        self._report, report = os.pipe()
        os.set_inheritable(self._report, False)
        socket.send_fds(asking, [json.dumps(asked).encode()], [*streams, report])
        os.close(report)
        self.pid = int(asking.recv(64))
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def wait(self, timeout=None):
        "As of `Popen`: the exit code, a signal's negative"
        if self.returncode is None:
            ready, _, _ = select.select([self._report], [], [], timeout)
            if not ready:
                raise subprocess.TimeoutExpired(self.args, timeout)
            said = os.read(self._report, 64)
            os.close(self._report)
            assert said, "the fork server has ended"
            self.returncode = int(said)
        return self.returncode

    def poll(self):
        "As of `Popen`: the exit code, None as long as it runs"
        if self.returncode is None and select.select([self._report], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def _internal_poll(self, *_, **__):
        return self.poll() if hasattr(self, "_report") else None


def can_fork(words, how):
    "Whether a fork of the server is what the program would find in a fresh interpreter"
    if sys.platform != "linux" or words[0] not in ("-c", "-m"):
        return False
    if words[0] == "-m" and words[1].partition(".")[0] not in ("gpub", "pytest", "tools"):
        return False
    if set(how) - FOLLOWED:
        return False
    env = how.get("env") or os.environ
    return _start_values({"OMP_NUM_THREADS": "1", **env}) == _server()[2]


def Python(words, **how):
    "`subprocess.Popen([sys.executable, *words], **how)`, forked where that is the same"
    words = [os.fspath(word) if isinstance(word, os.PathLike) else str(word) for word in words]
    if can_fork(words, how):
        return Forked(words, **how)
    return POPEN([sys.executable, *words], **how)


def popen(args, **how):
    "`subprocess.Popen`, forked where it is one of this Python and that is the same"
    ours = isinstance(args, (list, tuple)) and args[0] == sys.executable
    return Python(args[1:], **how) if ours else POPEN(args, **how)


def run(words, *, check=False, capture_output=False, timeout=None, input=None, **how):
    "`subprocess.run([sys.executable, *words], ...)`, forked where that is the same"
    if capture_output:
        how |= dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if input is not None:
        how |= dict(stdin=subprocess.PIPE)
    with Python(words, **how) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def torchrun(words, n, **how):
    "torchrun of `n` processes of a program, forked like what they are processes of"
    launch = ["--standalone", f"--nproc_per_node={n}", *map(str, words)]
    here = str(SERVER.parent)
    begin = f"import sys; sys.path.append({here!r}); import ranks; ranks.main(sys.argv[1:])"
    if can_fork(["-c", begin], how):
        return Forked(["-c", begin, *launch], **how)
    return POPEN([sys.executable, "-m", "torch.distributed.run", *launch], **how)
