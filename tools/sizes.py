"""Four sizes of chapter 1's model read the same 1.7 million characters of Shakespeare; their losses
and texts are filed as receipts. The two small ones take three minutes of the whole and are trained
at three learning rates each, so that they do not lose by a rate that suits the others. A fifth size
is filed apart: readers guess its loss in an exercise.

python tools/sizes.py     about 31 minutes of one quiet core; writes what data/runs/sizes and
data/runs/fifth-size lack
"""

import json
import shutil
import tempfile
from pathlib import Path

from gpub.device import use_threads
from gpub.model.generate import generate_batch
from gpub.model.sampling import SamplingConfig
from gpub.progress import SilentProgress
from gpub.record.run import Run
from gpub.train.options import RunOptions
from gpub.train.trainer import Trainer

STEPS = 850
SHAPES = {  # name -> shape; all read 128 characters at once
    "w32": dict(n_layers=1, d_model=32, n_heads=2),
    "w64": dict(n_layers=2, d_model=64, n_heads=4),
    "w128": dict(n_layers=4, d_model=128, n_heads=4),
    "w256": dict(n_layers=4, d_model=256, n_heads=8),
    "w96": dict(n_layers=3, d_model=96, n_heads=3),
}
FIFTH = "w96"
RATES = {  # name -> peak rates of Muon, AdamW's a third of each
    "w32": (0.02, 0.04, 0.08),
    "w64": (0.02, 0.04, 0.08),
    "w128": (0.03,),  # of the preset shakespeare, which is as wide
    "w256": (0.02,),  # of the preset medium, which is as wide
    "w96": (0.03,),
}
PROMPTS = ("ROMEO:\n", "JULIET:\n")
RUNS = Path(__file__).resolve().parent.parent / "data/runs"


def train(out, shape, rate):
    "One run: a loss and a text at the beginning, on the way and at the end"
    settings = dict(shape, context_length=128, steps=STEPS, batch_tokens=2048, warmup=40)
    settings |= dict(muon_lr=rate, lr=round(rate / 3, 4), clip=1.0)
    settings |= dict(compile="no", precision="fp32")
    asked = dict(eval_steps=(STEPS // 2, STEPS), milestone_steps=(0, STEPS // 10, STEPS))
    asked |= dict(command="python tools/sizes.py", progress=SilentProgress())
    Trainer(RunOptions("shakespeare", out, settings=settings, device="cpu", **asked)).go()


def write_texts(out):
    "Longer texts at the end, added to samples.jsonl"
    run = Run(out, device="cpu")
    with open(out / "samples.jsonl", "a", encoding="utf-8") as file:
        for prompt in PROMPTS:
            for seed in range(1, 4):
                sampling = SamplingConfig(n=400, temperature=0.8, seed=seed)
                ids = generate_batch(run.model, [run.tokenizer.encode(prompt)], sampling)[0]
                row = dict(step=STEPS, prompt=prompt, text=run.tokenizer.decode(ids), seed=seed)
                file.write(json.dumps(row) + "\n")


def main(folder):
    for name, rates in RATES.items():
        for rate in rates:
            out = folder / f"{name}-{rate}"
            filed = RUNS / ("fifth-size" if name == FIFTH else "sizes") / out.name
            if filed.exists():
                continue
            train(out, SHAPES[name], rate)
            write_texts(out)
            filed.mkdir(parents=True, exist_ok=True)
            for file in ("config.json", "log.jsonl", "samples.jsonl", "bill.json"):
                shutil.copy(out / file, filed / file)
            print(out.name, json.loads((out / "bill.json").read_text())["val_loss"], flush=True)


if __name__ == "__main__":
    use_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
