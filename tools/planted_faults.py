"""A good loss beside a bad score: which faults make that, and which question finds each?

GPUB_DATA=folder python -m tools.planted_faults     two or three minutes of one quiet core each

writes data/planted_faults.json and planted_faults_wider.json, whichever is not there: the second is
of a wider model from another seed. One small Llama is trained on web text and asked how held-out
texts go on: four continuations, one of them the real one. Then it is asked again with one fault
planted: its rotary layout changed as an export may change it, a tokenizer that adds a token, a
harness that scores the next target, an option of the harness that puts every question as a chat.
Each time four instruments of season 2's third chapter are read. The weights are the same
throughout, so a change comes from the fault alone. The losses of single training batches are filed
as well: what a run reports when it has no validation loss."""

import copy
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpub.core import GpubError, write_atomic
from gpub.data.batches import Batches
from gpub.data.bpe import BPETokenizer
from gpub.device import machine, seed_everything, use_threads
from gpub.evals.adapter import adapter, ask_lm_eval, pair_scores
from gpub.evals.scores import outcomes, shuffle, unigram
from gpub.evals.scoring import bits_by_source
from gpub.evals.tasks import Item
from gpub.model.counts import parameter_anatomy
from gpub.model.llama import Llama, LlamaConfig
from gpub.plans.ladder import CTX, ladder_rates, proxy_config
from gpub.prep.practice import corpus_file, stored_documents
from gpub.train.config import TrainConfig
from gpub.train.loop import evaluate, train_next_token
from tools.mixing import take

DATA = Path(__file__).resolve().parents[1] / "data"
RECEIPT = DATA / "planted_faults.json"
WIDER_RECEIPT = DATA / "planted_faults_wider.json"


@dataclass(frozen=True)
class Rehearsal:
    "The size of everything"

    width: int = 96
    vocab_size: int = 1024
    steps: int = 300
    batch_tokens: int = 2048
    held_out: int = 150_000  # characters that the model does not read
    questions: int = 250
    context: int = 220  # characters of a question, at least
    answer: int = 40  # of a continuation, at least
    gate: int = 32  # windows for the loss through the harness
    filed: int = 10  # questions whose answers are filed with their nats
    seed: int = 0


WIDER = Rehearsal(width=128, seed=1)


@dataclass(frozen=True)
class Export:
    "A model as somebody examines it: weights, tokenizer, harness, and how questions are put"

    model: Llama
    tokenizer: Any
    wrap: Callable[[Any], Any] = lambda lm: lm
    put: Callable[[Item], Item] = lambda item: item


class AddsToken:
    "A tokenizer that ends every text, as one may after an export"

    def __init__(self, tokenizer: BPETokenizer):
        self.inner = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def encode(self, text: str) -> np.ndarray:
        return np.append(self.inner.encode(text), self.inner.end)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self.encode(text) for text in texts]


def shift_targets(lm: Any) -> Any:
    "The harness, scoring the token after the one it should"
    right = lm._loglikelihood_tokens

    def shifted(requests: list, **kw: Any) -> list:
        moved = [(text, c + a[:1], a[1:] + a[:1]) for text, c, a in requests]
        return right(moved, **kw)

    lm._loglikelihood_tokens = shifted
    return lm


def swap_rotary_layout(model: Llama) -> Llama:
    "The weights for neighbouring pairs, in a model that turns halves"
    swapped = copy.deepcopy(model)
    size = model.cfg.head_size
    order = torch.arange(size).view(2, -1).T.flatten()
    turned = (model.cfg.n_heads + model.cfg.n_kv_heads) * size  # rows of queries and keys
    for name, weight in swapped.named_parameters():
        if name.endswith("qkv.weight"):
            heads = weight.data[:turned].view(-1, size, weight.size(1))
            weight.data[:turned] = heads[:, order].flatten(0, 1)
    return swapped


def put_as_chat(item: Item) -> Item:
    "The question between the marks of a chat that the model has never seen"
    return Item(item.id, f"User: {item.context}\nAssistant:", item.choices, item.right)


def planted(model: Llama, tokenizer: BPETokenizer) -> dict[str, Export]:
    "What is examined: nothing wrong, then one fault at a time"
    return {
        "nothing": Export(model, tokenizer),
        "rotary layout": Export(swap_rotary_layout(model), tokenizer),
        "a token added": Export(model, AddsToken(tokenizer)),
        "targets shifted": Export(model, tokenizer, wrap=shift_targets),
        "asked as a chat": Export(model, tokenizer, put=put_as_chat),
    }


def continuations(documents: Iterable[str], setup: Rehearsal) -> list[Item]:
    "How does this text go on? Four endings, three of them of other documents"
    cuts = []  # document, context, what follows
    for number, document in enumerate(documents):
        text = " ".join(document.split())
        start = 0
        while True:
            begin = text.find(" ", start + setup.context)
            end = text.find(" ", begin + 1 + setup.answer)
            if not 0 < begin < end:
                break
            cuts.append((number, text[start:begin], text[begin + 1 : end]))
            start = end + 1
    rng = np.random.default_rng(0)
    asked = []
    for i in rng.permutation(len(cuts))[: setup.questions]:
        number, context, answer = cuts[i]
        elsewhere = [k for k, cut in enumerate(cuts) if cut[0] != number]
        choices = [cuts[k][2] for k in rng.permutation(elsewhere)[:3]]
        right = int(rng.integers(4))
        choices.insert(right, answer)
        asked.append(Item(f"web:{i}", context, tuple(choices), (right,)))
    return asked


def encoded(tokenizer: BPETokenizer, documents: Sequence[str]) -> np.ndarray:
    "Documents one after the other, each followed by the end token"
    parts = [part for ids in tokenizer.encode_batch(documents) for part in (ids, [tokenizer.end])]
    return np.concatenate(parts).astype(np.int64)


def train_checkpoint(
    ids: np.ndarray, tokenizer: BPETokenizer, setup: Rehearsal
) -> tuple[Llama, list[float]]:  # the model, and the loss of every batch
    "Train the checkpoint that all faults are planted in"
    seed_everything(setup.seed)
    shape = proxy_config(setup.width)
    model = Llama(LlamaConfig(vocab_size=tokenizer.vocab_size, **shape))
    rows = setup.batch_tokens // CTX
    batches = Batches(dict(web=ids), context_length=CTX, batch=rows, seed=setup.seed)
    recipe = TrainConfig(
        steps=setup.steps,
        batch_tokens=setup.batch_tokens,
        compile="no",
        precision="fp32",
        **ladder_rates(setup.width),
    )
    steps = train_next_token(model, lambda n, length: batches[n], recipe)
    losses = [float(step.loss) for step in steps]
    return model.eval(), losses


def likelihoods_of(export: Export, asked: Sequence[Item]) -> list:
    "The harness's answers to questions, put as this export puts them"
    lm = export.wrap(adapter(export.model, export.tokenizer))
    return ask_lm_eval(lm, {"web": ([export.put(item) for item in asked], "choice")})["web"]


def nats_of(export: Export, asked: Sequence[Item]) -> list[float]:
    "What an export gives every answer to these questions, one after the other"
    return [round(nats, 3) for pairs in likelihoods_of(export, asked) for nats, _ in pairs]


def gate_of(export: Export, ids: np.ndarray) -> float:
    "Nats a token through the harness, as Idea 2 measures them"
    lm = export.wrap(adapter(export.model, export.tokenizer))
    starts = range(0, len(ids) - 1, CTX)
    windows = [(ids[i : i + 1].tolist(), ids[i + 1 : i + CTX + 1].tolist()) for i in starts]
    return -sum(nats for nats, _ in pair_scores(lm, windows)) / (len(ids) - 1)


def examine(
    export: Export, asked: Sequence[Item], sound: list, gate: np.ndarray, documents: list[str]
) -> dict:
    "Read every instrument: a row of the receipt"
    answers = likelihoods_of(export, asked)
    right = outcomes(asked, answers)["acc"]
    pairs = [(a, b) for one, other in zip(answers, sound) for (a, _), (b, _) in zip(one, other)]
    lone = outcomes(asked, likelihoods_of(export, shuffle(asked)))["acc"]
    gained, moved = right - lone, right - outcomes(asked, sound)["acc"]
    return dict(
        acc=float(right.mean()),
        # of what the fault did to the score, question by question
        moved_error=float(moved.std(ddof=1) / math.sqrt(len(moved))),
        shuffled=float(lone.mean()),
        # of the difference, question by question
        shuffled_error=float(gained.std(ddof=1) / math.sqrt(len(gained))),
        nats_apart=float(np.mean([abs(a - b) for a, b in pairs])),
        gate=gate_of(export, gate),
        bits=bits_by_source(export.model, export.tokenizer, dict(web=documents))["web"],
    )


def rehearse_faults(
    documents: Iterable[str],
    file: Path = RECEIPT,
    setup: Rehearsal = Rehearsal(),
) -> dict:  # the receipt
    "Train, plant, examine, and write the receipt; raises `GpubError` for too little text"
    use_threads(1)
    began = time.process_time()
    documents = iter(documents)
    unseen = take(documents, setup.held_out)
    tokens = setup.steps * setup.batch_tokens + CTX + 1
    learned = take(documents, 4 * tokens)
    asked = continuations(unseen, setup)
    characters = sum(map(len, learned))
    if characters < 4 * tokens or len(asked) < setup.questions:
        raise GpubError(f"too little text: {characters:,} characters, {len(asked)} questions")
    tokenizer = BPETokenizer.train(learned, setup.vocab_size)
    ids = encoded(tokenizer, learned)
    model, losses = train_checkpoint(ids, tokenizer, setup)
    held = encoded(tokenizer, unseen)
    gate = held[: setup.gate * CTX + 1]
    sound = likelihoods_of(Export(model, tokenizer), asked)
    faults = planted(model, tokenizer)
    count = np.bincount(ids, minlength=tokenizer.vocab_size)
    by_count = outcomes(asked, unigram(asked, tokenizer.encode, count))["acc"]
    receipt = dict(
        command="python -m tools.planted_faults",
        seed=setup.seed,
        params=parameter_anatomy(model.cfg).params,
        tokens=setup.steps * setup.batch_tokens,
        batch_tokens=setup.batch_tokens,
        questions=len(asked),
        gate_tokens=len(gate) - 1,
        training_loss=evaluate(model, gate, CTX),  # of the gate's tokens
        held_out_loss=evaluate(model, held, CTX),
        bytes_per_token=sum(len(text.encode()) for text in unseen) / (len(held) - len(unseen)),
        batch_losses=losses[-50:],
        unigram=float(by_count.mean()),
        examined={
            name: examine(export, asked, sound, gate, unseen) for name, export in faults.items()
        },
        answers={name: nats_of(export, asked[: setup.filed]) for name, export in faults.items()},
        cpu=round(time.process_time() - began, 1),
        machine=machine("cpu"),
    )
    write_atomic(file, json.dumps(receipt, indent=1) + "\n")
    for name, row in receipt["examined"].items():
        print(name, {key: round(value, 4) for key, value in row.items()}, flush=True)
    return receipt


def main() -> None:
    if corpus_file("edu") is None:
        raise GpubError("$GPUB_DATA has no corpus edu")
    for file, setup in ((RECEIPT, Rehearsal()), (WIDER_RECEIPT, WIDER)):
        if not file.exists():
            rehearse_faults(stored_documents("edu"), file, setup)


if __name__ == "__main__":
    main()
