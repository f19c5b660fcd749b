"""Results: what is read from a run folder, the published bill added up again, and lessons whose
links lead somewhere."""

import ast
import json
import math
import re
import shutil
from pathlib import Path

import pytest
from cells import defined_here
from contracts import refuses

from gpub.core import GpubError, read_json
from gpub.model.gpt import GPTConfig
from gpub.progress import SilentProgress
from gpub.record.log import read_log
from gpub.report.lessons import SHOWN, colab_bill, lesson_table, link_to
from gpub.report.results import (
    Results,
    bill_table,
    compare_runs,
    describe_stage,
    known_share,
    milestone_table,
    replay_prompts,
    stage_table,
)
from gpub.table import Table
from gpub.train.options import RunOptions, options_to_resume
from gpub.train.trainer import Trainer

PAGE = Path(__file__).parents[1] / "nbs/lib/report/results.ipynb"
(Change,) = defined_here(PAGE, "Change")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "short"
    text = folder.parent / "text.txt"
    text.write_text("To be, or not to be: that is the question.\n" * 400)
    r = Trainer(
        RunOptions(
            "shakespeare-short",
            folder,
            text,
            dict(steps=10, compile="no", n_layers=1, d_model=32, log_every=1),
            "cpu",
            usd_per_hour=3.0,
            progress=SilentProgress(),
        )
    )
    return r.go()


@pytest.fixture
def mine(run, tmp_path):
    return Path(shutil.copytree(run, tmp_path / "run"))


def test_what_a_run_folder_tells(run):
    r = Results(run)
    md = r._repr_markdown_()
    last = r.vals[-1]
    assert (
        f"{last['val_loss']:.3f} nats/char" in md
        and f"{last['val_bpb']:.3f}" in md
        and f"{r.config['parameters']:,}" in md
    )
    stages = r.stages().rows
    assert [s[0] for s in stages] == [f"{v['step']:,}" for v in r.vals] and sum(
        float(s[6]) for s in stages
    ) == pytest.approx(last["seconds"], abs=0.06 * len(stages))
    paid = r.bill["seconds"] * 3 / 3600
    assert float(bill_table([r]).rows[0][5]) == pytest.approx(paid, abs=1e-4)


@pytest.mark.parametrize("x", ("step", "tokens", "seconds", "usd"))
@pytest.mark.parametrize("y", ("val_loss", "val_bpb"))
def test_curves_hold_the_logged_numbers(run, x, y):
    line = compare_runs([run, run], x, y).axes[0].lines[0]
    vals = [r for r in read_log(run) if "val_loss" in r]
    assert [*line.get_xdata()] == [v[x] for v in vals] and [*line.get_ydata()] == [
        v[y] for v in vals
    ]


def test_tokens_of_different_tokenizers_are_not_compared(run, mine):
    config = read_json(mine / "config.json")
    config["data"]["tokenizer"] = "another"
    (mine / "config.json").write_text(json.dumps(config))
    refuses("y='val_bpb'", compare_runs, [run, mine])
    assert compare_runs([run, mine], y="val_bpb")


@pytest.mark.parametrize(
    "kw, said", [(dict(x="hours"), "x must be.*'hours'"), (dict(y="acc"), "y must be.*'acc'")]
)
def test_unknown_axes(run, kw, said):
    refuses(said, compare_runs, [run], **kw)


def test_what_is_missing_is_said(mine, tmp_path):
    refuses("has no log.jsonl", Results, tmp_path)
    (mine / "bill.json").unlink()
    r = Results(mine)
    refuses("no bill.json", bill_table, [r])
    shutil.rmtree(mine / "checkpoints")
    refuses("no checkpoint to replay", replay_prompts, mine, "To")
    (mine / "log.jsonl").write_text('{"step": 1, "loss": 3.0, "tokens": 64, "lr": 0.1}\n')
    assert [row[3] for row in Results(mine).stages().rows] == ["3.000"]
    refuses("never validated", compare_runs, [mine])


def test_what_was_damaged_by_hand_is_one_line(mine):
    bill = read_json(mine / "bill.json")
    config = (mine / "config.json").read_text()
    for gone, said in (
        (dict(tokens=None), "lacks tokens"),
        (dict(tokens=0), "lacks tokens"),
        (dict(usd=None, val_bpb=None), "lacks usd, val_bpb"),
    ):
        (mine / "bill.json").write_text(json.dumps(bill | gone))
        refuses(said, bill_table, [Results(mine)])
    for change, said in (
        (dict(reference=[1]), "reference must be an object"),
        (dict(data="x"), "data must be an object"),
        (dict(data=dict(train="many")), "in data: train must be a number, got 'many'"),
    ):
        (mine / "config.json").write_text(json.dumps(json.loads(config) | change))
        refuses(said, Results, mine)


def test_a_log_of_nothing_but_steps_has_stages(mine):
    (mine / "log.jsonl").write_text(
        '{"step": 0, "val_loss": 4.0}\n{"step": 2, "loss": 3.0, "val_loss": 3.0, "lr": null, '
        '"tokens": null}\n'
    )
    assert (
        all(r[-1].endswith("nothing read") for r in Results(mine).stages().rows)
        and "3.000" in Results(mine)._repr_markdown_()
    )


def test_replay_is_what_each_checkpoint_says(run):
    rows = replay_prompts(run, ["To be", "or"], 20, seed=4, device="cpu", temperature=0.7)
    assert rows == replay_prompts(run, ["To be", "or"], 20, seed=4, device="cpu", temperature=0.7)
    steps = sorted({r["step"] for r in rows})
    assert (
        len(steps) > 1
        and len(rows) == 2 * len(steps)
        and {r["seed"] for r in rows} == {4, 5}
        and steps[-1] == 10
    )
    assert len({r["text"] for r in rows if r["seed"] == 4}) > 1 and all(
        r["text"].startswith(r["prompt"]) for r in rows
    )
    alone = replay_prompts(run, "or", 20, seed=5, steps=[10], device="cpu", temperature=0.7)
    assert alone[0]["text"] == next(r["text"] for r in rows if (r["seed"], r["step"]) == (5, 10))


def test_bits_per_byte_of_a_part_of_the_validation(run, tmp_path):
    """A run that validates on some tokens only counts the bytes of those: it divided by all"""
    said = []
    short = Trainer(
        RunOptions(
            "shakespeare-short",
            tmp_path / "part",
            run.parent / "text.txt",
            dict(steps=1, compile="no", n_layers=1, d_model=32),
            "cpu",
            eval_tokens=300,
            log=said.append,
            progress=SilentProgress(),
        )
    )
    last = Results(short.go()).vals[-1]
    assert "on the first 300 of " in said[-1], "what was left out is not called all"
    assert short.command == f"gpub resume {tmp_path / 'part'}"
    assert options_to_resume(tmp_path / "part").eval_tokens == 300
    with pytest.raises(GpubError, match="eval-tokens must be at least 2"):
        RunOptions("shakespeare-short", eval_tokens=1)
    assert last["val_bpb"] == pytest.approx(last["val_loss"] / math.log(2))


def test_stages_speak_of_validation():
    rows = [
        dict(
            step=s,
            tokens=100 * s,
            loss=9.0,
            lr=0.1 * s,
            seconds=s,
            usd=0,
            **({"val_loss": v} if v else {}),
        )
        for s, v in ((1, None), (2, 3.5), (3, None), (4, 3.6), (5, 1.5))
    ]
    words = [r[-1] for r in stage_table(rows, dict(uniform=4.0, unigram=3.4, xz=1.7)).rows]
    assert (
        "passed" not in words[0]
        and "did not fall" in words[1]
        and "passed unigram, xz" in words[2]
        and "rising" in words[0]
    )


def test_happening_at_the_edge():
    assert describe_stage(3.0, 3.0, 10, refs={"x": 3.0}) == "did not fall" and describe_stage(
        4.0, 3.0, 10**6, refs={"x": 3.0}
    ).startswith("passed x; fell 1 ")


def test_change_keeps_every_word():
    c = Change("To be or\nnot to be", "To be and\nnot *two* bees")
    md = c._repr_markdown_()
    assert [w for _, a, _ in c.parts() for w in a] == [
        "To",
        "be",
        "or",
        "\n",
        "not",
        "to",
        "be",
    ] and [w for _, _, b in c.parts() for w in b] == [
        "To",
        "be",
        "and",
        "\n",
        "not",
        "*two*",
        "bees",
    ]
    assert (
        c.same == 6
        and "<del>or</del> <b>and</b>" in md
        and "\\*two\\*" in md
        and Change("a", "a").same == 1
        and Change("", "").parts() == []
    )


def test_words():
    assert known_share("", {"a"}) == 0 and known_share("A b", {"a"}) == 0.5


def test_tables_survive_markdown():
    t = Table(["a", "$"], [["x|y\nz", "~$3 or $4"], ["`a$b`", 1]])
    lines = t._repr_markdown_().strip().splitlines()
    assert (
        lines[2] == "| x\\|y z | \\~\\$3 or \\$4 |"
        and lines[3] == "| `a$b` | 1 |"
        and all(len(re.findall(r"(?<!\\)\|", l)) == 3 for l in lines)
    )
    assert (
        milestone_table([dict(step=1, val_loss=None, prompt="a`", seed=0, text="a`b`|\n")])
        ._repr_markdown_()
        .count("`")
        == 4
    )


def facts(root, name):
    return read_json(root / "data/published" / f"{name}.json")


def test_the_published_bill_adds_up(root):
    rows = next(r for r in facts(root, "runs")["runs"] if r["id"] == "s1-phase3")["rows"]
    colab = facts(root, "costs")["s1_colab"]
    b = colab_bill(rows, colab["units_per_hour"])
    assert (
        b["stated"]["units"] == 1040
        and b["stated"]["ideal"] == colab["optimized_from_start_units"]
        and round(100 * b["stated"]["wasted"]) == 79
    )
    assert b["stated"]["units"] - b["stated"]["ideal"] == colab["wasted_units"] and b["computed"][
        "hours"
    ] == pytest.approx(sum(r["steps"] * r["s_per_step"] for r in rows) / 3600, abs=0.05)
    for i in colab["rows"][:-1]:
        assert i["hours"] * colab["units_per_hour"] == i["units"]


def test_the_conflicts_are_shown(root):
    page = (root / "nbs/season1/deeper/reading_a_run.ipynb").read_text(encoding="utf-8")
    shown = "\n".join(json.dumps(c.get("outputs", [])) for c in json.loads(page)["cells"])
    for what in ("21 minutes", "$15", "1,040", "79%", "130 h", "19 hours"):
        assert what in shown, what


def dead(place, root):
    "What is wrong with a place a lesson links to, or None"
    if "::" in place:
        path, name = place.split("::")
        if not (root / path).is_file():
            return f"{path} is missing"
        return (
            None
            if name
            in {
                n.name
                for n in ast.parse((root / path).read_text(encoding="utf-8")).body
                if isinstance(n, ast.FunctionDef)
            }
            else f"{place}: no such test"
        )
    path, heading = place.split("#", 1)
    if not (root / path).is_file():
        return f"{path} is missing"
    md = "\n".join(
        "".join(c["source"])
        for c in json.loads((root / path).read_text(encoding="utf-8"))["cells"]
        if c["cell_type"] == "markdown"
    )
    return None if heading in re.findall(r"^#+ (.+)$", md, re.M) else f"{place}: no such heading"


def test_every_lesson_leads_somewhere(root):
    lessons = facts(root, "lessons")["lessons_22"]
    assert len(lessons) == 22 and set(SHOWN) == {l["n"] for l in lessons}
    assert [d for places in SHOWN.values() for p in places if (d := dead(p, root))] == []
    table = lesson_table(lessons).rows
    assert [r[0] for r in table if r[3] == "not yet"] == [
        n for n, places in SHOWN.items() if not places
    ]
    for target in re.findall(r"\]\(([^)#]+)", "\n".join(r[3] for r in table)):
        assert (root / "nbs/season1" / target).is_file(), target


@pytest.mark.parametrize(
    "place",
    (
        "nbs/season1/99_x.ipynb#All",
        "nbs/season1/05_results.ipynb#Nowhere",
        "tests/test_results.py::test_nothing",
        "tests/none.py::test_x",
    ),
)
def test_a_dead_link_is_found(root, place):
    assert dead(place, root)


def test_anchors():
    assert (
        link_to("nbs/lib/a_b.ipynb#Reading, and refusing")
        == "[a b: Reading, and refusing](../lib/a_b.ipynb#reading-and-refusing)"
        and link_to("nbs/season1/03_x.ipynb#4. Was it?") == "[x: 4. Was it?](03_x.ipynb)"
    )


def test_missing_settings_take_their_defaults():
    cfg = GPTConfig.from_dict(
        dict(vocab_size=9, context_length=8, d_model=8, n_layers=1, n_heads=1)
    )
    assert cfg.tied and cfg.bias and cfg.init_std == 0.02
    with pytest.raises(GpubError, match="needs a value for 'n_heads'"):
        GPTConfig.from_dict(dict(vocab_size=9, context_length=8, d_model=8, n_layers=1))
