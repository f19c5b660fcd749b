"""Chapter 1's model reads Shakespeare twenty times; its losses and texts after 1, 5, 10, 15 and 20
epochs, the published ones, are filed as a receipt.

python tools/epochs.py     about 12 minutes of one quiet core; writes data/runs/shakespeare-epochs
"""

import json
import shutil
import tempfile
from pathlib import Path

from gpub.device import use_threads
from gpub.progress import SilentProgress
from gpub.train.options import RunOptions
from gpub.train.trainer import Trainer

EPOCHS = (1, 5, 10, 15, 20)
FILED = Path(__file__).resolve().parent.parent / "data/runs/shakespeare-epochs"


def steps_of(tokens, batch_tokens):
    "Epoch -> the step after which the text has been read so often"
    return {epoch: round(epoch * tokens / batch_tokens) for epoch in EPOCHS}


def near_an_end(step, at):
    "Whether it is one of the last hundred steps of an epoch that is filed"
    return any(end - 100 < step <= end for end in at.values())


def main(out, tokens=1_003_854, batch_tokens=4096):
    at = steps_of(tokens, batch_tokens)
    settings = dict(steps=at[20], batch_tokens=batch_tokens, compile="no", precision="fp32")
    asked = dict(eval_steps=tuple(at.values()), milestone_steps=(0, *at.values()))
    asked |= dict(command="python tools/epochs.py", progress=SilentProgress())
    run = Trainer(RunOptions("shakespeare", out, settings=settings, device="cpu", **asked))
    run.go()
    found = json.loads((out / "config.json").read_text(encoding="utf-8"))["data"]["train"]
    assert found == tokens, f"the training text has {found:,} characters"
    FILED.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "samples.jsonl", "bill.json"):
        shutil.copy(out / name, FILED / name)
    rows = (out / "log.jsonl").read_text(encoding="utf-8").splitlines()
    kept = [row for row in rows if near_an_end(json.loads(row)["step"], at)]
    (FILED / "log.jsonl").write_text("\n".join(kept) + "\n", encoding="utf-8")


if __name__ == "__main__":
    use_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder) / "run")
