"""Fails every write, fsync, rename and open of the commands in `jobs.JOBS`, and a part of their
requests for memory, one at a time, as SQLite's tests do; kills the command at each of them, or
types Ctrl-C; damages the newest checkpoint; and takes the power away, with all that was not forced
to the disk: python tools/faults/sweep.py [--jobs train,run] [--quick] [--receipt data/faults.json]

A server process with everything imported forks a child for each fault, so that a case costs a
fraction of a second. The child works in a folder of its own with tools/faults/inject.c in front of
libc. Then a second child types the same command again, undisturbed. Linux with a C compiler only.
"""

import argparse
import ctypes
import errno
import io
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import jobs  # noqa: E402
import power  # noqa: E402

CALLS = ("open", "write", "fsync", "rename", "memory")  # as inject.c counts them
# what happens: such a call fails, or is the last of the process, or Ctrl-C is typed there, or it is
# the last and the newest checkpoint is damaged as well, or the power goes around it
KINDS = (*CALLS, "killed", "signal", "damaged", "power")
HALF, KILL, INTERRUPT = -1, -2, -3  # as inject.c knows them
ERRORS = dict(EIO=errno.EIO, ENOSPC=errno.ENOSPC, ENOMEM=errno.ENOMEM)
ERRORS |= dict(half=HALF, killed=KILL, signal=INTERRUPT, damaged=KILL)
ONCE = ("killed", "signal", "damaged")  # there is no lasting one
OF_CALL = {
    "open": ("EIO", "ENOSPC", "killed"),
    "write": ("EIO", "ENOSPC", "half", "killed", "signal"),
    "fsync": ("EIO", "ENOSPC", "killed"),
    "rename": ("EIO", "ENOSPC", "killed", "damaged"),
    "memory": ("ENOMEM",),
}
BLOCKS = {True: 12, False: 100}  # quick or not: a step makes hundreds of tensors, so many fail
# one fleeting and one lasting fault of each call, and one kill; half a write counts once
USUAL = {
    ("EIO", False),
    ("ENOSPC", True),
    ("half", False),
    ("killed", False),
    ("signal", False),
    ("damaged", False),
    ("ENOMEM", False),
    ("ENOMEM", True),
}
ABORTED = "ended by -6"  # a library that finds no memory and ends the process, as a kill does
KILLED, UNPLUGGED = "ended by -9", "the power goes"
ROUNDED = (".safetensors", "log.jsonl", "samples.jsonl")  # what last bits decide
STOPPED = 130  # the exit code after Ctrl-C
ENDS = {0: "went on"} | dict.fromkeys((ABORTED, KILLED, UNPLUGGED), "ended at once")
LIMIT = 60  # seconds for one command: more is a hang
LONGEST = 600  # characters of a message


@dataclass(frozen=True)
class Fault:
    "One disturbance"

    job: str  # of `jobs.JOBS`
    call: str  # of `CALLS`
    number: int  # which call of that kind, from 1
    error: str  # of `ERRORS`
    lasts: bool  # every later call of the kind too

    @property
    def kind(self) -> str:
        "Of `KINDS`"
        return self.error if self.error in ONCE else self.call

    def __str__(self):
        how = "from here on" if self.lasts else "once"
        return f"{self.job}: {self.call} {self.number} {self.error} {how}"


def compiler() -> str | None:
    "What compiles C here"
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build(folder: Path) -> Path:
    "inject.c as a library"
    library = folder / "inject.so"
    how = ["-O1", "-shared", "-fPIC", "-o", str(library), str(HERE / "inject.c"), "-ldl"]
    subprocess.run([compiler(), *how], check=True)
    return library


def faults_of(job: str, counts: dict[str, int], quick: bool) -> Iterator[Fault]:
    "Every call of every kind; quick: not every error with every duration"
    for call in CALLS:
        every = max(1, counts[call] // BLOCKS[quick]) if call == "memory" else 1
        for number in range(1, counts[call] + 1, every):
            for error, lasts in itertools.product(OF_CALL[call], (False, True)):
                if error in ONCE and lasts:
                    continue
                if error == "killed" and quick and call == "open":
                    continue  # before an open is after the call before it
                if error == "damaged" and not jobs.JOBS[job].has_checkpoints:
                    continue
                if (error, lasts) in USUAL or not quick:
                    yield Fault(job, call, number, error, lasts)


def every_nth(faults: list[Fault], every: int) -> list[Fault]:
    """The last fault of each error and each duration, and every n-th before it: the last ones have
    checkpoints behind them, and no error is left out by its place in the list"""
    alike: dict[tuple, list[Fault]] = {}
    for fault in faults:
        alike.setdefault((fault.call, fault.error, fault.lasts), []).append(fault)
    return [fault for group in alike.values() for fault in group[::-1][::every]]


def few_faults_of(job: str, counts: dict[str, int]) -> Iterator[Fault]:
    "One of each kind that a user meets, spread over the work; `damaged` until one has an effect"
    writes, renames = counts["write"], counts["rename"]
    yield Fault(job, "write", 1 + writes // 3, "killed", False)
    yield Fault(job, "write", 1 + writes * 4 // 5, "killed", False)
    yield Fault(job, "write", 1 + writes // 2, "ENOSPC", True)
    yield Fault(job, "write", 1 + writes // 6, "signal", False)
    if jobs.JOBS[job].has_checkpoints:
        for number in range(renames, 0, -2):
            yield Fault(job, "rename", number, "damaged", False)


def finished_phases(run: Path) -> set[str]:
    "Phases of a plan that are booked as done: nobody opens their checkpoints again"
    file = run / "phases.jsonl"
    rows = map(json.loads, file.read_text().splitlines()) if file.is_file() else ()
    return {row["phase"] for row in rows if row["word"] == "continue"}


def damage_newest(run: Path) -> bool:
    "Change a byte of the newest checkpoint that has an older one beside it; whether there is one"
    finished = finished_phases(run)
    unfinished = [p for p in run.rglob("checkpoints/step-*") if p.parts[-3] not in finished]
    folders = sorted(unfinished, key=lambda path: path.stat().st_mtime_ns)
    with_another = [path for path in folders if len([*path.parent.glob("step-*")]) > 1]
    if not with_another:
        return False
    largest = max(with_another[-1].iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[-1] ^= 1
    largest.write_bytes(content)
    return True


class Injector:
    "inject.c, which is in front of libc already"

    def __init__(self, library: str):
        self.c = ctypes.CDLL(library)

    def arm(self, folder: Path, fault: Fault | None):
        "Count from here on, and fail what was asked for"
        call = CALLS.index(fault.call) if fault else -1
        number, error = (fault.number, ERRORS[fault.error]) if fault else (0, 0)
        lasts = bool(fault and fault.lasts)
        self.c.faults_arm(str(folder).encode(), call, ctypes.c_long(number), error, lasts)

    def disarm(self) -> dict[str, int]:
        "Fail nothing any more; how many calls there were"
        self.c.faults_disarm()
        return {call: self.c.faults_counted(i) for i, call in enumerate(CALLS)}


def in_child(work: Callable[[], dict]) -> dict:
    "What `work` returns, from a process of its own that is stopped when it hangs"
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        signal.alarm(LIMIT)
        try:
            told = work()
        except BaseException:
            told = dict(code="broken", said=traceback.format_exc())
        with open(writing, "w") as pipe:
            json.dump(told, pipe)
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        told = pipe.read()
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return json.loads(told) if told else dict(code=f"ended by {ended}", said="", calls={})


def free_port() -> int:
    "Where the processes of a job find each other"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start_others(job: jobs.Job, port: int) -> list[int]:
    "The other processes of a job, undisturbed, as torchrun starts them; they end with this one"
    started = []
    for rank in range(1, job.processes):
        pid = os.fork()
        if pid:
            started.append(pid)
            continue
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        signal.alarm(LIMIT)
        join(job, rank, port)
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            run_command()
        os._exit(0)
    return started


def join(job: jobs.Job, rank: int, port: int):
    "What torchrun tells a process"
    told = dict(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=job.processes)
    told |= dict(LOCAL_WORLD_SIZE=job.processes, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    os.environ.update({name: str(value) for name, value in told.items()})


def run_command() -> tuple[int | str, str]:
    "The command in `sys.argv`: its exit code, and its traceback if it has one"
    from gpub.cli.main import main

    try:
        main()
    except SystemExit as ended:
        return ended.code or 0, ""
    except BaseException:
        return "traceback", traceback.format_exc()
    return 0, ""


def typed(job: jobs.Job, folder: Path, injector: Injector, fault: Fault | None) -> dict:
    "Exit code, what was told and what was said on stderr, and the calls that were counted"
    os.chdir(folder)
    sys.argv = ["gpub", *job.argv]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    others = []
    if job.processes > 1:
        port = free_port()
        others = start_others(job, port)
        join(job, 0, port)
    said, told = io.StringIO(), io.StringIO()
    with redirect_stdout(told), redirect_stderr(said), job.beside(folder):
        injector.arm(folder / "out", fault)
        code, traced = run_command()
        calls = injector.disarm()
    for pid in others:
        if code != 0:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return dict(code=code, said=said.getvalue() + traced, told=told.getvalue(), calls=calls)


def is_older_checkpoint(name: str, names: list[str]) -> bool:
    "Whether a file is of a checkpoint and a later one stands beside it"
    folder, found, rest = name.partition("checkpoints/step-")
    beside = [n.removeprefix(folder + found) for n in names if n.startswith(folder + found)]
    return bool(found) and rest.partition("/")[0] < max(n.partition("/")[0] for n in beside)


def difference(found: dict, wanted: dict, first: dict | None = None) -> str:
    """Which files are not as they should be. Scratch (its name begins with a dot) may be left once;
    `first` is how the disturbed command ended, if there was one"""
    first = first or {}
    names = [name for name in {**found, **wanted} if found.get(name) != wanted.get(name)]
    names = [name for name in names if not any(p.startswith(".") for p in Path(name).parts)]
    if "out of memory with" in first.get("told", ""):
        # sums in smaller pieces, which the command announces, have other last bits
        names = [name for name in names if not name.endswith(ROUNDED)]
    if first.get("code") == STOPPED:
        # a checkpoint more was saved, and an older one is gone for it
        names = [name for name in names if not is_older_checkpoint(name, [*found, *wanted])]
    return ", ".join(sorted(names))


def what_broke(job: jobs.Job, fault: Fault, first: dict, folder: Path, wanted: dict) -> list[str]:
    "After the disturbed command"
    expected = (0, STOPPED) if fault.error == "signal" else (0, 1)
    if first["code"] not in expected:
        return [f"it ended with {first['code']}: {first['said'][-1500:]}"]
    wrong = []
    message = first["said"].strip()
    lines = [line for line in message.splitlines() if line.startswith("gpub: ")]
    if first["code"] != 0 and len(lines) != 1:
        wrong.append(f"not one line: {message[-300:]}")
    if lines and len(lines[0]) > LONGEST:
        wrong.append(f"a message of {len(lines[0])} characters")
    out = folder / job.out
    if out.exists():
        wrong += job.invariants(out)
    if first["code"] == 0:
        other = difference(job.final(out), wanted, first)
        if other:
            wrong.append(f"it said that all is well, but these differ: {other}")
    return wrong


def what_broke_again(
    job: jobs.Job, first: dict, second: dict, folder: Path, wanted: dict
) -> list[str]:
    "After the same command, undisturbed"
    if second["code"] != 0:
        return [f"the same command does not go on: {second['said'][-1500:]}"]
    other = difference(job.final(folder / job.out), wanted, first)
    return [f"it went on to another end: {other}"] if other else []


def found_in(told: dict) -> list[str]:
    "What a child found wrong, or how it ended before it could look"
    return told["wrong"] if "wrong" in told else [told["said"] or str(told["code"])]


class Server:
    "Everything imported; each case in children of this process"

    def __init__(self, library: str, place: Path):
        self.injector, self.place = Injector(library), place
        self.prepared: dict[str, Path] = {}
        self.wanted: dict[str, dict] = {}
        self.calls: dict[str, dict[str, int]] = {}
        import gpub.cli.main  # noqa: F401
        import gpub.train.trainer  # noqa: F401

        jobs.make_short()

    def learn(self, name: str):
        "The undisturbed command: what comes out, and how many calls it makes"
        job, folder = jobs.JOBS[name], self.place / f"prepared-{name}"
        os.chdir(self.place)
        folder.mkdir()
        prepared = in_child(lambda: self._prepare(job, folder))
        if prepared["code"] != 0:
            raise RuntimeError(prepared["said"])
        self.prepared[name] = folder
        # once in this process: what is imported late, or set up at first use, is there for all
        if job.processes == 1:
            typed(job, self.fresh(name), self.injector, None)
        at = self.fresh(name)
        told = in_child(lambda: self._undisturbed(job, at))
        if told["code"] != 0:
            raise RuntimeError(f"{name} does not work undisturbed: {told['code']} {told['said']}")
        self.wanted[name], self.calls[name] = told["final"], told["calls"]
        shutil.rmtree(at)

    def _prepare(self, job: jobs.Job, folder: Path) -> dict:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            job.prepare(folder)
        return dict(code=0, said="")

    def _undisturbed(self, job: jobs.Job, at: Path) -> dict:
        told = typed(job, at, self.injector, None)
        return told | dict(final=job.final(at / job.out) if told["code"] == 0 else {})

    def fresh(self, name: str) -> Path:
        "A folder to work in"
        os.chdir(self.place)  # this process may stand in the one that goes
        at = self.place / "work"
        shutil.rmtree(at, ignore_errors=True)
        jobs.copy_prepared(self.prepared[name], at)
        return at

    def case(self, fault: Fault) -> dict | None:
        "One disturbance: how the command ended, and what broke; None where nothing was to damage"
        job, at = jobs.JOBS[fault.job], self.fresh(fault.job)
        wanted = self.wanted[fault.job]

        def disturbed():
            first = typed(job, at, self.injector, fault)
            return first | dict(wrong=what_broke(job, fault, first, at, wanted))

        first = in_child(disturbed)
        wanted_end = {"ENOMEM": ABORTED, "killed": KILLED, "damaged": KILLED}.get(fault.error)
        if first["code"] == wanted_end:
            first["wrong"] = []  # nobody can say anything then: the same command has to go on
        if fault.error == "damaged" and not damage_newest(at / "out/run"):
            return None
        done = first["code"] == 0 and job.once
        again = partial(self.again, job, at, first)
        second = dict(wrong=[]) if done else in_child(again)
        wrong = found_in(first) + found_in(second)
        return asdict(fault) | dict(kind=fault.kind, code=first["code"], wrong=wrong)

    def again(self, job: jobs.Job, at: Path, first: dict) -> dict:
        "The same command, undisturbed, and what is wrong before and after it"
        out, wanted = at / job.out, self.wanted[job.name]
        wrong = job.invariants(out) if out.exists() else []
        if job.once and out.exists():  # it was done before the end came
            other = difference(job.final(out), wanted)
            return dict(wrong=wrong + [f"it is not whole: {other}"] * bool(other))
        second = typed(job, at, self.injector, None)
        return second | dict(wrong=wrong + what_broke_again(job, first, second, at, wanted))

    def cases(
        self, name: str, part: str, every: int, quick: bool, kinds: list[str]
    ) -> Iterator[dict]:
        "Those of a part such as 0/2 of every n-th fault, one after the other"
        first, parts = map(int, part.split("/"))
        faults = [f for f in faults_of(name, self.calls[name], quick) if f.kind in kinds]
        chosen = every_nth(faults, every)
        damaged = False
        for fault in chosen[first::parts]:
            case = self.case(fault)
            if case is not None:
                damaged = damaged or fault.kind == "damaged"
                yield case
        if first == 0 and "damaged" in kinds and not damaged:
            yield from self.first_damage([f for f in faults if f not in chosen])
        if "power" in kinds:
            yield from self.power_cuts(name, slice(first * every, None, parts * every))

    def first_damage(self, faults: list[Fault]) -> Iterator[dict]:
        "The last of these moments that has a checkpoint to damage, where a wide stride met none"
        for fault in reversed([f for f in faults if f.kind == "damaged"]):
            case = self.case(fault)
            if case is not None:
                yield case
                return

    def few_cases(self, name: str) -> Iterator[dict]:
        "One of each kind; of the damaged ones the first that had a checkpoint to damage"
        kinds = set()
        for fault in few_faults_of(name, self.calls[name]):
            if fault.kind == "damaged" and fault.kind in kinds:
                return
            case = self.case(fault)
            if case is not None:
                kinds.add(fault.kind)
                yield case

    def power_cuts(self, name: str, part: slice) -> Iterator[dict]:
        """At every fsync and rename of the undisturbed command the power goes: what was forced to
        the disk is where the same command begins"""
        job, left = jobs.JOBS[name], self.place / f"left-{name}"

        def watch():
            at = self.fresh(name)
            with power.watched(at / "out") as disk:
                told = typed(job, at, self.injector, None)
            for number, files in enumerate(disk.states.values()):
                power.put_back(files, left / f"{number:04d}")
            return told

        left.mkdir()
        told = in_child(watch)
        if told["code"] != 0:
            raise RuntimeError(f"{name} does not work while it is watched: {told['said']}")
        states = sorted(left.iterdir())
        for number in range(len(states))[part]:
            at = self.fresh(name)
            shutil.rmtree(at / "out")
            shutil.copytree(states[number], at / "out")
            config = at / job.out / "config.json"
            if config.is_file() and not config.stat().st_size:
                continue  # a name without content: what a journal of names alone may leave
            second = in_child(partial(self.again, job, at, {}))
            fault = dict(job=name, call="power", number=number, error="power", lasts=True)
            yield fault | dict(kind="power", code=UNPLUGGED, wrong=found_in(second))


FEW = "few"  # instead of a part of all faults


def serve(library: str, names: list[str], part: str, every: int, quick: bool, kinds: list[str]):
    "One case after the other, a line of JSON for each"
    memory = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(prefix="faults-", dir=memory if memory.is_dir() else None))
    try:
        server = Server(library, place)
        for name in names:
            server.learn(name)
            if part == FEW:
                cases = server.few_cases(name)
            else:
                cases = server.cases(name, part, every, quick, kinds)
            for case in cases:
                print(json.dumps(case), flush=True)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def run_servers(parts: list[str], *options: str) -> list[dict]:
    "The cases that processes of their own find, one for each part"
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        env = {**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"}
        env["RUST_BACKTRACE"] = "0"
        started = []
        for number, part in enumerate(parts):
            command = [sys.executable, __file__, "--serve", str(library), "--part", part, *options]
            # into files: a pipe that nobody empties would stop its process
            out = open(Path(folder, f"cases-{number}.jsonl"), "w+")
            started.append((subprocess.Popen(command, env=env, stdout=out), out))
        cases = []
        for process, out in started:
            if process.wait():
                raise RuntimeError("a process of the sweep failed, see above")
            with out:
                out.seek(0)
                cases += [json.loads(line) for line in out]
    return cases


def sweep_few(names: list[str]) -> list[dict]:
    "One fault of each kind that a user meets, for each of these jobs"
    return run_servers([FEW], "--jobs", ",".join(names))


def sweep(
    names: list[str],
    quick: bool = False,
    processes: int = 2,
    every: int = 1,
    kinds: tuple[str, ...] = KINDS,
) -> list[dict]:
    "All cases of these jobs and kinds, or every n-th, on several processes"
    options = ["--jobs", ",".join(names), "--kinds", ",".join(kinds), "--every", str(every)]
    if quick:
        options.append("--quick")
    return run_servers([f"{part}/{processes}" for part in range(processes)], *options)


def summary(cases: list[dict]) -> dict:
    "Job -> kind of call -> how many faults, how they ended, how many broke something"
    table: dict = {}
    for case in cases:
        row = table.setdefault(case["job"], {}).setdefault(case["kind"], Counter())
        row["faults"] += 1
        row[ENDS.get(case["code"], "said so and stopped")] += 1
        row["broke something"] += bool(case["wrong"])
    return {job: {kind: dict(row) for kind, row in kinds.items()} for job, kinds in table.items()}


def keep_receipt(path: Path, table: dict, asked: argparse.Namespace):
    "Add the jobs and kinds that were swept to a receipt"
    before = json.loads(path.read_text()) if path.is_file() else {}
    how = dict(every=asked.every, errors="one of each call" if asked.quick else "all")
    rows = before.get("sweep", {})
    for job, kinds in table.items():
        known = rows.get(job, how)
        whole = how if len(kinds) == len(KINDS) else known
        rows[job] = whole | dict(calls=known.get("calls", {}) | kinds)
    whole = dict(before, sweep=rows)
    path.write_text(json.dumps(whole, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--jobs", default=",".join(jobs.JOBS))
    parser.add_argument("--kinds", default=",".join(KINDS), help="of calls")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--every", type=int, default=1, help="only every n-th fault")
    parser.add_argument("--receipt", help="where the table goes; jobs that are not swept stay")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--part", default="0/1", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    names, kinds = asked.jobs.split(","), tuple(asked.kinds.split(","))
    if asked.serve:
        return serve(asked.serve, names, asked.part, asked.every, asked.quick, kinds)
    broken = False
    for name in names:  # a job is filed before the next begins: a sweep takes hours
        cases = sweep([name], asked.quick, every=asked.every, kinds=kinds)
        for case in cases:
            for wrong in case["wrong"]:
                fault = {k: case[k] for k in Fault.__dataclass_fields__}
                print(f"{Fault(**fault)}: {wrong}\n")
                broken = True
        table = summary(cases)
        print(json.dumps(table, indent=1), flush=True)
        if asked.receipt:
            keep_receipt(Path(asked.receipt), table, asked)
    sys.exit(broken)


if __name__ == "__main__":
    main()
