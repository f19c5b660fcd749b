"""Run folders of every version of gpub open and go on: format 1 of config.json had other names for
a model's settings."""

import json
import shutil

import pytest

from gpub.core import CONFIG_FORMAT, OLD_NAMES, GpubError, read_config, upgrade_config
from gpub.guards.doctor import doctor
from gpub.record.checkpoint import MODEL, _seal, load_checkpoint, mirror_run, restore_from_mirror
from gpub.record.load import load_run
from gpub.record.log import read_facts, read_log
from gpub.share.hub import export_run
from gpub.train.trainer import Trainer
from gpub.progress import SilentProgress
from kill import same_weights

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
BEFORE = {new: old for old, new in OLD_NAMES.items()}


def quiet(text):
    "Nobody is told"


def start_run(text, out, settings=SETTINGS, **how):
    "A small run that is not begun yet"
    how |= dict(save_every=3, progress=SilentProgress())
    return Trainer("shakespeare", out, text, settings, "cpu", **how)


def to_format_1(run):
    "Rewrite a run folder as gpub 0.1 would have written it"
    path = run / "config.json"
    path.write_text(json.dumps(_old(json.loads(path.read_text())), indent=1))
    for path in run.glob("checkpoints/*/state.json"):
        record = json.loads(path.read_text())
        record["state"]["config"] = _old(record["state"]["config"])
        path.write_text(json.dumps(record | dict(seal=_seal(record)), indent=1))


def _old(config):
    "A configuration in format 1"
    model = {BEFORE.get(name, name): value for name, value in config["model"].items()}
    return {k: v for k, v in config.items() if k != "format"} | dict(model=model)


def losses(run):
    "What the log says of each step, without its clock"
    return [(row["step"], row.get("loss"), row.get("val_loss")) for row in read_log(run)]


@pytest.fixture(scope="module")
def undisturbed(text, tmp_path_factory):
    "A run that nobody disturbed"
    return start_run(text, tmp_path_factory.mktemp("undisturbed") / "run").go()


@pytest.fixture
def half(text, tmp_path):
    "The same run up to its first checkpoint, as gpub 0.1 would have left it"
    run = start_run(text, tmp_path / "run")
    for step in run.steps():
        if step.n == 3:
            break
    to_format_1(tmp_path / "run")
    return tmp_path / "run"


def test_a_new_run_says_its_format(undisturbed):
    written = json.loads((undisturbed / "config.json").read_text())
    assert written["format"] == CONFIG_FORMAT == 2
    assert written["model"].keys() >= {"vocab_size", "context_length", "d_model", "n_layers"}
    assert not written["model"].keys() & OLD_NAMES.keys()


def test_a_run_of_format_1_goes_on_bit_for_bit(text, half, undisturbed):
    assert json.loads((half / "config.json").read_text())["model"]["width"] == 16
    start_run(text, half).go()
    same_weights(half, undisturbed)
    assert losses(half) == losses(undisturbed)
    assert load_checkpoint(half).state["config"] == load_checkpoint(undisturbed).state["config"]


def test_a_text_that_was_moved_is_the_same_run_and_another_text_is_not(text, undisturbed, tmp_path):
    "Stopped half-way, the text moved: the same bits, and config.json knows the new place"
    here = shutil.copy(text, tmp_path / "here.txt")
    for step in start_run(here, tmp_path / "run").steps():
        if step.n == 3:
            break
    there = here.rename(tmp_path / "there.txt")
    here.write_text(text.read_text()[::-1])  # another text under the old name
    with pytest.raises(GpubError, match="holds another run: data.tokens") as e:
        start_run(here, tmp_path / "run").go()
    assert "source" not in str(e.value)
    start_run(there, tmp_path / "run").go()
    same_weights(tmp_path / "run", undisturbed)
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["data"]["source"] == config["options"]["data"] == str(there)


def test_another_shape_is_still_another_run(text, half):
    with pytest.raises(GpubError, match="holds another run: model.d_model: this run 16, asked 32"):
        start_run(text, half, SETTINGS | dict(d_model=32)).go()


def test_mirrors_of_both_formats_are_one_run(text, half, undisturbed, tmp_path):
    mirror = tmp_path / "mirror"
    mirror_run(half, mirror)
    shutil.rmtree(half / "checkpoints")
    config = upgrade_config(json.loads((half / "config.json").read_text()))
    (half / "config.json").write_text(json.dumps(config))
    assert restore_from_mirror(half, mirror, quiet)
    start_run(text, half, mirror=mirror).go()
    same_weights(half, undisturbed)
    same_weights(mirror, undisturbed)


def test_a_run_of_format_1_is_read_everywhere(undisturbed, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(undisturbed, old)
    to_format_1(old)
    model, _, config = load_run(old, device="cpu")
    assert model.cfg == load_run(undisturbed, device="cpu")[0].cfg
    assert config == read_config(undisturbed) == read_config(old) == read_facts(old)[0]
    assert [f for f in doctor(old) if f.level == "alarm"] == []
    exported = [export_run(run, tmp_path / f"hf-{run.name}") for run in (old, undisturbed)]
    for name in (MODEL, "config.json"):
        assert len({(folder / name).read_bytes() for folder in exported}) == 1


def test_a_folder_that_gpub_01_wrote(root, tmp_path, monkeypatch):
    "Six of twelve steps, with the rows of all twelve in its log"
    shutil.copytree(root / "tests/data/run-format-1", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    shutil.move("run/text.txt", "text.txt")
    run = tmp_path / "run"
    truth = losses(run)
    assert load_run(run, device="cpu")[0].cfg.d_model == 16
    settings = dict(SETTINGS, steps=12, context_length=16, batch_tokens=64)
    how = dict(save_every=6, progress=SilentProgress())
    Trainer("shakespeare", run, "text.txt", settings, "cpu", **how).go()
    found = losses(run)
    assert [step for step, *_ in found] == [step for step, *_ in truth]
    for row, want in zip(found, truth):
        assert row == pytest.approx(want, abs=1e-4)


@pytest.mark.parametrize(
    "found, said",
    [
        (3, "config.json has format 3, this gpub reads up to 2: upgrade gpub"),
        (0, "format must be a whole number of at least 1, got 0"),
        (True, "format must be a whole number of at least 1, got True"),
        ("2", "format must be a whole number of at least 1, got '2'"),
        (None, "format must be a whole number of at least 1, got None"),
    ],
)
def test_a_format_that_cannot_be(undisturbed, tmp_path, found, said):
    config = read_config(undisturbed) | dict(format=found)
    (tmp_path / "config.json").write_text(json.dumps(config))
    for read in (read_config, read_facts):
        with pytest.raises(GpubError) as e:
            read(tmp_path)
        assert said in str(e.value) and "\n" not in str(e.value)
