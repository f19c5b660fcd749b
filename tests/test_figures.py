"""Figures on light and dark pages: the contrast of every colour, measured in a browser through the
style that the page has."""

import base64
import io
import re
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from browser import Browser

from gpub.report.plots import COLOURS, LINE_COLOURS, chapter_style
from gpub.templates import read_packaged

ROOT = Path(__file__).parents[1]
TEXT = [COLOURS[name] for name in ("ink", "mute", "train", "val", "limit")] + [*LINE_COLOURS]
LINES = [COLOURS["raw"]]
SIDE = 16  # pixels of a swatch
LAB = "#111111"  # of JupyterLab's dark theme, around a figure


def luminance(rgb):
    "WCAG 2.2: relative luminance of red, green and blue from 0 to 1"
    rgb = np.asarray(rgb, dtype=float)
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ [
        0.2126,
        0.7152,
        0.0722,
    ]


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_that_of_wcag():
    "Its two published ends: black on white, and the grey that just passes"
    assert contrast((0, 0, 0), (1, 1, 1)) == pytest.approx(21)
    grey = [0x76 / 255] * 3
    assert contrast(grey, (1, 1, 1)) == pytest.approx(4.54, abs=0.01)


def swatches():
    "A PNG with a square of each colour, and the last one white"
    colours = [*TEXT, *LINES, "#ffffff"]
    rows = [[[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in colours]]
    picture = np.repeat(np.repeat(np.array(rows), SIDE, 0), SIDE, 1)
    out = io.BytesIO()
    plt.imsave(out, picture, format="png")
    return base64.b64encode(out.getvalue()).decode()


def shown(browser, folder, is_light):
    "The colours of the swatches as JupyterLab's page shows them"
    page = folder / "lab.html"
    page.write_text(
        f"<body data-jp-theme-light='{str(is_light).lower()}' style='margin: 0'>"
        f"<style>{read_packaged('report/jupyterlab.css')}</style>"
        "<div class='jp-RenderedImage jp-OutputArea-output'>"
        f"<img style='display: block' src='data:image/png;base64,{swatches()}'></div>"
    )
    browser.open("about:blank")
    browser.open(page.as_uri())
    browser.wait("document.images[0].complete && document.images[0].naturalWidth")
    pixels = plt.imread(browser.picture(folder / "lab.png"))[SIDE // 2, SIDE // 2 :: SIDE, :3]
    return pixels[: len(TEXT) + len(LINES) + 1]


@pytest.mark.parametrize("is_light", (True, False), ids=("light", "dark"))
def test_every_colour_stands_out(tmp_path, is_light):
    "Names of lines and other text by 4.5, lines by 3, from the ground as the browser shows both"
    with Browser(tmp_path) as browser:
        *colours, ground = shown(browser, tmp_path, is_light)
    assert (luminance(ground) > 0.9) == is_light
    for colour, rgb in zip([*TEXT, *LINES], colours, strict=True):
        assert contrast(rgb, ground) >= (3 if colour in LINES else 4.5), colour
    if not is_light:
        around = [int(LAB[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        assert contrast(ground, around) < 1.1  # no frame can be seen around the figure
        red, green, blue = colours[TEXT.index(COLOURS["train"])]
        assert blue > green > red  # blue is still blue


def test_site_and_jupyterlab_have_one_rule():
    rule = re.compile(r"filter: invert\(0?(\.\d+)\) hue-rotate\((\d+)deg\)")
    sheets = ("gpub/report/jupyterlab.css", "nbs/styles.css", "tools/offline/_static/offline.css")
    rules = [set(rule.findall((ROOT / sheet).read_text())) for sheet in sheets]
    assert rules == [{(".92", "180")}] * 3


def test_the_style_goes_to_jupyterlab_alone(monkeypatch):
    "A kernel that JupyterLab started shows it; the course's own runs store nothing"
    displayed = []
    monkeypatch.setattr("IPython.display.display", displayed.append)
    with plt.rc_context():
        monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
        chapter_style()
        assert displayed == []
        monkeypatch.setenv("JPY_SESSION_NAME", "chapter.ipynb")
        chapter_style()
        assert plt.rcParams["axes.prop_cycle"].by_key()["color"] == [*LINE_COLOURS]
    [style] = displayed
    assert "data-jp-theme-light" in style.data and style.data.startswith("<style>")
