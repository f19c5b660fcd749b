"""No plan that is shipped learns a question that it holds out, in whatever phase; and the doctor
names a run whose held-out questions may have been learned by one before it."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpub.chat.skills import draw_conversations, find_skills
from gpub.chat.sums import sums_tokenizer
from gpub.chat.template import decode_chat
from gpub.chat.visits import ALL_SKILLS
from gpub.core import RUN_FORMAT
from gpub.data.bpe import BPETokenizer
from gpub.guards.check import Alarm
from gpub.guards.tuned import check_held_out
from gpub.plans.phase_inputs import old_text
from gpub.plans.phases import OLD_TEXT, read_plan
from gpub.tune import sets
from gpub.tune.grpo import GrpoConfig
from gpub.tune.sets import (
    open_chats,
    open_pairs,
    open_task,
    skills_asked,
    sums_asked,
    sums_questions,
)
from gpub.tune.start import TuneStart

RECIPES = Path(__file__).parents[1] / "data" / "recipes"
TUNED = [p.name for p in sorted(RECIPES.glob("*-plan.json")) if read_plan(p).tuned]


def quiet(line):
    pass


def questions(tok, prompts):
    "What the user says, in prompts or whole conversations"
    for ids in prompts:
        yield from (turn.content for turn in decode_chat(tok, ids) if turn.role == "user")


def contents(names):
    "(learned, held out) contents of conversations of skills"
    sides = []
    for n, held_out in ((3000, False), (300, True)):
        talks = draw_conversations(n, 0, held_out, skills=find_skills(names, ALL_SKILLS))
        sides.append({turn.content for talk in talks for turn in talk})
    assert all(sides)
    return sides


def of_sums(phase, source, start):
    "(learned, held out) questions of a phase in the world of sums, as its method draws them"
    tok = start.tok
    if phase.method == "sft":
        parts = open_chats(source, start, log=quiet)
        return [[chat.ids for chat in part] for part in (parts.train, parts.val)]
    if phase.method == "dpo":  # the model answers them; `sums_pairs` asks these
        n = sums_asked(source)
        return sums_questions(tok, n, 0).prompts, sums_questions(tok, n, 1, True).prompts
    task = open_task(source, start, phase.grpo, log=quiet)
    steps = range(1, phase.until + 1)
    return [ids for step in steps for ids in task.ask(step).prompts], task.held_out.prompts


def made_sets(plan, folder):
    """The worst case: the same four hundred questions in every set, in another order, with other
    answers and systems"""
    for number, source in enumerate(plan.sets):
        rows = []
        for n in range(400):
            row = dict(question=f"What is {n} plus {n}?", answer=f"{number}: {2 * n}")
            row |= dict(chosen=f"{2 * n}", rejected=f"{n} {number}")
            rows.append(row | dict(system="Be brief." if number % 2 else None))
        rows = rows[number:] + rows[:number]
        if source.file.endswith(".parquet"):
            pq.write_table(pa.Table.from_pylist(rows), folder / source.file)
            continue
        (folder / source.file).write_text("".join(json.dumps(row) + "\n" for row in rows))


def of_files(phase, folder, start):
    "(learned, held out) questions of a phase that reads sets"
    tok = start.tok
    (name,) = phase.data
    path = folder / name
    if phase.method == "dpo":
        pairs = open_pairs(str(path), start, log=quiet)
        return [[pair.chosen.ids for pair in part] for part in (pairs.train, pairs.val)]
    if phase.method == "sft":
        parts = open_chats(str(path), start, log=quiet)
        return [[chat.ids for chat in part] for part in (parts.train, parts.val)]
    task = open_task(str(path), start, GrpoConfig(longest=8, questions_per_step=64), log=quiet)
    learned = [ids for step in range(1, 13) for ids in task.ask(step).prompts]
    return learned, task.held_out.prompts


def tuned_start(tok, room):
    model = SimpleNamespace(cfg=SimpleNamespace(context_length=room))
    return TuneStart(model, tok, {}, Path("base"))


def leaks(name, folder):
    "By phase of a plan: the questions it holds out and some phase learns"
    plan = read_plan(RECIPES / name)
    made_sets(plan, folder)
    learned, held_out = set(), {}
    for phase in plan.tuned:
        if skills := skills_asked(phase.data[0]):
            # what is asked, whatever the phrasing: after a sum, "plus 5" asks for another number
            learns, held_out[phase.name] = contents(skills[1])
            learned |= learns
            continue
        if sums_asked(phase.data[0]) is None:
            tok = BPETokenizer.train(["What is 0123456789 plus? Be brief."], vocab_size=280)
            sides = of_files(phase, folder, tuned_start(tok, 256))
        else:
            tok = sums_tokenizer()
            sides = of_sums(phase, phase.data[0], tuned_start(tok, 64))
        train, held = ({" ".join(q.lower().split()) for q in questions(tok, s)} for s in sides)
        assert train and held
        learned |= train
        held_out[phase.name] = held
    if plan.old == OLD_TEXT:
        written = set(re.findall(r"\d{3}\+\d{3}", old_text()))
        assert written
        learned |= written
    return {phase: held & learned for phase, held in held_out.items()}


@pytest.mark.parametrize("name", TUNED)
def test_no_plan_learns_what_it_holds_out(name, tmp_path):
    assert not any(leaks(name, tmp_path).values())


def test_a_leak_is_found(tmp_path, monkeypatch):
    "Every twentieth question held out by its place, and no longer by its words"

    def by_place(chats, tok):
        numbers = range(len(chats))
        return [n for n in numbers if n % 20], [n for n in numbers if n % 20 == 0]

    monkeypatch.setattr(sets, "split_chats", by_place)
    leaked = leaks("burn1b-chat-plan.json", tmp_path)
    assert leaked["dpo"] and leaked["grpo"]


def test_the_plans_that_tune_are_tested():
    plans = ["burn1b-chat-plan.json", "chat-skills-plan.json", "chat-toy-plan.json"]
    assert sorted(TUNED) == plans


def run_folder(folder, **config):
    folder.mkdir()
    said = dict(format=RUN_FORMAT, start={}) | config
    (folder / "config.json").write_text(json.dumps(said))
    return said


BY_QUESTION = dict(source="a.jsonl", split="first user turn", held_out=40)
SUMS = dict(source="sums")


@pytest.mark.parametrize(
    "first, second, third, words",
    [
        (BY_QUESTION, BY_QUESTION, BY_QUESTION, None),
        (SUMS, SUMS, SUMS, None),
        (dict(source="talks"), SUMS, SUMS, None),
        (
            dict(source="a.jsonl"),
            BY_QUESTION,
            BY_QUESTION,
            ["sft learned from a.jsonl, split by noth"],
        ),
        (
            dict(source="a.jsonl", split="whole conversation"),
            BY_QUESTION,
            BY_QUESTION,
            ["split by whole conversation", "its 40 held-out questions may have been learned"],
        ),
        (BY_QUESTION, dict(source="b.jsonl"), BY_QUESTION, ["dpo learned from b.jsonl"]),
        (BY_QUESTION, BY_QUESTION, dict(source="c.jsonl"), ["does not say by what questions"]),
    ],
)
def test_the_doctor_looks_back_to_the_base(tmp_path, first, second, third, words):
    "However far back, and where the folders were moved together"
    run_folder(tmp_path / "base", preset="shakespeare", data=dict(tokenizer="x"))
    run_folder(tmp_path / "sft", preset="sft", data=first, started_from="elsewhere/base")
    run_folder(tmp_path / "dpo", preset="dpo", data=second, started_from=str(tmp_path / "sft"))
    last = dict(preset="grpo", data=third, started_from="elsewhere/dpo")
    config = run_folder(tmp_path / "grpo", **last)
    if words is None:
        assert "as in 2 tuned runs before" in check_held_out(tmp_path / "grpo", config)
        return
    with pytest.raises(Alarm) as alarm:
        check_held_out(tmp_path / "grpo", config)
    assert all(text in alarm.value.finding for text in words) and alarm.value.remedy


def test_a_start_that_is_not_here_is_said(tmp_path):
    config = run_folder(tmp_path / "sft", preset="sft", data=BY_QUESTION, started_from="gone/model")
    line = check_held_out(tmp_path / "sft", config)
    assert "model is no run of ours: what it learned is not known" in line
