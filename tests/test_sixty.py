"""Sixty lines that newcomers typed in two reviews, on a machine with one finished run: each answer
names the next step, or is what was asked for. The run, the book and the short text are made up, and
the preset is smaller than the real one; nothing here needs the network."""

import shlex
import shutil
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO

import pytest
from commands import gpub

from gpub.data.plays import plays
from gpub.data.text import find_shakespeare
from gpub.train.presets import PRESETS

SIXTY = {  # what is typed after gpub: what must be in the answer
    "": "Start with: gpub train shakespeare",
    "help": "Start with: gpub train shakespeare",
    "help train": " train [OPTIONS] [PRESET]",
    "version": "gpub, version",
    "-V": "gpub --version",
    "trian shakespeare": "Did you mean 'train'?",
    "list": "gpub ls",
    "generate": "gpub sample RUN --prompt TEXT",
    "finetune mydata.txt": "gpub train --init RUN --data FILE",
    "pull gpt2": "gpub import OWNER/NAME RUN",
    "rm runs/shakespeare": "delete one as any folder",
    "config runs/shakespeare": "gpub show RUN",
    "lora": "gpub sft RUN --data CHATS --lora 8",
    "merge runs/shakespeare": "gpub export RUN FOLDER",
    "quantize runs/shakespeare": "gpub export RUN FOLDER --gguf --gguf-type q8_0",
    "upload": "gpub push FOLDER OWNER/NAME",
    "login": "put your token into HF_TOKEN",
    "open runs/shakespeare": "gpub demo RUN writes a web page",
    "tokenize mydata.txt": "gpub prep --source NAME=FILES --out SHARDS",
    "sample": "type gpub sample RUN; runs that are here: runs/",
    "resume": "type gpub resume RUN; runs that are here: runs/",
    "show": "type gpub show RUN; runs that are here: runs/",
    "plan": "type gpub plan PRESET, one of shakespeare, ",
    "demo": "type gpub demo RUN; runs that are here: runs/",
    "doctor": "8 checks: ",
    "export runs/shakespeare": "type gpub export runs/shakespeare FOLDER",
    "sample shakespeare": "did you mean runs/shakespeare?",
    "sample runs/shakespeare ROMEO:": "gpub sample runs/shakespeare --prompt ROMEO:",
    "sample ROMEO:": "gpub sample RUN --prompt ROMEO:",
    "sample runs/shakespeare --temp 0.5": "did you mean --temperature?",
    "sample runs/shakespeare --top_k 5": "did you mean --top-k?",
    "sample runs/shakespeare --max-tokens 50": "here it is --tokens",
    "sample gpt2": "runs that are here: runs/",
    "train": "Train one: gpub train shakespeare",
    "train mydata.txt --steps 8 --out runs/m2": "gpub sample runs/m2 --prompt TEXT",
    "train mydta.txt": "did you mean mydata.txt?",
    "train gpt2": "did you mean gpt2-134m or gpt2-124m",
    "train Shakespeare": "did you mean shakespeare",
    "train shakespeare --lr 0.1": "--set lr=VALUE",
    "train shakespeare --set learning_rate=0.1": "nearest: lr",
    "train shakespeare --batch-size 32": "--set batch_tokens=TOKENS",
    "train shakespeare --epochs 3": "it counts --steps",
    "train shakespeare --steps 80": "gpub train --init runs/shakespeare --extend 20",
    "train shakespeare --steps 60": "to go on: gpub train --init runs/shakespeare --extend STEPS",
    "train shakespeare --data mydata.txt": "such as --out runs/shakespeare-2",
    "train --model gpt2": "gpub train PRESET",
    "train book.pdf": "pdftotext book.pdf NEW.txt",
    "train tiny.txt": "use a text of ",
    "train runs/shakespeare": "gpub resume runs/shakespeare",
    "plan gpt2": "did you mean gpt2-134m or gpt2-124m",
    "plan shakespeare --gpu T4": "T4",
    "plan gpt2-134m --gpu A100-40 --gpus 8": "here it is --processes",
    "chat": "gpub sft RUN --data CHATS teaches one",
    "chat runs/shakespeare": "gpub sft runs/shakespeare --data CHATS",
    "sft runs/shakespeare": "type gpub sft runs/shakespeare --data DATA",
    "sft runs/shakespeare --data mydata.txt": "train --init runs/shakespeare --data mydata.txt",
    "import gpt2": "type gpub import gpt2 NEW_RUN",
    "push runs/shakespeare": "type gpub push runs/shakespeare OWNER/NAME",
    "eval runs/shakespeare": "--online",
    "--lr 3 train": "options stand behind their command: gpub COMMAND --lr",
}
TINY = dict(context_length=16, d_model=16, n_layers=1, n_heads=2)


def answer(line):
    "What a command says, on whichever stream"
    said = StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        gpub(*shlex.split(line))
    return said.getvalue()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    "A current folder with a finished run, texts, and a book that is no text"
    folder = tmp_path_factory.mktemp("world")
    preset = PRESETS["shakespeare"]
    recipe = replace(preset.train, batch_tokens=64, stages=((0.0, 16),), depths=((0.0, 1),))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "shakespeare", replace(preset, model=TINY, train=recipe))
        patch.chdir(folder)
        patch.delenv("GPUB_RUNS", raising=False)
        if text := find_shakespeare():
            shutil.copy(text, folder)
        patch.setenv("GPUB_DATA", str(folder))  # where no questions are
        (folder / "mydata.txt").write_text(plays(20_000, seed=5))
        (folder / "tiny.txt").write_text("to be or not")
        (folder / "book.pdf").write_bytes(b"%PDF-1.7\n\xff\xfe\x00")
        assert "done: " in answer("train shakespeare --steps 60")
        yield folder


@pytest.mark.parametrize("line", SIXTY)
def test_each_of_sixty_lines_is_answered_with_the_next_step(world, line):
    assert SIXTY[line] in answer(line)


def test_there_are_sixty():
    assert len(SIXTY) == 60
