"""What forked.py starts is what a fresh interpreter would be."""

import os
import signal
import subprocess
import sys

import forked
import pytest

PIPES = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
PROGRAMS = dict(
    words="import sys; print(sys.argv, __name__, sys.path[0] == '')",
    code="import sys; print('on stdout'); print('on stderr', file=sys.stderr); sys.exit(3)",
    message="import sys; sys.exit('one line')",
    killed="import os; print('before', flush=True); os.kill(os.getpid(), 9)",
    at_exit="import atexit; atexit.register(print, 'last'); print('first')",
    thread="import threading; threading.Timer(0.2, print, ['after the end']).start()",
    hook="import sys; sys.excepthook = lambda *e: print('hook', e[0].__name__); 1/0",
    streams="import sys; print(sys.stdin.read(), sys.stdout.isatty(), sys.stdout.encoding)",
    folder="import os; print(os.getcwd(), os.environ['WHERE'], os.getpid() == os.getsid(0))",
    threads="import torch; print(torch.get_num_threads())",
    signals="from signal import *; print(getsignal(SIGINT), getsignal(SIGCHLD))",
)


def asked(tmp_path):
    "Options that a child can tell apart"
    env = {**forked.AT_IMPORT, "OMP_NUM_THREADS": "1", "WHERE": "here"}
    return dict(env=env, cwd=tmp_path, start_new_session=True, **PIPES)


@pytest.mark.skipif(sys.platform != "linux", reason="forks are used on Linux")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.full) if n == "threads" else n for n in PROGRAMS]
)
def test_a_fork_is_what_a_fresh_interpreter_is(name, tmp_path):
    words = ["-c", PROGRAMS[name], "a", "b c"]
    how = asked(tmp_path)
    fork = forked.Python(words, stdin=subprocess.PIPE, **how)
    assert isinstance(fork, forked.Forked)
    fresh = subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE, **how)
    one, other = (process.communicate("asked\n") for process in (fork, fresh))
    assert one == other and fork.returncode == fresh.returncode


@pytest.mark.skipif(sys.platform != "linux", reason="forks are used on Linux")
@pytest.mark.parametrize("asked_for", ["cp1252", "ascii:replace"])
def test_a_fork_writes_as_it_is_asked_to(tmp_path, asked_for):
    code = "import sys; print(*((s.encoding, s.errors) for s in (sys.stdout, sys.stderr)))"
    how = asked(tmp_path)
    how["env"]["PYTHONIOENCODING"] = asked_for
    fork = forked.Python(["-c", code], **how)
    assert isinstance(fork, forked.Forked)
    fresh = subprocess.Popen([sys.executable, "-c", code], **how)
    assert fork.communicate() == fresh.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="forks are used on Linux")
def test_a_fork_is_stopped_as_any_process(tmp_path):
    code = "import time; print('begun', flush=True); time.sleep(300)"
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        process = forked.Python(["-c", code], **asked(tmp_path))
        assert process.stdout.readline() == "begun\n" and process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(sign)
        _, err = process.communicate(timeout=60)
        assert process.returncode == -sign
        assert ("KeyboardInterrupt" in err) == (sign == signal.SIGINT)


@pytest.mark.skipif(sys.platform != "linux", reason="forks are used on Linux")
def test_a_fork_has_torch_and_the_package_that_lies_there(tmp_path):
    code = "import sys; print('torch' in sys.modules); import gpub; print(gpub.__file__)"
    for made in (False, True):
        done = forked.run(["-c", code], cwd=tmp_path, capture_output=True, text=True)
        torch, file = done.stdout.splitlines()
        assert torch == "True" and (os.path.dirname(file) == str(tmp_path / "gpub")) == made
        (tmp_path / "gpub").mkdir(exist_ok=True)
        (tmp_path / "gpub/__init__.py").touch()


def test_what_a_test_has_set_does_not_end_the_forks(monkeypatch, tmp_path):
    "torch writes the folder of its compiled kernels into the environment of whoever compiles"
    words = ["-c", "pass"]
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert forked.can_fork(words, {})
    monkeypatch.setenv("TORCH_LOGS", "dynamo")
    assert not forked.can_fork(words, {})


def test_where_a_fork_would_not_tell_the_truth_there_is_none(tmp_path):
    code = "import sys; print(sys.flags.utf8_mode, 'torch' in sys.modules)"
    env = {**os.environ, "PYTHONUTF8": "1"}
    done = forked.run(["-c", code], env=env, capture_output=True, text=True)
    assert done.stdout == "1 False\n"
    with pytest.raises(subprocess.CalledProcessError):
        forked.run(["-c", "1/0"], check=True, capture_output=True)


@pytest.mark.full(instead="test_where_a_fork_would_not_tell_the_truth_there_is_none")
@pytest.mark.skipif(sys.platform != "linux", reason="forks are used on Linux")
def test_torchrun_is_a_fork_only_where_its_processes_can_be(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import os; print('rank', os.environ['RANK'])")
    for settings in ({}, {"PYTHONHASHSEED": "6640"}):  # Dask leaves such a seed behind
        with pytest.MonkeyPatch.context() as around:
            for name, value in settings.items():
                around.setenv(name, value)
            process = forked.torchrun([program], 1, **PIPES)
            said, err = process.communicate(timeout=120)
        assert isinstance(process, forked.Forked) == (not settings)
        assert process.returncode == 0 and "rank 0" in said, err
