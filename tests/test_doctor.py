"A healthy run gives only ok; every planted defect is found, and nothing else is"

import json
import shutil

import pytest
from commands import log_rows

import gpub.data.corpus as gpub_corpus
import gpub.guards.doctor as gpub_doctor
import gpub.model.architectures as architectures_module
import gpub.train.learner as learner
from gpub.core import GpubError
from gpub.data.plays import plays
from gpub.data.text import Text
from gpub.guards.doctor import DOCTOR_CHECKS, doctor, doctor_table
from gpub.lab.museum.bugs import peek
from gpub.model.gpt import GPT
from gpub.record.checkpoint import load_checkpoint, save_checkpoint
from gpub.train.config import TrainConfig
from gpub.train.loop import lr_factor
from gpub.train.options import RunOptions
from gpub.train.trainer import Trainer

pytestmark = pytest.mark.usefixtures("short_texts")


def at_one_speed(run):
    "Level the speed in the log: how busy the machine of the tests was is no finding"
    write(run, [row | dict(tok_s=20_000) for row in log_rows(run)])


@pytest.fixture(scope="module")
def healthy(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("doctor")
    Trainer(
        RunOptions(
            "shakespeare",
            folder / "run",
            text,
            dict(
                d_model=32,
                context_length=32,
                batch_tokens=256,
                steps=30,
                log_every=1,
                stages=[[0, 16], [0.5, 32]],
            ),
            log=lambda s: None,
        )
    ).go()
    at_one_speed(folder / "run")
    return folder / "run"


@pytest.fixture
def run(healthy, tmp_path):
    shutil.copytree(healthy, tmp_path / "run")
    return tmp_path / "run"


def write(run, rows):
    (run / "log.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))


def found(run):
    return {f.question: f for f in doctor(run) if f.level != "ok"}


def test_a_healthy_run_gives_only_ok(healthy):
    findings = doctor(healthy)
    assert [f.question for f in findings if f.level != "ok"] == [] and len(findings) == len(
        DOCTOR_CHECKS
    )
    assert doctor_table(findings).endswith("0 alarms, 0 warnings") and all(
        f.finding for f in findings
    )


def test_a_run_on_its_way_is_healthy(run):
    write(run, log_rows(run)[:17])
    (run / "bill.json").unlink()
    (run / "report.html").unlink()
    assert found(run) == {}


@pytest.mark.full(instead="test_a_healthy_run_gives_only_ok")
def test_a_killed_and_resumed_run_is_healthy(text, tmp_path, monkeypatch):
    settings, real = (
        dict(d_model=32, context_length=32, batch_tokens=256, steps=20, log_every=1),
        learner.train,
    )

    def dies(*a, **kw):
        for s in real(*a, **kw):
            if s.n == 13:
                # two steps after the last checkpoint, with rows in the log
                raise MemoryError("killed here")
            yield s

    def go():
        return Trainer(
            RunOptions("shakespeare", tmp_path / "run", text, settings, log=lambda s: None)
        ).go()

    monkeypatch.setattr(learner, "train", dies)
    with pytest.raises(MemoryError):
        go()
    # broken off, and nothing is wrong with it
    assert log_rows(tmp_path / "run")[-1]["step"] == 12 and found(tmp_path / "run") == {}
    monkeypatch.undo()
    go()
    at_one_speed(tmp_path / "run")
    assert len(log_rows(tmp_path / "run")) == 20 and found(tmp_path / "run") == {}


@pytest.mark.full(
    instead="test_limit.py::test_a_model_without_a_causal_mask_is_caught_below_the_entropy"
)
def test_a_model_that_sees_the_future_is_found_out(tmp_path, monkeypatch):
    """The whole way: a mask off by one, trained on the built-in plays, gets below the entropy of
    its source"""
    monkeypatch.setattr(
        gpub_corpus,
        "load_shakespeare",
        lambda log: Text(plays(300_000, seed=0), "built-in plays", "no network"),
    )
    monkeypatch.setattr(architectures_module, "build_model", lambda cfg: GPT(cfg, attention=peek))
    # so that its samples are written, too, as a model's that believes in its mask
    monkeypatch.setattr(peek, "is_exact", True, raising=False)
    Trainer(
        RunOptions(
            "shakespeare",
            tmp_path / "run",
            None,
            dict(d_model=32, context_length=32, n_layers=1, batch_tokens=512, steps=250),
            log=lambda s: None,
        )
    ).go()
    bad = found(tmp_path / "run")
    assert bad["causality"].level == "alarm" and "sees the future" in bad["causality"].finding, bad


def edit(**change):
    "Rewrite every row by functions of row and config"

    def plant(run):
        cfg = TrainConfig.from_dict(json.loads((run / "config.json").read_text())["train"])
        write(run, [r | {k: f(r, cfg) for k, f in change.items()} for r in log_rows(run)])

    return plant


def at(step, **values):
    return edit(
        **{
            k: (lambda r, cfg, k=k, v=v: v if r["step"] == step else r.get(k))
            for k, v in values.items()
        }
    )


def newest(run):
    return run / "checkpoints" / (run / "LATEST").read_text().strip()


def cut(path, n):
    path.write_bytes(path.read_bytes()[:n])


def resave(change):
    "Write the newest checkpoint again, whole, with another content"

    def plant(run):
        c = load_checkpoint(run)
        model, state = change(dict(c.model), json.loads(json.dumps(c.state)))
        save_checkpoint(run, c.step, model, c.optimizer, state)

    return plant


def reference(run):
    p = run / "config.json"
    c = json.loads(p.read_text())
    c["reference"]["source entropy"] = 9.0
    p.write_text(json.dumps(c))


def other_state(model, state):
    state["config"]["train"]["seed"] = 7
    return model, state


def samples(text, steps=None):
    def plant(run):
        lines = [json.loads(l) for l in (run / "samples.jsonl").read_text().splitlines()]
        for r in lines if steps is None else [r for r in lines if r["step"] in steps]:
            r["text"] = r["prompt"] + text
        (run / "samples.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines))

    return plant


DEFECTS = [
    (
        "cut model file",
        lambda run: cut(newest(run) / "model.safetensors", 900),
        {"checkpoints": "bytes"},
    ),
    (
        "edited state",
        lambda run: (newest(run) / "state.json").write_text("{}"),
        {"checkpoints": "state.json"},
    ),
    (
        "no checkpoints",
        lambda run: shutil.rmtree(run / "checkpoints"),
        {"checkpoints": "no checkpoint", "LATEST": "not there"},
    ),
    (
        "LATEST to nowhere",
        lambda run: (run / "LATEST").write_text("step-00000099"),
        {"LATEST": "'step-00000099'"},
    ),
    ("LATEST gone", lambda run: (run / "LATEST").unlink(), {"LATEST": "missing"}),
    (
        "LATEST is old",
        lambda run: (run / "LATEST").write_text(
            sorted(p.name for p in (run / "checkpoints").iterdir())[0]
        ),
        {"LATEST": "the newest checkpoint is step-00000030"},
    ),
    (
        "compiled keys",
        resave(lambda m, s: ({f"_orig_mod.{k}": v for k, v in m.items()}, s)),
        {"weights": "_orig_mod."},
    ),
    (
        "another width",
        resave(lambda m, s: (m | {"tok.weight": m["tok.weight"][:, :16].clone()}, s)),
        {"weights": "shape"},
    ),
    ("another config", resave(other_state), {"weights": "train.seed"}),
    (
        "another tokenizer",
        lambda run: (run / "tokenizer.json").write_text(json.dumps(dict(type="char", chars="abc"))),
        {"tokenizer": "fingerprint"},
    ),
    (
        "no tokenizer",
        lambda run: (run / "tokenizer.json").unlink(),
        {"tokenizer": "tokenizer.json"},
    ),
    ("nan", at(20, val_loss=float("nan")), {"finite": "step 20"}),
    ("infinite gradient", at(20, grad_norm=float("inf")), {"finite": "grad_norm"}),
    ("bad start", at(1, loss=9.0), {"initial loss": "where this initialisation begins"}),
    ("too good a start", at(1, loss=1.0), {"initial loss": "below ln"}),
    ("a leap", at(20, loss=6.0), {"loss": "at step 20"}),
    (
        "diverged",
        edit(
            loss=lambda r, cfg: r["loss"] * 9 if r["step"] > 24 else r["loss"],
            val_loss=lambda r, cfg: r["val_loss"] * 9 if r["step"] == 30 else r.get("val_loss"),
        ),
        {"learning rate": "guessing evenly has", "loss": "at step 25"},
    ),
    ("a look ahead", reference, {"causality": "limit of 9.0"}),
    (
        "schedule restarted",
        edit(lr=lambda r, cfg: cfg.lr * lr_factor((r["step"] - 1) % 25, cfg)),
        {"learning rate": "at step 26", "schedule": "at step 26"},
    ),
    (
        "schedule too fast",
        edit(lr=lambda r, cfg: cfg.lr * lr_factor(4 * r["step"] - 1, cfg)),
        {"schedule": "at step 1,"},
    ),
    (
        "rows missing",
        lambda run: write(run, log_rows(run)[:9] + log_rows(run)[12:]),
        {"steps": "steps 10 to 12"},
    ),
    (
        "rows repeated",
        lambda run: write(run, log_rows(run)[:25] + log_rows(run)[24:]),
        {"steps": "step 25 comes after step 25"},
    ),
    (
        "another batch",
        edit(tokens=lambda r, cfg: r["step"] * (256 if r["step"] < 20 else 512)),
        {"steps": "tokens"},
    ),
    ("overfitting", at(30, val_loss=3.5), {"overfitting": "by heart"}),
    (
        "learned by heart",
        edit(loss=lambda r, cfg: r["loss"] * (1 - 0.02 * r["step"])),
        {"overfitting": "apart"},
    ),
    (
        "slower and slower",
        edit(tok_s=lambda r, cfg: 1000 if r["step"] < 22 else 100),
        {"throughput": "of late"},
    ),
    ("no bill", lambda run: (run / "bill.json").unlink(), {"bill and report": "bill.json"}),
    (
        "a bill that is none",
        lambda run: (run / "bill.json").write_text("[]"),
        {"bill and report": "no number for seconds"},
    ),
    (
        "a bill of words",
        lambda run: (run / "bill.json").write_text('{"seconds": 3, "usd": "much", "tokens": 5}'),
        {"bill and report": "no number for usd"},
    ),
    ("no report", lambda run: (run / "report.html").unlink(), {"bill and report": "report.html"}),
    ("in circles", samples("and the " * 20, {30}), {"samples": "repeats itself"}),
    (
        "always the same",
        samples("To be, or not to be, that is the question: whether it is nobler"),
        {"samples": "are the same"},
    ),
]


@pytest.mark.parametrize("plant, expected", [d[1:] for d in DEFECTS], ids=[d[0] for d in DEFECTS])
def test_planted_defect_is_found_alone(run, plant, expected):
    plant(run)
    bad = found(run)
    assert bad.keys() == expected.keys(), bad
    for name, part in expected.items():
        assert part in bad[name].finding and "\n" not in bad[name].finding, bad[name]
    levels = {name: level for name, level, _ in DOCTOR_CHECKS}
    assert all(f.level == levels[n] and f.remedy for n, f in bad.items() if n != "tokenizer")


def test_a_resumed_run_may_log_less_often(run):
    write(run, [r for r in log_rows(run) if r["step"] <= 10 or r["step"] % 5 == 0])
    assert found(run).keys() == {"steps"}

    def less(model, state):
        state["config"]["train"]["log_every"] = 5
        return model, state

    resave(less)(run)
    assert found(run) == {}


def test_every_check_has_a_planted_defect():
    # these two below
    covered = {n for *_, expected in DEFECTS for n in expected} | {
        "utilisation",
        "disk",
    }
    assert covered == {name for name, *_ in DOCTOR_CHECKS}


def test_idle_device_and_full_disk(run, monkeypatch):
    edit(mfu=lambda r, cfg: 0.01)(run)
    p = run / "config.json"
    p.write_text(json.dumps(json.loads(p.read_text()) | dict(parameters=10**6)))
    monkeypatch.setattr(
        gpub_doctor.shutil, "disk_usage", lambda p: shutil._ntuple_diskusage(10**9, 10**9, 10**6)
    )
    bad = found(run)
    assert bad.keys() == {"utilisation", "disk"} and {f.level for f in bad.values()} == {"warn"}
    assert "1.0%" in bad["utilisation"].finding and "1 MB are free" in bad["disk"].finding


@pytest.mark.parametrize(
    "name, content, part",
    [
        ("config.json", None, "not a run folder"),
        ("config.json", "{", "not valid JSON"),
        ("config.json", '{"format": 3}', "lacks model, train, data"),
        ("config.json", "{}", "has no format, this gpub reads format 3"),
        ("config.json", "[]", "lacks model, train, data"),
        ("log.jsonl", None, "no log.jsonl"),
        ("log.jsonl", "", "is empty"),
        ("log.jsonl", '{"step": 1}\n', "line 1 has no step or no loss"),
    ],
)
def test_what_is_no_run_is_refused(run, name, content, part):
    (run / name).unlink()
    if content is not None:
        (run / name).write_text(content)
    with pytest.raises(GpubError, match=part):
        doctor(run)


@pytest.mark.parametrize(
    "odd",
    ["x", *(pytest.param(odd, marks=pytest.mark.full) for odd in (None, [1], {"a": 1}, True))],
    ids=str,
)
def test_odd_types_are_findings_and_no_traceback(run, odd):
    """One value of config.json or of the log changed to another type at a time: a refusal or
    findings, in single lines"""
    c, log = json.loads((run / "config.json").read_text()), log_rows(run)
    edited = [
        odd,
        *(c | {k: odd} for k in c),
        *(
            c | {part: c[part] | {k: odd}}
            for part in ("model", "train", "data", "reference")
            for k in c[part]
        ),
    ]

    def one_line():
        try:
            return all("\n" not in f.finding + f.remedy for f in doctor(run))
        except GpubError as e:
            return "\n" not in str(e)

    for d in edited:
        (run / "config.json").write_text(json.dumps(d))
        assert one_line(), d
    (run / "config.json").write_text(json.dumps(c))
    for k in log[9]:
        write(run, [*log[:9], log[9] | {k: odd}, *log[10:]])
        assert one_line(), k


def test_damaged_folder_is_a_finding_and_no_traceback(run):
    p = run / "config.json"
    c = json.loads(p.read_text())
    del c["data"]["tokenizer"], c["model"]["vocab_size"]
    c["model"]["colour"] = 3
    p.write_text(json.dumps(c))
    (run / "samples.jsonl").write_text('{"step": 1}\n')
    bad = found(run)
    assert {"tokenizer", "weights", "samples", "initial loss"} == bad.keys()
    assert "colour" in bad["weights"].finding
    assert "KeyError" in bad["tokenizer"].finding
