"""Evaluation: items are asked as lm-eval asks them, scores are the same item by item, bad input is
one line, and a model's programs are contained."""

import gzip
import importlib.util
import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from marks import first_ones

from gpub.cli.evals import eval_command
from gpub.core import GpubError
from gpub.data.bpe import BPETokenizer
from gpub.data.char import CharTokenizer
from gpub.data.plays import plays
from gpub.evals import adapter as adapters
from gpub.evals import evaluate as evaluation
from gpub.evals.adapter import (
    adapter,
    as_task,
    ask_lm_eval,
    exported,
    hushed,
    items_of,
    likelihoods,
    lm_eval_parts,
)
from gpub.evals.evaluate import evaluate_run
from gpub.evals.intervals import mean_with_error
from gpub.evals.options import EvalOptions
from gpub.evals.report_card import keep_scores
from gpub.evals.samples import distinct_share, label_text, repeated_share, token_diff
from gpub.evals.sandbox import (
    ProgramResult,
    find_jail_fault,
    problems,
    run_programs,
    run_python,
    solves,
)
from gpub.evals.scores import outcomes, paired, published, score_against, score_task
from gpub.evals.scoring import calibrate, in_vocabulary
from gpub.evals.stored_results import _write_card
from gpub.evals.tasks import TASKS, Item, load_items, random_subset
from gpub.model.gpt import GPT, GPTConfig
from gpub.model.llama import Llama, LlamaConfig
from gpub.progress import SilentProgress
from gpub.record.run import load
from gpub.share.hub import export_model, export_run
from gpub.train.options import RunOptions
from gpub.train.trainer import Trainer

pytestmark = pytest.mark.usefixtures("short_texts")

ARC = (
    '{"id": "a", "question": {"stem": "What is wet?", "choices": [{"text": "Water is wet", '
    '"label": "A"}, {"text": "A stone", "label": "B"}, {"text": "The dry sand of it", "label": '
    '"C"}, {"text": "Fire", "label": "D"}]}, "answerKey": "A"}\n'
)
SWAG = (
    '{"ind": 0, "activity_label": "Play", "ctx": "The king of all the land. he", "endings": ["is '
    'my lord and master.", "sleeps in a box.", "is not.", "and the queen go out to walk."], '
    '"label": 3}\n'
)


@pytest.fixture(scope="module")
def tok():
    return BPETokenizer.train([plays(40_000, seed=1)], 400)


@pytest.fixture(scope="module")
def models(tok):
    torch.manual_seed(0)
    shape = dict(
        vocab_size=tok.vocab_size,
        context_length=48,
        d_model=32,
        n_layers=2,
        n_heads=4,
        init_std=0.2,
    )
    return [
        GPT(GPTConfig(**shape)).eval(),
        Llama(LlamaConfig(**shape, n_kv_heads=2, d_ff=64)).eval(),
    ]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    "Questions of two tasks and passages, in their original formats"
    folder, rng = tmp_path_factory.mktemp("eval"), np.random.default_rng(0)
    lines = [l for l in plays(60_000, seed=2).splitlines() if len(l) > 30 and "[" not in l]

    def row(i):
        at = int(rng.integers(4))
        c = [lines[(7 * i + j) % len(lines)] for j in range(5)]
        return c, at

    made = [row(i) for i in range(40)]
    (folder / "arc_easy_test.jsonl").write_text(
        "\n".join(
            json.dumps(
                dict(
                    id=i,
                    question=dict(
                        stem=c[0], choices=[dict(text=t, label=l) for t, l in zip(c[1:], "ABCD")]
                    ),
                    answerKey="ABCD"[at],
                )
            )
            for i, (c, at) in enumerate(made)
        )
    )
    (folder / "hellaswag_val.jsonl").write_text(
        "\n".join(
            json.dumps(dict(activity_label="Play", ctx=c[0], endings=c[1:], label=at))
            for c, at in made
        )
    )
    (folder / "lambada_test.jsonl").write_text(
        "\n".join(json.dumps(dict(text=" ".join(c))) for c, _ in made)
    )
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = Trainer(
        RunOptions(
            "shakespeare-short",
            tmp_path_factory.mktemp("run") / "short",
            settings=dict(steps=4, d_model=16, n_layers=1, compile="no"),
            device="cpu",
            progress=SilentProgress(),
        )
    )
    return run.go()


# items


@pytest.mark.parametrize(
    "task, text, line, why",
    [
        ("arc_easy", ARC + '{"id"', 2, "not a record"),
        ("arc_easy", ARC + "\n[1, 2]\n", 3, "TypeError"),
        (
            "arc_easy",
            ARC * 2 + ARC.replace('"answerKey": "A"', '"answerKey": "E"'),
            3,
            "ValueError",
        ),
        ("arc_easy", ARC.replace("Water is wet", " "), 1, "an answer is empty"),
        ("arc_easy", ARC.replace('"stem": "What is wet?"', '"steem": ""'), 1, "KeyError: 'stem'"),
        ("hellaswag", SWAG + SWAG.replace('"label": 3', '"label": 4'), 2, "is none of the 4"),
        ("hellaswag", SWAG.replace('"label": 3', '"label": ""'), 1, "ValueError"),
        ("lambada", '{"text": "a b"}\n{"text": "alone"}\n', 2, "ValueError"),
        (
            "truthfulqa_mc2",
            "Question,Correct Answers,Incorrect Answers\nWhy?,Yes,No\nWhy?,Yes,\n",
            3,
            "no false answer",
        ),
        ("mmlu", "Why?,1,2,3,4,A\nWhy?,1,2,3,A\n", 2, "ValueError"),
        ("mmlu", 'Why?,1,2,3,4,A\nWhy?,1,2,3,4,"A\n', 2, "not a record"),
    ],
)
def test_malformed_items_name_file_and_line(tmp_path, task, text, line, why):
    path = tmp_path / TASKS[task].file.replace("*", "x_test")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    with pytest.raises(GpubError) as e:
        load_items(task, folder=tmp_path)
    assert (
        f"{path} line {line}: " in str(e.value) and why in str(e.value) and "\n" not in str(e.value)
    )


def test_other_bad_files(tmp_path):
    with pytest.raises(GpubError, match="needs arc_easy_test.jsonl, which is not in"):
        load_items("arc_easy", folder=tmp_path)
    (tmp_path / "arc_easy_test.jsonl").write_text("\n")
    with pytest.raises(GpubError, match="no items"):
        load_items("arc_easy", folder=tmp_path)
    (tmp_path / "arc_easy_test.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(GpubError, match="not a record"):
        load_items("arc_easy", folder=tmp_path)
    with pytest.raises(
        GpubError,
        match="no task .x.; there are: arc_easy, arc_challenge, hellaswag, mmlu, truthfulqa_mc2, "
        "lambada",
    ):
        load_items("x")


def test_a_limit_is_a_lot_and_the_smaller_is_in_the_larger(files):
    few, more = (load_items("arc_easy", n, files) for n in (5, 20))
    assert (
        len(few) == 5
        and set(few) < set(more)
        and few == load_items("arc_easy", 5, files)
        and few != load_items("arc_easy", 40, files)[:5]
    )


LABELLED = dict(
    text=["Water is wet", "A stone", "The dry sand of it", "Fire"], label=["A", "B", "C", "D"]
)
THEIRS = {  # task -> (our row, the row of the Hub's data set, lm-eval's own definition)
    "arc_easy": (
        json.loads(ARC),
        dict(question="What is wet?", choices=LABELLED, answerKey="A"),
        "arc/arc_easy.yaml",
    ),
    "arc_challenge": (
        json.loads(ARC),
        dict(question="What is wet?", choices=LABELLED, answerKey="A"),
        "arc/arc_challenge.yaml",
    ),
    "openbookqa": (
        json.loads(ARC),
        dict(question_stem="What is wet?", choices=LABELLED, answerKey="A"),
        "openbookqa/openbookqa.yaml",
    ),
    "hellaswag": (
        json.loads(SWAG),
        json.loads(SWAG) | dict(ctx_a="The king of all the land.", ctx_b="he", label="3"),
        "hellaswag/hellaswag.yaml",
    ),
    "piqa": (
        row := dict(goal="How to sit?", sol1="On a chair.", sol2="Under it.", label=1),
        row,
        "piqa/piqa.yaml",
    ),
    "lambada": (
        row := dict(text="Who is there? said the king"),
        row,
        "lambada/lambada_openai.yaml",
    ),
    "mmlu": (
        ["Why? ", "1", "2", "3", "4", "C"],
        dict(question="Why? ", choices=["1", "2", "3", "4"], answer=2),
        "mmlu/default/mmlu_abstract_algebra.yaml",
    ),
    "truthfulqa_mc2": (
        {
            "Question": "Who sees?",
            "Correct Answers": "You; Nobody.",
            "Incorrect Answers": "The moon",
        },
        dict(
            question="Who sees?",
            mc1_targets=dict(choices=["You."], labels=[1]),
            mc2_targets=dict(choices=["You.", "Nobody.", "The moon."], labels=[1, 1, 0]),
        ),
        "truthfulqa/truthfulqa_mc2.yaml",
    ),
}


@pytest.mark.parametrize("task", TASKS)
def test_questions_are_put_as_lm_eval_puts_them(task):
    ours, theirs, path = THEIRS[task]
    (item,) = items_of(their_task(path, test=[theirs]))
    context, choices, right = TASKS[task].read(ours)
    assert (item.context, item.choices, item.right) == (
        TASKS[task].head.format("abstract algebra") + context,
        tuple(choices),
        tuple(right),
    )


def their_task(path, **splits):
    "lm-eval's own definition of a task, with data of ours"
    import lm_eval.tasks
    from datasets import Dataset
    from lm_eval.tasks._yaml_loader import load_yaml

    config = load_yaml(Path(lm_eval.tasks.__file__).parent / path)
    data = {k: Dataset.from_list(v) for k, v in splits.items()}
    config = {
        k: v
        for k, v in config.items()
        if k
        not in (
            "tag",
            "include",
            "group",
            "task_alias",
            "metadata",
            "dataset_path",
            "dataset_name",
            "training_split",
            "validation_split",
            "fewshot_split",
        )
    }
    if "solved" in splits:
        config |= dict(fewshot_split="solved")
    with hushed():
        return lm_eval_parts().Task(
            config=config | dict(custom_dataset=lambda **kw: data, test_split="test")
        )


@pytest.mark.parametrize("task", ["arc_easy", "hellaswag", "mmlu", "piqa"])
@pytest.mark.parametrize("own", [False, True])
def test_solved_questions_are_those_lm_eval_puts_before(tmp_path, task, own):
    "From a file of them, and where there is none from the other questions"
    ours, theirs, path = THEIRS[task]

    def many(row, n):
        return [
            json.loads(
                json.dumps(row)
                .replace("Water is wet", f"Water {i}")
                .replace("What is wet?", f"What {i}?")
                .replace("Why?", f"Why {i}?")
                .replace("he king", f"he king {i}")
                .replace("to sit", f"to sit {i}")
            )
            for i in range(n)
        ]

    name = TASKS[task].file.replace("*", "abstract_algebra_test")
    test, solved = tmp_path / name, tmp_path / name.replace("test", "dev").replace("_val", "_dev")
    for where, rows in ((test, many(ours, 40)[::2]),) + (
        () if own else ((solved, many(ours, 40)[1::2]),)
    ):
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_text(
            "\n".join(",".join(r) for r in rows)
            if task == "mmlu"
            else "\n".join(map(json.dumps, rows))
        )
    data = dict(test=many(theirs, 40)[::2]) | ({} if own else dict(solved=many(theirs, 40)[1::2]))
    asked = their_task(path, **data)
    if own:
        asked.fewshot_cfg.split = "test"
        asked.sampler.replace_df(list(asked.fewshot_docs()))
    want = items_of(asked, 5)
    got = load_items(task, folder=tmp_path, shots=5)
    assert [(i.context, i.choices, i.right) for i in got] == [
        (i.context, i.choices, i.right) for i in want
    ]
    assert (
        len(got) == 20
        and len(got[3].context) > 2 * len(load_items(task, folder=tmp_path)[3].context)
        and set(load_items(task, 6, tmp_path, shots=5)) < set(got)
    )
    with pytest.raises(
        GpubError, match="20 solved questions asked for" if own else "21 solved questions asked for"
    ):
        load_items(task, folder=tmp_path, shots=20 if own else 21)


# scores


def test_adapter_and_hf_model_agree_item_by_item(models, tok, files, tmp_path):
    asked = {
        t: (load_items(t, 40, files), TASKS[t].kind) for t in ("arc_easy", "hellaswag", "lambada")
    }
    for n, model in enumerate(models):
        ours, theirs = (
            ask_lm_eval(adapter(model, tok, 512), asked),
            ask_lm_eval(exported(export_model(model, tok, tmp_path / str(n)), "cpu", 4), asked),
        )
        for t, (items, kind) in asked.items():
            assert (
                max(abs(a - b) for x, y in zip(ours[t], theirs[t]) for (a, _), (b, _) in zip(x, y))
                < 1e-3
            )
            assert all(
                (outcomes(items, ours[t], kind)[m] == x).all()
                for m, x in outcomes(items, theirs[t], kind).items()
            )


def test_what_does_not_fit_is_cut_and_counted(models):
    model, ids = (
        models[0],
        torch.randint(200, (80,), generator=torch.Generator().manual_seed(0)).tolist(),
    )
    lm = adapter(model, None)
    pairs = [
        (ids[:70], ids[70:]),
        (ids[:60], ids[60:70]),
        (ids[:10], ids[10:]),
        (ids[:5], ids[5:9]),
    ]
    got = likelihoods(model, pairs, cuts=lm.cuts)
    assert (lm.cuts.contexts, lm.cuts.answers) == (3, 1)
    for (c, a), (nats, _) in zip(pairs, got):
        x = torch.tensor([(c + a)[-49:]])
        with torch.no_grad():
            logp = model(x[:, :-1])[0].log_softmax(-1)
        n = min(len(a), 48)
        assert nats == pytest.approx(float(logp[-n:].gather(1, x[0, -n:, None]).sum()), abs=1e-3)


def test_no_numbers_no_score(models, tok, files, run):
    sick = GPT(models[0].cfg).eval()
    with torch.no_grad():
        sick.norm.weight.fill_(math.nan)
    with pytest.raises(GpubError, match="harness measures nan"):
        calibrate(adapter(sick, tok), sick, range(100))
    with pytest.raises(GpubError, match="1 tokens, at least 2 are needed"):
        calibrate(adapter(models[0], tok), models[0], [1])
    items = load_items("arc_easy", 3, files)
    with pytest.raises(GpubError, match=f"answers of {items[0].id} get .* it computes no numbers"):
        outcomes(
            items, ask_lm_eval(adapter(sick, tok), {"arc_easy": (items, "choice")})["arc_easy"]
        )


def test_without_lm_eval_it_says_what_to_install(monkeypatch, models, tok, run, files):
    adapters._adapter_class.cache_clear()
    for name in [m for m in sys.modules if m.split(".")[0] == "lm_eval"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    for f in (
        lambda: adapter(models[0], tok),
        lambda: as_task("x", [], "choice"),
        lambda: evaluate_run(run, EvalOptions(tasks=("arc_easy",), folder=files)),
    ):
        with pytest.raises(GpubError, match=r"pip install 'gpub\[eval\]'"):
            f()


# statistics


def test_arc_challenge_is_one_and_a_half_errors_from_chance():
    x = np.zeros(1172)
    x[: round(0.233 * 1172)] = 1
    m, se = mean_with_error(x)
    assert (0.25 - m) / se == pytest.approx(1.4, abs=0.05)
    assert (
        score_against(x, np.full(1172, 0.25))["same"]
        and not score_against(np.r_[x, x, x, x], np.full(4 * 1172, 0.25))["same"]
    )


def test_the_error_is_the_binomial_one_and_the_bootstrap_agrees():
    rng = np.random.default_rng(0)
    a, b = (rng.random(3000) < p for p in (0.3, 0.33))
    m, se = mean_with_error(a)
    assert se == pytest.approx(math.sqrt(m * (1 - m) / 2999))
    got = paired(a, b)
    d = b - a * 1.0
    assert (
        got["difference"] == pytest.approx(d.mean())
        and got["se"] == pytest.approx(mean_with_error(d)[1], rel=0.05)
        and got["low"] < got["difference"] < got["high"]
    )
    # of 200 pairs of equals 2.5% look better
    assert (
        sum(paired(*(rng.random((2, 400)) < 0.3), rounds=500)["low"] > 0 for _ in range(200)) < 14
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_guesser_is_called_one_and_a_knower_is_not(seed):
    rng = np.random.default_rng(seed)
    items = [
        Item(
            str(i), "q", tuple("x" * int(n) for n in rng.integers(1, 9, 4)), (int(rng.integers(4)),)
        )
        for i in range(600)
    ]

    def answers(lift):
        return [
            [(float(rng.normal()) + lift * (j in i.right), False) for j in range(4)] for i in items
        ]

    assert score_task(items, answers(3))["acc"]["verdict"].startswith(
        "above every control"
    ) and not score_task(items, answers(0))["acc"]["verdict"].startswith("above")


def test_published_rows_name_their_metric(root):
    rows = published("hellaswag", root / "data")
    by = {(r["model"], r["metric"]): round(100 * r["score"], 2) for r in rows}
    assert (
        by["GPT-2 124M", "acc"] < by["GPT-2 124M", "acc_norm"]
        and any(m.startswith("acc_norm (likely)") for _, m in by)
        and all(r["metric"] and r["source"] for r in rows)
    )


# the command


def call(*words):
    done = CliRunner().invoke(eval_command, [*map(str, words), "--device", "cpu"])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def test_what_is_asked_is_said_and_what_takes_long_shows_how_far_it_is(
    run, files, monkeypatch, capsys
):
    monkeypatch.setattr("gpub.evals.evaluate._FEW_ANSWERS", 0)
    tasks = ("arc_easy", "lambada")
    evaluate_run(run, EvalOptions(tasks=tasks, limit=6, folder=files, device="cpu", check=0))
    out = capsys.readouterr().out
    assert re.search(r"asking 12 questions of arc_easy, lambada, .* context of another\n", out)
    assert out.index("arc_easy (1 of 2)  ") < out.index("lambada (2 of 2)  ")
    assert re.search(r"lambada \(2 of 2\)  \d+:\d\d done, 0:00 left\n", out), "all was counted"
    one = EvalOptions(tasks=tasks, limit=1, folder=files, device="cpu", check=0)
    evaluate_run(run, one)  # there is no other question whose context it could get
    assert "asking 2 questions of arc_easy, lambada\n" in capsys.readouterr().out


def test_a_check_of_the_exported_model_outlives_an_interruption(run, files, monkeypatch):
    options = EvalOptions(tasks=("lambada",), limit=2, folder=files, device="cpu", check=1)
    kept = []

    def cut(card):
        kept.append(json.loads(json.dumps(card)))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_run(run, options, lambda line: None, save=cut)
    assert kept[0]["agreement"] and not kept[0]["tasks"]
    monkeypatch.setattr(evaluation, "agreement", lambda *given: pytest.fail("checked again"))
    card = evaluate_run(run, options, lambda line: None, kept[0])
    assert card["agreement"] == kept[0]["agreement"] and "lambada" in card["tasks"]


def test_a_card_that_has_all_scores_reads_no_training_text(run, files, monkeypatch):
    options = EvalOptions(tasks=("lambada",), limit=2, folder=files, device="cpu", check=0)
    card = evaluate_run(run, options, lambda line: None)
    monkeypatch.setattr(evaluation, "training_texts", lambda corpus: pytest.fail("it was read"))
    assert evaluate_run(run, options, lambda line: None, card) == card
    with pytest.raises(pytest.fail.Exception, match="it was read"):
        evaluate_run(run, options, lambda line: None)


def test_the_command_on_a_model_of_characters(run, files):
    said = call(run, "--tasks", "arc_easy,lambada", "--limit", 12, "--data", files, "--check", 3)
    result = json.loads((run / "evals.json").read_text())
    assert (
        "gate passed" in said
        and "uniform guess" in said
        and "agree" in said
        and result["settings"]["limit"] == 12
        and result["versions"]["lm_eval"]
        and result["agreement"]["arc_easy"]["same"] == 3
    )
    for t in ("arc_easy", "lambada"):
        for m in result["tasks"][t]["metrics"].values():
            assert {"score", "se", "low", "high", "controls", "verdict"} <= m.keys()
    again = call(run, run, "--compare", "--tasks", "arc_easy", "--limit", 12, "--data", files)
    assert "read from" in again and "no difference shown" in again


def test_characters_a_vocabulary_lacks_are_counted(run):
    items, lost = in_vocabulary(
        [Item("a", "Is 2 + 2 = 4?", ("yes", "4"), (0,))], CharTokenizer("Isyetr? ")
    )
    assert lost == 6 and items[0].choices == ("yes", "?") and items[0].context == "Is ? ? ? ? ??"


@pytest.mark.parametrize(
    "words, why",
    [
        (["--tasks", "arc_easy,nope"], "no task 'nope'; there are: arc_easy"),
        (["--tasks", "gsm8k"], "lm_eval --model hf --model_args pretrained=FOLDER --tasks gsm8k"),
        (["--compare"], "two runs"),
        (["--tasks", "hellaswag", "--data", "nowhere"], "needs hellaswag_val.jsonl"),
    ],
)
def test_refusals(run, words, why):
    with pytest.raises(GpubError, match=why):
        call(run, *words)


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        "{}",
        '{"tasks": {}}',
        '"x"',
        '{"tasks": 3, "step": 1, "settings": {}}',
        '{"tasks": {}, "step": 1, "settings": []}',
    ],
)
def test_another_file_where_results_go(run, files, tmp_path, text):
    (tmp_path / "r.json").write_text(text)
    theirs = "holds no results of gpub eval|was not written by this command"
    with pytest.raises(GpubError, match=theirs):
        call(run, "--tasks", "lambada", "--data", files, "--json", tmp_path / "r.json")
    assert (tmp_path / "r.json").read_text() == text


GONE = object()


@pytest.mark.parametrize(
    "keys, value",
    first_ones(
        3,
        [
            ("run", GONE),
            ("parameters", GONE),
            ("parameters", ["x"]),
            ("tasks lambada", ["x"]),
            ("tasks lambada n", ["x"]),
            ("tasks lambada items", GONE),
            ("tasks lambada shots", GONE),
            ("tasks lambada metrics", ["x"]),
            ("tasks lambada metrics acc", ["x"]),
            ("tasks lambada metrics acc score", "x"),
            ("tasks lambada metrics acc controls", GONE),
            ("tasks lambada outcomes", GONE),
            ("tasks lambada outcomes acc", ["x"]),
        ],
    ),
)
def test_results_damaged_by_hand(run, files, tmp_path, keys, value):
    file = tmp_path / "r.json"
    words = [run, "--tasks", "lambada", "--limit", 5, "--data", files, "--check", 0, "--json", file]
    call(*words)
    assert "read from" in call(*words)
    result = part = json.loads(file.read_text())
    *way, last = keys.split()
    for k in way:
        part = part[k]
    part[last] = value
    if value is GONE:
        del part[last]
    file.write_text(json.dumps(result))
    with pytest.raises(GpubError, match="r.json is damaged .*restore it, or move it away") as e:
        call(*words)
    assert "\n" not in str(e.value)


def test_stored_results_without_the_check_do_not_answer_who_asks_for_it(run, files, tmp_path):
    file = tmp_path / "r.json"
    words = [run, "--tasks", "lambada", "--limit", 5, "--data", files, "--json", file]
    call(*words, "--check", 0)
    assert "agreement" not in json.loads(file.read_text())
    assert "read from" not in call(*words, "--check", 2)
    assert json.loads(file.read_text())["agreement"]["lambada"]["n"] == 2
    assert "read from" in call(*words, "--check", 2)
    assert "read from" in call(*words, "--check", 0)


def test_results_are_those_of_the_files_and_of_as_many_checks(run, files, tmp_path):
    "Other files under the same name are other questions, and more checks are more work"
    file = tmp_path / "r.json"
    words = [run, "--tasks", "lambada", "--limit", 5, "--json", file]
    call(*words, "--data", files, "--check", 0)
    other = tmp_path / "other"
    other.mkdir()
    passages = (files / "lambada_test.jsonl").read_text().splitlines()
    (other / "lambada_test.jsonl").write_text("\n".join(passages[::-1]))
    before = json.loads(file.read_text())["tasks"]["lambada"]
    assert "read from" not in call(*words, "--data", other, "--check", 2)
    after = json.loads(file.read_text())
    assert after["tasks"]["lambada"]["files"] != before["files"]
    assert after["agreement"]["lambada"]["n"] == 2
    assert "read from" in call(*words, "--data", other, "--check", 2)
    assert "read from" not in call(*words, "--data", other, "--check", 4)
    assert json.loads(file.read_text())["agreement"]["lambada"]["n"] == 4
    assert "read from" in call(*words, "--data", other, "--check", 3)


def test_a_second_list_of_tasks_is_stored_beside_the_first(run, files, tmp_path, monkeypatch):
    file = tmp_path / "r.json"
    words = [run, "--limit", 5, "--data", files, "--json", file]
    call(*words, "--tasks", "hellaswag", "--check", 2)
    first = json.loads(file.read_text())
    said = call(*words, "--tasks", "lambada", "--check", 0)
    both = json.loads(file.read_text())
    assert [*both["tasks"]] == ["hellaswag", "lambada"] and "lambada" in said
    assert both["tasks"]["hellaswag"] == first["tasks"]["hellaswag"]
    assert both["agreement"] == first["agreement"]
    assert "read from" in call(*words, "--tasks", "lambada,hellaswag", "--check", 0)
    # a task that is scored anew takes no check of its old answers over
    stored = dict(both, tasks=dict(both["tasks"], hellaswag=first["tasks"]["hellaswag"]))
    stored["tasks"]["hellaswag"]["files"] = "of another file"
    file.write_text(json.dumps(stored))
    call(*words, "--tasks", "hellaswag", "--check", 0)
    assert json.loads(file.read_text())["agreement"] == {}
    # what other versions have computed is said to be left out
    file.write_text(json.dumps(dict(both, versions=dict(both["versions"], torch="1.0"))))
    older = file.read_text()
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(evaluation, "score_items", lambda *a: (_ for _ in ()).throw(MemoryError()))
        call(*words, "--tasks", "arc_easy", "--check", 0)
    assert file.read_text() == older  # it stays until there is a new score
    said = call(*words, "--tasks", "arc_easy", "--check", 0)
    assert "not kept: hellaswag, lambada, scored with torch 1.0, now" in said
    assert [*json.loads(file.read_text())["tasks"]] == ["arc_easy"]
    kept = max(tmp_path.glob("r.*.json"))
    assert kept.read_text() == older and str(kept) in said
    # answers of other weights are not kept, whoever hands them in
    card, told = dict(both, tasks={}), []
    keep_scores(card, dict(both, weights="0" * 64), EvalOptions(), told.append)
    assert card["tasks"] == {} and "other weights (run short, step 4)" in told[0]


def test_no_stored_score_is_overwritten(tmp_path):
    "A file with scores that a new card lacks is kept under a name of its own, and only once"
    path, told = tmp_path / "evals.json", []
    before = dict(tasks=dict(mmlu=dict(n=5)), humaneval=dict(n=3, passed=1))
    _write_card(path, told.append, before)
    _write_card(path, told.append, dict(before, bits_per_byte=dict(plays=1.5)))
    assert not told and [*tmp_path.iterdir()] == [path]
    kept = path.read_text()
    for tasks in (dict(mmlu=dict(n=5)), dict(mmlu=dict(n=5), piqa=dict(n=5))):
        _write_card(path, told.append, dict(tasks=tasks))
    assert told == [f"the scores of humaneval from before are kept in {tmp_path}/evals.1.json"]
    assert (tmp_path / "evals.1.json").read_text() == kept
    _write_card(path, told.append, dict(tasks=dict(mmlu=dict(n=6))))
    assert "the scores of mmlu, piqa from before" in told[1] and "evals.2.json" in told[1]


def test_a_bar_goes_with_the_task_that_fails(run, files, monkeypatch):
    monkeypatch.setattr("gpub.evals.evaluate._FEW_ANSWERS", 0)
    asked = []

    def broken(lm, *rest):
        asked.append(lm)
        assert lm.advance
        raise MemoryError("no room")

    monkeypatch.setattr(evaluation, "score_items", broken)
    options = EvalOptions(tasks=("lambada",), limit=2, folder=files, device="cpu", check=0)
    with pytest.raises(MemoryError):
        evaluate_run(run, options)
    assert asked[0].advance is None


def test_what_is_scored_is_stored_whatever_comes_after(run, files, tmp_path, monkeypatch):
    "The last task fails: a second call asks that one, and none of those before it"
    file = tmp_path / "r.json"
    words = [run, "--tasks", "arc_easy,hellaswag,lambada", "--limit", 5, "--data", files]
    words += ["--check", 2, "--json", file]
    whole = tmp_path / "whole.json"
    call(*words[:-1], whole)
    scored = []
    score_items = evaluation.score_items

    def break_at(broken):
        def score(lm, name, *rest):
            scored.append(name)
            if name == broken:
                raise MemoryError("no room")
            return score_items(lm, name, *rest)

        return score

    monkeypatch.setattr(evaluation, "score_items", break_at("lambada"))
    with pytest.raises(MemoryError):
        call(*words)
    stored = json.loads(file.read_text())
    assert [*stored["tasks"]] == ["arc_easy", "hellaswag"] and "bits_per_byte" not in stored
    assert scored == ["arc_easy", "hellaswag", "lambada"]
    monkeypatch.setattr(evaluation, "score_items", break_at(None))
    assert "read from" not in call(*words)
    assert scored[3:] == ["lambada"]
    assert json.loads(file.read_text()) == json.loads(whole.read_text())
    assert "read from" in call(*words)
    # one that ended before its bits per byte is not taken for a whole one
    gone = {key: part for key, part in stored.items() if key != "bits_per_byte"}
    file.write_text(json.dumps(gone | dict(tasks=json.loads(whole.read_text())["tasks"])))
    assert "read from" not in call(*words) and scored[4:] == []
    assert json.loads(file.read_text()) == json.loads(whole.read_text())


def test_what_may_fail_is_tried_before_any_question(run, files, tmp_path, monkeypatch):
    "The exported model, the versions and a program that does nothing"

    def fail(*given, **named):
        raise GpubError("not here")

    def never(*given):
        raise AssertionError("a question was asked")

    with gzip.open(tmp_path / "HumanEval.jsonl.gz", "wt") as f:
        f.write(json.dumps(dict(task_id="0", prompt="p", test="", entry_point="f")))
    (tmp_path / "lambada_test.jsonl").write_text((files / "lambada_test.jsonl").read_text())
    options = EvalOptions(
        tasks=("lambada", "humaneval"), limit=2, device="cpu", folder=tmp_path, unsafe=True
    )
    monkeypatch.setattr(evaluation, "score_items", never)
    for name in ("agreement", "version", "run_python"):
        with monkeypatch.context() as patch:
            patch.setattr(evaluation, name, fail)
            with pytest.raises(GpubError, match="not here"):
                evaluate_run(run, options, lambda line: None)
    monkeypatch.setattr(
        evaluation, "run_python", lambda code, unsafe: ProgramResult(False, "exit code 3", 0.1)
    )
    with pytest.raises(GpubError, match="one that does nothing ended by exit code 3"):
        evaluate_run(run, options, lambda line: None)


def another_run(folder, seed, text):
    "A run of its own in that folder"
    settings = dict(steps=4, d_model=16, n_layers=1, compile="no", seed=seed)
    how = dict(save_every=2, progress=SilentProgress())
    return Trainer(RunOptions("shakespeare-short", folder, text, settings, "cpu", **how)).go()


@pytest.mark.full(instead="test_stored_results_without_the_check_do_not_answer_who_asks_for_it")
def test_results_are_those_of_one_run_and_one_checkpoint(text, files, tmp_path):
    "The scores of A are never shown as those of B, nor those of step 2 as those of step 4"
    a, b = (another_run(tmp_path / name / "run", seed, text) for seed, name in enumerate("ab"))
    file = tmp_path / "r.json"
    words = ["--tasks", "lambada", "--limit", 5, "--data", files, "--check", 0]
    call(a, *words, "--json", file)
    before = file.read_text()
    assert "read from" in call(a, *words, "--json", file)
    with pytest.raises(GpubError, match="r.json holds the results of another run, run ") as e:
        call(b, *words, "--json", file)
    ids = [json.loads((run / "config.json").read_text())["run_id"] for run in (a, b)]
    assert all(i in str(e.value) for i in ids) and "\n" not in str(e.value)
    assert file.read_text() == before
    stored = json.loads(before)
    assert stored["run_id"] == ids[0] and stored["step"] == 4 and len(stored["weights"]) == 64
    # another checkpoint of the same run, and the same step with other weights
    said = call(a, *words, "--json", file, "--step", 2)
    assert "not kept: lambada, scored with other weights (run run, step 4)" in said
    assert json.loads(file.read_text())["step"] == 2
    file.write_text(json.dumps(stored | dict(weights="0" * 64)))
    assert "read from" not in call(a, *words, "--json", file)
    assert json.loads(file.read_text())["weights"] == stored["weights"]
    # results in the folder itself that came with a copy are scored anew, not refused
    (b / "evals.json").write_text(before)
    assert "not kept: lambada, scored with other weights" in call(b, *words)
    assert json.loads((b / "evals.json").read_text())["run_id"] == ids[1]


def test_results_of_before_are_bound_to_nothing(run, files, tmp_path):
    "They do not say of which weights they are: another name is refused, the same one scored anew"
    file = tmp_path / "r.json"
    words = [run, "--tasks", "lambada", "--limit", 5, "--data", files, "--check", 0, "--json", file]
    call(*words)
    old = {k: v for k, v in json.loads(file.read_text()).items() if k not in ("run_id", "weights")}
    file.write_text(json.dumps(old))
    assert "not kept: lambada, scored with other weights" in call(*words)
    file.write_text(json.dumps(old | dict(run="other")))
    with pytest.raises(GpubError, match="results of another run, other "):
        call(*words)


def test_no_run(tmp_path, files):
    with pytest.raises(GpubError, match="not a run folder"):
        call(tmp_path, "--tasks", "arc_easy", "--data", files)
    with pytest.raises(GpubError, match="not a run folder"):
        call(tmp_path / "nowhere", "--tasks", "arc_easy", "--data", files)
    assert not list(tmp_path.iterdir())


def test_a_folder_of_hugging_face_without_an_import(run, files, tmp_path, monkeypatch):
    "It scores as its run does, is written to by nobody, and its results bind to its weights"
    monkeypatch.chdir(tmp_path)
    theirs = export_run(run, tmp_path / "models/hf")
    before = {path: path.stat().st_mtime_ns for path in theirs.rglob("*")}
    words = ["--tasks", "lambada", "--limit", 8, "--data", files, "--check", 2]
    said = call(theirs, *words)
    kept = tmp_path / "runs/evals-hf/evals.json"
    result = json.loads(kept.read_text())
    assert "written to runs/evals-hf/evals.json" in said and result["step"] == 0
    assert result["agreement"]["lambada"]["same"] == 2 and result["run"] == str(theirs)
    call(run, *words, "--json", tmp_path / "ours.json")
    ours = json.loads((tmp_path / "ours.json").read_text())
    scores, same = (
        {name: metric["score"] for name, metric in card["tasks"]["lambada"]["metrics"].items()}
        for card in (result, ours)
    )
    assert scores == same and result["parameters"] == ours["parameters"]
    assert "read from" in call(theirs, *words)
    assert "hf, step" in call(theirs, "--tasks", "", "--samples")
    assert {path: path.stat().st_mtime_ns for path in theirs.rglob("*")} == before
    other = export_model(GPT(load(run, device="cpu").model.cfg), load(run).tokenizer, "others/hf")
    with pytest.raises(GpubError, match="results of another run"):
        call(other, *words)
    with pytest.raises(GpubError, match="has no steps"):
        call(theirs, *words, "--step", 3, "--json", tmp_path / "new.json")


# programs and texts


@pytest.mark.parametrize(
    "code, why",
    [
        ("while True: pass", "time"),
        pytest.param("import time\ntime.sleep(60)", "time", marks=pytest.mark.full),
        ("x = bytearray(10**11)", "MemoryError"),
        ("import os; os._exit(0)", "ended early"),
        ("raise SystemExit", "SystemExit"),
        ("def f(", "SyntaxError"),
        ("assert False", "AssertionError"),
    ],
)
def test_how_programs_end(code, why):
    ran = run_python(code, seconds=1, unsafe=bool(find_jail_fault()))
    assert not ran.ok and why in ran.why and ran.seconds < 8


def test_a_solution_passes_and_an_empty_function_does_not():
    p = dict(
        task_id="t",
        prompt='def double(x):\n    "Twice x"\n',
        test="def check(f):\n    assert f(2) == 4\n",
        entry_point="double",
    )
    assert (
        solves(p, "    return 2*x\n\ndef other(): pass\n", bool(find_jail_fault())).ok
        and "AssertionError" in solves(p, "    return x\n", bool(find_jail_fault())).why
    )


def test_a_program_ends_where_the_text_ends(tok):
    "A model that has nothing to add says so, and what it says after that is another text"
    model = GPT(
        GPTConfig(
            vocab_size=tok.vocab_size,
            context_length=48,
            d_model=8,
            n_layers=1,
            n_heads=1,
            tied=False,
        )
    )
    with torch.no_grad():  # it always says that the text is over
        model.norm.weight.zero_()
        model.norm.bias.fill_(1)
        model.head.weight.zero_()
        model.head.weight[tok.end] = 1
    problem = dict(
        prompt="def one():\n    return 1\n",
        test="def check(f):\n    assert f() == 1",
        entry_point="one",
    )
    tried = run_programs(model.eval(), tok, [problem], 6, unsafe=True)
    assert tried == dict(n=1, passed=1, ends=dict(passed=1))


def test_a_limit_of_programs_is_a_lot_too(models, tok, tmp_path, monkeypatch):
    rows = [dict(task_id=str(i), prompt=f"p{i}", test="", entry_point="f") for i in range(9)]
    with gzip.open(tmp_path / "HumanEval.jsonl.gz", "wt") as f:
        f.write("\n".join(map(json.dumps, rows)))
    asked = []
    monkeypatch.setattr(evaluation, "open_for_evaluation", lambda run, options, log: None)
    monkeypatch.setattr(
        evaluation, "_calibrate", lambda run, questions, programs, log: asked.extend(programs)
    )
    options = EvalOptions(tasks=("humaneval",), limit=3, folder=tmp_path, unsafe=True)
    with pytest.raises(AttributeError):  # nothing was opened
        evaluate_run("run", options)
    assert asked == random_subset(rows, 3) != rows[:3]


def test_nothing_to_ask_and_no_text_is_one_line(run, monkeypatch):
    monkeypatch.setattr(evaluation, "corpus_of", lambda config: None)
    with pytest.raises(GpubError, match="nothing to ask .*no tasks"):
        evaluate_run(run, EvalOptions(tasks=(), device="cpu"))


def test_without_the_training_text_a_score_does_not_depend_on_other_tasks(run, files, monkeypatch):
    monkeypatch.setattr(evaluation, "corpus_of", lambda config: None)
    both = EvalOptions(tasks=("arc_easy", "lambada"), limit=12, folder=files, device="cpu", check=0)
    alone = evaluate_run(run, replace(both, tasks=("arc_easy",)), lambda line: None)
    together = evaluate_run(run, both, lambda line: None)
    assert together["tasks"]["arc_easy"] == alone["tasks"]["arc_easy"]
    # so an earlier score may stay beside new ones
    assert evaluate_run(run, both, lambda line: None, alone)["tasks"] == together["tasks"]


def test_a_malformed_problem_names_file_and_line(tmp_path):
    import gzip

    with gzip.open(tmp_path / "HumanEval.jsonl.gz", "wt") as f:
        f.write('{"task_id": "a", "prompt": "", "test": ""}\n')
    with pytest.raises(
        GpubError, match="HumanEval.jsonl.gz line 1: not a problem, it lacks entry_point"
    ):
        problems(folder=tmp_path)


def test_labels():
    assert (
        label_text("the cat sat down and the dog ran off") == "varied"
        and label_text("AndroidRuntime error") == "chants AndroidRuntime"
        and repeated_share("a b c d e " * 4) == 0.75
        and distinct_share("a a a a", 1) == 0.25
    )


def test_another_tokenizer_has_no_common_tokens(models, tok):
    with pytest.raises(GpubError, match="different tokenizers"):
        token_diff((models[0], tok), (models[0], CharTokenizer("ab")), "ab")


def test_a_missing_harness_is_said_before_torch_is_there(tmp_path, monkeypatch):
    known = importlib.util.find_spec
    absent = lambda name: None if name == "lm_eval" else known(name)  # noqa: E731
    monkeypatch.setattr("importlib.util.find_spec", absent)
    monkeypatch.setitem(sys.modules, "gpub.evals.evaluate", None)
    error = CliRunner().invoke(eval_command, [str(tmp_path), "--tasks", "arc_easy"]).exception
    assert isinstance(error, GpubError) and "pip install 'gpub[eval]'" in str(error)
