"""What a mistyped command is answered with: the problem and the next step."""

import json
import sys

import pytest

from gpub.cli.main import main
from gpub.train.presets import PRESETS


def answer(words, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpub", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code in (1, 2)
    said = capsys.readouterr().err
    assert said.count("\n") == 1, "one line"
    return said


@pytest.fixture
def runs(tmp_path, monkeypatch):
    "A current folder with one run in the usual place and a text file"
    (tmp_path / "runs/plays").mkdir(parents=True)
    (tmp_path / "runs/plays/config.json").write_text("{}")
    (tmp_path / "mydata.txt").write_text("to be or not to be")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GPUB_RUNS", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    "words, parts, absent",
    [
        ("sample", ["runs/plays", "gpub sample --help"], []),
        ("doctor", ["runs/plays"], []),
        ("sample plays", ["did you mean runs/plays?"], ["train shakespeare"]),
        ("show plays", ["did you mean runs/plays?"], []),
        ("sample runs/plays ROMEO:", ["--prompt"], []),
        ("sample --temp 1 runs/plays", ["--temperature"], ["--step", "--stop"]),
        ("train shakespeare --lr 0.1", ["--set lr=VALUE"], ["--warm"]),
        ("train shakespeare --learning-rate 0.1", ["--set lr=VALUE"], []),
        ("train shakespeare --set learning_rate=0.1", ["nearest: lr\n"], []),
        ("train mydata.txt", ["gpub train shakespeare --data mydata.txt"], []),
        ("plan gpt2", ["no preset 'gpt2'", "gpt2-124m"], ["--gpu"]),
        ("generate", ["gpub sample RUN"], []),
        ("finetune x", ["gpub sft RUN"], []),
        ("help", ["gpub --help"], []),
        ("-V", ["gpub --version"], []),
        ("sample runs/plays --nothing-like-it", ["gpub sample --help"], []),
    ],
)
def test_the_next_step(words, parts, absent, runs, capsys, monkeypatch):
    said = answer(words.split(), capsys, monkeypatch)
    for part in parts:
        assert part in said
    for part in absent:
        assert part not in said


def test_a_longer_run_is_shown_the_way(runs):
    from gpub.core import GpubError
    from gpub.record.folder import open_folder

    stored = dict(format=3, train=dict(steps=60, lr=0.1), model={}, data={})
    (runs / "runs/plays/config.json").write_text(json.dumps(stored))
    wanted = stored | dict(train=dict(steps=80, lr=0.1))
    with pytest.raises(GpubError, match="--init runs/plays --extend 20"):
        open_folder("runs/plays", {k: wanted[k] for k in ("train", "model", "data")})
    other = stored | dict(train=dict(steps=80, lr=0.2))
    with pytest.raises(GpubError) as refused:
        open_folder("runs/plays", {k: other[k] for k in ("train", "model", "data")})
    assert "--extend" not in str(refused.value)


def test_presets_are_listed_in_one_order(runs, capsys, monkeypatch):
    "The same wrong name gets the same list, and every preset is in it"
    lists = {answer(["train", "nothing"], capsys, monkeypatch) for _ in range(2)}
    assert len(lists) == 1
    assert all(name in next(iter(lists)) for name in PRESETS)
