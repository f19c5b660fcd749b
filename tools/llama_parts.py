"""Does the gain of rotary positions last? Two models of season 2's chapter 1, trained longer.

python tools/llama_parts.py     about 15 minutes of one quiet core; goes on after the last whole run

writes data/llama_parts.json. The page trains 150 steps of Shakespeare; here the same models, that
the page's own cells define, are trained for 150, 500 and 1,500 steps, three seeds each, every run
with a learning rate that ends at zero. All models with one seed read the same windows in the same
order, which are the page's; 1,500 steps read the text about three times. The shortest runs are
trained at half and at twice the page's learning rate, too: is the gain one of the rate?"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from gpub.core import GpubError, read_json, write_atomic
from gpub.data.char import CharTokenizer
from gpub.data.text import load_shakespeare
from gpub.device import machine, seed_everything, use_threads
from gpub.model.gpt import GPT, MLP, Attention, Block, GPTConfig, LayerContext
from gpub.model.llama import GroupedAttention, LlamaConfig, Rope, SwiGLU
from gpub.model.llama_architecture import BURN_1B

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "nbs/season2/01_from_134m_to_1b.ipynb"
RECEIPT = ROOT / "data/llama_parts.json"
CELLS = ("after-part0",)  # of the page: they define `PartlyLlama`
PARTS = ("GPT-2", "RMSNorm, no biases", "RoPE", "SwiGLU", "GQA")  # as the page names them
WINDOW = 128
ROWS = 16  # windows of a step
PEAK = 8e-3  # of the learning rate, as on the page


@dataclass(frozen=True)
class Experiment:
    "Which models, how long, how often"

    models: tuple[int, ...] = (1, 2)  # with so many parts replaced: without RoPE, with it
    lengths: tuple[int, ...] = (150, 500, 1_500)  # steps of training, each a run of its own
    seeds: tuple[int, ...] = (0, 1, 2)
    other_peaks: tuple[float, ...] = (PEAK / 2, 2 * PEAK)  # for the shortest length
    held_out: int = 60_000  # characters to judge by


def page_models() -> SimpleNamespace:
    "Run the cells of the page that define its models; return what they define"
    cells = json.loads(PAGE.read_text(encoding="utf-8"))["cells"]
    sources = {cell["id"]: "".join(cell["source"]) for cell in cells}
    names: dict[str, Any] = dict(nn=nn, F=F, replace=replace, GPT=GPT, MLP=MLP, Block=Block)
    names |= dict(Attention=Attention, GPTConfig=GPTConfig, LayerContext=LayerContext)
    names |= dict(GroupedAttention=GroupedAttention, Rope=Rope, SwiGLU=SwiGLU)
    for cell in CELLS:
        exec(sources[cell], names)
    return SimpleNamespace(PartlyLlama=names["PartlyLlama"], PARTS=PARTS)


def tiny_config(vocab_size: int) -> LlamaConfig:
    "The page's small Llama"
    return LlamaConfig(
        vocab_size=vocab_size,
        context_length=4 * WINDOW,
        d_model=64,
        n_layers=2,
        n_heads=8,
        n_kv_heads=2,
        d_ff=8 * 64 // 3 // 4 * 4,
        init_std=0.02 * (BURN_1B.d_model / 64) ** 0.5,
        embed_std=0.05,
    )


@dataclass(frozen=True)
class Texts:
    "What is read, and what is judged by"

    train: torch.Tensor  # ids
    held_out: torch.Tensor
    vocab_size: int
    source: str


def make_texts(experiment: Experiment) -> Texts:
    "Cut the page's text as the page does: the last tenth is held out"
    text = load_shakespeare()
    tokenizer = CharTokenizer.from_text(text.text)
    ids = torch.from_numpy(tokenizer.encode(text.text).astype("int64"))
    cut = int(0.9 * len(ids))
    held_out = ids[cut : cut + experiment.held_out // WINDOW * WINDOW + 1]
    return Texts(ids[:cut], held_out, tokenizer.vocab_size, text.source)


def batch_of(train: torch.Tensor, step: int, seed: int) -> torch.Tensor:  # (ROWS, WINDOW + 1)
    "The windows of a step, the same for every model with this seed"
    generator = torch.Generator().manual_seed(10_000 * seed + step)
    begins = torch.randint(len(train) - WINDOW - 1, (ROWS, 1), generator=generator)
    return train[begins + torch.arange(WINDOW + 1)]


@torch.no_grad()
def judge(model: nn.Module, held_out: torch.Tensor) -> float:  # nats a character
    "Measure the loss on text that no model has read"
    rows = held_out.unfold(0, WINDOW + 1, WINDOW)
    total = sum(float(model.loss(x[:, :-1], x[:, 1:])) * len(x) for x in rows.split(64))
    return total / len(rows)


def train_one(
    models: SimpleNamespace,
    n: int,  # parts replaced
    length: int,  # steps of training
    seed: int,
    peak: float,  # of the learning rate
    texts: Texts,
) -> dict:  # a row of the receipt
    "Train one model; return its loss on held-out text"
    seed_everything(seed)
    model = models.PartlyLlama(tiny_config(texts.vocab_size), n)
    settings = dict(lr=peak, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    opt = torch.optim.AdamW(model.parameters(), **settings)
    began = time.process_time()
    for step in range(length):
        for group in opt.param_groups:
            group["lr"] = peak * min(1, (step + 1) / 20) * (1 - step / length)
        batch = batch_of(texts.train, step, seed)
        model.loss(batch[:, :-1], batch[:, 1:]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
    loss = judge(model, texts.held_out)
    cpu = round(time.process_time() - began, 1)
    row = dict(after=models.PARTS[n], n=n, length=length, seed=seed, peak=peak)
    return row | dict(loss=loss, cpu=cpu)


def planned(plan: Experiment) -> Iterator[tuple[int, int, int, float]]:
    "Every (parts replaced, steps of training, seed, rate); other rates than the page's last"
    for n in plan.models:
        for length in plan.lengths:
            for seed in plan.seeds:
                yield n, length, seed, PEAK
    for peak in plan.other_peaks:
        for n in plan.models:
            for seed in plan.seeds:
                yield n, min(plan.lengths), seed, peak


def measure_parts(
    file: Path = RECEIPT,  # runs that it has are not trained again
    plan: Experiment = Experiment(),
) -> dict:  # the receipt
    "Train what the receipt lacks, and write it after each run"
    use_threads(1)
    runs = read_json(file, "runs")["runs"] if file.exists() else []
    have = {(run["n"], run["length"], run["seed"], run["peak"]) for run in runs}
    models = page_models()
    texts = make_texts(plan)
    if file.exists() and read_json(file, "runs")["text"] != texts.source:
        raise GpubError(f"{file} is of another text than {texts.source}")
    for n, length, seed, peak in planned(plan):
        if (n, length, seed, peak) in have:
            continue
        runs.append(train_one(models, n, length, seed, peak, texts))
        receipt = dict(
            command="python tools/llama_parts.py",
            text=texts.source,
            characters_a_step=ROWS * WINDOW,
            machine=machine("cpu"),
            runs=runs,
        )
        write_atomic(file, json.dumps(receipt, indent=1) + "\n")
        row = f"{models.PARTS[n]}, {length} steps, peak {peak}, seed {seed}"
        print(f"{row}: {runs[-1]['loss']:.4f}", flush=True)
    return read_json(file, "runs")


if __name__ == "__main__":
    measure_parts()
