"""Make or complete `.venv` of this clone: `python tools/venv.py core|dev|docs`. The Makefile calls
it; it needs Python's own library only."""

import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

root = Path(__file__).resolve().parent.parent
home = root / ".venv"
python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
# holds the folder it was made in: scripts inside a venv do not survive a move
mark = home / "made-by-gpub"
cpu_index = "https://download.pytorch.org/whl/cpu"
minutes = dict(core="under a minute", dev="1-3 minutes", docs="1-2 minutes")


def log(text):
    print(f"gpub set-up: {text}", flush=True)


def stop(text):
    sys.exit(f"gpub set-up: {text}")


def environment():
    "The caller's environment without what would send packages elsewhere"
    drop = {
        "PYTHONPATH",
        "PYTHONHOME",
        "VIRTUAL_ENV",
        "PIP_USER",
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_REQUIRE_VIRTUALENV",
    }
    return {k: v for k, v in os.environ.items() if k not in drop}


def pip(*args, quiet=False):
    "True when pip installed `args`; its errors are shown unless `quiet`"
    cmd = [
        python,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--no-input",
        "-qq",
        "install",
        *args,
    ]
    return (
        subprocess.run(
            cmd, cwd=root, env=environment(), stderr=subprocess.DEVNULL if quiet else None
        ).returncode
        == 0
    )


def runs():
    return (
        python.exists()
        and subprocess.run(
            [python, "-m", "pip", "--version"], env=environment(), capture_output=True
        ).returncode
        == 0
    )


def make_venv():
    """An empty `.venv`; one of ours that was moved or broken is made anew, one of yours is left
    alone"""
    if home.exists() and not mark.exists():
        stop(f"{home} was not made by this Makefile. Move it away or delete it, then try again.")
    if mark.exists() and mark.read_text(encoding="utf-8") == str(root) and runs():
        return
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    mark.write_text(str(root), encoding="utf-8")
    log(f"Python {platform.python_version()} -> .venv")
    if subprocess.run(
        [getattr(sys, "_base_executable", sys.executable), "-m", "venv", home], env=environment()
    ).returncode:
        stop(
            "this Python could not make a virtual environment. Name another one: make "
            "PYTHON=/path/to/python3"
        )


def torch_version():
    "The torch inside `.venv`, '' when there is none"
    code = 'from importlib.metadata import version; print(version("torch"))'
    return subprocess.run(
        [python, "-c", code], env=environment(), capture_output=True, text=True
    ).stdout.strip()


def install_torch():
    "The pinned torch; on Linux without an NVIDIA GPU the CPU build, which is a tenth of the size"
    want = re.search(
        r"^torch==(\S+)", (root / "constraints.txt").read_text(encoding="utf-8"), re.M
    )[1]
    if torch_version().split("+")[0] == want:
        return
    if platform.system() == "Linux" and not shutil.which("nvidia-smi"):
        log(f"torch {want}, CPU build (no NVIDIA GPU here): about 200 MB, a minute or two")
        if pip(
            f"torch=={want}",
            "--no-deps",
            "--index-url",
            cpu_index,
            "--retries",
            "0",
            "--timeout",
            "10",
            quiet=True,
        ):
            return
        log(
            f"no answer from {cpu_index}: taking torch from the default index, which may bring "
            "CUDA libraries"
        )
    else:
        log(f"torch {want}: 0.1 to 3 GB by system, a few minutes")
    if not pip(f"torch=={want}", "-c", "constraints.txt"):
        stop(
            f"torch {want} could not be installed for Python {platform.python_version()} on "
            f"{platform.system()} {platform.machine()}; the reason is above."
        )


def install(what):
    "gpub itself, with the extra `what` unless that is `core`"
    log(f"gpub and its {what} packages: {minutes[what]}")
    if not pip("-e", "." if what == "core" else f".[{what}]", "-c", "constraints.txt"):
        stop("pip could not install the packages; the reason is above.")


def main(what):
    start = time.time()
    if what not in minutes:
        stop(f"unknown set {what!r}: choose core, dev or docs")
    make_venv()
    install_torch()
    install(what)
    for name in {"core", what}:
        (home / f"{name}.stamp").touch()
    log(f"ready in {time.time() - start:.0f} s")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["core"])
