"""How much of the package a reader walks through for one thing: rooms, modules, functions.

python tools/walks.py [FOLDER]: a setting and a token until the first step, the first checkpoint
written, a run resumed, the first phase of a plan, a request of eight tokens. FOLDER is another
checkout, to compare. Counted are calls of functions of `gpub`, what runs at import included."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else HERE.parent).resolve()
TRAIN = ("train", "shakespeare-short", "--data", "play.txt", "--device", "cpu")
SMALL = {"n_layers": 1, "d_model": 32, "compile": "no", "precision": "fp32", "lr": 0.01}
SETTINGS = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
# walk -> what is typed, and the function whose first call is the goal, none: to the end
WALKS = {
    "a setting, to the first step": ((*TRAIN, "--out", "a", *SETTINGS), "/gpub/", "lr_factor"),
    "a token, to the loss": ((*TRAIN, "--out", "b", *SETTINGS), "/gpub/", "loss"),
    "a checkpoint, to its first file": (
        (*TRAIN, "--out", "c", "--steps", "3", "--save-every", "2", *SETTINGS),
        "/safetensors/",
        "save_file",
    ),
    "a run resumed, to its weights": (
        (*TRAIN, "--out", "c", "--steps", "3", "--save-every", "2", *SETTINGS),
        "/torch/",
        "load_state_dict",
    ),
    "the first phase of a plan": (
        ("run", "plan.json", "--data", "play.txt", "--out", "d", "--device", "cpu")
        + ("--usd-per-hour", "1", "--until", "first"),
        "",
        "",
    ),
}
CHILD = """
import sys
sys.path.insert(0, {here!r})
import walks
walks.walk({package!r}, {goal!r})
"""


class Trail:
    "Which functions of the package were called, in any thread"

    def __init__(self, package: str = "", goal: str = ""):
        self.package = package
        self.goal = goal
        self.reset()
        self.depth = 0

    def reset(self):
        "Count from here on"
        self.functions: set = set()
        self.moves = 0
        self.last: dict[int, str] = {}

    def __call__(self, frame: object, event: str, arg: object):
        if event != "call":
            return
        code = frame.f_code
        self.look_for_goal(frame, code.co_name)
        _, package, module = code.co_filename.partition("/gpub/")
        if not package:
            return
        thread = threading.get_ident()
        self.functions.add((module, code.co_qualname))
        self.moves += self.last.get(thread, module) != module
        self.last[thread] = module

    def look_for_goal(self, frame: object, name: str):
        "End where the goal is called"
        if name != self.goal or self.package not in frame.f_code.co_filename:
            return
        while frame:
            self.depth += "/gpub/" in frame.f_code.co_filename
            frame = frame.f_back
        self.end()

    def end(self):
        "Say what was seen, and go at once: threads may be in the middle of something"
        modules = {module for module, _ in self.functions}
        # a module on the ground floor counts as a room
        rooms = {module.partition("/")[0] for module in modules}
        told = dict(rooms=len(rooms), modules=len(modules), functions=len(self.functions))
        os.write(1, (json.dumps(told | dict(moves=self.moves, depth=self.depth)) + "\n").encode())
        os._exit(0)


def walk(package: str, goal: str):
    "In a process of its own: the command in `sys.argv`, until its goal"
    trail = Trail(package, goal)
    threading.setprofile(trail)
    sys.setprofile(trail)
    from gpub.cli.main import main

    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
    sys.setprofile(None)
    trail.end()


def ask(trail: Trail, port: int):
    "One request, when the server answers, and what it walked through"
    until = time.monotonic() + 120
    while time.monotonic() < until:
        with socket.socket() as knocking:
            if knocking.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.2)
    body = json.dumps(dict(model="c", prompt="KING", max_tokens=8)).encode()
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"}
    )
    trail.reset()
    urllib.request.urlopen(asked, timeout=60).read()
    trail.end()


def serve_and_ask():
    "In a process of its own: the server of a run, and one request to it"
    trail = Trail()
    threading.Thread(target=ask, args=(trail, int(sys.argv[-1])), daemon=True).start()
    threading.setprofile(trail)
    sys.setprofile(trail)
    from gpub.cli.main import main

    main()


def free_port() -> int:
    "Where the server listens"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def write_inputs(folder: Path):
    "A text, and a plan of two phases in the form that this checkout reads"
    code = (
        "import sys; sys.path.insert(0, 'tools/faults')\n"
        "import os, jobs; from pathlib import Path\n"
        f"jobs.write_plan(Path({str(folder)!r})); jobs.write_play(Path({str(folder)!r}), 20000)"
    )
    subprocess.run([sys.executable, "-P", "-c", code], cwd=FOLDER, env=environment(), check=True)


def environment() -> dict[str, str]:
    "That of this process, with the checkout's package in front"
    return {**os.environ, "PYTHONPATH": str(FOLDER), "OMP_NUM_THREADS": "1"}


def counted(folder: Path, code: str, words: tuple[str, ...]) -> dict[str, int]:
    "What a child process says of its walk"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"rooms"')]
    if not lines:
        raise RuntimeError(f"{' '.join(words)}: {done.stdout[-500:]}{done.stderr[-2000:]}")
    return json.loads(lines[-1])


COLUMNS = ("rooms", "modules", "functions", "moves", "depth")


def show(title: str, told: dict[str, int]):
    "A row of the table"
    print(f"| {title} | " + " | ".join(str(told[column]) for column in COLUMNS) + " |", flush=True)


def main():
    print("| walk | " + " | ".join(COLUMNS) + " |")
    print("|---" * (1 + len(COLUMNS)) + "|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder)
        for title, (words, package, goal) in WALKS.items():
            if "resumed" in title:  # the run to go on with
                counted(folder, CHILD.format(here=str(HERE), package="", goal=""), words)
                shutil.rmtree(folder / "c/checkpoints/step-00000003")
            code = CHILD.format(here=str(HERE), package=package, goal=goal)
            show(title, counted(folder, code, words))
        code = f"import sys; sys.path.insert(0, {str(HERE)!r}); import walks; walks.serve_and_ask()"
        told = counted(folder, code, ("serve", "c", "--device", "cpu", "--port", str(free_port())))
        show("one request, eight tokens", told)


if __name__ == "__main__":
    main()
