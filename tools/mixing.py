"""What does a share of mathematics in web text cost, and what does it buy? Four shares, three seeds
each, the same model and as many tokens.

GPUB_DATA=folder python tools/mixing.py     about ten minutes of one quiet core; goes on after
                                            the last whole run

writes data/mixing.json: bits per byte of documents that no run has read, and sums. The folder holds
edu.jsonl.zst (web text), math.jsonl.zst and eval/gsm8k_test.jsonl. Runs of one seed begin with the
same weights and read the same windows of a source in the same order, so two shares can be compared
seed by seed. No window is read twice."""

import json
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpub.core import GpubError, read_json, write_atomic
from gpub.data.batches import Batches
from gpub.data.bpe import BPETokenizer
from gpub.device import machine, seed_everything, use_threads
from gpub.evals.adapter import adapter, ask_lm_eval
from gpub.evals.scores import outcomes, shuffle
from gpub.evals.scoring import bits_by_source
from gpub.evals.tasks import Item, random_subset
from gpub.files import data_dirs
from gpub.model.counts import parameter_anatomy
from gpub.model.llama import Llama, LlamaConfig
from gpub.plans.ladder import CTX, ladder_rates, proxy_config
from gpub.prep.practice import corpus_file, stored_documents
from gpub.train.config import TrainConfig
from gpub.train.loop import train_next_token

RECEIPT = Path(__file__).resolve().parents[1] / "data/mixing.json"
PROBLEMS = "eval/gsm8k_test.jsonl"
RUN = "share", "seed"  # what tells two runs apart


@dataclass(frozen=True)
class Experiment:
    "Shares to try, and the size of everything"

    shares: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2)  # of the tokens, mathematics
    seeds: tuple[int, ...] = (0, 1, 2)  # of the weights and of the order of windows
    width: int = 64
    vocab_size: int = 1024
    steps: int = 300
    batch_tokens: int = 2048
    held_out: int = 300_000  # characters of each source that no run reads
    problems: int = 300  # of GSM8K, read for their bits
    sums: int = 600  # taken from those problems' answers


@dataclass(frozen=True)
class Texts:
    "What runs learn from, and what they are asked about"

    tokenizer: BPETokenizer  # learned from as much of both sources
    ids: Mapping[str, np.ndarray]  # of a source -> tokens to learn from
    unseen: Mapping[str, list[str]]  # of a source -> documents that no run reads
    sums: Sequence[Item]


def take(
    texts: Iterable[str],  # an iterator is moved on
    characters: int,  # at least
) -> list[str]:
    "The next documents, until they are so long"
    taken, size = [], 0
    for text in texts:
        taken.append(text)
        size += len(text)
        if size >= characters:
            break
    return taken


def ask_sums(
    problems: Iterable[dict],  # of GSM8K; their answers hold <<3*4=12>>
    sums: int,
) -> list[Item]:
    "Which of four numbers is the result? The other three are near it"
    rng = np.random.default_rng(0)
    asked = []
    for i, problem in enumerate(problems):
        for left, result in re.findall(r"<<([0-9+*/-]+)=([0-9]+)>>", problem["answer"]):
            steps = rng.permutation([-10, -2, -1, 1, 2, 10])[:3]
            near = {abs(int(result) + int(step)) for step in steps}
            choices = tuple(map(str, sorted({int(result)} | near)))
            if len(choices) == 4:
                right = (choices.index(result),)
                asked.append(Item(f"gsm8k:{i}", f"{left} =", choices, right))
    return random_subset(asked, sums)


def _tokens(tokenizer: BPETokenizer, documents: list[str]) -> np.ndarray:
    "Documents one after the other, each followed by the end token"
    encoded = tokenizer.encode_batch(documents)
    parts = [part for ids in encoded for part in (ids, [tokenizer.end])]
    return np.concatenate([[], *parts]).astype(np.int64)


def prepare_texts(
    sources: Mapping[str, Iterable[str]],  # "web" and "mathematics" -> documents
    problems: Sequence[dict],  # of GSM8K's test
    experiment: Experiment,
) -> Texts:
    """Set documents aside and encode as many others as the largest share needs; raises `GpubError`
    when a source is too short for that"""
    mixed = {name: max(experiment.shares) for name in sources} | dict(web=1.0)
    tokens = experiment.steps * experiment.batch_tokens + CTX + 1
    unseen, learned = {}, {}
    for name, documents in sources.items():
        documents = iter(documents)
        unseen[name] = take(documents, experiment.held_out)
        # a token of this vocabulary holds fewer than four characters of these texts
        learned[name] = take(documents, int(4 * mixed[name] * tokens))
    share = min(len("".join(texts)) for texts in learned.values())
    sample = [text for texts in learned.values() for text in take(texts, share)]
    tokenizer = BPETokenizer.train(sample, experiment.vocab_size)
    ids = {name: _tokens(tokenizer, texts) for name, texts in learned.items()}
    for name, some in ids.items():
        needs = math.ceil(mixed[name] * tokens)
        if len(some) < needs:
            raise GpubError(f"{name} has {len(some):,} tokens, {needs:,} are needed")
    unseen["GSM8K problems"] = [p["question"] for p in problems[: experiment.problems]]
    return Texts(tokenizer, ids, unseen, ask_sums(problems, experiment.sums))


def _batches(texts: Texts, share: float, seed: int, experiment: Experiment) -> Batches:
    "Windows of the sources in their shares"
    weights = {"web": 1 - share} | ({"mathematics": share} if share > 0 else {})
    rows = experiment.batch_tokens // CTX
    ids = {name: texts.ids[name] for name in weights}
    return Batches(ids, context_length=CTX, batch=rows, seed=seed, weights=weights)


def _right(model: Llama, texts: Texts, asked: Sequence[Item]) -> float:
    "The share of sums whose result the model finds likeliest"
    answers = ask_lm_eval(adapter(model, texts.tokenizer), {"sums": (asked, "choice")})["sums"]
    return float(outcomes(asked, answers)["acc"].mean())


def train_mix(texts: Texts, share: float, seed: int, experiment: Experiment) -> dict:
    "Train one model on one mix, and ask it: a row of the receipt"
    began = time.process_time()
    seed_everything(seed)
    shape = proxy_config(experiment.width)
    model = Llama(LlamaConfig(vocab_size=texts.tokenizer.vocab_size, **shape))
    batches = _batches(texts, share, seed, experiment)
    recipe = TrainConfig(
        steps=experiment.steps,
        batch_tokens=experiment.batch_tokens,
        compile="no",
        precision="fp32",
        **ladder_rates(experiment.width),
    )
    for step in train_next_token(model, lambda n, length: batches[n], recipe):
        last = float(step.loss)
    model.eval()
    return dict(
        share=share,
        seed=seed,
        params=parameter_anatomy(model.cfg).params,
        tokens=experiment.steps * experiment.batch_tokens,
        windows=batches.mixture.windows_per_source(
            experiment.steps * experiment.batch_tokens // CTX
        ),
        train_loss=last,
        bits=bits_by_source(model, texts.tokenizer, dict(texts.unseen)),
        right=_right(model, texts, texts.sums),
        right_shuffled=_right(model, texts, shuffle(texts.sums)),
        cpu=round(time.process_time() - began, 1),
    )


def measure_mixing(
    texts: Texts,
    file: Path = RECEIPT,  # of the receipt; runs that it has are not trained again
    experiment: Experiment = Experiment(),
) -> dict:  # the receipt
    "Train what the receipt lacks, and write it after each run"
    use_threads(1)
    runs = read_json(file, "runs")["runs"] if file.exists() else []
    have = {tuple(run[key] for key in RUN) for run in runs}
    for seed in experiment.seeds:
        for share in experiment.shares:
            if (share, seed) in have:
                continue
            runs.append(train_mix(texts, share, seed, experiment))
            receipt = dict(
                command="python tools/mixing.py",
                steps=experiment.steps,
                batch_tokens=experiment.batch_tokens,
                context_length=CTX,
                width=experiment.width,
                vocab_size=texts.tokenizer.vocab_size,
                rates=ladder_rates(experiment.width),
                tokens_at_hand={name: len(ids) for name, ids in texts.ids.items()},
                documents_unseen={name: len(t) for name, t in texts.unseen.items()},
                sums=len(texts.sums),
                machine=machine("cpu"),
                runs=runs,
            )
            write_atomic(file, json.dumps(receipt, indent=1) + "\n")
            bits = {name: round(x, 4) for name, x in runs[-1]["bits"].items()}
            print(f"{share:.0%} mathematics, seed {seed}: {bits}", flush=True)
    return read_json(file, "runs")


def main() -> None:
    if missing := [name for name in ("edu", "math") if corpus_file(name) is None]:
        raise GpubError(f"$GPUB_DATA has no corpus {', '.join(missing)}")
    problems = next((d / PROBLEMS for d in data_dirs() if (d / PROBLEMS).is_file()), None)
    if problems is None:
        raise GpubError(f"$GPUB_DATA has no {PROBLEMS}")
    sources = dict(web=stored_documents("edu"), mathematics=stored_documents("math"))
    lines = problems.read_text(encoding="utf-8").splitlines()
    experiment = Experiment()
    texts = prepare_texts(sources, [json.loads(line) for line in lines], experiment)
    measure_mixing(texts, experiment=experiment)


if __name__ == "__main__":
    main()
