"""A dataset is read at the commit it had when its job began, from a server that stands for the Hub:
killed half-way, with the branch moved on, and asked for at another commit."""

import json
import os
import subprocess

import forked
import pytest
from stand_in_hub import Hub, dataset_files

from gpub.core import GpubError
from gpub.data.shards import read_manifest
from gpub.train.options import RunOptions
from gpub.train.trainer import Trainer

OLD, NEW = "a" * 40, "b" * 40


def rows(word, n):
    return [
        f"{word} page {n} {i}, " + "a text that is long enough to stay. " * 6 for i in range(60)
    ]


@pytest.fixture(scope="module")
def hub():
    server = Hub({c: dataset_files([rows(w, n) for n in range(3)]) for c, w in NAMES.items()})
    yield server
    server.released.set()
    server.shutdown()


NAMES = {OLD: "elder", NEW: "newer"}


def prep(hub, folder, out, source, **more):
    "`gpub prep` as a process of its own"
    recipe = dict(sources=[dict(name="a", path=source)], chunk_mb=0.01, vocab_size=300)
    recipe |= dict(val=0.2) | more
    (folder / "recipe.json").write_text(json.dumps(recipe))
    argv = ["--recipe", folder / "recipe.json", "--out", out, "--workers", 1]
    around = os.environ | dict(HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="0", HF_HOME=str(folder / "hf"))
    around.pop("GPUB_HUB", None)
    return forked.Python(
        ["-m", "gpub", "prep", *argv],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=around,
    )


def ended(process, code=0):
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, err[-2000:]
    return out, err


@pytest.fixture(scope="module")
def moved(hub, tmp_path_factory):
    """A job killed while it reads the second file; then the branch moves on, another commit is
    asked for, and the job goes on. (folder, what the refusal said)"""
    folder = tmp_path_factory.mktemp("pinned")
    hub.held = "data/train-1.parquet"
    first = prep(hub, folder, folder / "o", "hf:some/set")
    while not hub.reached.wait(0.1):
        assert first.poll() is None, first.communicate()
    first.kill()
    first.communicate()
    hub.held = None
    hub.released.set()
    hub.branches["main"] = NEW
    other = prep(hub, folder, folder / "o", f"hf:some/set@@{NEW}")
    refusal = ended(other, 1)[1]
    ended(prep(hub, folder, folder / "o", "hf:some/set"))
    return folder, refusal


def words_of(folder):
    "Which of the two words the shards hold"
    import numpy as np

    from gpub.data.tokenizer_file import load_tokenizer

    ids = [np.fromfile(f, "<u2") for f in sorted(folder.glob("*.bin"))]
    text = load_tokenizer(folder).decode(np.concatenate(ids).tolist())
    return {word for word in NAMES.values() if word in text}


@pytest.mark.full(instead="test_prep.py::test_a_moving_source_keeps_its_commit")
def test_a_job_goes_on_at_the_commit_it_began_with(hub, moved):
    folder, _ = moved
    assert {commit for commit, _ in hub.read} == {OLD}
    assert {path for _, path in hub.read} == {f"data/train-{n}.parquet" for n in range(3)}
    assert read_manifest(folder / "o")["settings"]["inputs"]["a"][0][-1] == OLD
    assert words_of(folder / "o") == {"elder"}


@pytest.mark.full(instead="test_prep.py::test_a_moving_source_keeps_its_commit")
def test_another_commit_is_another_job(moved):
    folder, refusal = moved
    line = refusal.strip().splitlines()[-1]
    assert "belongs to another job" in line and NEW[:8] in line


@pytest.mark.full(instead="test_prep.py::test_a_moving_source_keeps_its_commit")
def test_a_commit_that_is_not_there_is_one_line(hub, moved):
    folder, _ = moved
    lost = prep(hub, folder, folder / "lost", f"hf:some/set@@{'c' * 40}")
    _, said = ended(lost, 1)
    assert "some/set" in said.strip().splitlines()[-1] and "Traceback" not in said


@pytest.mark.full(instead="test_prep.py::test_a_moving_source_keeps_its_commit")
def test_a_run_refuses_shards_of_another_commit(hub, moved, tmp_path):
    "The same tokenizer, the same number of documents: only the commit is another one"
    folder, _ = moved
    again = prep(hub, folder, folder / "n", "hf:some/set", tokenizer=str(folder / "o"))
    ended(again)
    assert words_of(folder / "n") == {"newer"}

    def trained(data):
        settings = dict(steps=2, batch_tokens=256, compile="no")
        args = "burn-toy", tmp_path / "run", str(data), settings, "cpu"
        return Trainer(RunOptions(*args, log=lambda line: None)).go()

    trained(folder / "o")
    with pytest.raises(GpubError, match="holds another run: it learned another text") as e:
        trained(folder / "n")
    assert "\n" not in str(e.value)
