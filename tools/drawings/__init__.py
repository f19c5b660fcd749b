"""Drawings of the chapters, as SVG that is written by code: `python -m tools.drawings`.

A module for each page (`season1_01`, `season1_02`, ..., `course` for the front page, `cards` for
the cards of the chapters on it) holds functions that return a `Drawing`; its tuple `PICTURES` names
them. `token_strip` of `season1_02` becomes `nbs/season1/pictures/token-strip.svg`.
"""

import importlib
from pathlib import Path

from . import style as style

ROOT = Path(__file__).resolve().parents[2]


def pages():
    "Names of the modules that draw"
    here = Path(__file__).parent
    return sorted(
        p.stem for p in here.glob("*.py") if p.stem not in ("__init__", "__main__", "style")
    )


def folder(page):
    "Where the pictures of a page lie, from the root of the repository"
    if page == "cards":
        return Path("nbs", "cards")
    season, _, number = page.partition("_")
    return Path("nbs", season, "pictures") if number else Path("nbs", "pictures")


def drawings():
    "path from the root -> `Drawing`, all of them drawn now"
    drawn = {}
    for page in pages():
        module = importlib.import_module(f"{__name__}.{page}")
        for draw in module.PICTURES:
            path = folder(page) / f"{draw.__name__.replace('_', '-')}.svg"
            if path in drawn:
                raise ValueError(f"{path} is drawn by two functions")
            drawn[path] = draw()
    return drawn
