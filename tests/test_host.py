"""The machine underneath: a GPU that torch cannot use is named, a quota is respected, the last
command runs however the end came."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch

from gpub.cli.options import TorchCommand
from gpub.core import GpubError
from gpub.device import pick_device, threads_line, use_threads
from gpub.host import CoreTimes, core_times, free_cores, usable_cores


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """A function that puts an nvidia-smi with this answer on the PATH; it leaves a mark when it is
    asked"""
    if os.name == "nt":
        pytest.skip("a shell script stands in for nvidia-smi")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    asked = tmp_path / "asked"

    def install(answer, code=0):
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\ntouch {asked}\necho '{answer}'\nexit {code}\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return asked

    return install


@pytest.mark.parametrize(
    "driver, version, build, todo",
    [
        ("470.57.02", "2.13.0+cu130", "13.0", "install a wheel of torch for CUDA 11 or older"),
        ("535.183.01", "2.13.0+cu130", "13.0", "install a wheel of torch for CUDA 12 or older"),
        ("580.65.06", "2.13.0+cpu", None, "install a wheel of torch for CUDA 13 or older"),
        ("390.157", "2.13.0+cu130", "13.0", "install a newer driver"),
        ("580.65.06", "2.9.1+cu128", "12.8", "restart the machine"),
    ],
)
def test_auto_refuses_a_gpu_that_torch_cannot_use(smi, monkeypatch, driver, version, build, todo):
    "It would train on the processor at the price of a GPU, and nothing would say so"
    smi(f"NVIDIA A100-SXM4-80GB, {driver}")
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(torch.version, "cuda", build)
    for name in ("auto", "cuda", "cuda:0"):
        with pytest.raises(GpubError) as e:
            pick_device(name)
        line = str(e.value)
        assert "\n" not in line and "NVIDIA A100-SXM4-80GB" in line
        assert driver in line and version in line and todo in line and "--device cpu" in line
        assert (f"CUDA {build}" if build else "a wheel for CPUs") in line
    assert pick_device("cpu").type == "cpu"


@pytest.mark.parametrize("hidden", ["", "-1", "NoDevFiles"])
def test_a_gpu_hidden_on_purpose_is_not_missed(smi, monkeypatch, hidden):
    asked = smi("NVIDIA A100-SXM4-80GB, 470.57.02")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert pick_device().type == "cpu" and not asked.exists()


def test_a_chosen_gpu_that_cannot_be_used_is_missed(smi, monkeypatch):
    smi("NVIDIA A100-SXM4-80GB, 470.57.02")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(GpubError, match="470.57.02"):
        pick_device()


def test_a_driver_without_a_gpu_is_no_gpu(smi):
    "As on a processor machine whose image has the tools: nvidia-smi says so in words, and fails"
    words = "NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver"
    asked = smi(words, code=9)
    assert pick_device().type == "cpu" and asked.exists()
    smi("No devices were found")
    assert pick_device().type == "cpu"


def test_an_ordinary_machine_starts_no_program(monkeypatch):
    "No driver and no nvidia-smi: nothing is run and nothing is waited for"
    if os.path.exists("/proc/driver/nvidia/version"):
        pytest.skip("this machine has an NVIDIA driver")
    monkeypatch.setenv("PATH", "")

    def refuse(*args, **kw):
        raise AssertionError("a program was started")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert pick_device().type in ("cpu", "mps")


CGROUPS = {
    "version 2": ("0::/box", {"box/cpu.max": "300000 100000\n"}, 3),
    "a fraction": ("0::/box", {"box/cpu.max": "350000 100000\n"}, 3),
    "less than a core": ("0::/box", {"box/cpu.max": "50000 100000\n"}, 1),
    "no limit": ("0::/box", {"box/cpu.max": "max 100000\n"}, 32),
    "a tighter one above": (
        "0::/pod/box",
        {"pod/cpu.max": "200000 100000\n", "pod/box/cpu.max": "900000 100000\n"},
        2,
    ),
    "of the container alone": ("0::/", {"cpu.max": "400000 100000\n"}, 4),
    "a path from outside": ("0::/../../box", {"cpu.max": "400000 100000\n"}, 4),
    "version 1": (
        "4:cpu,cpuacct:/docker/f00",
        {"cpu,cpuacct/cpu.cfs_quota_us": "500000\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"},
        5,
    ),
    "version 1, no limit": (
        "4:cpu,cpuacct:/",
        {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
        32,
    ),
    "no groups at all": (None, {}, 32),
}


@pytest.mark.parametrize("name", CGROUPS)
def test_cores_are_those_a_container_may_use(tmp_path, monkeypatch, name):
    line, files, cores = CGROUPS[name]
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(32)), raising=False)
    if line:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(line + "\n")
    for path, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert usable_cores(tmp_path) == cores


STAT = """cpu  900 0 0 900 0 0 0 0 0 0
cpu0 100 20 30 1000 500 4 5 6 0 0
cpu1 200 0 0 1000 500 0 0 0 0 0
cpu2 7000 0 0 1000 500 0 0 0 0 0
intr 1
"""


def test_what_cores_worked_is_read_for_those_of_this_process(tmp_path, monkeypatch):
    "Waiting for a disk is no work; time that a host took away is"
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(STAT)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    times = core_times(tmp_path)
    assert times.total == (100 + 20 + 30 + 4 + 5 + 6 + 200) / os.sysconf("SC_CLK_TCK")
    assert times.own > 0
    assert core_times(tmp_path / "elsewhere") is None


@pytest.mark.parametrize(
    "cores, others, free", [(2, 0.0, 2), (2, 0.4, 2), (2, 0.9, 1), (2, 2.0, 1), (8, 5.2, 3)]
)
def test_a_run_takes_the_cores_that_others_leave(cores, others, free, monkeypatch):
    "What it did itself, such as importing torch, is no other program"
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    monkeypatch.setattr("gpub.host.cpu_quota", lambda root: float("inf"))
    monkeypatch.setattr("gpub.host._first_look", CoreTimes(at=5.0, total=100.0, own=1.0))
    now = CoreTimes(at=7.0, total=100.0 + 2 * others + 1.5, own=2.5)
    monkeypatch.setattr("gpub.host.core_times", lambda: now)
    assert free_cores() == free


def test_an_old_look_is_made_again(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr("gpub.host.cpu_quota", lambda root: float("inf"))
    monkeypatch.setattr("gpub.host.time.sleep", lambda seconds: None)
    monkeypatch.setattr("gpub.host._first_look", CoreTimes(0.0, 0.0, 0.0))
    looks = iter([CoreTimes(90.0, 180.0, 0.0), CoreTimes(91.0, 180.0, 0.0)])
    monkeypatch.setattr("gpub.host.core_times", lambda: next(looks))
    assert free_cores() == 2  # busy for 90 s, and not in the last one


def test_why_there_are_fewer_threads_than_cores(monkeypatch):
    monkeypatch.setattr("gpub.device.usable_cores", lambda: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert threads_line() == "1 thread of 4 (OMP_NUM_THREADS)"
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert threads_line() == "1 thread of 4 (other programs are computing)"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert threads_line() == "4 threads"


def test_cores_are_looked_at_before_torch_arrives(monkeypatch):
    fetched = []
    monkeypatch.setattr("gpub.cli.options.importlib.import_module", fetched.append)
    TorchCommand("c", callback=lambda: None).main([], standalone_mode=False)
    assert fetched == ["gpub.host", "torch"]


def test_threads_follow_the_quota(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(128)), raising=False)
    monkeypatch.setattr("gpub.host.cpu_quota", lambda root: 3.4)
    before = torch.get_num_threads()
    try:
        assert use_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "last, runs",
    [
        ("raise ValueError('a cell failed')", 1),
        ("raise KeyboardInterrupt", 0),
        ("raise Interrupted('stopped by hand')", 0),
        ("done()\ndone()", 1),
        ("done()\nraise ValueError('after the end')", 1),
    ],
)
@pytest.mark.skipif(os.name == "nt", reason="a shell command")
def test_the_last_command_of_a_program(tmp_path, last, runs):
    code = """
        import sys
        from gpub.record.folder import Interrupted
        from gpub.host import WhenDone
        done = WhenDone('echo run >> ended', by_hand=(KeyboardInterrupt, Interrupted))
    """
    code = textwrap.dedent(code) + last
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    ended = tmp_path / "ended"
    assert (ended.read_text().split() if ended.exists() else []) == ["run"] * runs, done.stderr
    assert ("Error" in done.stderr) == ("ValueError" in last)


def test_the_last_command_of_a_notebook(tmp_path):
    """In a shell of IPython, after the first cell that fails; a cell that is run again replaces its
    command"""
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell
    code = f"""
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell.instance()
        shell.run_cell('from gpub.host import WhenDone')
        shell.run_cell('done = WhenDone("echo old >> {tmp_path}/ended")')
        shell.run_cell('done = WhenDone("echo new >> {tmp_path}/ended")')
        shell.run_cell('x = 1')
        shell.run_cell('raise KeyboardInterrupt')
        print('before', __import__('os').path.exists('{tmp_path}/ended'))
        shell.run_cell('1/0')
        shell.run_cell('this is no Python')
        shell.run_cell('done()')
    """
    assert shell is not None
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True
    )
    assert "before False" in done.stdout, done.stderr
    assert (tmp_path / "ended").read_text().split() == ["new"]


def test_a_status_is_never_of_an_end_before(tmp_path):
    from gpub.host import WhenDone

    done = WhenDone(None)
    done.keep_log(tmp_path)
    status = tmp_path / "STATUS"
    assert "began" in status.read_text()
    done("STOP: smoke, step 4: training loss is 3, wanted at most 2")
    done.disarm()
    assert "STOP: smoke, step 4" in status.read_text()


@pytest.mark.skipif(os.name == "nt", reason="a shell command")
def test_the_reason_of_an_end_is_on_the_volume_before_the_machine_is_switched_off(tmp_path):
    "The traceback in the log, a line in STATUS, also where no command is given"
    code = """
        from gpub.host import WhenDone
        done = WhenDone({command!r})
        done.keep_log({log!r})
        raise ValueError('the loss is not a number')
    """
    for command in (f"cp {tmp_path}/STATUS {tmp_path}/then", None):
        filled = textwrap.dedent(code).format(command=command, log=str(tmp_path))
        subprocess.run([sys.executable, "-c", filled], capture_output=True)
        status = (tmp_path / "STATUS").read_text()
        assert (
            "(ValueError: the loss is not a number), details in gpub.log; to go on, run the page"
            in status
        )
        assert "Traceback" in (tmp_path / "gpub.log").read_text()
        if command:
            assert (tmp_path / "then").read_text() == status, "kept before the command is run"
        for file in tmp_path.iterdir():
            file.unlink()


@pytest.mark.skipif(os.name == "nt", reason="a shell command")
def test_a_machine_that_could_not_be_switched_off_is_in_status_and_told(tmp_path, monkeypatch):
    "It is paid for until somebody does it: whoever is asleep has to hear of it"
    from gpub.host import WhenDone
    from gpub.night import Status

    sent = []
    monkeypatch.setattr(Status, "_send", lambda status, line: sent.append(line))
    done = WhenDone("exit 3")
    done.keep_log(tmp_path, "https://ntfy.sh/a-word")
    done("all phases are done")
    done.disarm()
    (line,) = sent
    assert line.startswith("WHEN_DONE failed (code 3): this machine is still on")
    assert "Stop it now" in line and line.endswith("all phases are done")
    assert line in (tmp_path / "STATUS").read_text()
