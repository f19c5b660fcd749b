"""Our training step against transformers' Trainer (a GPT, on the CPU) or LlamaForCausalLM, in the
same minutes"""

import json
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch

from gpub.core import GpubError
from gpub.data.batches import Batches
from gpub.device import pick_device, seed_everything, use_threads
from gpub.lab.bench.race import Clock, Race, turn_order
from gpub.lab.bench.train import bench_train, bench_train_table, zipf_tokens
from gpub.model.architectures import SHAPES, build_model
from gpub.model.gpt import GPT, GPTConfig
from gpub.model.llama import LlamaConfig
from gpub.progress import Progress
from gpub.train.compiled import choose_loss
from gpub.train.config import TrainConfig
from gpub.train.kernels import pick_attention
from gpub.train.loop import train_next_token
from gpub.train.memory import MicroBatcher
from gpub.train.optim import make_optimizers, muon_format
from gpub.train.options import RunOptions
from gpub.train.presets import apply_settings, find_preset
from gpub.train.trainer import OpenRun, Trainer
from tools.bench.llama import MIDDLE, bench_llama, bench_llama_table
from tools.bench.shakespeare import HFModel


def peak_rss() -> int:  # bytes
    "The most memory this process ever held"
    import resource

    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def tokens_for(
    cfg: GPTConfig,  # of the model: vocabulary and context
    batch: int,  # sequences in a step
    steps: int,  # to read for
) -> np.ndarray:  # int64
    "Random ids, four times as many as the steps read"
    return zipf_tokens(max(200_000, 4 * batch * cfg.context_length * steps), cfg.vocab_size)


def gpub_steps(
    model: dict,  # keywords of `GPTConfig`
    batch: int,  # sequences in a step
    steps: int,  # to make, on the CPU
) -> dict:  # seconds of each step, peak memory of this process in bytes, last loss
    "Our loop with AdamW"
    use_threads()
    seed_everything(0)
    cfg = GPTConfig(**model)
    net = GPT(cfg)
    tick = Clock("cpu")
    data = Batches(tokens_for(cfg, batch, steps), context_length=cfg.context_length, batch=batch)
    tick()
    recipe = TrainConfig(
        steps=steps,
        batch_tokens=batch * cfg.context_length,
        optimizer="adamw",
        lr=1e-4,
        warmup=0,
        compile="no",
    )
    for s in train_next_token(net, lambda n, context_length: data[n], recipe):
        tick()
        s.row()
    return dict(seconds=tick.seconds(), rss=peak_rss(), loss=float(s.loss))


def trainer_steps(
    model: dict,  # keywords of `GPTConfig`
    batch: int,  # sequences in a step
    steps: int,  # to make, on the CPU
) -> dict:  # as `gpub_steps` gives it, with the mean loss
    "transformers' Trainer on its own GPT-2; raises `GpubError` where it is not installed"
    try:
        # the Trainer needs accelerate, and asks late
        import accelerate  # noqa: F401
        from transformers import PrinterCallback, TrainerCallback, TrainingArguments
        from transformers import Trainer as HFTrainer
    except ImportError as e:
        raise GpubError(
            f"this comparison needs transformers and accelerate ({e}): pip install 'gpub[hub]' "
            "accelerate"
        ) from None
    use_threads()
    seed_everything(0)
    cfg = GPTConfig(**model)
    tick = Clock("cpu")
    data = Batches(tokens_for(cfg, batch, steps), context_length=cfg.context_length, batch=1)
    rows = [dict(input_ids=(x := data[i].ids[0]), labels=x) for i in range(steps * batch)]

    class Marks(TrainerCallback):
        def on_train_begin(self, *args: object, **kw: object):
            tick()

        def on_step_end(self, *args: object, **kw: object):
            tick()

    with tempfile.TemporaryDirectory() as d:
        args = TrainingArguments(
            d,
            max_steps=steps,
            per_device_train_batch_size=batch,
            use_cpu=True,
            optim="adamw_torch_fused",
            learning_rate=1e-4,
            max_grad_norm=0.0,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        hf = HFModel(cfg).hf
        hf.loss_type = "ForCausalLM"  # else it is guessed from the name, with a warning
        trainer = HFTrainer(hf, args, train_dataset=rows, callbacks=[Marks()])
        trainer.remove_callback(PrinterCallback)
        out = trainer.train()
    return dict(seconds=tick.seconds(), rss=peak_rss(), loss=out.training_loss)


def alone(
    f: Callable,  # a function of this module
    **kw: object,  # its arguments, plain values
) -> dict:  # what it returns
    "Run a function in a process of its own; raises `GpubError` with its last line when it fails"
    program = ["-m", "tools.bench.contender"]
    done = subprocess.run(
        [sys.executable, *program, f.__name__, json.dumps(kw)], capture_output=True, text=True
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise GpubError(f"{f.__name__} failed: {lines[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def against_trainer(
    preset: str = "gpt2-134m",  # a GPT of `SHAPES`
    batch: int = 4,  # sequences in a step
    steps: int = 4,  # of each round; the first does not count
    rounds: int = 2,  # times that each contender is started, in turns
    settings: Mapping[str, object] | None = None,  # of the shape, instead of the preset's
    log: Callable[[str], object] = print,  # called with a line per start
) -> dict:  # median seconds of a step and peak bytes of both, with their ratios
    """Our step against transformers' Trainer on the CPU, fp32, eager, the first step of each round
    not counted"""
    model = {**SHAPES[preset].config.to_dict(), **(settings or {})}
    contenders = dict(gpub=gpub_steps, trainer=trainer_steps)
    out = {name: [] for name in contenders}
    for n in range(rounds):
        for name in turn_order([*contenders], n):
            one = alone(contenders[name], model=model, batch=batch, steps=steps)
            out[name].append(one)
            seconds = statistics.median(one["seconds"][1:])
            memory = one["rss"]
            log(f"{name}: {seconds:.2f} s a step, {memory / 1e9:.2f} GB")
    got = {
        name: dict(
            step_s=statistics.median(t for r in runs for t in r["seconds"][1:]),
            rss=max(r["rss"] for r in runs),
            loss=runs[0]["loss"],
        )
        for name, runs in out.items()
    }
    a = got["gpub"]
    b = got["trainer"]
    return dict(
        preset=preset,
        batch=batch,
        steps=steps,
        rounds=rounds,
        **got,
        speed_ratio=round(b["step_s"] / a["step_s"], 3),
        memory_ratio=round(a["rss"] / b["rss"], 3),
    )


def overhead(
    preset: str = "shakespeare",  # its name, as for `gpub train`
    steps: int = 300,  # of each, at most: two begin the run, and only whole turns count
    turn: int = 10,  # steps before the other has its turn
    settings: Mapping[str, object] | None = None,
    # called with what the engine decides
    log: Callable[[str], object] = lambda text: None,
) -> dict:  # milliseconds a step of both, and their ratio
    "Measure the engine's time over a bare loop's"
    with (
        tempfile.TemporaryDirectory() as d,
        open(Path(d, "out"), "w", encoding="utf-8") as out,
    ):
        run = Trainer(
            RunOptions(
                preset,
                Path(d, "run"),
                settings={"steps": steps, **(settings or {})},
                save_every=100,
                log=log,
                eval_steps={steps},
                milestone_steps=(),
                progress=Progress(steps, out=out),
            )
        )
        with run.opened() as opened:
            engine = opened.steps()
            next(engine)
            bare = _bare_step(opened, log)
            bare()
            contenders = dict(
                engine=lambda n: _repeat(engine.__next__, turn), bare=lambda n: _repeat(bare, turn)
            )
            race = Race(contenders, run.task.device).run((steps - 2) // turn)
    n = (steps - 2) // turn * turn
    spent = race.each(sum)
    return dict(
        preset=preset,
        steps=n,
        engine_ms=round(spent["engine"] / n * 1e3, 3),
        bare_ms=round(spent["bare"] / n * 1e3, 3),
        ratio=round(spent["engine"] / spent["bare"], 4),
    )


def _repeat(step: Callable[[], object], times: int):
    for _ in range(times):
        step()


def _bare_step(run: OpenRun, log: Callable[[str], object]) -> Callable[[], None]:
    "A step of a run's model and recipe, and nothing around it"
    task = run.task
    dev = task.device
    dtype = run.learner.dtype
    model = pick_attention(build_model(task.model_cfg).to(dev), dev, dtype)
    batch = task.read_batch(0)
    x = batch.ids
    y = batch.targets
    params = [*model.parameters()]
    opts = make_optimizers(model, task.cfg, muon_format(dev))
    loss_fn = choose_loss(MicroBatcher(model, task.cfg, log=log), (x, y), task.cfg, dtype)

    def step():
        with torch.autocast(dev.type, dtype, enabled=dtype != torch.float32):
            loss = loss_fn(x, y)
        loss.backward()
        torch.nn.utils.get_total_norm([p.grad for p in params])
        for opt in opts:
            opt.step()
            opt.zero_grad()

    return step


def bench_train_peers(
    preset: str = "gpt2-134m",  # its name, as for `gpub train`
    device: str = "auto",  # CUDA where it is, else MPS, else the CPU
    steps: int = 30,  # that are counted
    log: Callable[[str], object] = print,  # called with a line now and then
) -> dict:  # plain values
    "Return the receipt of `gpub bench train`, with a bare loop and a peer beside the step"
    out = bench_train(preset, device, steps, log=log) | dict(overhead=overhead(log=log))
    d = pick_device(device)
    if find_preset(preset).config is LlamaConfig:
        out["llama"] = _bench_llama(preset, d)
    elif d.type == "cpu":
        out["trainer"] = against_trainer(log=log)
    return out


def _bench_llama(preset: str, device: torch.device) -> dict:
    "A CPU races in 77M, a card in the shape itself"
    if device.type == "cpu":
        return bench_llama(MIDDLE, batch=2, device=str(device))
    p = find_preset(preset)
    shape, _ = apply_settings(p, {})
    cfg = p.config(vocab_size=SHAPES[preset].config.vocab_size, **shape)
    return bench_llama(cfg, batch=4, device=str(device), compiled=device.type == "cuda")


def bench_train_peers_table(
    r: dict,  # a receipt of `bench_train_peers`
) -> str:
    "The receipt in lines"
    lines = [bench_train_table(r)]
    if o := r.get("overhead"):
        lines.append(
            f"around the step: {o['ratio']:.3f} of a bare loop's time over {o['steps']} steps "
            f"({o['preset']})"
        )
    if t := r.get("trainer"):
        lines.append(
            f"{t['preset']}, batch {t['batch']}: a step in {1 / t['speed_ratio']:.2f} of the "
            "time of transformers' Trainer, "
            f"with {t['memory_ratio']:.2f} of its peak memory"
        )
    if llama := r.get("llama"):
        lines.append(bench_llama_table(llama))
    return "\n".join(lines)
