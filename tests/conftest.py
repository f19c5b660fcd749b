"""What every test shares: the repository's root and a copy of what is needed to export it."""

import atexit
import gc
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from functools import cache
from io import BytesIO, StringIO
from pathlib import Path

import forked
import numpy as np
import pytest

from gpub.data.bpe import BPETokenizer
from gpub.data.plays import plays
from gpub.data.shards import ShardWriter

pytest_plugins = ["interrupted", "share_of_full"]


gc.disable()  # looking for garbage takes a third of the time that importing all tests takes


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    "What is imported stays; garbage is looked for in what the tests make"
    gc.freeze()
    gc.enable()


def leave_at_once(config):
    "A worker takes longer to take torch apart than to run most files; its tests are over by then"
    if hasattr(config, "workerinput"):
        atexit.register(os._exit, 0)


def pytest_configure(config):
    "What tests start can be stopped by a signal also where `nohup` or `&` has it ignored"
    leave_at_once(config)
    handlers = dict(SIGINT=signal.default_int_handler, SIGHUP=lambda *_: None)
    for name, handler in handlers.items():
        number = getattr(signal, name, None)
        if number and signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


class Picture:
    "Writes the bytes of a drawing that was made once, the way matplotlib does"

    def savefig(self, to, format="png", **options):
        if hasattr(to, "write"):
            to.write(drawn_once(format))
        else:
            Path(to).write_bytes(drawn_once(format))


@cache
def drawn_once(format):
    "The curve of a run, drawn by the library itself"
    from gpub.report.plots import plot_loss

    to = StringIO() if format == "svg" else BytesIO()
    plot_loss([dict(step=1, loss=1.0)], {}).savefig(to, format=format)
    return to.getvalue()


# what looks at pictures gets its own
OWN_PICTURES = {"test_report.py", "test_results.py", "test_trouble.py"}


@pytest.fixture(scope="module", autouse=True)
def pictures(request):
    "A run of a few steps ends with three pictures, which take longer than its steps"
    with pytest.MonkeyPatch.context() as patch:
        if request.path.name not in OWN_PICTURES:
            patch.setattr("gpub.report.page.plot_loss", lambda *given, **options: Picture())
        yield


@pytest.fixture(scope="module")
def short_texts():
    "What a run draws on the way is 20 tokens; no process of its own knows of it"
    from gpub.train import pretraining

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretraining, "SAMPLING", replace(pretraining.SAMPLING, n=20))
        yield


@pytest.fixture(scope="session")
def root():
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    "A short play in a file, the same for every test"
    p = tmp_path_factory.mktemp("text") / "play.txt"
    p.write_text(plays(6000, seed=3))
    return p


@pytest.fixture(scope="session")
def two_sources(tmp_path_factory):
    "Shards, several of each of two sources, one three times as long; documents of 0 to 39 tokens"
    folder = tmp_path_factory.mktemp("two") / "shards"
    tok = BPETokenizer.train(["to be or not to be, that is the question"], 300)
    writer = ShardWriter(folder, tok, shard_tokens=700)
    numbers = np.random.default_rng(0)
    for source, count in (("edu", 150), ("math", 50)):
        for split, n in (("train", count), ("val", 10)):
            docs = [numbers.integers(0, 250, numbers.integers(0, 40)) for _ in range(n)]
            writer.add(source, docs, [f"{source} {i}" for i in range(n)], [1] * n, split)
    writer.close()
    return folder


@pytest.fixture
def copy(root, tmp_path):
    "Notebooks, modules and settings in a folder of their own"
    for name in ("nbs", "gpub"):
        shutil.copytree(
            root / name,
            tmp_path / name,
            ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints", "runs"),
        )
    for name in ("settings.ini", "setup.py", "README.md", "_quarto.yml"):
        shutil.copy(root / name, tmp_path)
    return tmp_path


@pytest.fixture
def forks(monkeypatch):
    "What the package starts is forked too"
    monkeypatch.setattr(subprocess, "Popen", forked.popen)


@pytest.fixture
def small_disk(tmp_path):
    """`small_disk(kb)` mounts a disk of that size, or changes the size of the one that is there;
    root on Linux only"""
    d = tmp_path / "disk"
    d.mkdir()
    mounted = []

    def size(kb):
        if sys.platform != "linux" or os.geteuid():
            pytest.skip("mounting a small disk needs root on Linux")
        how = (
            ["-o", f"remount,size={kb}k"]
            if mounted
            else ["-t", "tmpfs", "-o", f"size={kb}k", "tmpfs"]
        )
        done = subprocess.run(["mount", *how, str(d)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
        mounted.append(kb)
        return d

    yield size
    if mounted:
        subprocess.run(["umount", "-l", str(d)], check=True)
