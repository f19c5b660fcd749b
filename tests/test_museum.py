"Every exhibit, both ways: the alarm rings for the broken code and stays silent for the fixed"

import json
import subprocess

import forked
import pytest

import gpub.lab.museum.blog
import gpub.lab.museum.bugs
from gpub.core import GpubError
from gpub.lab.museum.blog import Exhibit, exhibit
from gpub.lab.museum.bugs import BLOG, EXHIBITS, FAMOUS
from gpub.record.folder import lock_folder


def by_name(e):
    return e.name


FACTS = {  # what each message must name
    "context-on-resume": "model.context_length: this run 512, asked 1024",
    "int32-targets": "torch.int32",
    "file-nobody-wrote": "RUN/run holds no checkpoint",
    "blamed-mmap": "of a step of 1.6 s",
    "list-comprehension": "times as long as copying",
    "idle-device": "of the matmul peak",
    "batch-128": "the device has 40.0",
    "held-memory": "in use by process",
    "hardcoded-tokenizer": "these ids mean other words",
    "int16-for-int32": "1,000 ids of int16 are 2,000",
    "score-matrix": "times the memory for twice the context",
    "causal-leak": "depends on the token at position",
    "unshifted-labels": "targets equal the inputs",
    "mean-of-means": "pieces of 2 rows",
    "micro-step-schedule": "at step 2, the schedule says",
    "orig-mod": "_orig_mod.tok.weight",
    "uint16-as-int16": "read as int16 has ids from -",
    "tokenizer-swap": "the run was made with",
    "rope-layout": "attention scores differ by",
    "swapped-axes": "attention outputs differ by",
    "missing-end": "and 0 end tokens",
    "tied-export": "lacks 'head.weight'",
    "bf16-on-t4": "capability 7.5",
    "restarted-schedule": "at step 21 to",
    "mask-dtype": "torch.float32 and holds 1",
    "cloned-workers": "step 1 reads a window that step 0 has read",
    "saved-nan": "not a number at step",
    "half-checkpoint": "has 2,000 bytes",
}


@pytest.mark.parametrize("e", EXHIBITS, ids=by_name)
def test_alarm_rings_for_the_broken_code(e):
    said = (e.message() or "").replace("\\", "/")
    assert FACTS[e.name] in said and "\n" not in said and len(said) < 400, said


@pytest.mark.parametrize("e", EXHIBITS, ids=by_name)
def test_alarm_is_silent_for_the_fixed_code(e):
    assert e.message(broken=False) is None


def test_the_blogs_eleven_are_all_there(root):
    published = json.loads((root / "data/published/lessons.json").read_text(encoding="utf-8"))[
        "challenges_11"
    ]
    assert [e.source for e in BLOG] == [c["id"] for c in published]
    assert len(FAMOUS) >= 10 and all(e.source == "famous" for e in FAMOUS)


def test_every_exhibit_made_is_shown():
    made = {
        v.name
        for m in (gpub.lab.museum.bugs, gpub.lab.museum.blog)
        for v in vars(m).values()
        if isinstance(v, Exhibit)
    }
    assert made == {e.name for e in EXHIBITS} and len(made) == len(EXHIBITS)


def test_an_exhibit_that_cannot_be_told_apart_is_found():
    def never(value):
        pass

    def always(value):
        raise GpubError(f"{value}: always")

    def same(alarm):
        return exhibit("x", "X", symptom="", fix="", alarm=alarm)(
            lambda broken, scratch: dict(value=str(scratch.folder))
        )

    assert same(never).message() is None and same(always).message(broken=False) == "RUN: always"


def test_a_folder_is_held_until_the_input_closes(tmp_path):
    program = ["-m", "gpub.lab.museum.programs.hold_folder", str(tmp_path)]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with forked.Python(program, **pipes) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(GpubError, match="in use by process"), lock_folder(tmp_path):
            pass
        other.communicate(timeout=60)
    assert other.returncode == 0
    with lock_folder(tmp_path):  # it is free again
        pass
