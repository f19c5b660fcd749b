"""Tests that need a process of their own: torch learns of a new device only before the first
backward pass of a process. Each file of tests/alone runs in one."""

from pathlib import Path

import forked
import pytest

FILES = sorted((Path(__file__).parent / "alone").glob("test_*.py"))


def run_alone(root, file, *options):
    "pytest on one file, in a fresh process"
    command = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *options, file]
    return forked.run(command, cwd=root, capture_output=True, text=True)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_in_a_process_of_its_own(root, request, file):
    chosen = request.config.option.markexpr
    done = run_alone(root, file, "-m", chosen)
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout


def test_a_failure_there_is_a_failure_here(root, tmp_path):
    (tmp_path / "test_wrong.py").write_text("def test_wrong():\n    assert 1 == 2\n")
    done = run_alone(root, tmp_path / "test_wrong.py", "-m", "not slow")
    assert done.returncode == 1 and "1 failed" in done.stdout
