"""Our recipe against plain ones on the same machine, in the same minutes, as ratios"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from gpub.core import Config
from gpub.data.corpus import Corpus, load_corpus
from gpub.device import machine, pick_precision, seed_everything, use_threads
from gpub.lab.bench.race import Clock, machine_line
from gpub.model.counts import flops_per_token
from gpub.model.gpt import GPT, GPTConfig
from gpub.table import Table
from gpub.train.config import TrainConfig, context_length_at, context_lengths, depth_at
from gpub.train.kernels import forward_backward_seconds, matmul_peak, pick_attention
from gpub.train.loop import (
    LoopSettings,
    evaluate,
    train_next_token,
)
from gpub.train.presets import PRESETS
from tools.bench.generate import their_model


@dataclass
class Contender:
    "One way to train, with its own clock"

    name: str  # in tables; ours is gpub
    model: nn.Module  # has `.cfg` and `.loss(ids, targets)`
    step: Callable[[int], object]  # makes the step of a number
    steps: int  # its recipe's length
    tokens: int  # per step
    # of our recipe, whose blocks may sleep for some steps; None: all work in every step
    cfg: TrainConfig | None = None
    precision: str = "fp32"  # of its matmuls
    seconds: float = 0.0  # used so far, on its own clock
    done: int = 0  # steps so far
    # (seconds, step, validation loss)
    curve: list[tuple[float, int, float]] = field(default_factory=list)

    def go(
        self,
        seconds: float,  # until no further step begins
    ):
        "Make steps for some time, or until the recipe ends"
        clock = Clock("cpu")
        used = 0.0
        while self.done < self.steps and used < seconds:
            clock()
            self.step(self.done)
            clock()
            self.done += 1
            used += sum(clock.seconds())
        self.seconds += used

    def flops(self) -> int:
        "All arithmetic so far"
        mc = self.model.cfg
        depths = Counter(
            depth_at(n, self.cfg, mc.n_layers) if self.cfg else mc.n_layers
            for n in range(self.done)
        )
        return sum(
            k * self.tokens * flops_per_token(replace(mc, n_layers=d)) for d, k in depths.items()
        )


def ours(
    name: str,  # of the contender
    preset: str,  # key of `PRESETS`
    corpus: Corpus,  # what is learned
    settings: dict | None = None,  # fields of `TrainConfig` in the place of the preset's
) -> Contender:
    "The preset, through the library's own loop"
    r = PRESETS[preset]
    cfg = TrainConfig(**{**r.train.to_dict(), **(settings or {})})
    mc = GPTConfig(vocab_size=corpus.tok.vocab_size, **r.model)
    seed_everything(cfg.seed)
    model = GPT(mc)
    by_ctx = {
        c: corpus.train(context_length=c, batch=cfg.batch_tokens // c, seed=cfg.seed)
        for c in context_lengths(cfg, mc.context_length)
    }
    first = by_ctx[context_length_at(0, cfg, mc.context_length)][0]
    p = pick_precision(
        "cpu",
        cfg.precision,
        lambda dtype: forward_backward_seconds(model, first.ids, first.targets, dtype, cfg),
    )
    pick_attention(model, "cpu", p.dtype)
    loop = train_next_token(
        model, lambda n, c: by_ctx[c][n], cfg, settings=LoopSettings(dtype=p.dtype)
    )
    return Contender(name, model, lambda n: next(loop), cfg.steps, cfg.batch_tokens, cfg, p.name)


def random_windows(
    ids: np.ndarray,  # the training split, int64
    context_length: int,  # tokens in a window
    batch: int,  # windows in a step
    seed: int,  # of their places
) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:  # gives ids and targets
    "The usual loader: windows at random places, stacked one by one"
    gen = torch.Generator().manual_seed(seed)
    ids = torch.as_tensor(ids)

    def get():
        at = torch.randint(len(ids) - context_length, (batch,), generator=gen)
        return torch.stack([ids[i : i + context_length] for i in at]), torch.stack(
            [ids[i + 1 : i + 1 + context_length] for i in at]
        )

    return get


@dataclass(frozen=True)
class PlainRecipe:
    "A hand-written loop around AdamW: torch's own settings, unless it says otherwise"

    batch: int  # windows in a step
    lr: float  # learning rate
    steps: int  # its length
    betas: tuple[float, float] = (0.9, 0.999)  # memory of gradients, and of their squares
    weight_decay: float = 0.01  # on every parameter
    clip: float = 0.0  # largest norm of the gradient; 0: whatever comes
    rates: Callable[[int], float] = lambda n: 1.0  # step -> share of `lr`


def adamw(
    name: str,  # of the contender
    model: nn.Module,  # has `.cfg` and `.loss(ids, targets)`
    corpus: Corpus,  # whose first text is read
    recipe: PlainRecipe,  # how it is trained
) -> Contender:
    "A contender with a hand-written loop"
    opt = torch.optim.AdamW(
        model.parameters(), lr=recipe.lr, betas=recipe.betas, weight_decay=recipe.weight_decay
    )
    ids = corpus.tok.encode(corpus.texts[0]).astype(np.int64)
    context_length = model.cfg.context_length
    get = random_windows(ids, context_length, recipe.batch, 0)

    def step(n: int):
        for group in opt.param_groups:
            group["lr"] = recipe.lr * recipe.rates(n)
        model.loss(*get()).backward()
        if recipe.clip:
            nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        opt.step()
        opt.zero_grad()

    return Contender(name, model, step, recipe.steps, context_length * recipe.batch)


class HFModel(nn.Module):
    "The same shape in transformers, with fresh weights and our `.loss`"

    def __init__(
        self,
        cfg: Config,  # of a `GPT` or a `Llama`
    ):
        super().__init__()
        self.cfg = cfg
        self.hf = their_model(cfg)

    def loss(
        self,
        ids_bt: torch.Tensor,  # int64 token ids
        targets_bt: torch.Tensor,  # the ids one place later
    ) -> torch.Tensor:  # mean nats per token
        "Cross-entropy of what comes next"
        return F.cross_entropy(
            self.hf(ids_bt, use_cache=False).logits.flatten(0, 1), targets_bt.flatten()
        )


def published_rate(
    n: int,  # step
) -> float:  # share of the learning rate
    "The published schedule: 100 steps of warm-up, then a cosine from 1e-3 to 1e-4"
    if n < 100:
        return (n + 1) / 100
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (n - 100) / 1900))


PUBLISHED_RECIPE = PlainRecipe(
    12, 1e-3, 2000, betas=(0.9, 0.99), weight_decay=0.1, clip=1.0, rates=published_rate
)


def field_of(
    preset: str,  # key of `PRESETS`
    corpus: Corpus,  # what is learned
    hf: bool = True,  # with transformers
    settings: dict | None = None,  # of our recipe, as for `ours`
) -> list[Contender]:  # ours first
    "All contenders for a preset's shape"
    r = PRESETS[preset]
    mc = GPTConfig(vocab_size=corpus.tok.vocab_size, **r.model)

    def fresh(cls: type = GPT) -> nn.Module:
        seed_everything(0)
        return cls(replace(mc, embed_std=None))

    plain = PlainRecipe(r.train.batch_tokens // mc.context_length, 3e-4, 10**9)
    out = [ours("gpub", preset, corpus, settings)]
    if preset == "shakespeare-short":
        out.append(adamw("published", fresh(), corpus, PUBLISHED_RECIPE))
    else:
        out.append(adamw("plain", fresh(), corpus, plain))
    if hf:
        out.append(adamw("transformers", fresh(HFModel), corpus, plain))
    return out


def race_to_loss(
    contenders: Sequence[Contender],  # who learns
    corpus: Corpus,  # what is learned
    seconds: float = 180.0,  # the most each may use
    every: float = 5.0,  # seconds between validations
    log: Callable[[str], object] = print,  # called with a line per validation
):
    "Give the next slice to whoever has used the least time, until all are through"

    def running() -> list[Contender]:
        return [c for c in contenders if c.done < c.steps and c.seconds < seconds]

    while now := running():
        c = min(now, key=lambda c: c.seconds)
        c.go(min(every, seconds - c.seconds))
        val_loss = evaluate(c.model, corpus.val, c.model.cfg.context_length)
        c.curve.append((round(c.seconds, 3), c.done, val_loss))
        log(f"{c.name}  {c.seconds:.1f} s  step {c.done}  validation {val_loss:.3f}")


def time_to(
    curve: Sequence[tuple[float, int, float]],  # (seconds, step, loss), in order
    loss: float,  # to get down to
) -> float | None:  # seconds, between two validations by interpolation; None if never
    "When a curve first got down to a loss"
    before = None
    for t, _, l in curve:
        if l > loss:
            before = t, l
            continue
        if before is None:
            return t
        return before[0] + (t - before[0]) * (before[1] - loss) / (before[1] - l)
    return None


def bench_shakespeare(
    shapes: Sequence[str] = ("shakespeare", "shakespeare-short"),  # presets to race
    seconds: float = 180.0,  # the most each contender may use
    losses: Sequence[float] = (2.0, 1.88, 1.7),  # the time to each of them is reported
    data: str | None = None,  # a text file; default: Shakespeare
    hf: bool = True,  # race transformers too
    log: Callable[[str], object] = print,  # called with a line per validation
) -> dict:  # plain values
    "Race the library's recipe against plain ones; the first contender is ours"
    # the first optimizer step of a process imports it: seconds that whoever starts would pay
    import torch._dynamo

    use_threads()
    formats = dict(fp32=torch.float32, bf16=torch.bfloat16)
    peaks = {name: matmul_peak(torch.device("cpu"), dtype) for name, dtype in formats.items()}
    out = dict(machine=machine(), shapes={})
    out["matmul_peak_gflops"] = round(peaks["fp32"] / 1e9, 1)
    for preset in shapes:
        corpus = load_corpus(data, PRESETS[preset].model["context_length"], log)
        out["text"] = corpus.source
        log(f"{preset}: {PRESETS[preset].about}")
        cs = field_of(preset, corpus, hf)
        race_to_loss(cs, corpus, seconds, min(5.0, seconds / 4), log)
        out["shapes"][preset] = {c.name: _result(c, cs, losses, peaks[c.precision]) for c in cs}
    return out


def _result(c: Contender, cs: Sequence[Contender], losses: Sequence[float], peak: float) -> dict:
    "What a contender reached, and when it reached what the others ended with"
    return dict(
        steps=c.done,
        precision=c.precision,
        seconds=round(c.seconds, 1),
        tok_s=round(c.done * c.tokens / c.seconds),
        final=c.curve[-1][2],
        peak_share=round(c.flops() / c.seconds / peak, 3),
        time_to={str(l): time_to(c.curve, l) for l in losses},
        time_to_ours={k.name: time_to(c.curve, k.curve[-1][2]) for k in cs if k is not c},
        curve=c.curve,
    )


def bench_table(
    result: dict,  # from `bench_shakespeare`
) -> str:
    "The result as a table"
    peak = f"matmul {result['matmul_peak_gflops']} GFLOP/s"
    lines = [f"{machine_line(result['machine'])}, {peak}, {result['text']}"]
    for preset, rows in result["shapes"].items():
        lines += ["", *_shape_lines(preset, rows)]
    return "\n".join(lines)


def _shape_lines(preset: str, rows: dict[str, dict]) -> list[str]:
    "The contenders of one shape, and how much sooner ours was where they ended"
    losses = [*next(iter(rows.values()))["time_to"]]
    head = [preset, "tok/s", "% of peak", *(f"s to {l}" for l in losses), "final", "in s"]
    cells = []
    for name, r in rows.items():
        when = [r["time_to"][l] for l in losses]
        times = ["never" if t is None else f"{t:.1f}" for t in when]
        peak = f"{100 * r['peak_share']:.1f}"
        final = f"{r['final']:.3f}"
        cells.append([name, f"{r['tok_s']:,}", peak, *times, final, f"{r['seconds']:.1f}"])
    lines = [str(Table(head, cells, align="lr"))]
    for name, t in rows["gpub"]["time_to_ours"].items():
        other = rows[name]
        if t:
            lines.append(
                f"gpub reaches the final loss of {name} ({other['final']:.3f}) in "
                f"1/{other['seconds'] / t:.1f} of its {other['seconds']:.0f} s"
            )
    return lines
