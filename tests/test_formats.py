"""A run folder has one format; another is refused in one line that says what it has and what to do.
A folder that was moved, or whose data was, is the same run."""

import json
import shutil

import pytest
from kill import same_weights

from gpub.core import RUN_FORMAT, GpubError, read_config
from gpub.guards.doctor import doctor
from gpub.guards.verify import verify
from gpub.progress import SilentProgress
from gpub.record.checkpoint import load_checkpoint
from gpub.record.checkpoint_folder import _seal
from gpub.record.log import read_settings
from gpub.record.mirror import restore_from_mirror
from gpub.record.run import Run, load
from gpub.share.hub import export_run
from gpub.train.options import RunOptions
from gpub.train.trainer import Trainer

pytestmark = pytest.mark.usefixtures("short_texts")

SETTINGS = dict(
    steps=6,
    d_model=16,
    n_layers=1,
    n_heads=2,
    context_length=32,
    batch_tokens=256,
    precision="fp32",
    compile="no",
    log_every=1,
)


def start_run(text, out, settings=SETTINGS, **how):
    "A small run that is not begun yet"
    how |= dict(save_every=3, progress=SilentProgress())
    return Trainer(RunOptions("shakespeare", out, text, settings, "cpu", **how))


@pytest.fixture(scope="module")
def undisturbed(text, tmp_path_factory):
    "A run that nobody disturbed"
    return start_run(text, tmp_path_factory.mktemp("undisturbed") / "run").go()


def test_a_new_run_says_its_format(undisturbed):
    written = json.loads((undisturbed / "config.json").read_text())
    assert written["format"] == RUN_FORMAT == 3
    for path in undisturbed.glob("checkpoints/*/state.json"):
        assert json.loads(path.read_text())["format"] == RUN_FORMAT


def test_a_text_that_was_moved_is_the_same_run_and_another_text_is_not(text, undisturbed, tmp_path):
    "Stopped half-way, the text moved: the same bits, and config.json knows the new place"
    here = shutil.copy(text, tmp_path / "here.txt")
    with start_run(here, tmp_path / "run").opened() as run:
        for step in run.steps():
            if step.n == 3:
                break
    there = here.rename(tmp_path / "there.txt")
    here.write_text(text.read_text()[::-1])  # another text under the old name
    with pytest.raises(GpubError, match="holds another run: it learned another text") as e:
        start_run(here, tmp_path / "run").go()
    assert "source" not in str(e.value)
    start_run(there, tmp_path / "run").go()
    same_weights(tmp_path / "run", undisturbed)
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["data"]["source"] == config["options"]["data"] == str(there)


def other_format(run, written):
    "Rewrite a run folder as a gpub of another format would have written it"
    path = run / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | dict(format=written)))
    for path in run.glob("checkpoints/*/state.json"):
        record = json.loads(path.read_text()) | dict(format=written)
        path.write_text(json.dumps(record | dict(seal=_seal(record)), indent=1))


DOORS = {
    "load": lambda run, tmp_path: load(run, device="cpu"),
    "its newest checkpoint": lambda run, tmp_path: Run(run).newest(),
    "a checkpoint": lambda run, tmp_path: load_checkpoint(run, step=6),
    "settings": lambda run, tmp_path: read_settings(run),
    "doctor": lambda run, tmp_path: doctor(run),
    "export": lambda run, tmp_path: export_run(run, tmp_path / "hf"),
    "restore": lambda run, tmp_path: restore_from_mirror(tmp_path / "home", run),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "written, way", [(2, "use the gpub that wrote it, or train again"), (4, "upgrade gpub")]
)
def test_another_format_is_refused_in_one_line(undisturbed, tmp_path, door, written, way):
    run = shutil.copytree(undisturbed, tmp_path / "run")
    other_format(run, written)
    with pytest.raises(
        GpubError, match=f"has format {written}, this gpub reads format 3: {way}"
    ) as e:
        DOORS[door](run, tmp_path)
    assert "\n" not in str(e.value)


def test_a_run_of_another_format_does_not_go_on(text, undisturbed, tmp_path):
    run = shutil.copytree(undisturbed, tmp_path / "run")
    other_format(run, 2)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(GpubError, match="config.json has format 2, this gpub reads format 3"):
        start_run(text, run, dict(SETTINGS, steps=8)).go()
    with pytest.raises(GpubError, match="config.json has format 2, this gpub reads format 3"):
        start_run(text, run).go()
    assert all(
        path.read_bytes() == content for path, content in before.items() if path.name != ".lock"
    )
    assert not all(part.ok for part in verify(run))


@pytest.mark.parametrize("written", [None, 0, True, "3", 3.0])
def test_a_format_that_cannot_be(undisturbed, tmp_path, written):
    config = read_config(undisturbed) | dict(format=written)
    (tmp_path / "config.json").write_text(json.dumps(config))
    for read in (read_config, read_settings):
        with pytest.raises(GpubError, match="has (no )?format.*this gpub reads format 3") as e:
            read(tmp_path)
        assert "\n" not in str(e.value)
