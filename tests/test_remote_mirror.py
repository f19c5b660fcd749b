"""A mirror at a URL outlives its machine: the writer is killed at every upload, what is there is
read back, every sum holds, and the run goes on elsewhere with the same bits."""

import json
import os
import shutil
import signal
import socket
from pathlib import Path

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from stand_in_hub_writes import REPO, WritableHub
from stand_in_s3 import S3

from gpub.core import RUN_FORMAT, GpubError
from gpub.data.shards import verify_shards
from gpub.files import RemoteFolder
from gpub.prep.config import PrepConfig
from gpub.prep.pipeline import prepare
from gpub.record.checkpoint import load_checkpoint, save_checkpoint
from gpub.record.checkpoint_folder import step_of
from gpub.record.mirror import mirror_run, restore_from_mirror
from gpub.record.saver import Saver
from gpub.train.options import RunOptions
from gpub.train.trainer import Trainer

URL = "memory://away/run"
UPLOADS = "put_file", "pipe_file", "rm_file"


class Killed(BaseException):
    "The machine went away here"


@pytest.fixture(autouse=True)
def empty():
    MemoryFileSystem.store.clear()
    yield
    MemoryFileSystem.store.clear()


@pytest.fixture
def killed_at(monkeypatch):
    "Let the nth change of the store be the last thing that the writer does, or almost does"

    def at(n, happens):
        calls = []
        context = monkeypatch.context()
        patch = context.__enter__()

        def counted(change):
            def call(*args, **options):
                calls.append(args)
                if len(calls) == n and not happens:
                    raise Killed
                result = change(*args, **options)
                if len(calls) == n:
                    raise Killed
                return result

            return call

        for name in UPLOADS:
            patch.setattr(MemoryFileSystem, name, counted(getattr(MemoryFileSystem, name)))
        return context, calls

    return at


def save(run, step, keep=2, milestone=False):
    run.mkdir(parents=True, exist_ok=True)
    (run / "config.json").write_text(json.dumps(dict(format=RUN_FORMAT, text="x")))
    with open(run / "log.jsonl", "a") as log:
        log.write(json.dumps(dict(step=step)) + "\n")
    weights = {"w": torch.full((50,), float(step))}
    save_checkpoint(run, step, weights, {"m": weights["w"] + 1}, {}, keep, milestone)


def steps_at(url):
    "The steps that are whole there"
    names = RemoteFolder(url).folders("checkpoints")
    whole = [n for n in names if RemoteFolder(url).read(f"checkpoints/{n}/state.json")]
    return sorted(step_of(Path(name)) for name in whole)


def brought_back(tmp_path, url=URL):
    "Restore on another machine; the newest step, every sum verified, its log with it"
    other = tmp_path / "other"
    shutil.rmtree(other, ignore_errors=True)
    restore_from_mirror(other, url, log=lambda line: None)
    saved = load_checkpoint(other)
    assert saved.model["w"].tolist() == [saved.step] * 50
    assert saved.optimizer["m"].tolist() == [saved.step + 1] * 50
    logged = [json.loads(line)["step"] for line in (other / "log.jsonl").open()]
    assert max(logged) >= saved.step, "a checkpoint ahead of its log"
    return saved.step


@pytest.mark.parametrize("happens", [False, True])
def test_killed_at_every_upload(tmp_path, killed_at, happens):
    "Saves 3 and 4 are mirrored at once, and 1 (a milestone) stays while 2 is rotated away"
    n, kills = 0, 0
    while True:
        n += 1
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        MemoryFileSystem.store.clear()
        for step in (1, 2):
            save(tmp_path / "run", step, milestone=step == 1)
        mirror_run(tmp_path / "run", URL, keep=2)
        for step in (3, 4):
            save(tmp_path / "run", step)
        context, calls = killed_at(n, happens)
        try:
            mirror_run(tmp_path / "run", URL, keep=2)
        except Killed:
            kills += 1
        else:
            break
        finally:
            context.__exit__(None, None, None)
        assert brought_back(tmp_path) in (2, 3, 4)
        mirror_run(tmp_path / "run", URL, keep=2)  # and it goes on
        assert steps_at(URL) == [1, 3, 4] and brought_back(tmp_path) == 4
    assert kills == len(calls) == 12


def test_a_file_damaged_there_is_passed_over(tmp_path):
    run = tmp_path / "run"
    for step in (1, 2):
        save(run, step)
    mirror_run(run, URL)
    path = next(p for p in MemoryFileSystem.store if p.endswith("02/model.safetensors"))
    fsspec.filesystem("memory").pipe_file(path, b"x" * fsspec.filesystem("memory").size(path))
    assert brought_back(tmp_path) == 1
    path = path.replace("02/model", "01/model")
    fsspec.filesystem("memory").pipe_file(path, b"short")
    with pytest.raises(GpubError, match="none of its 2 checkpoints is whole"):
        brought_back(tmp_path)


def test_another_run_and_what_cannot_be_written(tmp_path, monkeypatch):
    run, other, said = tmp_path / "run", tmp_path / "other", []
    save(run, 1)
    mirror_run(run, URL)
    save(other, 5)
    (other / "config.json").write_text(json.dumps(dict(format=RUN_FORMAT, text="y")))
    for use in (lambda: Saver(other, mirror=URL), lambda: restore_from_mirror(other, URL)):
        with pytest.raises(GpubError, match="holds another run.*text"):
            use()

    def full(*args, **options):
        raise RuntimeError("no such bucket\nsecond line")

    saver = Saver(run, mirror=URL, log=said.append)
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", full)
    saver.mirror.copy_soon()
    with pytest.raises(GpubError, match="is behind: .*no such bucket"):
        saver.wait()
    assert len(said) == 1 and "the next save tries again" in said[0] and "\n" not in said[0]
    with pytest.raises(GpubError, match="the mirror cannot be written: .*no such bucket"):
        Saver(run, mirror=URL)


@pytest.mark.parametrize("url", ["file:///tmp/x", "nonsense://a/b"])
def test_what_is_no_store_is_refused_at_once(url):
    for options in (
        lambda: RunOptions("burn-toy", mirror=url),
        lambda: PrepConfig(sources=("a=x.txt",), mirror=url),
    ):
        with pytest.raises(GpubError, match=url.split(":")[0]):
            options()


def trained(out, text, **options):
    settings = dict(steps=6, batch_tokens=64, context_length=16, d_model=16, n_heads=2)
    options = dict(device="cpu", data=text, settings=settings, save_every=2, **options)
    with Trainer(RunOptions("shakespeare", out=out, **options)).opened() as run:
        for step in run.steps():
            yield step


def test_a_lost_machine_goes_on_elsewhere_with_the_same_bits(tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("To be, or not to be, that is the question. " * 300)
    assert len(list(trained(tmp_path / "straight", text))) == 6
    lost = trained(tmp_path / "lost", text, mirror=URL)
    assert [next(lost).n for _ in range(5)][-1] == 5
    lost.close()
    shutil.rmtree(tmp_path / "lost")
    assert [step.n for step in trained(tmp_path / "again", text, mirror=URL)] == [5, 6]
    ours, theirs = load_checkpoint(tmp_path / "again"), load_checkpoint(tmp_path / "straight")
    for name, tensor in theirs.model.items():
        assert torch.equal(tensor, ours.model[name])
    for name, tensor in theirs.optimizer.items():
        assert torch.equal(tensor, ours.optimizer[name])


def test_shards_killed_at_every_upload(tmp_path, killed_at, monkeypatch):
    text = tmp_path / "a.txt"
    text.write_text(
        "\n".join(f"Line {i} of a text that is long enough to stay." for i in range(900))
    )
    cfg = PrepConfig(
        sources=(f"a={text}",), vocab_size=300, val=0.1, scan=False, gate=None, mirror=URL
    )
    whole = prepare(cfg, tmp_path / "whole")
    uploads = len(MemoryFileSystem.store)
    n, kills = 0, 0
    while True:
        n += 1
        MemoryFileSystem.store.clear()
        context, calls = killed_at(n, happens=n % 2 == 0)
        try:
            prepare(cfg, tmp_path / "whole")
        except Killed:
            kills += 1
        else:
            break
        finally:
            context.__exit__(None, None, None)
        there = RemoteFolder(URL)
        if there.read("manifest.json") is not None:
            assert n >= uploads
        prepare(cfg, tmp_path / "whole")
        shutil.rmtree(tmp_path / "other", ignore_errors=True)
        with monkeypatch.context() as patch:  # no source is read: all comes from the mirror
            patch.setattr("gpub.prep.pipeline.run_stages", None)
            assert prepare(cfg, tmp_path / "other") == whole
        assert verify_shards(tmp_path / "other")["shards"] == whole["shards"]
    assert kills == len(calls) >= 4


@pytest.fixture
def s3(monkeypatch):
    pytest.importorskip("s3fs", reason="the extra s3 is not installed")
    server = S3()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    yield server, "s3://bucket/run"
    server.shutdown()


@pytest.fixture
def hub(monkeypatch):
    server = WritableHub()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setitem(fsspec.config.conf, "hf", dict(endpoint=server.url, token="hf_nobody"))
    yield server, f"hf://{REPO}/run"
    server.shutdown()


@pytest.fixture
def google(monkeypatch):
    pytest.importorskip("gcsfs", reason="pip install gcsfs to try gs://")
    emulator = pytest.importorskip(
        "gcp_storage_emulator.server", reason="pip install gcp-storage-emulator to try gs://"
    )
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    server = emulator.create_server("localhost", port, in_memory=True, default_bucket="bucket")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://localhost:{port}")
    server.start()
    yield "gs://bucket/run"
    server.stop()


def test_a_mirror_at_google(google, tmp_path):
    "gcsfs against a server in the place of Google's: filled, rotated and brought back"
    for step in (1, 2, 3, 4):
        save(tmp_path / "run", step, milestone=step == 1)
        mirror_run(tmp_path / "run", google, keep=2)
    assert steps_at(google) == [1, 3, 4] and brought_back(tmp_path, google) == 4


@pytest.mark.full(instead="test_killed_at_every_upload")
@pytest.mark.parametrize("store", ["s3", "hub"])
def test_killed_at_every_request(store, tmp_path, request):
    "The store's own client, a process, and SIGKILL by the server at the nth change"
    server, url = request.getfixturevalue(store)

    def forked(body, *args):
        "Let a process of its own do it, which never comes back into pytest"
        process = os.fork()
        if process == 0:
            try:
                os._exit(body(*args) or 0)
            finally:
                os._exit(99)
        return process

    def end(process):
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

    def mirror_when_told(begin):
        os.read(begin, 1)
        mirror_run(tmp_path / "run", url, keep=1)

    def mirrored(at, happens):
        begin, go = os.pipe()
        process = forked(mirror_when_told, begin)
        server.kill(at, process, happens)
        os.write(go, b"x")
        code = end(process)
        os.close(begin)
        os.close(go)
        return code

    def restored():
        return end(forked(brought_back, tmp_path, url))

    save(tmp_path / "run", 1, keep=1)
    assert mirrored(None, False) == 0 and restored() == 1
    save(tmp_path / "run", 2, keep=1)
    before = dict(server.files)
    n, code = 0, None
    while code != 0:
        n += 1
        server.files = dict(before)
        code = mirrored(n, happens=n % 2 == 0)
        assert code in (0, -signal.SIGKILL)
        assert restored() == 2 if code == 0 else restored() in (1, 2)
        assert code == 0 or mirrored(None, False) == 0 and restored() == 2
    assert n > 7
