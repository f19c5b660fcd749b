"""A forecast of a run that nobody has made, sealed; and, later, that run.

python tools/sealed.py seal 128 2097152    asks two laws what width 128 reaches on 2,097,152
                                           characters of plays, and seals both answers
git commit                                 a grade asks for the date of this commit
python tools/sealed.py train 128 2097152   about 20 minutes of one core; goes on where it stopped

Both laws are fitted to all receipts of the ladder and of its earlier forecasts. One has its floor
given, the entropy of the text: it is the entry. The other has its floor fitted, as a law of real
text must: it is the rival. A forecast lies in data/runs/ladder-forecast/open until its run is
graded."""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from gpub.core import GpubError, read_config
from gpub.data.plays import plays_entropy
from gpub.model.counts import parameter_anatomy
from gpub.model.llama import LlamaConfig
from gpub.plans.ladder import (
    fit_points,
    known_source,
    proxy_config,
    read_ladder,
    train_ladder,
    write_forecast,
)
from gpub.plans.scaling import fit_law

RUNS = Path(__file__).resolve().parents[1] / "data/runs"
AHEAD = RUNS / "ladder-forecast"
TEXT = 1 << 22  # characters that every rung draws from
BOOTS = 400


def parameters(width: int) -> int:
    "Of a rung: the shape of another width on the vocabulary of the ladder"
    shape = read_config(RUNS / "ladder/w64-2048k")["model"] | proxy_config(width)
    return parameter_anatomy(LlamaConfig(**shape)).params


def refuse_known(width: int, runs: Path = RUNS) -> None:
    "Raise `GpubError` where a run of this width is on file: its forecast would not be blind"
    for path in sorted(runs.rglob("config.json")):
        config = read_config(path.parent)
        if config["preset"] == "burn-toy" and config["model"]["d_model"] == width:
            raise GpubError(f"{path.parent} is a run of width {width}: nobody can forecast it")


def seal(width: int, tokens: int) -> None:
    "Write down what both laws say of a width that nobody has trained"
    refuse_known(width)
    rungs = read_ladder(RUNS / "ladder") + read_ladder(AHEAD)
    points = np.concatenate([fit_points([rung]) for rung in rungs])
    floors = dict(entry=plays_entropy(), rival=None)
    for role, floor in floors.items():
        law = fit_law(points, BOOTS, floor=floor)
        forecast = write_forecast(
            AHEAD / f"open/w{width}-{tokens // 1024}k-{role}.json",
            law,
            parameters(width),
            tokens,
            what=f"width {width} on {tokens:,} characters of plays, deep in the window",
            role=role,
            floor="given: the entropy" if floor else "fitted",
            stands_on=[rung["name"] for rung in rungs],
        )
        low, middle, high = (forecast[key] for key in ("low", "middle", "high"))
        print(f"{role}: {middle:.4f} ({low:.4f} to {high:.4f}), floor {forecast['floor']}")


def train(width: int, tokens: int, work: Path) -> None:
    "Train it as the ladder's rungs were, and file its receipt"
    text = known_source(work / "plays", TEXT)
    for result in train_ladder(AHEAD, text, work, [(width, tokens, 0)]):
        print(result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("step", choices=("seal", "train"))
    parser.add_argument("width", type=int)
    parser.add_argument("tokens", type=int)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "sealed"))
    args = parser.parse_args()
    if args.step == "seal":
        seal(args.width, args.tokens)
    else:
        train(args.width, args.tokens, args.work)


if __name__ == "__main__":
    main()
