"""The tools whose receipts season 3 reads, at a size of seconds."""

import json
from dataclasses import replace

import numpy as np
import pytest

from gpub.tune.sums_world import SumsRecipe, SumsWorld
from tools.kl_ends import measure_ends
from tools.masks import measure_masks
from tools.methods import measure_methods
from tools.pass_at_k import METHODS, measure_pass_at_k, pass_at
from tools.seven_models import measure_seven

TINY = SumsRecipe(sums_steps=2, plays_steps=2, sft_steps=2, rows=8, chats=8, exam=20)


def test_each_seed_is_trained_with_the_mask_and_without(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = measure_masks(tmp_path / "masks.json", TINY, steps=2, seeds=(0, 1))
    assert made == json.loads((tmp_path / "masks.json").read_text())
    rows = {(row["seed"], row["masked"]): row["loss"] for row in made["rows"]}
    assert len(rows) == 4 and len(set(rows.values())) == 4


def test_all_seven_models_are_trained_with_each_seed(tmp_path, monkeypatch):
    "So small a model is never right: answers that begin with an even id win"
    asked = SumsWorld.questions

    def liked(*args, **more):
        return replace(asked(*args, **more), reward=lambda n, answer: float(answer[0] % 2))

    monkeypatch.setattr(SumsWorld, "questions", liked)
    recipe = replace(TINY, chats=18)  # two rows of nine sums
    made = measure_seven(
        tmp_path / "seven.json", tmp_path / "runs", recipe, steps=1, questions=20, seeds=(0, 1)
    )
    assert made == json.loads((tmp_path / "seven.json").read_text())
    texts = {(row["model"], row["seed"]): row["text"] for row in made["rows"]}
    assert len(texts) == len(made["rows"]) == 1 + 2 * 6
    assert len(set(texts.values())) == len(texts)


@pytest.mark.full(
    instead="test_peers.py::test_the_penalty_in_the_reward_ends_where_the_formula_says"
)
def test_ends_are_measured_from_a_student_of_each_seed(tmp_path):
    made = measure_ends(
        tmp_path / "ends.json",
        tmp_path / "runs",
        TINY,
        steps=1,
        questions=2,
        seeds=(0, 1),
        exact_steps=2,
    )
    assert made == json.loads((tmp_path / "ends.json").read_text())
    starts = {(row["seed"], row["penalty"]): row["start"] for row in made["rows"]}
    assert len(starts) == 6
    assert starts[0, "k3"] == starts[0, "reward"] != starts[1, "reward"] == starts[1, "k3"]


def test_pass_at_k_is_the_share_of_questions_with_a_right_answer_among_k():
    p_n = np.array([0.0, 1.0, 0.5, 0.1])
    for tries in (1, 2, 8):
        by_hand = np.mean([1 - (1 - p) ** tries for p in p_n])
        assert pass_at(p_n, tries) == pytest.approx(by_hand, abs=1e-9)


def test_a_coin_and_a_rule_start_from_one_student_and_end_elsewhere(tmp_path):
    made = measure_pass_at_k(
        tmp_path / "pass.json", tmp_path / "runs", TINY, steps=1, questions=2, seeds=(0,)
    )
    assert made == json.loads((tmp_path / "pass.json").read_text())
    rows = {row["method"]: row["p"] for row in made["rows"]}
    assert list(rows) == ["student", *METHODS]
    assert len({tuple(p) for p in rows.values()}) >= 3


def test_every_method_starts_from_one_student_and_ends_elsewhere(tmp_path, monkeypatch):
    "And what was judged is what the receipt says; so small a model is never right: even ones win"
    asked = SumsWorld.questions

    def liked(*args, **more):
        return replace(asked(*args, **more), reward=lambda n, answer: float(answer.sum() % 2))

    monkeypatch.setattr(SumsWorld, "questions", liked)
    made = measure_methods(
        tmp_path / "methods.json",
        tmp_path / "runs",
        TINY,
        steps=4,
        questions=1,
        seeds=(0,),
    )
    assert made == json.loads((tmp_path / "methods.json").read_text())
    rows = {row["method"]: row for row in made["rows"]}
    assert len(rows) == len(made["rows"]) == 14
    judged = {row["judged"] for row in made["rows"][2:]}
    assert judged == {0, made["judged"] // 4, made["judged"]} and made["judged"] == 4 * 1 * 8
    assert rows["grpo_clipped"]["clip_share"][0] == 0
    assert len({row["plays"] for row in rows.values()}) >= 8
