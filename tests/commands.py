"What tests type, and what they read of a run"

import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

from gpub.cli.main import main


def gpub(*words):
    "Run a command in this process: its exit code"
    before = sys.argv
    sys.argv = ["gpub", *map(str, words)]
    try:
        main()
        return 0
    except SystemExit as ended:
        return ended.code or 0
    finally:
        sys.argv = before


def output_of(*words, code=0):
    "Run a command in this process, to this exit code; all it said"
    said = StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        ended = gpub(*words)
    assert ended == code, said.getvalue()
    return said.getvalue()


def log_rows(run):
    "The rows of a run's log"
    text = (Path(run) / "log.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]
