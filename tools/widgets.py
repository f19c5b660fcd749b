"""Put what a model really says into the frame of chapter 5: after five texts, the scores of every
character. `python tools/widgets.py runs/shakespeare` reads the run's newest checkpoint and writes
nbs/season1/widgets/sampling.html; what stands there came from the run that the site is built with.
"""

import json
import re
import sys
from pathlib import Path

import torch

from gpub.record.run import load_run

PAGE = Path(__file__).parents[1] / "nbs/season1/widgets/sampling.html"
TEXTS = ("ROMEO:\nThe ", "ROMEO:\nWh", "First Citizen:\nWe are ", "the q", "My lord")


def scores(run):
    "What the frame shows: characters, their logits after each text, and a line about the model"
    model, tok, config = load_run(run, device="cpu")
    with torch.no_grad():
        rows = [model(torch.tensor([tok.encode(text).tolist()]))[0, -1] for text in TEXTS]
    prompts = [
        dict(text=text, logits=[round(x, 3) for x in row.tolist()])
        for text, row in zip(TEXTS, rows)
    ]
    about = (
        f"A model of {config['parameters']:,} parameters after {config['train']['steps']} steps on "
        "tiny Shakespeare."
    )
    return dict(chars=list(tok.chars), prompts=prompts, about=about)


def main(run):
    "Fill the page"
    data = json.dumps(scores(run), ensure_ascii=False).replace("</", "<\\/")
    slot = r'(<script id="scores" type="application/json">).*?(</script>)'
    page = re.sub(slot, lambda m: m[1] + data + m[2], PAGE.read_text(encoding="utf-8"), flags=re.S)
    PAGE.write_text(page, encoding="utf-8")
    print(f"{PAGE}: {len(page):,} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
