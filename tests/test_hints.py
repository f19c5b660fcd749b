"""What a mistyped command is answered with: the problem and the next step."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest
from commands import output_of

from gpub.cli.main import cli, main
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


NEWCOMER = {  # what somebody types in a first week: what the answer must tell
    "generate": "gpub sample RUN --prompt",
    "finetune mydata.txt": "gpub sft RUN --data",
    "lora": "--lora 8",
    "merge runs/plays": "gpub export RUN FOLDER",
    "quantize runs/plays": "--gguf-type q8_0",
    "convert runs/plays": "gpub export RUN FOLDER",
    "-V": "gpub --version",
    "rm runs/plays": "delete one as any folder",
    "delete runs/plays": "delete one as any folder",
    "config runs/plays": "gpub show RUN",
    "info runs/plays": "gpub show RUN",
    "logs": "gpub show RUN",
    "status": "gpub ls",
    "list": "gpub ls",
    "stop": "Ctrl-C",
    "upload": "gpub push FOLDER OWNER/NAME",
    "login": "HF_TOKEN",
    "pull gpt2": "gpub import OWNER/NAME RUN",
    "open runs/plays": "gpub demo RUN",
    "ui": "gpub demo RUN",
    "web": "gpub serve RUN",
    "tokenize mydata.txt": "gpub prep",
    "init": "gpub train PRESET",
    "update": "pip install",
    "ppo": "gpub grpo RUN",
    "rlhf": "gpub dpo RUN",
    "test": "gpub eval RUN",
    "trian shakespeare": "'train'",
    "sample": "runs/plays",
    "chat": "no run here learned to answer yet: gpub sft RUN --data CHATS",
    "resume": "runs/plays",
    "show": "runs/plays",
    "bill": "runs/plays",
    "demo": "runs/plays",
    "export": "runs/plays",
    "compare": "runs/plays",
    "sft": "runs/plays",
    "sft runs/plays": "Conversations (messages, conversations, prompt and completion",
    "export runs/plays": "type gpub export runs/plays FOLDER",
    "import gpt2": "type gpub import gpt2 NEW_RUN",
    "plan": "shakespeare, ",
    "run": "burn-toy, ",
    "sample plays": "did you mean runs/plays?",
    "sample runs/playz": "did you mean runs/plays?",
    "show shakespeare": "runs/plays",
    "sample runs/plays ROMEO:": "gpub sample runs/plays --prompt ROMEO:",
    "sample runs/plays --text ROMEO:": "here it is --prompt",
    "sample runs/plays --temp 1": "--temperature",
    "sample runs/plays --max-length 100": "here it is --tokens",
    "chat runs/plays --max-length 100": "here it is --longest",
    "train shakespeare --lr 0.1": "--set lr=VALUE",
    "train shakespeare --learning-rate 0.1": "--set lr=VALUE",
    "train shakespeare --set learning_rate=0.1": "nearest: lr\n",
    "train shakespeare --batch-size 32": "--set batch_tokens=TOKENS",
    "train shakespeare --max-length 512": "--set context_length=TOKENS",
    "train shakespeare --gpu 0": "here it is --device",
    "train shakespeare --epochs 3": "it counts --steps",
    "train shakespeare --output x": "here it is --out",
    "train shakespeare --wandb": "here it is --track",
    "train shakespeare --resume": "the same command again",
    "train shakespeare --dry-run": "gpub preflight",
    "train shakespere": "there are: shakespeare,",
    "train runs/plays": "gpub resume runs/plays",
    "plan gpt2": "gpt2-124m",
    "plan shakespeare": "--gpu NAME",
    "run shakespeare": "burn-toy",
    "sample runs/plays --nothing-like-it": "gpub sample --help",
    "sample runs/plays -t 0.5": "here it is --temperature",
    "plot runs/plays": "gpub compare RUN",
    "tensorboard": "gpub compare RUN",
    "summary runs/plays": "gpub show RUN",
    "leaderboard": "gpub eval RUN",
    "datasets": "gpub prep",
    "train --model gpt2": "gpub train PRESET",
    "train nothere.txt": "there is no file nothere.txt",
    "train My Books/second.txt": "quote a path that has spaces",
    "train one.txt two.txt": "cat *.txt > all.txt",
    "train mydta.txt": "did you mean mydata.txt?",
    "train --init plays --data mydata.txt": "did you mean runs/plays?",
    "finetune runs/plays mydata.txt": "gpub train --init RUN --data FILE",
    "sft runs/plays --data mydata.txt": "gpub train --init runs/plays --data mydata.txt",
    "export runs/plays model.gguf": "gpub export runs/plays model --gguf",
    "plan shakespeare --gpus 8": "here it is --processes",
    "price A100": "gpub plan PRESET --gpu NAME",
    "clean": "delete one as any folder",
    "sample runs/plays --out x.txt": "gpub sample RUN > FILE",
    "chat runs/plays --prompt hello": "echo hello | gpub chat RUN",
    "chat runs/plays hello": "echo hello | gpub chat runs/plays",
    "demo runs/plays page.html": "gpub demo runs/plays --html page.html",
    "prep mydata.txt": "gpub prep --source NAME=FILE --out SHARDS",
    "import a/b --out runs/c": "the second word",
    "chats mydata.txt --tokenizer runs/plays": "here it is --run",
    "sample ROMEO:": "gpub sample RUN --prompt ROMEO:",
    "sample runs/plays --top_k 5": "did you mean --top-k?",
    "train mydata.txt --sample-every 5": "the preset says when a run writes texts",
    "--lr 3 train": "gpub COMMAND --lr",
    "chats mydata.txt": "gpub chats mydata.txt --run RUN --out OUT",
    "push runs/plays": "gpub push runs/plays OWNER/NAME",
    "push runs/plays me/it": "gpub export runs/plays NEW_FOLDER",
    "import gpt2 runs/gpt2": "openai-community/gpt2",
    "prep": "gpub prep --source mine=mydata.txt --out shards",
    "eval runs/plays arc_easy": "gpub eval RUN --tasks arc_easy",
    "eval plays --tasks arc_easy": "did you mean runs/plays?",
    "compare runs/plays": "gpub compare runs/plays RUN",
    "report runs/plays": "gpub show RUN, or open report.html",
    "sample runs/plays --n 30": "here it is --tokens",
    "plan runs/plays --gpu T4": "gpub train --init runs/plays --extend STEPS",
    "compare runs/plays runs/plays --out mydata.txt": "was not written by this command",
}


@pytest.mark.parametrize("words", NEWCOMER)
def test_the_next_step(words, runs, capsys, monkeypatch):
    assert NEWCOMER[words] in answer(words.split(), capsys, monkeypatch)


@pytest.mark.parametrize("words", ["help sample", "-h sample", "sample --help"])
def test_help_of_a_command_in_any_order(words):
    assert " sample [OPTIONS] RUN\n" in output_of(*words.split())


@pytest.mark.parametrize(
    "words, absent",
    [
        ("sample plays", "train shakespeare"),
        ("sample --temp 1 runs/plays", "--stop"),
        ("train shakespeare --lr 0.1", "--warm"),
        ("open runs/plays", "copies"),
        ("import gpt2", "runs/plays"),
        ("plan gpt2", "--gpu"),
    ],
)
def test_what_is_only_spelled_alike_is_not_named(words, absent, runs, capsys, monkeypatch):
    assert absent not in answer(words.split(), capsys, monkeypatch)


def test_a_text_in_place_of_a_preset_is_trained_on(runs, monkeypatch):
    taken = []
    monkeypatch.setattr("gpub.train.trainer.Trainer", taken.append)
    for words in (
        ["train", "mydata.txt"],
        ["train", "--data", "mydata.txt"],
        ["train", "mydata.txt", "--out", "elsewhere"],
    ):
        with pytest.raises(AttributeError):  # the stand-in trains nothing
            cli.main(words, standalone_mode=False)
    assert [(o.preset, o.data, o.out) for o in taken] == [
        ("shakespeare", "mydata.txt", "runs/mydata"),
        ("shakespeare", "mydata.txt", "runs/mydata"),
        ("shakespeare", "mydata.txt", "elsewhere"),
    ]


def test_a_plan_knows_the_tokens_of_its_preset(capsys):
    train = PRESETS["shakespeare"].train
    said = []
    for more in ([], ["--tokens", str(train.steps * train.batch_tokens)]):
        cli.main(["plan", "shakespeare", "--gpu", "T4", *more], standalone_mode=False)
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] and "T4" in said[0]


def test_prep_of_a_short_text_says_that_nothing_was_held_out(runs):
    lines = [f"Line {i}: to be or not to be, that is the question of {7 * i}." for i in range(400)]
    (runs / "mydata.txt").write_text("\n".join(lines))
    typed = ["prep", "--source", "mine=mydata.txt", "--vocab", "300", "--workers", "1"]
    said = output_of(*typed, "--out", "shards")
    assert "too few to train with shards" in said and "next:" not in said
    said = output_of(*typed, "--out", "half", "--val", "0.5")
    assert "next: gpub train shakespeare --data half\n" in said


def test_a_model_of_characters_is_not_sent_to_gguf(runs, capsys, monkeypatch):
    (runs / "runs/plays/tokenizer.json").write_text('{"type": "char", "chars": " abc"}')
    said = answer(["export", "runs/plays", "plays.gguf"], capsys, monkeypatch)
    assert "gpub export runs/plays plays writes a folder" in said and "--gguf" not in said


TINY = "--steps 2 --set d_model=16 --set n_layers=1 --set context_length=16 --set batch_tokens=64"


def test_a_run_tells_what_to_type_next_and_that_it_was_finished(runs):
    (runs / "mydata.txt").write_text("to be or not to be, that is the question. " * 30)
    typed = ["train", "mydata.txt", *TINY.split()]
    first = output_of(*typed)
    assert re.search(r"^next: .*gpub sample runs/mydata --prompt TEXT$", first, re.M)
    for again in (typed, ["resume", "runs/mydata"]):
        said = output_of(*again)
        assert "nothing was left to train, runs/mydata was finished before" in said
        assert "gpub train --init runs/mydata --extend STEPS" in said and "next:" not in said


def test_what_takes_long_is_said_before_it_begins(runs, monkeypatch):
    from gpub.cli import train

    (runs / "mydata.txt").write_text("to be or not to be, that is the question. " * 30)
    monkeypatch.setattr(train, "SLOW_STEP", 1)
    said = output_of("train", "mydata.txt", *TINY.split(), "--steps", "300")
    assert said.index("parameters on a CPU: a step takes") < said.index("done:")
    assert "300 steps read it 17 times" not in said
    monkeypatch.setattr(train, "KNOWN_BY_HEART", 10)
    said = output_of("train", "mydata.txt", *TINY.split(), "--steps", "301", "--out", "b")
    assert "mydata.txt is short: 301 steps read it 17 times" in said


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


OVERWRITING = [
    "demo runs/plays --html mydata.txt",
    "compare runs/plays runs/plays --out mine.png",
    "eval runs/plays --compare --text mydata.txt --page mydata.txt",
    *(
        f"{words} --json mydata.txt"
        for words in (
            "plan shakespeare --gpu T4",
            "bill runs/plays",
            "show runs/plays",
            "ls",
            "doctor runs/plays",
            "rehearse shakespeare --gpu T4",
            "eval runs/plays",
            "bench train",
        )
    ),
]


@pytest.mark.parametrize("words", OVERWRITING)
def test_a_file_of_somebody_else_stays(words, runs, capsys, monkeypatch):
    (runs / "mine.png").write_bytes(b"\x89PNG my own")
    before = {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()}
    said = answer(words.split(), capsys, monkeypatch)
    assert "is there and was not written by this command: give another name" in said
    assert before == {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()}


def test_a_result_replaces_only_one_of_its_kind(runs, capsys, monkeypatch):
    plan = ["plan", "shakespeare", "--gpu", "T4", "--json", "mine.json"]
    for _ in range(2):  # the second replaces the first
        cli.main(plan, standalone_mode=False)
    capsys.readouterr()
    mine = json.dumps([{"instruction": "add", "output": "2"}])
    (runs / "mine.json").write_text(mine)
    assert "was not written by this command" in answer(plan, capsys, monkeypatch)
    assert (runs / "mine.json").read_text() == mine


def test_a_run_goes_into_no_folder_of_other_files(runs, capsys, monkeypatch):
    (runs / "books").mkdir()
    (runs / "books/report.html").write_text("my own report")
    for folder in ("books", ".", "/"):
        said = answer(["train", "mydata.txt", "--out", folder], capsys, monkeypatch)
        assert "holds other files" in said and "choose a new folder with --out" in said
    assert [path.name for path in (runs / "books").iterdir()] == ["report.html"]
    assert sorted(path.name for path in runs.iterdir()) == ["books", "mydata.txt", "runs"]


COMPUTING = """
import signal, time
from gpub.cli import start
start.LAST_SECONDS = 0.2
signal.signal(signal.SIGINT, lambda *_: None)
with start.second_ctrl_c_ends():
    print("ready", flush=True)
    while True:
        time.sleep(60)
"""


def test_the_second_ctrl_c_ends_a_process_that_goes_on():
    child = subprocess.Popen(
        [sys.executable, "-c", COMPUTING],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "ready\n"
    for _ in range(2):
        child.send_signal(signal.SIGINT)
        time.sleep(0.3)
    said = child.communicate(timeout=60)[1]
    assert child.returncode == 130
    assert said == "gpub: stopped at once; the same command goes on from what was saved\n"
