"""Training and decoding a Llama of ours against LlamaForCausalLM: same weights, same batch, same
precision, in turns"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional as F

from gpub.device import machine, pick_device, pick_precision, use_threads
from gpub.lab.bench.race import Race
from gpub.model.counts import flops_per_token
from gpub.model.llama import Llama, LlamaConfig, llama_table
from tools.bench.generate import GenerationRace, generation_speed, in_transformers

# 77M
MIDDLE = LlamaConfig(
    vocab_size=32_005,
    context_length=256,
    d_model=640,
    n_layers=12,
    n_heads=10,
    n_kv_heads=5,
    d_ff=1792,
)


def adamw_step(
    model: nn.Module,  # whose parameters are trained
    loss_fn: Callable,  # (x, y) -> nats per token, of that model
    x: torch.Tensor,  # (b, t) ids
    y: torch.Tensor,  # (b, t) the ids one position later
    dtype: torch.dtype,  # of autocast; `torch.float32`: none
) -> Callable[[], torch.Tensor]:  # gives the loss before the step
    "A function that takes one AdamW step and returns the loss"
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> torch.Tensor:
        with torch.autocast(x.device.type, dtype, enabled=dtype != torch.float32):
            loss = loss_fn(x, y)
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def race_steps(
    cfg: LlamaConfig,  # the shape
    batch: int,  # sequences of the whole context in a step
    rounds: int,  # steps of each, in turns, after two to warm up
    device: torch.device,  # where both train
    compiled: bool,  # both losses through `torch.compile`
) -> dict:  # that part of the receipt; the first losses must agree
    "A training step of ours and one of LlamaForCausalLM, on the same weights and ids"
    torch.manual_seed(0)
    ours = Llama(cfg).to(device)
    theirs = in_transformers(ours).train()
    x, y = torch.randint(cfg.vocab_size, (2, batch, cfg.context_length), device=device)

    def their_loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = theirs(x, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), y.flatten())

    losses = dict(gpub=ours.loss, transformers=their_loss)
    if compiled:
        losses = {n: torch.compile(f, dynamic=False) for n, f in losses.items()}
    dtype = pick_precision(device).dtype
    models = dict(gpub=ours, transformers=theirs)
    steps = {n: adamw_step(m, losses[n], x, y, dtype) for n, m in models.items()}
    first = {n: float(step()) for n, step in steps.items()}
    race = Race({n: lambda _, step=step: step() for n, step in steps.items()}, device)
    race.warm_up(1).run(rounds)
    cpu = race.ratio("transformers", "gpub", "cpu") if device.type == "cpu" else None
    return dict(
        step_s={n: round(s, 4) for n, s in race.each().items()},
        tok_s=round(batch * cfg.context_length / race.each()["gpub"]),
        ratio=round(race.ratio("transformers", "gpub"), 3),
        cpu_ratio=cpu and round(cpu, 3),
        first_loss=first,
    )


def bench_llama(
    cfg: LlamaConfig = MIDDLE,  # the shape
    batch: int = 2,  # sequences of the whole context in a step
    rounds: int = 8,  # steps of each, in turns, after two to warm up
    device: str = "auto",  # or cpu, cuda, mps
    compiled: bool = False,  # both losses through `torch.compile`
) -> dict:  # seconds of both, their ratio, losses (which must agree), `generation_speed`'s figures
    """A training step of ours and of LlamaForCausalLM, in turns, then both decoding; raises
    `GpubError` where transformers is not installed"""
    use_threads()
    d = pick_device(device)
    precision = pick_precision(d).name
    steps = race_steps(cfg, batch, rounds, d, compiled)
    how = GenerationRace(128, uncached=False, flat=False)
    if d.type == "cuda":
        how = replace(how, precision=precision)
    decoding = generation_speed(cfg, str(d), how)
    del decoding["preset"]
    return dict(
        machine=machine(d),
        parameters=sum(llama_table(cfg).values()),
        ctx=cfg.context_length,
        batch=batch,
        precision=precision,
        compiled=compiled,
        **steps,
        gflops=round(flops_per_token(cfg) * steps["tok_s"] / 1e9, 1),
        decoding=decoding,
    )


def bench_llama_table(
    r: dict,  # what `bench_llama` returned
) -> str:
    "The receipt in lines: one for the step, one for decoding"
    w = r["decoding"]
    s = r["step_s"]
    peer = "transformers"
    cpu = "" if r["cpu_ratio"] is None else f", {r['cpu_ratio']:.2f} in CPU time"
    return (
        f"Llama of {r['parameters']:,} parameters, {r['batch']} x {r['ctx']}, {r['precision']}, "
        f"{'compiled' if r['compiled'] else 'eager'}: {s['gpub']:.3f} s a step, LlamaForCausalLM "
        f"(sdpa) {s[peer]:.3f} s: {r['ratio']:.2f} times as fast{cpu}; {r['tok_s']:,} tok/s, "
        f"{r['gflops']:,} GFLOP/s\n"
        f"decoding with the cache, {w['precision']}, {w['n']} tokens: {w['tok_s']['gpub']:.1f} "
        f"tok/s, its generate {w['tok_s'][peer]:.1f}: {w['faster_than'][peer]:.2f} times as fast, "
        f"{'the same text' if w['same_text'][peer] else 'another text'}"
    )
