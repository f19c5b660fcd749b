"""The tools whose receipts season 2 reads, at a size of seconds; and what those receipts say of
themselves."""

import json
from collections import Counter

import numpy as np
import pytest

from gpub.core import GpubError, read_json
from gpub.data.text import load_shakespeare
from gpub.plans.ladder import known_source, ladder_rates
from gpub.prep.practice import made_up_documents
from tools import isoflop, llama_parts, mixing, planted_faults
from tools.isoflop import SWEEP, Sweep, characters, measure_valleys, parameters, planned
from tools.mixing import Experiment, ask_sums, measure_mixing, prepare_texts
from tools.planted_faults import AddsToken, Rehearsal, continuations, rehearse_faults

TINY = Sweep(widths={2e8: (16,), 3e8: (16,)}, seeds=(0, 1), text=20_000)
TINY_MIX = Experiment(
    shares=(0.0, 0.2),
    seeds=(0,),
    width=16,
    vocab_size=300,
    steps=2,
    batch_tokens=512,
    held_out=400,
    problems=2,
    sums=4,
)
PROBLEMS = [dict(question=f"{a} + 7?", answer=f"<<{a}+7={a + 7}>>") for a in range(20, 32)]


def keys(receipt):
    return [(run["budget"], run["width"], run["seed"]) for run in receipt["runs"]]


@pytest.fixture(scope="module")
def valleys(tmp_path_factory):
    file = tmp_path_factory.mktemp("isoflop") / "isoflop.json"
    return file, measure_valleys(file, TINY)


def test_every_planned_run_is_trained_once(valleys):
    file, receipt = valleys
    assert keys(receipt) == [*planned(TINY)] and len(receipt["runs"]) == 3
    assert read_json(file, "runs") == receipt
    assert len({run["loss"] for run in receipt["runs"]}) == 3


def test_a_sweep_trains_what_its_receipt_lacks_and_nothing_else(valleys, tmp_path, monkeypatch):
    _, receipt = valleys
    file = tmp_path / "isoflop.json"
    file.write_text(json.dumps(receipt | dict(runs=receipt["runs"][:-1])))
    again = measure_valleys(file, TINY)
    assert keys(again) == keys(receipt)
    assert [run["loss"] for run in again["runs"]] == [run["loss"] for run in receipt["runs"]]
    monkeypatch.setattr(isoflop, "train_one", None)  # not called again
    assert measure_valleys(file, TINY) == again


def test_a_run_that_would_read_something_twice_is_refused(tmp_path):
    text = known_source(tmp_path / "plays", 2000)
    with pytest.raises(GpubError, match="fresh data"):
        isoflop.train_one(2e8, 16, 0, text)


def faults_of_valleys(receipt: dict) -> list[str]:
    "What is wrong with a receipt of the whole sweep"
    faults = []
    if Counter(keys(receipt)) != Counter(planned(SWEEP)):
        faults.append("other runs than planned")
    for run in receipt["runs"]:
        name = f"{run['budget']:.1e} width {run['width']} seed {run['seed']}"
        if abs(6 * run["params"] * run["tokens"] / run["budget"] - 1) > 0.02:
            faults.append(f"{name}: not the budget")
        if run["tokens"] != characters(run["budget"], run["width"]):
            faults.append(f"{name}: another number of characters")
        if run["params"] != parameters(run["width"]):
            faults.append(f"{name}: another size")
        if run["tokens"] > receipt["text"]:
            faults.append(f"{name}: reads its text twice")
        if not run["loss"] > run["ideal"]:
            faults.append(f"{name}: below the best possible")
        if any(run[key] != rate for key, rate in ladder_rates(run["width"]).items()):
            faults.append(f"{name}: other rates than the ladder's")
    if len({run["ideal"] for run in receipt["runs"]}) != 1:
        faults.append("runs are judged by different texts")
    return faults


def test_the_receipt_of_the_sweep_is_whole_and_equal_in_cost():
    receipt = read_json(isoflop.RECEIPT, "runs")
    assert faults_of_valleys(receipt) == []
    for key, value in dict(tokens=10**8, params=1, loss=0.1, muon_lr=1.0, budget=1.0).items():
        run = receipt["runs"][3] | {key: value}
        spoiled = receipt | dict(runs=receipt["runs"][:3] + [run] + receipt["runs"][4:])
        assert faults_of_valleys(spoiled), key
    assert faults_of_valleys(receipt | dict(runs=receipt["runs"][1:]))


def test_the_bottom_of_no_valley_is_at_an_edge():
    receipt = read_json(isoflop.RECEIPT, "runs")
    for budget, widths in SWEEP.widths.items():
        at = {w: [] for w in widths}
        for run in receipt["runs"]:
            if run["budget"] == budget:
                at[run["width"]].append(run["loss"])
        best = min(at, key=lambda width: np.mean(at[width]))
        assert best not in (widths[0], widths[-1]), budget


def made_up_texts():
    sources = dict(web=made_up_documents("edu"), mathematics=made_up_documents("math"))
    return prepare_texts(sources, PROBLEMS, TINY_MIX)


def test_no_run_learns_from_a_document_that_it_is_asked_about():
    texts = made_up_texts()
    for name, ids in texts.ids.items():
        learned = texts.tokenizer.decode(ids)
        assert texts.unseen[name]
        assert not any(document in learned for document in texts.unseen[name])


def test_a_source_that_is_too_short_is_refused():
    few = [text for text, _ in zip(made_up_documents("math"), range(3))]
    sources = dict(web=made_up_documents("edu"), mathematics=few)
    with pytest.raises(GpubError, match="mathematics has .* tokens, .* are needed"):
        prepare_texts(sources, PROBLEMS, TINY_MIX)


def test_a_mix_is_trained_once_and_reads_its_share(tmp_path, monkeypatch):
    texts, file = made_up_texts(), tmp_path / "mixing.json"
    receipt = measure_mixing(texts, file, TINY_MIX)
    assert faults_of_mixing(receipt, TINY_MIX) == []
    assert len({run["bits"]["web"] for run in receipt["runs"]}) == 2
    monkeypatch.setattr(mixing, "train_mix", None)  # not called again
    assert measure_mixing(texts, file, TINY_MIX) == receipt


def test_one_of_four_numbers_is_the_result_of_a_sum():
    for item in ask_sums(PROBLEMS, 10):
        (right,) = item.right
        left, _ = item.context.split("+")
        assert int(item.choices[right]) == int(left) + 7 and len(set(item.choices)) == 4


def faults_of_mixing(receipt: dict, experiment: Experiment) -> list[str]:
    "What is wrong with a receipt of mixes"
    faults = []
    planned_runs = {(s, n) for s in experiment.shares for n in experiment.seeds}
    if Counter((r["share"], r["seed"]) for r in receipt["runs"]) != Counter(planned_runs):
        faults.append("other runs than planned")
    length = receipt["context_length"]
    for run in receipt["runs"]:
        name = f"{run['share']:.0%} seed {run['seed']}"
        web, mathematics = (*run["windows"], 0)[:2]
        if (web + mathematics) * length != run["tokens"]:
            faults.append(f"{name}: windows and tokens differ")
        if abs(mathematics - run["share"] * (web + mathematics)) > 1:
            faults.append(f"{name}: another share")
        at_hand = receipt["tokens_at_hand"]
        if web * length >= at_hand["web"] or mathematics * length >= at_hand["mathematics"]:
            faults.append(f"{name}: reads a window twice")
        if not all(0 < bits < 16 for bits in run["bits"].values()):
            faults.append(f"{name}: no bits per byte")
    if len({(r["params"], r["tokens"]) for r in receipt["runs"]}) != 1:
        faults.append("models or lengths differ")
    return faults


def test_the_receipt_of_the_mixes_is_whole_and_its_shares_are_right():
    receipt = read_json(mixing.RECEIPT, "runs")
    assert faults_of_mixing(receipt, Experiment()) == []
    for key, value in dict(windows=[1, 1], tokens=1, share=0.5, bits=dict(web=0.0)).items():
        run = receipt["runs"][1] | {key: value}
        spoiled = receipt | dict(runs=[receipt["runs"][0], run, *receipt["runs"][2:]])
        assert faults_of_mixing(spoiled, Experiment()), key


TINY_FAULTS = Rehearsal(
    width=16,
    vocab_size=300,
    steps=3,
    batch_tokens=512,
    held_out=20_000,
    questions=8,
    context=60,
    answer=10,
    gate=2,
)


def faults_of_rehearsal(receipt: dict) -> list[str]:
    "What is wrong with a receipt of planted faults"
    faults, examined = [], receipt["examined"]
    if [*examined] != [*planted_names()]:
        faults.append("other faults than the tool plants")
    sound = examined["nothing"]
    if sound["nats_apart"] != 0:
        faults.append("the sound model answers otherwise than itself")
    if abs(sound["gate"] - receipt["training_loss"]) > 1e-3:
        faults.append("the sound model does not pass the gate")
    for name, row in examined.items():
        if name != "nothing" and row["nats_apart"] == 0:
            faults.append(f"{name} changed nothing")
        if row["acc"] != sound["acc"] and not row["moved_error"] > 0:
            faults.append(f"{name} moved the score, and no question")
    return faults


def planted_names() -> list[str]:
    return ["nothing", "rotary layout", "a token added", "targets shifted", "asked as a chat"]


def test_every_fault_is_planted_in_the_same_weights(tmp_path):
    file = tmp_path / "faults.json"
    receipt = rehearse_faults(made_up_documents("edu"), file, TINY_FAULTS)
    assert read_json(file, "examined") == receipt
    assert faults_of_rehearsal(receipt) == []
    examined = receipt["examined"]
    # tokens are asked about at the gate: a tokenizer and a prompt cannot be seen there
    for name in ("a token added", "asked as a chat"):
        assert examined[name]["gate"] == pytest.approx(examined["nothing"]["gate"], abs=1e-6)
    assert abs(examined["targets shifted"]["gate"] - examined["nothing"]["gate"]) > 1e-5
    assert examined["rotary layout"]["bits"] != examined["nothing"]["bits"]
    assert len(receipt["batch_losses"]) == TINY_FAULTS.steps


def test_a_text_that_is_too_short_for_a_rehearsal_is_refused(tmp_path):
    few = [text for text, _ in zip(made_up_documents("edu"), range(2))]
    with pytest.raises(GpubError, match="too little text"):
        rehearse_faults(few, tmp_path / "faults.json", TINY_FAULTS)


def test_a_continuation_is_the_text_that_follows_and_the_others_are_not():
    documents = [text for text, _ in zip(made_up_documents("edu"), range(12))]
    plain = [" ".join(document.split()) for document in documents]
    asked = continuations(documents, TINY_FAULTS)
    assert len(asked) == TINY_FAULTS.questions
    for item in asked:
        (right,) = item.right
        follows = [f"{item.context} {choice}" for choice in item.choices]
        (own,) = [text for text in plain if follows[right] in text]
        assert len(item.choices) == 4 and item.context in own


def test_the_tokenizer_that_adds_a_token_adds_one():
    tokenizer = made_up_texts().tokenizer
    ids = [*tokenizer.encode("a plain text")]
    assert [*AddsToken(tokenizer).encode("a plain text")] == [*ids, tokenizer.end]
    assert [len(x) for x in AddsToken(tokenizer).encode_batch(["a plain text"])] == [len(ids) + 1]


@pytest.mark.parametrize("file", [planted_faults.RECEIPT, planted_faults.WIDER_RECEIPT])
def test_the_receipt_of_the_planted_faults_is_whole(file):
    receipt = read_json(file, "examined")
    assert faults_of_rehearsal(receipt) == []
    assert receipt["questions"] == Rehearsal().questions and len(receipt["batch_losses"]) == 50
    answers = receipt["answers"]
    assert [*answers] == planted_names()
    assert {len(nats) for nats in answers.values()} == {4 * Rehearsal().filed}
    for name, change in dict(
        nothing=dict(gate=0.0),
        **{"a token added": dict(nats_apart=0), "asked as a chat": dict(moved_error=0.0)},
    ).items():
        rows = receipt["examined"] | {name: receipt["examined"][name] | change}
        assert faults_of_rehearsal(receipt | dict(examined=rows)), name


def test_published_bits_and_scores_have_a_source_each(root):
    filed = read_json(root / "data/published/bits.json", "models", "gpt2_tokens")
    for row in filed["models"]:
        assert row["url"].startswith("https://") and row["text"] in ("FineWeb", "FineWeb-Edu")
        assert ("loss_nats" in row) != ("bits_per_byte" in row)
        assert ("hellaswag" in row) != ("hellaswag_centered" in row)
    counted = filed["gpt2_tokens"]
    assert 4.5 < counted["bytes"] / counted["tokens"] < 4.8


SHORT = llama_parts.Experiment(
    models=(1, 2), lengths=(1, 3), seeds=(0, 1), other_peaks=(4e-3,), held_out=2_000
)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    file = tmp_path_factory.mktemp("parts") / "llama_parts.json"
    return file, llama_parts.measure_parts(file, SHORT)


def test_the_parts_of_a_llama_are_trained_once_for_each_length_and_seed(parts):
    file, receipt = parts
    told = [(run["n"], run["length"], run["seed"], run["peak"]) for run in receipt["runs"]]
    at_the_pages = [(n, t, seed, 8e-3) for n in (1, 2) for t in (1, 3) for seed in (0, 1)]
    assert told == at_the_pages + [(n, 1, seed, 4e-3) for n in (1, 2) for seed in (0, 1)]
    assert len({run["loss"] for run in receipt["runs"]}) == 12
    assert receipt["characters_a_step"] == 16 * 128


def test_parts_on_file_are_not_trained_again(parts, tmp_path, monkeypatch):
    _, receipt = parts
    file = tmp_path / "llama_parts.json"
    file.write_text(json.dumps(receipt | dict(runs=receipt["runs"][:-1])))
    again = llama_parts.measure_parts(file, SHORT)
    assert [run["loss"] for run in again["runs"]] == [run["loss"] for run in receipt["runs"]]
    monkeypatch.setattr(llama_parts, "train_one", None)  # not called again
    assert llama_parts.measure_parts(file, SHORT) == again
    file.write_text(json.dumps(again | dict(text="another text")))
    with pytest.raises(GpubError, match="another text"):
        llama_parts.measure_parts(file, SHORT)


def test_models_with_one_seed_read_the_same_windows_and_never_the_held_out_text():
    texts = llama_parts.make_texts(SHORT)
    first, again, other = (llama_parts.batch_of(texts.train, 5, seed) for seed in (0, 0, 1))
    assert first.equal(again) and not first.equal(other)
    assert first.shape == (llama_parts.ROWS, llama_parts.WINDOW + 1)
    whole = load_shakespeare().text
    assert len(texts.train) == int(0.9 * len(whole))
    assert len(texts.held_out) == 2_000 // 128 * 128 + 1


def test_the_receipt_of_the_parts_has_every_planned_run():
    receipt = read_json(llama_parts.RECEIPT, "runs")
    told = [(run["n"], run["length"], run["seed"], run["peak"]) for run in receipt["runs"]]
    assert told == [*llama_parts.planned(llama_parts.Experiment())]
    assert receipt["text"] == "tiny shakespeare"
