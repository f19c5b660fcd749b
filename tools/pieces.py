"""Letters, pieces, pieces with a page of junk, pieces cleaned again: chapter 2's four short
trainings with three seeds each, so that a reader can see how much chance alone changes.

GPUB_DATA=folder python tools/pieces.py     about ten minutes of one quiet core

writes data/pieces.json. A seed decides both the first weights and the order of the windows."""

import json
from pathlib import Path

import torch

from gpub.data.batches import Batches
from gpub.data.bpe import BPETokenizer
from gpub.data.char import CharTokenizer
from gpub.data.text import load_shakespeare
from gpub.device import machine, seed_everything, use_threads
from gpub.model.gpt import GPT, GPTConfig, count_params
from gpub.prep.clean import clean
from gpub.prep.sources import cut_pieces
from gpub.train.config import TrainConfig
from gpub.train.loop import evaluate, train_next_token

RECEIPT = Path(__file__).resolve().parent.parent / "data/pieces.json"
SEEDS = (0, 1, 2)
STEPS = 300
BATCH_TOKENS = 2048
SHAPE = dict(d_model=128, n_layers=2, n_heads=4)
ALIKE = 0.8  # documents that share more of their words are copies
PAGE = """Home | Plays | Tickets | Contact | Privacy and cookies
The theatre cafÃ© is open until the play begins.
Romeo and Juliet ................................ 7
Buy now! Read more...
Home | Plays | Tickets | Contact | Privacy and cookies
"""
VISITS = [f"{PAGE}Last visit: day {day}\n\n" for day in range(1, 1000)]


def similarity(a, b):
    "Words in common over all words of two sets"
    return len(a & b) / len(a | b)


def without_copies(documents):
    "The documents, cleaned, without those that are nearly one kept before"
    kept, bags = [], []
    for document in documents:
        good, _ = clean(document)
        if good is None:
            continue
        bag = set(good.split())
        if not any(similarity(bag, other) > ALIKE for other in bags):
            kept.append(good)
            bags.append(bag)
    return kept


def loss_per_letter(model, tokenizer, text):
    "Nats per letter over a text"
    ids = torch.tensor(tokenizer.encode(text).tolist())
    per_token = evaluate(model, ids, model.cfg.context_length)
    return per_token * (len(ids) - 1) / len(text)


def trained(tokenizer, context, ids, seed):
    "A model of chapter 1's shape after a short training on these ids"
    seed_everything(seed)
    cfg = GPTConfig(vocab_size=tokenizer.vocab_size, context_length=context, **SHAPE)
    model = GPT(cfg)
    batches = Batches(ids, context_length=context, batch=BATCH_TOKENS // context, seed=seed)
    plan = TrainConfig(steps=STEPS, batch_tokens=BATCH_TOKENS, compile="no", seed=seed)
    for _ in train_next_token(model, lambda n, length: batches[n], plan):
        pass
    return model


def main():
    text = load_shakespeare()
    assert text.source == "tiny shakespeare", text.note
    cut = int(0.9 * len(text.text))
    seen, unseen = text.text[:cut], text.text[cut:]
    letters = CharTokenizer.from_text(text.text)
    bpe = BPETokenizer.train([seen], 512, specials=())
    plays = cut_pieces(seen, 2000)
    raw = [document for pair in zip(plays, VISITS) for document in pair]
    setups = {
        "letters": (letters, 256, seen),
        "pieces": (bpe, 128, seen),
        "with junk": (bpe, 128, "".join(raw)),
        "cleaned": (bpe, 128, "".join(without_copies(raw))),
    }
    runs = {}
    for name, (tokenizer, context, read) in setups.items():
        ids = tokenizer.encode(read)
        losses = []
        for seed in SEEDS:
            model = trained(tokenizer, context, ids, seed)
            on = {"unseen": unseen, "page": VISITS[-1]}
            if name == "letters":
                del on["page"]  # its vocabulary has no |
            loss = {key: round(loss_per_letter(model, tokenizer, t), 4) for key, t in on.items()}
            losses.append(dict(seed=seed, **loss))
            print(name, losses[-1], flush=True)
        runs[name] = dict(tokens=len(ids), parameters=count_params(model.cfg), losses=losses)
    receipt = dict(
        command="python tools/pieces.py",
        steps=STEPS,
        batch_tokens=BATCH_TOKENS,
        unit="nats per letter",
        machine=machine(),
        runs=runs,
    )
    RECEIPT.write_text(json.dumps(receipt, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    use_threads(1)
    main()
