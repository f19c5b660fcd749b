"""Each thing has one name and one way: presets, samples, checksums, options, settings."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpub.core import GpubError
from gpub.plans.annealing import steps_reached
from gpub.record.checkpoint import save_checkpoint
from gpub.record.checkpoint_folder import folder_weights
from gpub.record.run import load
from gpub.train.options import RunOptions
from gpub.train.presets import PRESETS
from gpub.train.trainer import Trainer


def test_a_fresh_interpreter_plans_every_preset():
    "Nothing else was imported that could have brought the models along"
    code = (
        "import gpub, sys; names = sys.argv[1:]\n"
        "for n in names: gpub.plan(n, 'A100-80', '1B', usd_per_hour=1.49)\n"
        "print(len(names))"
    )
    done = subprocess.run([sys.executable, "-c", code, *PRESETS], capture_output=True, text=True)
    assert done.stdout.strip() == str(len(PRESETS)), done.stderr[-500:]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("sampled")
    text = place / "text.txt"
    text.write_text("the cat sat on the mat, and the dog sat by the door. " * 60)
    settings = dict(steps=4, compile="no", precision="fp32", d_model=32, n_layers=1)
    Trainer(RunOptions("shakespeare-short", place / "run", str(text), settings, "cpu")).go()
    return place / "run"


def test_the_last_sample_of_a_run_is_what_gpub_sample_writes(run):
    rows = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    last = rows[-1]
    opened = load(run, device="cpu")
    assert opened.generate(last["prompt"], 160, 0.8, last["seed"]) == last["text"]


def test_a_trainer_takes_options():
    with pytest.raises(GpubError, match=r"not 'shakespeare': Trainer\(RunOptions"):
        Trainer("shakespeare")


NOTHING_IS_TOUCHED = """
import sys
from dataclasses import replace
from pathlib import Path
from gpub.train.options import RunOptions
from gpub.train.trainer import Trainer
from gpub.tune.methods import GrpoOptions
from gpub.tune.steps import Tuner

def note(event, args):
    if event.split(".")[0] in ("open", "os", "socket", "shutil", "subprocess") and watching:
        print(event, args)

watching = False
sys.addaudithook(note)
gone = Path("gone")
asked = RunOptions("burn-toy", gone / "run", gone / "text.txt")
with_weights = replace(asked, init="nobody/nothing")
tuned = GrpoOptions(run="gone/base", out="gone/run", task="gone/questions.jsonl")
watching = True
Trainer(with_weights)
runs = Trainer(asked), Tuner(tuned)
watching = False
for run in runs:
    try:
        run.go()
    except Exception as e:
        print(type(e).__name__, str(e).count(chr(10)), "gone/" in str(e))
print(gone.exists())
"""


def test_a_run_that_is_made_touches_no_file_until_it_is_opened(tmp_path):
    "Then it is refused in one line, and still nothing is written"
    done = subprocess.run(
        [sys.executable, "-P", "-c", NOTHING_IS_TOUCHED],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split("\n") == ["GpubError 0 True"] * 2 + ["False", ""], done.stderr[-500:]
    assert not list(tmp_path.iterdir())


def test_steps_of_nine_digits_are_read_whole(tmp_path):
    save_checkpoint(tmp_path, 123_456_789, {}, {}, {})
    assert steps_reached(tmp_path) == 123_456_789


def test_a_folder_has_one_checksum(tmp_path):
    "Whether it is tuned or trained on"
    (tmp_path / "a.safetensors").write_bytes(b"one")
    one = folder_weights(tmp_path)
    (tmp_path / "b.safetensors").write_bytes(b"two")
    assert len({one, folder_weights(tmp_path)}) == 2
    for module in ("train/initial", "tune/start"):
        code = Path(sys.modules["gpub"].__file__).parent.joinpath(f"{module}.py").read_text()
        assert "folder_weights(" in code and "sha256(" not in code


def test_no_message_speaks_of_ctx(root):
    "The setting is called context_length"
    wrong = []
    for path in (root / "gpub").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if "ctx" in source else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if re.search(r"(?<![\w`])ctx(?! ?[,=)\]:])\b", node.value) and " " in node.value:
                    wrong.append(f"{path.name}: {node.value[:80]}")
    assert wrong == []
