"""A rented pod that is not there: its clock, its card and its volume, below the real command,
runner, ledger, log, checkpoints and verdicts. Its steps take the seconds that a card's speed gives
the 1B."""

import errno
import io
import json
import math
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import torch

from gpub import night
from gpub.cli.plans import run_command
from gpub.core import RUN_FORMAT, GpubError, write_atomic
from gpub.data.plays import plays
from gpub.model.architectures import architecture_of
from gpub.model.counts import checkpoint_bytes
from gpub.night import Status
from gpub.plans import runner
from gpub.plans.annealing import plan_settings, schedule_settings, steps_reached
from gpub.plans.cost_forecast import Overheads
from gpub.plans.gpus import machine_for
from gpub.plans.loss_forecast import published_curve
from gpub.plans.phases import read_plan
from gpub.record import checkpoint_draft
from gpub.record.checkpoint import save_checkpoint
from gpub.record.checkpoint_draft import mark_latest
from gpub.record.folder import Interrupted, append_row, disk_errors, lock_folder
from gpub.record.ledger import Ledger
from gpub.train.presets import apply_settings, find_preset
from gpub.train.resume import cut_records
from gpub.train.timed_steps import TimedSteps, file_timed

PLAN = read_plan("burn-1b")
USD_PER_HOUR = 1.49
FORECAST = machine_for("burn-1b", "A100-80", USD_PER_HOUR)
PUBLISHED = [(int(t), float(loss)) for t, loss in published_curve("s2-1b")]
GB = checkpoint_bytes(PLAN.model_config) / 1e9


class Killed(BaseException):
    "The machine is gone: nothing of its processes writes any more"


class PodLedger(Ledger):
    "A ledger of the pod's clock, which a killed process does not close"

    def __init__(self, pod: "Pod", out: Path, rate: float, step: int, paid: bool):
        self.pod = pod
        clock = dict(wall=lambda: 1.8e9 + pod.now, steady=lambda: pod.now, boot=f"boot {pod.boots}")
        super().__init__(out, rate, step, since=pod.now, paid=paid, **clock)

    def flush(self):
        "Write down what passed, while the machine is there"
        if not self.pod.dead:
            super().flush()


class Pod:
    "A machine with one card and a volume"

    def __init__(self, folder: Path, tok_s: float = FORECAST.tok_s()):
        self.folder = folder
        self.tok_s = tok_s
        self.now = 0.0  # seconds
        self.boots = 1
        self.dead = False
        self.on_seconds = 0.0  # that the provider counts
        self.happens: dict[int, Callable[[PodRun], None]] = {}  # step -> what, once
        self.rows: dict[str, dict] = {}  # phase -> columns of its log that are planted
        self.sample = plays(2000, seed=0)[:400]
        self.paid_at: dict[int, float] = {}  # step -> seconds that the provider had counted then
        self.wanted = math.inf  # the step at which the run stands where it stood
        self.stood = 0.0  # the moment at which it did

    @property
    def run(self) -> Path:
        "The run folder, on the volume"
        return self.folder / "train_1b" / "run"

    def passes(self, seconds: float):
        "Time that is paid for"
        self.now += seconds
        self.on_seconds += seconds

    def is_off(self, hours: float):
        "A stopped pod, or none: only the volume is left"
        self.now += 3600 * hours
        self.boots += 1
        self.dead = False

    def rents(self):
        "Another pod with the same volume: the clicks until it is there"
        self.boots += 1
        self.dead = False
        self.passes(600)

    def goes_on(self, line: str, step: int) -> tuple[str, float]:
        "Type a line; what is printed, and the minutes until the run stands at a step again"
        began = self.now
        self.wanted = step
        printed = self.type(line)
        return printed, (self.stood - began) / 60

    def snapshot(self, folder: Path) -> "Pod":
        "A pod of another volume with the same run on it, at the same moment"
        shutil.copytree(self.run, folder / "train_1b" / "run")
        other = Pod(folder, self.tok_s)
        other.now, other.on_seconds, other.boots = self.now, self.on_seconds, self.boots
        return other

    def preflight(self):
        "What the real one files, and the time that it takes"
        self.passes(900)
        steps = TimedSteps(
            preset=PLAN.preset,
            card="cpu",  # the command computes here
            steps=20,
            tok_s=self.tok_s,
            compiled=True,
            checkpointing="off",
            ready_seconds=200.0,
        )
        file_timed(self.run, steps)

    def line(self, options: str = "") -> str:
        "What the page of steps says to type"
        return (
            f"gpub run burn-1b --out {self.run} --data {self.folder}/shards --usd-per-hour "
            f"{USD_PER_HOUR} --paid-gaps --device cpu --until push {options}"
        ).strip()

    def type(self, line: str) -> str:
        "Type a line on this pod; what is printed, with the line of a refusal"
        words = shlex.split(line)
        printed = io.StringIO()
        before = sys.argv
        sys.argv = words
        try:
            with redirect_stdout(printed):
                run_command.main(words[2:], standalone_mode=False)
        except (GpubError, Interrupted) as e:
            printed.write(f"gpub: {e}\n")
        except Killed:
            pass
        finally:
            sys.argv = before
        return printed.getvalue()


class PodRun:
    """Stands for the `Trainer` of a phase, its task and its open run: rows, checkpoints and money
    are real, weights are not"""

    def __init__(self, pod: Pod, plan, phase, out, options, world):
        self.pod = pod
        self.phase = phase
        self.out = Path(out)
        self.world = world
        settings = plan_settings(plan, phase, plan.pretraining_end(options.until), options.settings)
        settings |= schedule_settings(plan, settings, self.out)[0]
        self.cfg = apply_settings(find_preset(plan.preset), settings)[1]
        self.plan = plan
        self.options = options
        self.log = options.log or print
        self.progress = SimpleNamespace(shown=False)
        self.stop_requested = Event()
        self.milestone_steps = {m for p in plan.pretraining for m in p.milestones}
        self.stride = 10 if phase.until <= 1000 else 50
        self.state = SimpleNamespace(row=None, step=0)
        self.task = self

    def _config(self) -> dict:
        return dict(
            format=RUN_FORMAT,
            preset=self.plan.preset,
            architecture=architecture_of(self.plan.model_config).name,
            model=self.plan.model_config.to_dict(),
            train=self.cfg.to_dict(),
            reference=dict(uniform=math.log(self.plan.model_config.vocab_size)),
        )

    @contextmanager
    def opened(self) -> Iterator["PodRun"]:
        "Hold the folder, as the real run does"
        with disk_errors(self.out), lock_folder(self.out, self.log):
            self.state.step = steps_reached(self.out, log=self.log)
            write_atomic(self.out / "config.json", json.dumps(self._config()))
            cut_records(self.out, self.state.step)
            self.ledger = PodLedger(
                self.pod,
                self.out,
                self.options.usd_per_hour,
                self.state.step,
                self.options.paid,
            )
            if self.ledger.gap_note():
                self.log(self.ledger.gap_note())
            with self.ledger:
                self.pod.passes(Overheads().setup)
                yield self
            if self.state.step == self.cfg.steps:
                for name in ("bill.json", "report.html"):
                    write_atomic(self.out / name, "{}")

    def go(self):
        "Only what a finished run leaves"
        with self.opened():
            pass

    def steps(self) -> Iterator[SimpleNamespace]:
        "Every stride is a step to the runner"
        with self.ledger.span("compile"):
            self.pod.passes(Overheads().compile)
        self.ledger.switch("train")
        first = True
        while self.state.step < self.cfg.steps:
            if self.state.step >= self.pod.wanted:
                self.pod.stood, self.pod.wanted = self.pod.now, math.inf
            # a first step alone: by it the runner knows where this process began
            n = self.state.step + 1 if first else (self.state.step // self.stride + 1) * self.stride
            first = False
            self.pod.passes((n - self.state.step) * self.cfg.batch_tokens / self.pod.tok_s)
            self.state.step = n
            self.pod.paid_at[n] = self.pod.on_seconds
            happens = self.pod.happens.pop(n, None)
            if happens:
                happens(self)
            self._record(n)
            step = SimpleNamespace(n=n)
            if n % self.plan.save_every == 0 or n == self.cfg.steps or self.stop_requested.is_set():
                self.save(step)
            self.ledger.mark_step(n)
            if self.stop_requested.is_set() and n < self.cfg.steps:
                raise Interrupted(f"stopped at step {n}, saved in {self.out}")
            self.ledger.switch("idle")
            yield step
            self.ledger.switch("train")

    def _record(self, n: int):
        tokens = n * self.cfg.batch_tokens
        loss = min(8.0, _published_loss(tokens))
        row = dict(step=n, loss=loss, tokens=tokens, lr=self.cfg.lr, grad_norm=0.3)
        row |= dict(tok_s=round(self.pod.tok_s), mfu=0.5, seconds=self.pod.now, usd=0.0)
        if n == self.phase.until:
            row |= dict(val_loss=loss + 0.02)
            self.pod.passes((self.plan.eval_tokens or 0) / (3 * self.pod.tok_s))
        row |= self.pod.rows.get(self.phase.name, {})
        if n < self.phase.until:
            row.pop("val_loss", None)
        text = row.pop("sample", self.pod.sample)
        if n in self.milestone_steps:
            append_row(
                self.out / "samples.jsonl", dict(step=n, prompt="The ", text=f"The {text}", seed=0)
            )
        append_row(self.out / "log.jsonl", row)
        self.state.row = row

    def save(self, s: SimpleNamespace, wait: bool = False):
        "A whole checkpoint of one number, in the time that the real one takes"
        if getattr(self, "saved", None) == s.n:
            return
        with self.ledger.span("save"):
            self.pod.passes(GB / Overheads().host_gb_s)
            self.ledger.step = s.n
            self.ledger.flush()
            one = torch.zeros(1)
            state = dict(config=self._config())
            keep = s.n in self.milestone_steps
            save_checkpoint(self.out, s.n, dict(w=one), dict(m=one), state, 2, keep)
            mark_latest(self.out)
        self.saved = s.n


def _published_loss(tokens: int) -> float:
    "The published curve of the 1B; before its first point, chance"
    if tokens < PUBLISHED[0][0]:
        return 6.4
    return next(loss for t, loss in reversed(PUBLISHED) if t <= tokens)


def stop_by_hand(run: PodRun):
    "Ctrl-C, which saves after the step"
    run.stop_requested.set()


def take_away(run: PodRun):
    "The machine is gone in the middle of a step"
    run.pod.dead = True
    raise Killed


@contextmanager
def rented(pod: Pod, monkeypatch) -> Iterator[Pod]:
    "A pod under the real command"
    pod.run.mkdir(parents=True, exist_ok=True)

    def trainer(plan, phase, out, options, world):
        return PodRun(pod, plan, phase, out, options, world)

    def card(model, card, usd_per_hour=None):
        return machine_for(model, "A100-80", usd_per_hour)

    def gmtime():
        return time.gmtime(1.8e9 + pod.now)

    def date(form, when=None):
        return time.strftime(form, when or gmtime())

    clock = SimpleNamespace(monotonic=lambda: pod.now, strftime=date, gmtime=gmtime)
    writes = Status.write
    with monkeypatch.context() as patched:
        patched.setattr(runner, "_phase_trainer", trainer)
        patched.setattr(runner, "machine_for", card)
        patched.setattr(night, "time", clock)
        patched.setattr(Status, "write", lambda s, *a, **k: pod.dead or writes(s, *a, **k))
        yield pod


@contextmanager
def quota_used_up(monkeypatch) -> Iterator[None]:
    "A network volume that takes no checkpoint more"

    def full(*args, **more):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_draft, "save_file", full)
        yield
