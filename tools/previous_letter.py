"""Chapter 1's model from three random beginnings: does a head that looks one back appear each time?

GPUB_DATA=folder python tools/previous_letter.py     about fifteen minutes of one quiet core

writes data/previous_letter.json. It runs the cells of the page itself; only the seed of the first
weights changes. For each seed: the loss, the head with the largest mean weight one back, and the
loss with this head switched off and with each other one."""

import json
from pathlib import Path

from gpub.device import machine, seed_everything, use_threads

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "nbs/season1/01_first_transformer.ipynb"
RECEIPT = ROOT / "data/previous_letter.json"
IMPORTS, SHAPE = "07660e46", "80ca1"
CELLS = """2fa5a8a3 9f0b5214 a65495ba head-texts 5837be9a fe74cdf5 e92be07c two-tables init-1
713072af 7a915c67 train-3 train-2 86afbf5f look-1 b94aa961 f9312341 headoff1""".split()
SEEDS, EPOCHS = (0, 1, 2), 4


def names_of_page():
    "What the cells of the page define"
    cells = json.loads(PAGE.read_text(encoding="utf-8"))["cells"]
    source = {cell["id"]: "".join(cell["source"]) for cell in cells}
    page = {}
    for cell_id in (IMPORTS, *CELLS, SHAPE):
        exec(source[cell_id], page)
    return page


def one_run(page, seed):
    "Train from one random beginning, find the head, switch each head off"
    seed_everything(seed)
    model = page["FirstGPT"](**page["shape"])
    for _ in page["train"](model, EPOCHS):
        pass
    back = page["one_back"](model)
    n_layers, n_heads = back.shape
    without = {
        (i, j): page["val_loss_without"](model, i, j)
        for i in range(n_layers)
        for j in range(n_heads)
    }
    best = divmod(back.argmax().item(), n_heads)
    return dict(
        seed=seed,
        val_loss=round(page["val_loss"](model), 3),
        layer=best[0] + 1,
        head=best[1] + 1,
        one_back=round(back[best].item(), 3),
        without_it=round(without[best], 3),
        without_another=round(max(x for at, x in without.items() if at != best), 3),
    )


def main():
    page, runs = names_of_page(), []
    for seed in SEEDS:
        runs.append(one_run(page, seed))
        print(runs[-1], flush=True)
    receipt = dict(
        command="python tools/previous_letter.py",
        epochs=EPOCHS,
        runs=runs,
        machine=machine(),
    )
    RECEIPT.write_text(json.dumps(receipt, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    use_threads(1)
    main()
