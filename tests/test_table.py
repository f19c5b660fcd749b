"""Tables: one layout for a notebook, a terminal and a file; and the figures about the package."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from gpub.cli import main as main_module
from gpub.cli.forensics import read_command
from gpub.cli.options import echo_text
from gpub.core import GpubError
from gpub.progress import Progress
from gpub.table import Table


def test_columns_and_sides():
    table = Table(["name", "n", "what"], [["a", 1], ["bb", 1000, "x"]], "title", align="lrl")
    assert str(table).splitlines() == ["title", "name     n  what", "a     1", "bb    1000  x"]


def test_nothing_that_a_terminal_obeys_is_in_a_table():
    "Colours, titles and text turned around, in any part of it, for a terminal and a file"
    odd = "\x1b]0;mine\x07\x9b31m\u202ered\r"
    table = Table([odd, "n"], [[odd, 1], [f"{odd}\n{odd}"]], odd)
    for shown in (str(table), table.markdown()):
        assert not [c for c in shown if c not in "\n\t" and not c.isprintable()]
        assert shown.count(r"\x1b]0;mine\x07\x9b31m\u202ered\x0d") == 5


@pytest.mark.parametrize("on_terminal", [True, False])
def test_a_text_is_exact_in_a_pipe_and_harmless_on_a_terminal(on_terminal, monkeypatch, capsys):
    "What a model wrote, what a run logs, and an error, which is always for people"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: on_terminal)
    odd, spelled = "a\tb\n\x1b[31m\x0e\u2066c", "a\tb\n" + r"\x1b[31m\x0e\u2066c"
    echo_text(odd, nl=False)
    assert capsys.readouterr().out == (spelled if on_terminal else odd)
    Progress(1, live=False).log(odd)
    assert capsys.readouterr().out == (spelled if on_terminal else odd) + "\n"
    monkeypatch.setattr(main_module, "cli", Refuses(odd))
    with pytest.raises(SystemExit):
        main_module.main()
    assert capsys.readouterr().err == f"gpub: {spelled}\n"


def test_what_a_run_read_is_harmless_on_a_terminal(monkeypatch, capsys):
    odd = "\x1b]0;mine\x07"
    window = SimpleNamespace(source=odd, epoch=0, documents=[odd], text=odd)
    read = SimpleNamespace(windows=[window])
    monkeypatch.setattr("gpub.forensics.reading.read_step", lambda *_: read)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    read_command.callback("run", step=1, whole=True)
    out = capsys.readouterr().out
    assert "\x1b" not in out and out.count(r"\x1b]0;mine\x07") == 3


class Refuses:
    "A command that ends with an error"

    def __init__(self, text):
        self.text = text

    def main(self, standalone_mode, obj):  # obj: when the command began
        raise GpubError(self.text)


def test_the_last_side_holds_for_all_that_follow():
    rows = [["a", 1, 22], ["b", 333, 4]]
    assert str(Table([], rows, align="lr")).splitlines() == ["a    1  22", "b  333   4"]


def test_a_remark_widens_no_column():
    rows = [["bf16", "1.5", "2.5"], ["flash", "not on this machine"]]
    assert str(Table(["", "off", "on"], rows, align="lr")).splitlines() == [
        "       off   on",
        "bf16   1.5  2.5",
        "flash  not on this machine",
    ]


def test_lines_of_equal_widths():
    one, other = (Table([], [row], align="lr", widths=[6, 5]) for row in (["a", 1], ["bc", 22]))
    assert [str(one), str(other)] == ["a           1", "bc         22"]
    assert str(Table([], [["wider than that", 1]], widths=[3])) == "wider than that  1"


@pytest.mark.parametrize(
    "head, rows, lines",
    [
        (["a", "b"], [["1", "2"]], ["| a | b |", "| :-- | --: |", "| 1 | 2 |"]),
        ([], [["1", "2"]], ["|  |  |", "| :-- | --: |", "| 1 | 2 |"]),
        (["a", "b"], [["1"]], ["| a | b |", "| :-- | --: |", "| 1 |  |"]),
        (["a", "b"], [], ["| a | b |", "| :-- | --: |"]),
    ],
)
def test_markdown(head, rows, lines):
    table = Table(head, rows, "t", align="lr")
    assert (
        table.markdown().splitlines()
        == ["**t**", "", *lines]
        == table._repr_markdown_().split("\n")
    )


def test_metrics(root, tmp_path):
    source = '"Doc; string"\nx = 1; y = f(\n    a + b\n)\n\n\ndef g(a: int, b, *c):\n    return a\n'
    (tmp_path / "gpub/room").mkdir(parents=True)
    (tmp_path / "gpub/__init__.py").write_text("z = 1\n")
    (tmp_path / "gpub/room/a.py").write_text(source)
    command = [sys.executable, root / "tools/metrics.py", tmp_path]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    figures = dict(line.rsplit("  ", 1) for line in said.splitlines()[1:])
    figures = {what.strip(): figure.strip() for what, figure in figures.items()}
    assert figures["modules"] == "1" and figures["statements"] == "4"
    assert figures["semicolons"] == "1" and figures["functions"] == "1"
    assert figures["arguments with an annotation"] == "33% of 3"


def test_metrics_of_no_checkout(root, tmp_path):
    command = [sys.executable, root / "tools/metrics.py", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "has no folder gpub" in done.stderr


def test_rows_that_come_one_by_one_are_shown_as_often_as_asked():
    "A notebook asks for plain text first, and then for Markdown"
    table = Table(["n", "square"], map(lambda n: [n, n * n], range(3)))
    assert "4" in repr(table) and "| 2 | 4 |" in table.markdown()
