"""One small model, nine learning rates: the curves behind the slider of `learning_rate_slider`.

GPUB_DATA=folder python tools/learning_rates.py     about two minutes of one quiet core

writes data/learning_rates.json."""

import json
from pathlib import Path

import numpy as np

from gpub.data.batches import Batches
from gpub.data.char import CharTokenizer
from gpub.data.text import load_shakespeare
from gpub.device import machine, seed_everything, use_threads
from gpub.model.gpt import GPT, GPTConfig, count_params
from gpub.model.probes import sample_ids
from gpub.train.config import TrainConfig
from gpub.train.loop import train_next_token

RECEIPT = Path(__file__).resolve().parent.parent / "data/learning_rates.json"
RATES = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
STEPS = 200
ROWS = 32  # windows a step
SHAPE = dict(context_length=64, d_model=48, n_layers=2, n_heads=4)
RECIPE = dict(
    steps=STEPS,
    batch_tokens=ROWS * SHAPE["context_length"],
    optimizer="adamw",
    schedule="constant",
    warmup=0,
)


def curve(model, batches, rate):
    "The training loss after every step, and its mean over the last tenth"
    cfg = TrainConfig(lr=rate, **RECIPE)
    losses = [
        float(step.loss) for step in train_next_token(model, lambda n, length: batches[n], cfg)
    ]
    return losses, float(np.mean(losses[-STEPS // 10 :]))


def points(losses, every=4):
    "A curve in few points, each the mean of those around it"
    steps = range(0, len(losses), every)
    means = [np.mean(losses[max(0, i - 2) : i + 3]) for i in steps]
    return [[i + 1, round(float(x), 3)] for i, x in zip(steps, means)]


def main():
    text = load_shakespeare()
    assert text.source == "tiny shakespeare", text.note
    tok = CharTokenizer.from_text(text.text)
    ids = tok.encode(text.text[: int(0.9 * len(text.text))])
    cfg = GPTConfig(vocab_size=tok.vocab_size, **SHAPE)
    runs = []
    for rate in RATES:
        seed_everything(0)
        model = GPT(cfg)
        batches = Batches(ids, context_length=cfg.context_length, batch=ROWS)
        losses, last = curve(model, batches, rate)
        written = sample_ids(model.eval(), tok.encode("ROMEO:\n"), 120, temperature=0.8)
        run = dict(rate=rate, loss=round(last, 3), text=tok.decode(written), curve=points(losses))
        runs.append(run)
        print(f"{rate:g}: {last:.3f}")
    receipt = dict(
        command="python tools/learning_rates.py",
        parameters=count_params(cfg),
        recipe=RECIPE,
        machine=machine(),
        runs=runs,
    )
    RECEIPT.write_text(json.dumps(receipt, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    use_threads(1)
    main()
