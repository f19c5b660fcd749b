"""A grown model beside its rivals, with three seeds, on lines of sums and on plays: the large shape
from scratch at equal steps and at equal cost, and the small model that reads on at equal cost. And
on plays alone: a model that grows in depth, with zeros and with copies; all three at other rates; a
tiny model that grows late, and with other recipes. Filed as data/growing.json.

python tools/growing.py                                  about 25 minutes of one quiet core
python tools/growing.py copies|read_on|rates|twice|...    some of the later parts alone
"""

import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn import functional as F

from gpub.core import write_atomic
from gpub.data.corpus import text_corpus
from gpub.data.plays import plays
from gpub.data.text import Text
from gpub.device import machine, use_threads
from gpub.model.counts import flops_per_token
from gpub.model.grow import grow, grown_config
from gpub.model.llama import Llama, LlamaConfig
from gpub.train.config import TrainConfig
from gpub.train.loop import evaluate, train, train_next_token
from gpub.train.rows import RunRows
from gpub.train.step_batch import TokenBatch
from gpub.tune.sums_world import SumsWorld

SEEDS = (0, 1, 2)  # seed 0 is the one that the two pages train themselves
FILED = Path(__file__).resolve().parent.parent / "data/growing.json"


class Sums:
    "Lines of sums, as in chapter 8"

    unit, steps_small, steps_large, lines = "nats per token of an answer", 240, 120, 64

    def __init__(self, folder):
        self.world = SumsWorld(folder)
        self.held = self.world.lines(500, seed=99)
        size = dict(vocab_size=self.world.tok.vocab_size, context_length=128)
        self.small = LlamaConfig(**size, d_model=64, n_layers=2, n_heads=2, n_kv_heads=2, d_ff=128)
        sizes = dict(d_model=128, n_layers=4, n_heads=4, n_kv_heads=4, d_ff=256)
        self.large = grown_config(self.small, **sizes)
        self.tokens = self.lines * 14  # of a step

    def line_loss(self, model, ids_bt):
        logits_btv = model(ids_bt[:, :-1])[:, 8:]
        return F.cross_entropy(logits_btv.flatten(0, 1), ids_bt[:, 9:].flatten())

    def seeds(self, seed):
        "Of the lines: those of the small model, those of the large ones"
        return 10 * seed + 1, 10 * seed + 2

    @torch.no_grad()
    def loss(self, model):
        return self.line_loss(model, self.held).item()

    def learn(self, model, steps, seed):
        class Lines:
            def batch(_, step):
                ids_bt = self.world.lines(self.lines, [seed, step])
                return TokenBatch.whole(ids_bt, ids_bt)

            def loss(_, piece):
                return self.line_loss(model, piece.ids_bt), {}

        rates = dict(warmup=min(10, steps), decay=0.5, muon_lr=0.02, lr=0.006)
        for _ in train(model, Lines(), TrainConfig(steps=steps, **rates)):
            pass
        return self.loss(model)


class Plays:
    "Plays, as in lib/train/growing"

    unit, steps_small, steps_large, tokens = "nats per character of plays", 150, 150, 1024

    def __init__(self):
        self.corpus = text_corpus(Text(plays(500_000, seed=0), "plays", ""), 64)
        self.held = self.corpus.val[:20_000]
        size = dict(vocab_size=self.corpus.tok.vocab_size, context_length=64)
        self.small = LlamaConfig(**size, d_model=64, n_layers=2, n_heads=2, n_kv_heads=1, d_ff=192)
        sizes = dict(d_model=128, n_layers=4, n_heads=4, n_kv_heads=2, d_ff=384)
        self.large = grown_config(self.small, **sizes)

    def seeds(self, seed):
        "Of the order of the text: that of the small model, that of the large ones"
        return 10 * seed, 10 * seed + 1

    def loss(self, model):
        return evaluate(model, self.held, 64)

    def learn(self, model, steps, seed, factor=1.0):
        rates = dict(muon_lr=0.02 * factor, lr=0.006 * factor, warmup=10)
        cfg = TrainConfig(steps=steps, batch_tokens=self.tokens, seed=seed, **rates)
        rows = RunRows(self.corpus, cfg, 64)

        for _ in train_next_token(model, rows.read, cfg):
            pass
        return self.loss(model)


def measured(task, seed):
    "The losses of the small model, the grown one and two from scratch"
    first, second = task.seeds(seed)
    torch.manual_seed(seed)
    small = Llama(task.small)
    row = dict(seed=seed, small=task.learn(small, task.steps_small, first))
    grown = grow(small, task.large)
    row["begins"] = task.loss(grown)
    row["grown"] = task.learn(grown, task.steps_large, second)
    price = task.steps_small * flops_per_token(task.small) / flops_per_token(task.large)
    row["equal_cost_steps"] = round(task.steps_large + price)
    for name, steps in (
        ("equal_steps", task.steps_large),
        ("equal_cost", row["equal_cost_steps"]),
    ):
        torch.manual_seed(seed)
        row[name] = task.learn(Llama(task.large), steps, second)
    print(task.unit, {k: round(v, 3) for k, v in row.items()}, flush=True)
    return row


COPIES = dict(each_twice=(0, 0, 1, 1), stacked=(0, 1, 0, 1))  # which old block each new one is


def with_copies(small, cfg, places):
    "A deeper model whose blocks are copies of those of a small one"
    model = Llama(cfg)
    model.load_state_dict(small.state_dict(), strict=False)
    for block, place in zip(model.blocks, places, strict=True):
        block.load_state_dict(small.blocks[place].state_dict())
    return model


def measured_copies(task, seed):
    "The losses of a small model, and of models twice as deep: with zeros, copied, from scratch"
    first, second = task.seeds(seed)
    deep = grown_config(task.small, n_layers=4)
    torch.manual_seed(seed)
    small = Llama(task.small)
    row = dict(seed=seed, small=task.learn(small, task.steps_small, first))
    torch.manual_seed(seed)
    starts = dict(zeros=grow(small, deep))
    starts |= {name: with_copies(small, deep, places) for name, places in COPIES.items()}
    for name, model in starts.items():
        row[f"{name}_begins"] = task.loss(model)
        row[name] = task.learn(model, task.steps_large, second)
    price = task.steps_small * flops_per_token(task.small) / flops_per_token(deep)
    row["equal_cost_steps"] = round(task.steps_large + price)
    torch.manual_seed(seed)
    row["equal_cost"] = task.learn(Llama(deep), row["equal_cost_steps"], second)
    print("deeper,", task.unit, {k: round(v, 3) for k, v in row.items()}, flush=True)
    return row


def filed_copies():
    "Copies beside zeros on plays, with what they cost"
    began = time.process_time()
    task = Plays()
    rows = [measured_copies(task, seed) for seed in SEEDS]
    steps = dict(steps_small=task.steps_small, steps_large=task.steps_large)
    spent = dict(cpu_seconds=round(time.process_time() - began))
    return dict(unit=task.unit, **steps, machine=machine("cpu"), **spent, rows=rows)


def read_on(task, seed):
    "The losses of the small model, and of the same at the cost of the grown one"
    first, second = task.seeds(seed)
    torch.manual_seed(seed)
    small = Llama(task.small)
    row = dict(seed=seed, small=task.learn(small, task.steps_small, first))
    times = flops_per_token(task.large) / flops_per_token(task.small)
    row["read_on_steps"] = round(task.steps_large * times)
    row["read_on"] = task.learn(small, row["read_on_steps"], second)
    print("read on,", task.unit, {k: round(v, 3) for k, v in row.items()}, flush=True)
    return row


def filed_read_on():
    "The small model that reads on instead of growing, of sums and of plays"
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        tasks = dict(sums=Sums(folder), plays=Plays())
        rows = {name: [read_on(task, seed) for seed in SEEDS] for name, task in tasks.items()}
    spent = dict(cpu_seconds=round(time.process_time() - began))
    return dict(machine=machine("cpu"), **spent, **rows)


FACTORS = (0.5, 2.0)  # of the rate that all others have


def filed_rates():
    "The large shape of plays from scratch at equal cost, with a lower and with a higher rate"
    began = time.process_time()
    task = Plays()
    price = task.steps_small * flops_per_token(task.small) / flops_per_token(task.large)
    steps = round(task.steps_large + price)
    rows = []
    for seed in SEEDS:
        row = dict(seed=seed)
        for factor in FACTORS:
            torch.manual_seed(seed)
            model = Llama(task.large)
            row[f"equal_cost_{factor}"] = task.learn(model, steps, task.seeds(seed)[1], factor)
        print("rates,", task.unit, {k: round(v, 3) for k, v in row.items()}, flush=True)
        rows.append(row)
    spent = dict(cpu_seconds=round(time.process_time() - began))
    return dict(factors=FACTORS, steps=steps, machine=machine("cpu"), **spent, rows=rows)


def measured_twice(task, seed):
    "The losses of the grown model and of the small one that reads on, both at twice the rate"
    first, second = task.seeds(seed)
    torch.manual_seed(seed)
    small = Llama(task.small)
    row = dict(seed=seed, small=task.learn(small, task.steps_small, first))
    times = flops_per_token(task.large) / flops_per_token(task.small)
    grown = grow(small, task.large)
    row["grown"] = task.learn(grown, task.steps_large, second, 2.0)
    row["read_on"] = task.learn(small, round(task.steps_large * times), second, 2.0)
    row = {name: round(value, 3) for name, value in row.items()}
    print("twice,", task.unit, row, flush=True)
    return row


def filed_twice():
    "The other two of plays at the rate at which the large shape from scratch was best; one seed"
    rows = [measured_twice(Plays(), seed) for seed in SEEDS[:1]]
    return dict(machine=machine("cpu"), rows=rows)


class Finished(Plays):
    "A tiny model of plays that reads until more reading hardly helps, and then grows"

    steps_small, steps_large, factors = 3000, 300, (1.0, 2.0)

    def __init__(self):
        super().__init__()
        size = dict(vocab_size=self.corpus.tok.vocab_size, context_length=64)
        self.small = LlamaConfig(**size, d_model=16, n_layers=1, n_heads=1, n_kv_heads=1, d_ff=48)
        sizes = dict(d_model=64, n_layers=2, n_heads=4, n_kv_heads=4, d_ff=192)
        self.large = grown_config(self.small, **sizes)

    def curve(self, model, steps, seed, factor=1.0, **recipe):
        "Train; rows of (step, loss on held-out plays) on the way, the last one of the end"
        recipe = dict(muon_lr=0.02 * factor, lr=0.006 * factor, warmup=10) | recipe
        cfg = TrainConfig(steps=steps, batch_tokens=self.tokens, seed=seed, **recipe)
        rows, curve = RunRows(self.corpus, cfg, 64), []
        for step in train_next_token(model, rows.read, cfg):
            if step.n % (steps // 8) == 0 or step.n in (1, steps):
                curve.append((step.n, self.loss(model)))
        return curve


def measured_finished(task, seed):
    "A tiny model that is done, grown; the same that reads on; the large shape from scratch"
    first, second = task.seeds(seed)
    torch.manual_seed(seed)
    small = Llama(task.small)
    row = dict(seed=seed, small=task.curve(small, task.steps_small, first))
    times = flops_per_token(task.large) / flops_per_token(task.small)
    steps = round(task.steps_large + task.steps_small / times)
    for factor in task.factors:
        torch.manual_seed(seed)
        grown = grow(small, task.large)
        row.setdefault("begins", task.loss(grown))
        row[f"grown_{factor}"] = task.curve(grown, task.steps_large, second, factor)
        for name, n in (("scratch", steps), ("fresh", task.steps_large)):  # fresh: equal steps
            torch.manual_seed(seed)
            row[f"{name}_{factor}"] = task.curve(Llama(task.large), n, second, factor)
    row["read_on"] = task.curve(small, round(task.steps_large * times), second)
    ends = {name: curve[-1] for name, curve in row.items() if isinstance(curve, list)}
    print("finished,", task.unit, ends, flush=True)
    return row


def filed_finished():
    "What growing is worth to a model that is done, with two rates for what is large"
    began = time.process_time()
    task = Finished()
    shapes = dict(small=task.small, large=task.large)
    about = {
        name: dict(
            parameters=sum(p.numel() for p in Llama(cfg).parameters()),
            flops_per_step=flops_per_token(cfg) * task.tokens,
        )
        for name, cfg in shapes.items()
    }
    rows = [measured_finished(task, seed) for seed in SEEDS]
    steps = dict(steps_small=task.steps_small, steps_large=task.steps_large)
    spent = dict(cpu_seconds=round(time.process_time() - began))
    made = dict(unit=task.unit, factors=task.factors, shapes=about, **steps)
    return dict(**made, machine=machine("cpu"), **spent, rows=rows)


QUIET = 15  # what the residual stream of the tiny model is divided by
RECIPES = {  # name: (the model that grows, what is different while the large one trains)
    "rate / 2": ("small", dict(factor=0.5)),
    "rate / 4": ("small", dict(factor=0.25)),
    "longer warm-up": ("small", dict(warmup=100)),
    "AdamW's rate x 4": ("small", dict(lr=0.024)),  # of the embedding, which is also the head
    "weight decay": ("small", dict(weight_decay=0.1)),
    "weight decay all along": ("decayed", dict(weight_decay=0.1)),
    "quiet stream": ("quiet", {}),
    "quiet stream, rate / 4": ("quiet", dict(factor=0.25)),
}


@torch.no_grad()
def quieter(model, by):
    "A copy that computes the same with a residual stream divided by `by`"
    copy = Llama(replace(model.cfg, norm_eps=model.cfg.norm_eps / by**2))
    copy.load_state_dict(model.state_dict())
    copy.tok.weight /= by
    copy.norm.weight *= by
    for block in copy.blocks:
        block.attn.proj.weight /= by
        block.ffn.down.weight /= by
    return copy


def stream_size(task, model):
    "The root of the mean square of what the last block writes into the residual stream"
    sizes = []

    def note(block, read, written):
        sizes.append(written.square().mean().sqrt().item())

    hook = model.blocks[-1].register_forward_hook(note)
    task.loss(model)
    hook.remove()
    return sum(sizes) / len(sizes)


def measured_recipes(task, seed):
    "The loss of the tiny model that grew when it was done, trained on with other recipes"
    first, second = task.seeds(seed)
    models = {}
    for name, recipe in (("small", {}), ("decayed", dict(weight_decay=0.1))):
        torch.manual_seed(seed)
        models[name] = Llama(task.small)
        task.curve(models[name], task.steps_small, first, **recipe)
    models["quiet"] = quieter(models["small"], QUIET)
    row = dict(seed=seed)
    row |= {f"begins: {name}": task.loss(model) for name, model in models.items()}
    row |= {f"stream: {name}": stream_size(task, model) for name, model in models.items()}
    for name, (begins, recipe) in RECIPES.items():
        small = models[begins]
        torch.manual_seed(seed)
        grown = grow(small, replace(task.large, norm_eps=small.cfg.norm_eps / 4))
        row[name] = task.curve(grown, task.steps_large, second, **recipe)[-1][1]
    torch.manual_seed(seed)
    scratch = Llama(task.large)
    row["scratch, weight decay"] = task.curve(scratch, 300, second, weight_decay=0.1)[-1][1]
    row = {name: round(value, 3) for name, value in row.items()}
    print("recipes,", task.unit, row, flush=True)
    return row


def filed_recipes():
    "What helps a model that was nearly done before it grew; one seed"
    rows = [measured_recipes(Finished(), seed) for seed in SEEDS[:1]]
    return dict(quiet=QUIET, machine=machine("cpu"), rows=rows)


LATER = dict(copies=filed_copies, read_on=filed_read_on, rates=filed_rates)
LATER |= dict(finished=filed_finished, twice=filed_twice, recipes=filed_recipes)


def main():
    if sys.argv[1:]:
        filed = json.loads(FILED.read_text(encoding="utf-8"))
        filed |= {name: LATER[name]() for name in sys.argv[1:]}
        write_atomic(FILED, json.dumps(filed, indent=1) + "\n")
        return
    began = time.process_time()
    filed = dict(command="python tools/growing.py", machine=machine("cpu"), threads=1)
    with tempfile.TemporaryDirectory() as folder:
        for name, task in (("sums", Sums(folder)), ("plays", Plays())):
            steps = dict(steps_small=task.steps_small, steps_large=task.steps_large)
            rows = [measured(task, seed) for seed in SEEDS]
            filed[name] = dict(unit=task.unit, **steps, rows=rows)
    filed["cpu_seconds"] = round(time.process_time() - began)
    filed |= {name: part() for name, part in LATER.items()}
    write_atomic(FILED, json.dumps(filed, indent=1) + "\n")


if __name__ == "__main__":
    use_threads(1)
    main()
