"""Tokens a second of one model, with the cache, without, and in transformers' generate: in the same
minutes, and the same text

The weights are fresh: speed does not depend on what they know, and the text shows whether everybody
computed the same. Two implementations in bf16 seldom write the same text: its scores are so coarse
that several words tie for the first place. So each text is also judged: how far below the best
score was the worst choice?
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from gpub.core import Config, GpubError
from gpub.device import cpu_has_bf16, machine, pick_device, seed_everything, use_threads
from gpub.lab.bench.race import Clock, Race, machine_line
from gpub.model.architectures import build_model, config_of
from gpub.model.generate import generate_ids, stream_ids
from gpub.model.probes import sample_ids
from gpub.model.sampling import SamplingConfig
from gpub.share.weights import to_config, to_theirs
from gpub.table import Table


def their_model(
    cfg: Config,  # of a `GPT` or a `Llama`
) -> nn.Module:
    """Return the same shape in transformers, with fresh weights; raises `GpubError` where that is
    not installed"""
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError:
        raise GpubError("this comparison needs transformers: pip install 'gpub[hub]'") from None
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(**to_config(cfg)))


def in_transformers(
    model: nn.Module,  # `GPT` or `Llama`
) -> nn.Module:  # their model, with a copy of the same weights; it ends at no token
    """Rebuild the same function in another library; raises `GpubError` where transformers is not
    installed"""
    hf = their_model(model.cfg).to(model.tok.weight).eval()
    hf.load_state_dict(to_theirs(model), strict=False)  # a tied head is no tensor of ours
    hf.generation_config.eos_token_id = None
    return hf


def contenders(
    model: nn.Module,  # `GPT` or `Llama`
    prompt: list[int],  # ids
    n: int,  # tokens to add
    peers: bool = True,  # with transformers
    uncached: bool = True,  # with chapter 1's `sample_ids`
) -> dict[str, Callable[[], list[int]]]:
    "List ways to get the prompt and its favourite tokens"
    out = {"gpub": lambda: generate_ids(model, prompt, n, temperature=0)}
    if uncached:
        out["without memory"] = lambda: sample_ids(model, prompt, n, temperature=0)
    if peers:
        hf = in_transformers(model)
        x = torch.tensor([prompt], device=model.tok.weight.device)
        kw = dict(
            attention_mask=torch.ones_like(x), max_new_tokens=n, do_sample=False, pad_token_id=0
        )
        out["transformers"] = lambda: hf.generate(x, **kw)[0].tolist()
    return out


def token_times(
    model: nn.Module,
    prompt: list[int],  # ids
    n: int,  # tokens to write, the favourite each time
) -> list[float]:  # n - 1 seconds
    "Time each token of a text"
    clock = Clock(model.tok.weight.device)
    for _ in stream_ids(model, prompt, SamplingConfig(n=n, temperature=0)):
        clock()
    return clock.seconds()  # from the first token on, which reads the prompt


def flatness(
    model: nn.Module,
    n: int | None = None,  # tokens; default: to the end of the window
    rounds: int = 3,  # of each token the fastest counts
) -> float:  # time of a token in the last quarter of the text, over that in the first
    "Measure how much dearer a token becomes as the text grows: 1 is flat"
    n = n or model.cfg.context_length - 1
    rows = [token_times(model, [0], n) for _ in range(rounds)]
    best = [min(ts) for ts in zip(*rows)]
    k = max(1, len(best) // 4)
    return statistics.median(best[-k:]) / statistics.median(best[:k])


@torch.no_grad()
def shortfall(
    model: nn.Module,  # ids (b, t) -> logits (b, t, v)
    ids: Sequence[int],  # a text no longer than its window
    given: int,  # how many of its tokens nobody chose
) -> float:  # how far a chosen token's score lies below the best, at most: 0 if all are favourites
    """Judge a greedy text by a model that reads it at once: rounding may swap tokens whose scores
    are nearly equal"""
    ids_t = torch.tensor(ids, device=model.tok.weight.device)
    logits_tv = model(ids_t[None, :-1])[0, given - 1 :].float()
    return float((logits_tv.amax(-1) - logits_tv.gather(1, ids_t[given:, None])[:, 0]).max())


_WEIGHT_FORMATS = dict(fp32=torch.float32, bf16=torch.bfloat16)


@dataclass(frozen=True)
class GenerationRace:
    "What `generation_speed` lets whom write"

    n: int | None = None  # tokens; default: to the end of the window
    rounds: int = 3  # turns of each contender, of which the best counts
    precision: Literal["fp32", "bf16"] = "fp32"  # of the weights
    peers: bool = True  # with transformers
    uncached: bool = True  # with chapter 1's `sample_ids`
    flat: bool = True  # with `flatness`

    def __post_init__(self):
        if self.precision not in _WEIGHT_FORMATS:
            raise GpubError(
                f"precision {self.precision!r} is not one of {', '.join(_WEIGHT_FORMATS)}"
            )


def generation_speed(
    preset: str | Config,  # name from `SHAPES`, or a config
    device: str = "auto",  # CUDA where it is, else MPS, else the CPU
    how: GenerationRace = GenerationRace(),  # who writes, how much, how often
    # called with a line per contender
    log: Callable[[str], object] = lambda text: None,
) -> dict:  # plain values
    """Race one preset: tokens a second of every contender, their ratios, whether the texts are the
    same, how far they are from the favourites"""
    d = pick_device(device)
    cfg = config_of(preset)
    seed_everything(0)
    model = build_model(cfg).to(d, _WEIGHT_FORMATS[how.precision]).eval()
    prompt = [int(i) for i in torch.randint(cfg.vocab_size, (16,))]
    n = min(how.n or cfg.context_length, cfg.context_length - len(prompt))
    runs = contenders(model, prompt, n, how.peers, how.uncached)
    texts = {k: f() for k, f in runs.items()}  # warm
    race = Race({k: lambda _, f=f: f() for k, f in runs.items()}, d).run(how.rounds)
    rate = {k: n / seconds for k, seconds in race.each(min).items()}
    for k, v in rate.items():
        log(f"{preset} {how.precision} {k}: {v:,.1f} tok/s")
    others = [k for k in runs if k != "gpub"]
    flat = flatness(model, rounds=how.rounds) if how.flat else None
    return dict(
        preset=preset,
        precision=how.precision,
        device=str(d),
        prompt=len(prompt),
        n=n,
        rounds=how.rounds,
        tok_s={k: round(v, 1) for k, v in rate.items()},
        faster_than={k: round(rate["gpub"] / rate[k], 2) for k in others},
        same_text={k: texts[k] == texts["gpub"] for k in others},
        short_of_best={k: round(shortfall(model, t, len(prompt)), 4) for k, t in texts.items()},
        last_over_first_quarter=None if flat is None else round(flat, 2),
    )


def bench_generate(
    presets: Sequence[str] = ("shakespeare", "gpt2-134m"),  # names from `SHAPES`
    device: str = "auto",  # CUDA where it is, else MPS, else the CPU
    n: int | None = None,  # tokens; default: to the end of the window; wide ones on a CPU 128
    rounds: int = 3,  # turns of each contender, four times as many for small models
    peers: bool = True,  # with transformers
    log: Callable[[str], object] = print,  # called with a line per contender
) -> dict:  # plain values
    """Race each preset: 437,888 parameters to the end of their window, wide ones on a CPU for 128
    tokens, and once more in bf16 where the processor multiplies it"""
    use_threads()
    d = pick_device(device)
    has_bf16 = d.type == "cuda" or (d.type == "cpu" and cpu_has_bf16())
    speed = []
    for preset in presets:
        wide = config_of(preset).d_model >= 512
        tokens = n or (128 if wide and d.type == "cpu" else None)
        turns = rounds if wide else 4 * rounds
        for precision in ("fp32", "bf16") if wide and has_bf16 else ("fp32",):
            how = GenerationRace(tokens, turns, precision, peers)
            speed.append(generation_speed(preset, device, how, log))
    return dict(machine=machine(d), speed=speed)


def bench_generate_table(
    r: dict,  # a receipt of `bench_generate`
) -> str:
    "Lay out the receipt in lines"
    return "\n".join([machine_line(r["machine"]), *map(_speed_table, r["speed"])])


def _speed_table(s: dict) -> str:
    "What one preset reached"
    rows = []
    for name, speed in s["tok_s"].items():
        row = [name, f"{speed:,.1f}"]
        if name != "gpub":
            same = "the same" if s["same_text"][name] else "another"
            row += [f"{s['faster_than'][name]:.2f}x", same]
        rows.append(row)
    title = f"{s['preset']}, {s['precision']}, {s['n']} tokens after {s['prompt']}:"
    table = Table(["", "tok/s", "gpub is faster", "text"], rows, title, align="lrrl")
    apart = ", ".join(f"{k} {v:g}" for k, v in s["short_of_best"].items())
    lines = [str(table), f"chosen scores below the best by at most: {apart}"]
    if s["last_over_first_quarter"]:
        lines.append(
            f"a token at the end of the window takes {s['last_over_first_quarter']:.2f} of the "
            "time of one at its beginning"
        )
    return "\n".join(lines)
