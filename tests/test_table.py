"""Tables: one layout for a notebook, a terminal and a file; and the figures about the package."""

import subprocess, sys
import pytest
from gpub.table import Table


def test_columns_and_sides():
    table = Table(["name", "n", "what"], [["a", 1], ["bb", 1000, "x"]], "title", align="lrl")
    assert str(table).splitlines() == ["title", "name     n  what", "a     1", "bb    1000  x"]


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
