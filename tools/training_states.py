"""The training that the front page winds back: a small model reads Shakespeare, ten of its states
are kept, and one page holds all of them at eight bits.

GPUB_DATA=folder python tools/training_states.py [RUN]     about 4 minutes of one quiet core

writes nbs/widgets/training.html and the receipt data/training_states.json. With RUN, a folder, the
run is kept there; if it is there already, only the page and the receipt are written again. With
--page instead, today's programs are put around the states that the page has."""

import base64
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from gpub.core import GpubError, read_config, write_atomic
from gpub.data.char import CharTokenizer
from gpub.data.text import load_shakespeare
from gpub.device import machine, use_threads
from gpub.model.gpt import GPT, GPTConfig, count_params
from gpub.model.probes import sample_ids
from gpub.progress import SilentProgress
from gpub.record.checkpoint import load_checkpoint, save_checkpoint
from gpub.record.checkpoint_folder import kept_steps
from gpub.record.log import read_bill, read_log
from gpub.record.run import load_run
from gpub.share.demo import pack_weights, page_shape, rounded
from gpub.share.frames import previous_letter_weights
from gpub.templates import render_template
from gpub.train.options import RunOptions
from gpub.train.trainer import Trainer

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "nbs/widgets/training.html"
RECEIPT = ROOT / "data/training_states.json"
STEPS = (0, 20, 60, 120, 180, 250, 350, 600, 1100, 2000)
SETTINGS = dict(
    steps=STEPS[-1],
    batch_tokens=4096,
    context_length=64,
    d_model=48,
    n_layers=2,
    n_heads=2,
    optimizer="adamw",
    lr=0.01,
    log_every=2,
    compile="no",
    precision="fp32",
)
_LINE = "ROMEO:\nBut, soft! what light"  # over which the heads are shown at first
_WRITTEN = 220  # characters of a state's text
_POINTS = 120  # of the loss curve


def _curve(rows: Sequence[dict]) -> list[list[float]]:
    "A loss curve in few points, close together at the start as a logarithm is"
    steps = [row["step"] for row in rows]
    losses = [np.mean([r["loss"] for r in rows[max(0, i - 4) : i + 5]]) for i in range(len(rows))]
    chosen = np.unique(np.geomspace(1, len(rows), _POINTS).round().astype(int)) - 1
    return [[steps[i], round(float(losses[i]), 3)] for i in chosen]


def _state_of(
    run: Path, step: int, cfg: GPTConfig, tok: CharTokenizer, val_losses: dict[int, float]
) -> tuple[dict, list, int, bytes]:
    "What the page holds of one checkpoint: facts, list of tensors, floats, weights"
    model = GPT(cfg).eval()
    saved = load_checkpoint(run, step, optimizer=False)
    model.load_state_dict(saved.model)
    prompt = read_config(run)["prompt"]
    with torch.no_grad():
        ids = sample_ids(rounded(model), tok.encode(prompt), _WRITTEN, temperature=0.8, seed=0)
    loss = val_losses.get(step)
    if step == 0:  # the log begins with the first step
        loss = saved.state.get("val_loss")
    facts = dict(step=step, loss=loss and round(loss, 3), text=tok.decode(ids))
    return facts, *pack_weights(model)


def write_training_page(
    run: Path | str,  # a run folder with a character model
    file: Path | str,  # the HTML file to write
    steps: Sequence[int] = (),  # of its checkpoints, those to show; default: all
    text: str = _LINE,  # over which the heads are shown at first
    references: dict[str, float] | None = None,  # dashed lines in the curve: name, loss
) -> Path:  # path of the file
    """Write one self-contained HTML file with the states of a training, and a slider for the step;
    raises `GpubError` for a run that has fewer than two checkpoints or is no small GPT"""
    cfg, tok, config = page_shape(run)
    steps = sorted(steps or kept_steps(run))
    if len(steps) < 2:
        raise GpubError(f"{run} keeps {len(steps)} checkpoint: a slider needs two or more")
    rows = read_log(run)
    val_losses = {row["step"]: row["val_loss"] for row in rows if row.get("val_loss")}
    states = []
    blocks = []
    for step in steps:
        facts, tensors, floats, block = _state_of(Path(run), step, cfg, tok, val_losses)
        states.append(facts)
        blocks.append(base64.b64encode(block).decode())
    about = (
        f"{count_params(cfg):,} parameters, {cfg.n_layers} layers of {cfg.n_heads} heads, a window "
        f"of {cfg.context_length} characters. All {len(states)} states lie in this page, at 8 bits "
        "a weight; nothing is sent anywhere."
    )
    facts = dict(
        cfg=cfg.to_dict(),
        chars=[ord(char) for char in tok.chars],
        tensors=tensors,
        floats=floats,
        states=states,
        curve=_curve([row for row in rows if row.get("loss") is not None]),
        references=references or {},
        prompt=config["prompt"],
        text="".join(char for char in text if char in tok.chars) or tok.chars[0],
        start=0,
    )
    page = render_template(
        "share/training.html.jinja",
        title="A model learns to write",
        facts=facts,
        facts_id="model",
        blocks=blocks,
        about=about,
    )
    return write_atomic(file, page)


def train(out):
    "The run; its milestones are the states of the page, and so are the weights it begins with"
    at = dict(eval_steps=STEPS[1:], milestone_steps=STEPS[1:])
    options = dict(command="python tools/training_states.py", progress=SilentProgress())
    options = RunOptions("shakespeare", out, settings=SETTINGS, device="cpu", **at, **options)
    with Trainer(options).opened() as run:
        weights = run.learner.model.state_dict()
        save_checkpoint(
            out,
            0,
            weights,
            {},
            dict(val_loss=run.task.validate(run.learner)["val_loss"]),
            milestone=True,
        )
        for step in run.steps():
            if step.n in STEPS:
                run.save(step, wait=True)


def references(text):
    "The loss of two tables of counts on the last tenth of the text, as in chapter 1"
    ids = torch.from_numpy(CharTokenizer.from_text(text).encode(text).astype("int64"))
    n = int(ids.max()) + 1
    cut = int(0.9 * len(ids))
    seen, new = ids[:cut], ids[cut:]
    pairs = torch.bincount(seen[:-1] * n + seen[1:], minlength=n**2).view(n, n) + 1.0
    triple_ids = (seen[:-2] * n + seen[1:-1]) * n + seen[2:]
    triples = torch.bincount(triple_ids, minlength=n**3).view(n, n, n) + 0.1
    pair_probs = pairs / pairs.sum(-1, keepdim=True)
    triple_probs = triples / triples.sum(-1, keepdim=True)
    return {
        "pair counts": -pair_probs[new[:-1], new[1:]].log().mean().item(),
        "triple counts": -triple_probs[new[:-2], new[1:-1], new[2:]].log().mean().item(),
    }


def receipt(run, lines):
    "What the page shows, as numbers"
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    rows = {row["step"]: row for row in read_log(run)}
    states = []
    for step in STEPS:
        model, tok, _ = load_run(run, step, "cpu")
        text = load_shakespeare().text[-1000:]
        back = previous_letter_weights(model, tok.encode(text).tolist())
        if step:
            loss = rows[step]["val_loss"]
        else:
            loss = load_checkpoint(run, 0, optimizer=False).state["val_loss"]
        states.append(dict(step=step, val_loss=round(loss, 4), one_back=back))
    return dict(
        command="python tools/training_states.py",
        parameters=config["parameters"],
        settings=SETTINGS,
        references=lines,
        states=states,
        page_bytes=PAGE.stat().st_size,
        seconds=read_bill(run)["seconds"],
        machine=machine(),
    )


def renew_page():
    "The page again, with its states and today's style and programs"
    old = PAGE.read_text(encoding="utf-8")
    values = dict(
        title=re.search("<title>(.*?)</title>", old)[1],
        facts=json.loads(re.search('id="model">(.*?)</script>', old, re.S)[1]),
        facts_id="model",
        blocks=re.findall('type="text/plain" id="[^"]+">(.*?)</script>', old),
        about=re.search('<p class="mute">([^<]+)</p>\n</div>', old)[1],
    )
    PAGE.write_text(render_template("share/training.html.jinja", **values), encoding="utf-8")
    filed = json.loads(RECEIPT.read_text(encoding="utf-8"))
    filed["page_bytes"] = PAGE.stat().st_size
    RECEIPT.write_text(json.dumps(filed, indent=1) + "\n", encoding="utf-8")


def main(run):
    if not (run / "bill.json").is_file():
        train(run)
    text = load_shakespeare()
    assert text.source == "tiny shakespeare", text.note
    lines = {name: round(loss, 3) for name, loss in references(text.text).items()}
    write_training_page(run, PAGE, STEPS, references=lines)
    filed = receipt(run, lines)
    RECEIPT.write_text(json.dumps(filed, indent=1) + "\n", encoding="utf-8")
    print(f"{PAGE}: {filed['page_bytes']:,} bytes")
    for state in filed["states"]:
        best = max(weight for layer in state["one_back"] for weight in layer)
        print(f"step {state['step']:5}: {state['val_loss']:.3f}, {best:.0%} one back")


if __name__ == "__main__":
    use_threads(1)
    if sys.argv[1:] == ["--page"]:
        sys.exit(renew_page())
    with tempfile.TemporaryDirectory() as folder:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else folder + "/run"))
