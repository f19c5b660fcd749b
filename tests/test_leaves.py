"""The trunk stands without the other rooms: one or all of them are cut off in a copy, and it still
imports, trains, goes on, samples and learns to talk; its own tests pass there, too."""

import ast
import re
import shutil
import subprocess
import sys

import pytest
from marks import first_ones
from test_laws import ROWS, imported_by, module_files, room, write

TRUNK = {*ROWS[0], "model", "data", "record", "train", "tune", "chat"}
# the command line's door is a file and no room: it goes with `cli`
LEAVES = sorted({name for row in ROWS[1:] for name in row} - TRUNK - {"__main__"})


class WithoutFunctions(ast.NodeTransformer):
    "What of a module runs when it is imported"

    def visit_FunctionDef(self, node):
        node.body = [ast.Pass()]
        return node


def held_by(root, leaf):
    "Modules of the trunk that cannot be imported without a leaf"
    for name, path in module_files(root).items():
        if room(name) not in TRUNK:
            continue
        tree = WithoutFunctions().visit(ast.parse(path.read_text(encoding="utf-8")))
        if leaf in {room(base or what) for base, what in imported_by(tree, name)}:
            yield name


@pytest.mark.parametrize("leaf", first_ones(3, LEAVES))
def test_no_module_of_the_trunk_needs_a_leaf(root, leaf):
    assert list(held_by(root, leaf)) == []


def test_a_leaf_that_holds_is_found(tmp_path):
    lazy = "def f():\n    from ..share.hub import x\n"
    write(tmp_path / "gpub/model/a.py", lazy)
    write(tmp_path / "gpub/cli/a.py", "from ..share.hub import x\n")
    assert list(held_by(tmp_path, "share")) == []
    write(tmp_path / "gpub/model/a.py", "class A:\n    from ..share import hub\n" + lazy)
    assert list(held_by(tmp_path, "share")) == ["model.a"]


PROGRAM = """
import importlib, sys
from pathlib import Path

# the finder of an editable install would find the rooms that are cut off
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in str(finder)]
for name in {modules}:
    importlib.import_module("gpub." + name)

import gpub
from gpub.data.plays import plays
from gpub.chat.talk import TalkConfig, reply
from gpub.train.options import RunOptions
from gpub.train.trainer import Trainer
from gpub.tune.methods import SftOptions
from gpub.tune.steps import Tuner

Path("play.txt").write_text(plays(6000, seed=3))
small = dict(n_layers=1, d_model=16, n_heads=1, context_length=64, batch_tokens=64, compile="no")


def train(steps):
    settings = small | dict(steps=steps)
    options = RunOptions(
        "shakespeare-short", "run", "play.txt", settings, "cpu", changeable=("steps",)
    )
    return Trainer(options).go()


train(3)
train(4)  # goes on
run = gpub.load("run")
assert run.step == 4, run.step
print(run.generate("KING", n=8))

Path("chats.jsonl").write_text('{{"question": "who", "answer": "me"}}\\n' * 3)
Tuner(SftOptions(run="run", out="talker", data="chats.jsonl", steps=2)).go()
talker = gpub.load("talker")
print(reply(talker.model, talker.tokenizer, "who", TalkConfig(longest=4)))
left = sorted(name for name in sys.modules if name.split(".")[:1] == ["gpub"])
print("rooms", *sorted({{name.split(".")[1] for name in left if "." in name}}))
"""


def cut_off(root, folder, leaves):
    "A copy of the package without some of its rooms"
    shutil.copytree(root / "gpub", folder / "gpub", ignore=shutil.ignore_patterns(*leaves))
    if "cli" in leaves:
        (folder / "gpub/__main__.py").unlink()  # the door of the command line
    assert not any((folder / "gpub" / leaf).exists() for leaf in leaves)


def rooms_of_the_program(root, folder):
    "Run the program in a copy; the rooms that it imported"
    trunk = [name for name in module_files(root) if room(name) in TRUNK]
    command = [sys.executable, "-c", PROGRAM.format(modules=trunk)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize("leaf", first_ones(1, LEAVES))
def test_the_trunk_stands_without_a_leaf(root, tmp_path, leaf):
    cut_off(root, tmp_path, [leaf])
    assert leaf not in rooms_of_the_program(root, tmp_path)


@pytest.mark.full(instead="test_the_trunk_stands_without_a_leaf")
def test_the_trunk_stands_without_the_leaves(root, tmp_path):
    cut_off(root, tmp_path, LEAVES)
    rooms = rooms_of_the_program(root, tmp_path)
    assert {"model", "train", "tune"} <= rooms <= TRUNK


# tests that import nothing but the trunk
ITS_TESTS = "test_gpt test_optim test_chat".split()
CONFTEST = """
import sys
from importlib.util import find_spec

sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in str(finder)]
assert [leaf for leaf in {leaves} if find_spec("gpub." + leaf)] == []
"""


@pytest.mark.full(instead="test_the_trunk_stands_without_a_leaf")
@pytest.mark.parametrize("leaf", LEAVES)
def test_the_trunks_own_tests_pass_without_a_leaf(root, tmp_path, leaf):
    cut_off(root, tmp_path, [leaf])
    (tmp_path / "tests").mkdir()
    for name in (*ITS_TESTS, "contracts", "lion", "marks"):
        shutil.copy(root / f"tests/{name}.py", tmp_path / "tests")
    shutil.copy(root / "pytest.ini", tmp_path)
    shutil.copytree(root / "tools/faults", tmp_path / "tools/faults")  # the jobs of `contracts`
    write(tmp_path / "tests/conftest.py", CONFTEST.format(leaves=[leaf]))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m"]
    command += ["not slow and not full and not compiler", *(f"tests/{n}.py" for n in ITS_TESTS)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert int(passed[1]) > 50, done.stdout[-500:]
