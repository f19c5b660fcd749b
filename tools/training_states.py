"""The training that the front page winds back: a small model reads Shakespeare, ten of its states
are kept, and one page holds all of them at eight bits.

GPUB_DATA=folder python tools/training_states.py [RUN]     about 4 minutes of one quiet core

writes nbs/widgets/training.html and the receipt data/training_states.json. With RUN, a folder, the
run is kept there; if it is there already, only the page and the receipt are written again. With
--page instead, today's programs are put around the states that the page has."""

import json
import re
import sys
import tempfile
from pathlib import Path

import torch

from gpub.data.char import CharTokenizer
from gpub.data.text import load_shakespeare
from gpub.device import machine, use_threads
from gpub.progress import SilentProgress
from gpub.record.checkpoint import load_checkpoint, save_checkpoint
from gpub.record.log import read_bill, read_log
from gpub.record.run import load_run
from gpub.share.frames import previous_letter_weights, write_training_page
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
            dict(val_loss=run.task.scores(run.learner)["val_loss"]),
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
