"""Chapter 1's model trained by AdamW alone: what the second optimizer of its page is worth.

GPUB_DATA=folder python tools/adamw_alone.py     about four minutes of one quiet core

writes data/adamw_alone.json. Same model, same windows as on the page, in batches of half the size;
of the rates 0.002, 0.004 and 0.008 the second had the lowest loss after the first reading."""

import json
import time
from pathlib import Path

import torch
from torch.nn import functional as F

from gpub.data.char import CharTokenizer
from gpub.data.text import load_shakespeare
from gpub.device import machine, seed_everything, use_threads
from gpub.model.first_gpt import FirstGPT

RECEIPT = Path(__file__).resolve().parent.parent / "data/adamw_alone.json"
SHAPE = dict(context_length=256, d_model=128, n_layers=2, n_heads=4)
RECIPE = dict(epochs=4, batch_size=8, rate=0.004, warm_up=100, betas=(0.9, 0.99))


def get_batches(ids, batch_size, seed):
    "One epoch: every window once, in a new order for each seed"
    length = SHAPE["context_length"]
    starts = torch.arange(0, len(ids) - length, length)
    order = torch.randperm(len(starts), generator=torch.Generator().manual_seed(seed))
    for start_b in starts[order].split(batch_size):
        window_bt = torch.stack([ids[s : s + length + 1] for s in start_b])
        yield window_bt[:, :-1], window_bt[:, 1:]


def loss_of(model, x_bt, y_bt):
    return F.cross_entropy(model(x_bt).flatten(0, 1), y_bt.flatten())


@torch.no_grad()
def val_loss(model, ids):
    total = count = 0
    for x_bt, y_bt in get_batches(ids, 64, seed=0):
        total += loss_of(model, x_bt, y_bt).item() * y_bt.numel()
        count += y_bt.numel()
    return total / count


def train(model, train_ids, val_ids):
    "The validation loss after each reading of the text, and the number of steps"
    optimizer = torch.optim.AdamW(model.parameters(), betas=RECIPE["betas"])
    per_epoch = len(list(get_batches(train_ids, RECIPE["batch_size"], 0)))
    steps, step, losses = RECIPE["epochs"] * per_epoch, 0, []
    for epoch in range(RECIPE["epochs"]):
        for x_bt, y_bt in get_batches(train_ids, RECIPE["batch_size"], epoch):
            rise = min(1, (step + 1) / RECIPE["warm_up"])
            optimizer.param_groups[0]["lr"] = RECIPE["rate"] * rise * (1 - step / steps)
            loss_of(model, x_bt, y_bt).backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
        losses.append(round(val_loss(model, val_ids), 3))
        print(f"epoch {epoch + 1}, step {step}: {losses[-1]}", flush=True)
    return losses, steps


def main():
    text = load_shakespeare()
    assert text.source == "tiny shakespeare", text.note
    tok = CharTokenizer.from_text(text.text)
    ids = torch.tensor(tok.encode(text.text))
    cut = int(0.9 * len(ids))
    seed_everything(0)
    model = FirstGPT(tok.vocab_size, **SHAPE)
    start = time.process_time()
    losses, steps = train(model, ids[:cut], ids[cut:])
    receipt = dict(
        command="python tools/adamw_alone.py",
        model=SHAPE,
        recipe=RECIPE | dict(weight_decay=0.01, steps=steps, seed=0),
        val_losses=losses,
        cpu_minutes=round((time.process_time() - start) / 60, 2),
        machine=machine(),
    )
    RECEIPT.write_text(json.dumps(receipt, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    use_threads(1)
    main()
