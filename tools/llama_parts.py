"""Do the gains of a Llama's parts last? The five models of season 2's chapter 1, trained 33 times
longer.

python tools/llama_parts.py     about 70 minutes of one quiet core; goes on after the last whole run

writes data/llama_parts.json. The page trains 150 steps on Shakespeare; here the same models, that
the page's own cells define, read 5,000 steps of plays, three seeds each. All models with one seed
read the same windows in the same order, and no window is read twice. Each run is judged on the way,
so the receipt says whether a difference grows or fades."""

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

from gpub.core import read_json, write_atomic
from gpub.data.char import CharTokenizer
from gpub.data.plays import plays, plays_entropy
from gpub.device import machine, seed_everything, use_threads
from gpub.model.gpt import GPT, MLP, Attention, Block, GPTConfig, LayerContext
from gpub.model.llama import GroupedAttention, LlamaConfig, Rope, SwiGLU
from gpub.model.llama_architecture import BURN_1B

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "nbs/season2/01_from_134m_to_1b.ipynb"
RECEIPT = ROOT / "data/llama_parts.json"
CELLS = ("e718867b",)  # of the page: they define `AfterSteps`
STEPS = ("GPT-2", "RMSNorm, no biases", "RoPE", "SwiGLU", "GQA")  # as the page names them
WINDOW = 128
ROWS = 16  # windows of a step
PEAK = 8e-3  # of the learning rate, as on the page


@dataclass(frozen=True)
class Experiment:
    "How long, how often, and when a run is judged"

    steps: int = 5_000
    seeds: tuple[int, ...] = (0, 1, 2)
    judged: tuple[int, ...] = (150, 500, 1_500, 5_000)  # steps
    held_out: int = 60_000  # characters


def page_models() -> SimpleNamespace:
    "Run the cells of the page that define its models; return what they define"
    cells = json.loads(PAGE.read_text(encoding="utf-8"))["cells"]
    sources = {cell["id"]: "".join(cell["source"]) for cell in cells}
    names: dict[str, Any] = dict(nn=nn, F=F, replace=replace, GPT=GPT, MLP=MLP, Block=Block)
    names |= dict(Attention=Attention, GPTConfig=GPTConfig, LayerContext=LayerContext)
    names |= dict(GroupedAttention=GroupedAttention, Rope=Rope, SwiGLU=SwiGLU)
    for cell in CELLS:
        exec(sources[cell], names)
    return SimpleNamespace(AfterSteps=names["AfterSteps"], STEPS=STEPS)


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

    train: torch.Tensor  # ids, longer than a run
    held_out: torch.Tensor
    vocab_size: int


def make_texts(experiment: Experiment) -> Texts:
    "Write plays for one run, and others to judge by"
    read = plays((experiment.steps * ROWS + 1) * WINDOW, seed=0)
    unread = plays(experiment.held_out, seed=1)
    tokenizer = CharTokenizer.from_text(read + unread)
    ids = [torch.from_numpy(tokenizer.encode(text).astype("int64")) for text in (read, unread)]
    return Texts(*ids, tokenizer.vocab_size)


def windows(ids: torch.Tensor) -> torch.Tensor:  # (windows, WINDOW + 1)
    "Cut a text into windows, each with the character behind it"
    return ids.unfold(0, WINDOW + 1, WINDOW)


@torch.no_grad()
def judge(model: nn.Module, held_out: torch.Tensor) -> float:  # nats a character
    "Measure the loss on text that no model has read"
    rows = windows(held_out)
    total = sum(float(model.loss(x[:, :-1], x[:, 1:])) * len(x) for x in rows.split(64))
    return total / len(rows)


def train_one(models: SimpleNamespace, n: int, seed: int, texts: Texts, plan: Experiment) -> dict:
    "Train the model after `n` steps of the page; return its losses on the way"
    seed_everything(seed)
    model = models.AfterSteps(tiny_config(texts.vocab_size), n)
    opt = torch.optim.AdamW(model.parameters(), lr=PEAK, betas=(0.9, 0.95), weight_decay=0.1)
    rows = windows(texts.train)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    began = time.process_time()
    losses = {}
    for step in range(plan.steps):
        for group in opt.param_groups:
            group["lr"] = PEAK * min(1, (step + 1) / 20) * (1 - step / plan.steps)
        batch = rows[order[step * ROWS : (step + 1) * ROWS]]
        model.loss(batch[:, :-1], batch[:, 1:]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        if step + 1 in plan.judged:
            losses[step + 1] = judge(model, texts.held_out)
    cpu = round(time.process_time() - began, 1)
    return dict(after=models.STEPS[n], n=n, seed=seed, losses=losses, cpu=cpu)


def planned(models: SimpleNamespace, plan: Experiment) -> Iterator[tuple[int, int]]:
    "Every (steps of the page, seed), a whole seed before the next"
    for seed in plan.seeds:
        for n in range(len(models.STEPS)):
            yield n, seed


def measure_parts(
    file: Path = RECEIPT,  # runs that it has are not trained again
    plan: Experiment = Experiment(),
) -> dict:  # the receipt
    "Train what the receipt lacks, and write it after each run"
    use_threads(1)
    runs = read_json(file, "runs")["runs"] if file.exists() else []
    have = {(run["n"], run["seed"]) for run in runs}
    models = page_models()
    texts = make_texts(plan)
    for n, seed in planned(models, plan):
        if (n, seed) in have:
            continue
        runs.append(train_one(models, n, seed, texts, plan))
        receipt = dict(
            command="python tools/llama_parts.py",
            text="plays",
            entropy=plays_entropy(),
            characters=plan.steps * ROWS * WINDOW,
            machine=machine("cpu"),
            runs=runs,
        )
        write_atomic(file, json.dumps(receipt, indent=1) + "\n")
        print(f"{models.STEPS[n]}, seed {seed}: {runs[-1]['losses']}", flush=True)
    return read_json(file, "runs")


if __name__ == "__main__":
    measure_parts()
