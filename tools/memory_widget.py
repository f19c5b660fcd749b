"""Put the library's forecasts into the frame of season 1, chapter 3: what fills the memory of a
training step, for two models, seven batches and three ways of checkpointing.

python tools/memory_widget.py     writes nbs/season1/widgets/memory.html
"""

import json
import re
from pathlib import Path

from gpub.model.architecture import MODES
from gpub.model.architectures import config_of
from gpub.model.step_memory import PARTS, memory_forecast

PAGE = Path(__file__).resolve().parents[1] / "nbs/season1/widgets/memory.html"
BATCHES = (1, 2, 4, 8, 16, 32, 64)
MODELS = {  # name on the page -> preset
    "chapter 1's, 437,888": "shakespeare",
    "the blog's, 134,601,216": "gpt2-134m",
}


def forecasts():
    "What the frame shows: MB of each part, for each model, mode and batch"
    models = []
    for name, preset in MODELS.items():
        table = {}
        for mode in MODES:
            table[mode] = []
            for batch in BATCHES:
                settings = dict(mode=mode, optimizer="adamw")
                bill = memory_forecast(config_of(preset), batch, **settings)
                table[mode].append([round(bill[part] / 1e6, 1) for part in PARTS])
        models.append(dict(name=name, mb=table))
    return dict(parts=PARTS, batches=BATCHES, modes=MODES, models=models)


def main():
    "Fill the page"
    slot = r'(<script id="forecasts" type="application/json">).*?(</script>)'
    data = json.dumps(forecasts())
    page = re.sub(slot, lambda m: m[1] + data + m[2], PAGE.read_text(encoding="utf-8"), flags=re.S)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
