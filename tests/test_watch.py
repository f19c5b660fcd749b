"""`show_progress`: the same steps, and what is shown of them: on a terminal, in a kernel, in
JupyterLab."""

import json
import re
import socket
import subprocess
import sys
from types import SimpleNamespace
from urllib.error import URLError
from urllib.request import urlopen

import nbformat
import pytest
from browser import Browser
from nbclient import NotebookClient

from gpub.report.watch import MOST_POINTS, Work, show_progress, show_work, thinned, writing_steps

CELL = """
import time
from gpub.report.watch import show_progress

def lower(steps):
    for step in range(steps):
        time.sleep(0.03)
        yield 4 - step / steps

for loss in show_progress(lower(100), 100, write=lambda: "<b>rose</b>", at={1, 100}):
    pass
"""


def test_the_steps_are_handed_on_and_the_texts_are_asked_for_at_their_steps(capsys):
    wrote = []
    steps = [SimpleNamespace(loss=4.0 - n) for n in range(3)]
    taken = []
    for step in show_progress(
        steps, 3, write=lambda: wrote.append(len(taken)) or "a rose", at={0, 2}
    ):
        taken.append(step)
    assert taken == steps and wrote == [0, 2]
    out = capsys.readouterr().out
    assert out.count("a rose") == 2 and "--- step 2" in out
    assert re.search(r"step 3/3  loss 2\.000  0:00 done, 0:00 left", out)


def test_without_a_text_the_losses_alone_are_shown(capsys):
    assert list(show_progress([2.0, 1.5], 2)) == [2.0, 1.5]
    assert "---" not in capsys.readouterr().out


def test_a_loop_that_is_left_or_fails_says_how_far_it_came(capsys):
    for loss in show_progress(iter([3.0, 2.0, 1.0]), 3):
        if loss == 2.0:
            break

    def fails():
        yield 3.0
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        list(show_progress(fails(), 2))
    assert "step 1/3" in capsys.readouterr().out


def test_a_curve_of_any_length_is_small_and_keeps_its_means():
    losses = [float(n % 7) for n in range(10_001)]
    points = thinned(losses)
    assert len(points) <= MOST_POINTS
    training = Work(10_001)
    for loss in losses:
        training.learned(loss)
    assert len(training._repr_html_()) < 4_000
    assert thinned([1.0, 2.0]) == [(1.0, 1.0), (2.0, 2.0)]


def test_a_text_cannot_become_a_part_of_the_page():
    training = Work(2, texts=[(1, "<script>alert(1)</script>")])
    training.learned(2.0)
    assert "<script>" not in training._repr_html_()
    assert "no step yet" in repr(Work(2))


def test_other_work_is_shown_without_a_curve(capsys):
    work = Work(20, doing="hellaswag (1 of 2)")
    with show_work(work) as advance:
        advance(10)
        work.doing = "lambada (2 of 2)"
        advance(10)
    out = capsys.readouterr().out
    assert re.search(r"hellaswag \(1 of 2\)  0:00 done, 0:00 left\nlambada", out)
    assert "lambada (2 of 2)" in work._repr_html_() and "<svg" not in work._repr_html_()


@pytest.mark.parametrize("total", (1, 2, 10, 984, 100_000))
def test_the_last_step_writes(total):
    steps = writing_steps(total)
    assert total in steps and len(steps) <= 8 and min(steps) == 1


def test_a_notebook_keeps_the_last_picture_only():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    NotebookClient(notebook, timeout=120).execute()
    (output,) = notebook.cells[0].outputs
    html = output["data"]["text/html"]
    assert 'value="100" max="100"' in html and html.count("<svg") == 1
    assert html.count("&lt;b&gt;rose&lt;/b&gt;") == 2
    assert "step 100/100" in output["data"]["text/plain"]


@pytest.fixture
def lab(tmp_path):
    "The address of a JupyterLab that shows one notebook"
    pytest.importorskip("jupyterlab")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    notebook.metadata.kernelspec = dict(name="python3", display_name="Python 3", language="python")
    nbformat.write(notebook, tmp_path / "watch.ipynb")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    said = tmp_path / "lab.log"
    options = [
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={tmp_path}",
        "--IdentityProvider.token=",
        "--LabApp.expose_app_in_browser=True",
        "--no-browser",
        "--allow-root",
    ]
    with said.open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options], stdout=log, stderr=log
        )
    address = f"http://127.0.0.1:{port}"
    try:
        answers = False
        while not answers:
            assert server.poll() is None, said.read_text()
            try:
                answers = urlopen(f"{address}/api", timeout=60).status == 200
            except (URLError, ConnectionError):
                answers = False
        yield address
    finally:
        server.terminate()
        server.wait()


@pytest.mark.full(instead="test_a_notebook_keeps_the_last_picture_only")
def test_the_picture_grows_in_jupyterlab(lab, tmp_path):
    drawn = "document.querySelector('.gpub-training progress')"
    with Browser(tmp_path) as browser:
        browser.open(f"{lab}/lab/tree/watch.ipynb")
        browser.wait("window.jupyterapp && document.querySelector('.jp-Notebook .jp-CodeCell')")
        browser.wait(
            "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status == 'idle'"
        )
        browser.run("void window.jupyterapp.commands.execute('notebook:run-all-cells')")
        browser.wait(f"{drawn}.value > 0 && {drawn}.value < 90")
        early = browser.run(f"{drawn}.value")
        browser.wait(f"{drawn}.value == 100")
        shown = browser.run("document.querySelector('.gpub-training').innerText")
        assert 0 < early < 100 and "0:00 left" in shown and shown.count("<b>rose</b>") == 2
        curves = browser.run(
            "JSON.stringify([...document.querySelectorAll('.gpub-training polyline')]"
            ".map(line => line.points.length))"
        )
        assert json.loads(curves) == [100]
