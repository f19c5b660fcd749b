"What a config takes and what it refuses: once per schema, in one line with the name and the value."

import dataclasses
import json
import re
import subprocess
import sys

import pytest
from contracts import refuses

from gpub.core import GpubError
from gpub.data.batches import RowPlan
from gpub.model.gpt import GPTConfig
from gpub.model.gpu_plan import receipts
from gpub.model.llama import LlamaConfig
from gpub.model.sampling import SamplingConfig
from gpub.plans.gates import Gate
from gpub.plans.phases import Phase, Plan, read_plan
from gpub.plans.prices import known_price
from gpub.plans.published import load_claims
from gpub.prep.pipeline import PrepConfig
from gpub.train.config import TrainConfig
from gpub.train.options import RunOptions

SHAPE = dict(vocab_size=8, context_length=16, d_model=16, n_layers=1, n_heads=2)
SOUND = {
    GPTConfig: SHAPE,
    LlamaConfig: SHAPE | dict(n_kv_heads=1, d_ff=32),
    TrainConfig: dict(steps=5),
    PrepConfig: dict(sources=["a=a.txt"]),
    SamplingConfig: dict(n=5),
    RowPlan: dict(context_length=8, batch=4),
    Gate: dict(metric="loss", most=3.0),
    Phase: dict(name="one", question="why", until=5, usd=1.0),
    Plan: dict(
        about="x",
        preset="burn-toy",
        phases=[dict(name="one", question="why", until=5, usd=1.0)],
    ),
}
NAN, INFINITE = float("nan"), float("inf")
BAD = [
    (GPTConfig, "d_model", [True, "16", 16.0, 0, None, [16]]),
    (GPTConfig, "bias", [1, "yes", None]),
    (GPTConfig, "init_std", [0, True, "0.02", NAN, INFINITE, None]),
    (GPTConfig, "embed_std", [-1, "1", NAN]),
    (LlamaConfig, "n_kv_heads", [0, True, "1", 1.0]),
    (LlamaConfig, "rope_base", [0, NAN, "10000"]),
    (LlamaConfig, "tied", [0, "no"]),
    (TrainConfig, "steps", [True, "5", 5.0, 0, NAN]),
    (TrainConfig, "lr", [-1, "0.1", True, NAN, INFINITE]),
    (TrainConfig, "muon_momentum", [1, -0.1, "0.9", NAN]),
    (TrainConfig, "betas", [[0.9], [0.9, 1], [0.9, "0.95"], 0.9, "ab"]),
    (TrainConfig, "stages", [3, "ab", [[0, 1.5]], [[0, True]], [[0]], [[0, 0]]]),
    (TrainConfig, "optimizer", ["sgd", "", True, 1, ["muon"]]),
    (TrainConfig, "precision", ["FP32", None]),
    (TrainConfig, "grad_checkpoint", ["on", False]),
    (TrainConfig, "seed", [-1, 1 << 64, True, "0"]),
    (TrainConfig, "decay", [0, 1.1, NAN, True]),
    (PrepConfig, "vocab_size", [0, "32000", True]),
    (PrepConfig, "val", [1, -0.1, "0.1", NAN, True]),
    (PrepConfig, "near", [0, 1.5, True, NAN]),
    (PrepConfig, "sources", ["a=a.txt", [3], 3]),
    (PrepConfig, "scan", [0, "no"]),
    (PrepConfig, "chunk_mb", [0, NAN, "4"]),
    (RowPlan, "context_length", [0, True, "8", 8.0]),
    (RowPlan, "batch", [0, None, 1.5]),
    (RowPlan, "rank", [-1, "0", True]),
    (RowPlan, "world_size", [0, 1.0]),
    (SamplingConfig, "n", [0, True, 2.5, "5", None]),
    (SamplingConfig, "temperature", [-0.1, "hot", True, NAN, INFINITE, None]),
    (SamplingConfig, "top_k", [0, 2.5, True, "3"]),
    (SamplingConfig, "top_p", [0, 1.01, NAN, "1", None]),
    (SamplingConfig, "repetition_penalty", [0, -1, NAN, True]),
    (SamplingConfig, "seed", [-1, 0.5, True, "0"]),
    (SamplingConfig, "slide", [0, 1.5, True]),
    (Gate, "least", ["3", NAN, INFINITE, True]),
    (Gate, "when", ["later", None]),
    (Gate, "after", ["3", True, 1.5]),
    (Phase, "until", [0, "5", True, 5.0]),
    (Phase, "usd", [0, -1, NAN, INFINITE, "1", True]),
    (Phase, "milestones", [["5"], [2.5], 5]),
    (Phase, "settings", [3, "x", [1]]),
    (Phase, "schedule_steps", ["5", True]),
    (Plan, "save_every", [0, "500", True, 1.5]),
    (Plan, "phases", ["one", 3]),
    (Plan, "settings", [[], 3]),
]


@pytest.mark.parametrize(
    "cls, name, value", [(cls, name, value) for cls, name, many in BAD for value in many]
)
def test_a_value_that_cannot_be(cls, name, value):
    sound = cls.from_dict(SOUND[cls])
    for make in (
        lambda: cls.from_dict(SOUND[cls] | {name: value}),
        lambda: dataclasses.replace(sound, **{name: value}),
    ):
        said = refuses(f"{name} must be ", make)
        assert repr(value) in said or repr(value).replace("[", "(").replace("]", ")") in said


@pytest.mark.parametrize("cls", SOUND)
def test_a_sound_config_is_frozen_hashable_and_survives_json(cls):
    config = cls.from_dict(SOUND[cls])
    assert cls.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert dataclasses.replace(config) == config
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, dataclasses.fields(cls)[0].name, 3)
    if cls not in (Phase, Plan, PrepConfig):  # these hold dicts
        assert hash(config) == hash(cls.from_dict(SOUND[cls]))


@pytest.mark.parametrize("cls", SOUND)
def test_a_name_nobody_knows_and_one_that_is_missing(cls):
    refuses(f"{cls.__name__} does not know 'speed'", cls.from_dict, SOUND[cls] | dict(speed=3))
    fields, missing = dataclasses.fields(cls), dataclasses.MISSING
    needed = [f.name for f in fields if f.default is f.default_factory is missing]
    for gone in needed:
        rest = {k: v for k, v in SOUND[cls].items() if k != gone}
        refuses(f"{cls.__name__} needs a value for '{gone}'", cls.from_dict, rest)
    for odd in (3, None, [], "x"):
        refuses(f"{cls.__name__} is an object with named values", cls.from_dict, odd)


def test_a_config_inside_a_config_speaks_for_itself():
    plan = read_plan("burn-toy").to_dict()
    plan["phases"][0]["gates"] = [dict(metric="loss", most="3")]
    refuses("^the gate on loss: most must be a number, got '3'$", Plan.from_dict, plan)
    with pytest.raises(GpubError, match="^max_broken is a share between 0 and 1, got 2$"):
        PrepConfig.from_dict(SOUND[PrepConfig] | dict(rules=dict(max_broken=2)))


def test_the_ground_floor_does_not_wait_for_pydantic():
    code = "import sys, gpub.core; print(sorted({'pydantic', 'torch'} & {*sys.modules}))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout == "[]\n", found.stderr


def _in_a_bench(folder, receipt):
    "A receipt of `gpub bench train`, read as a forecast reads it"
    (folder / "bench").mkdir()
    path = folder / "bench/train.json"
    path.write_text(json.dumps(dict(machine=dict(gpu=None, cpu="x"), speed=receipt)))
    receipts(folder)


def _in_a_list(read):
    "A file with one entry, and its reader"

    def asked(folder, entry):
        (folder / "list.json").write_text(json.dumps([entry]))
        read(folder / "list.json")

    return asked


CLAIM = dict(id="x", chapter="season1/01", what="size", published="runs/x")
FILES = {  # what reads it, an entry that is sound, what cannot be in it
    "receipt": (
        _in_a_bench,
        dict(preset="gpt2-134m", tok_s=5e5),
        dict(preset=[5, ["a"], True], tok_s=["5", 0, -1, True, None]),
    ),
    "price": (
        _in_a_list(lambda path: known_price("H100", path)),
        dict(gpu="H100", usd_per_hour=2.99, date="2026-04-07"),
        dict(gpu=[5, None], usd_per_hour=["1.49", 0, -1, True], date=[20260407, "7 April"]),
    ),
    "claim": (
        _in_a_list(load_claims),
        CLAIM,
        dict(tolerance=[-1, "0.1", True], compare=["near", 3], end=["middle"], names=[[], "v"]),
    ),
}


@pytest.mark.parametrize(
    "kind, name, value",
    [(k, name, v) for k, (_, _, bad) in FILES.items() for name, many in bad.items() for v in many],
)
def test_an_entry_of_a_file_that_cannot_be(kind, name, value, tmp_path):
    read, sound, _ = FILES[kind]
    for entry in (sound, sound | {name: value}):
        folder = tmp_path / str(entry is sound)
        folder.mkdir()
        if entry is sound:
            read(folder, entry)
            continue
        refuses([f"{name} must be ", re.escape(str(folder))], read, folder, entry)


@pytest.mark.parametrize(
    "wrong, said",
    [
        (dict(usd_per_hour=-1), "--usd-per-hour must be 0 or more, got -1"),
        (dict(usd_per_hour="2"), "--usd-per-hour must be 0 or more, got '2'"),
        (dict(usd_per_hour=INFINITE), "--usd-per-hour must be 0 or more, got inf"),
        (dict(keep=0), "--keep must be a whole number of at least 1, got 0"),
        (dict(save_every=2.5), "--save-every must be a whole number of at least 1, got 2.5"),
        (dict(track="paper"), "--track must be one of none, wandb, got"),
        (dict(parallel="tp"), "--parallel must be one of ddp, fsdp, hsdp, got 'tp'"),
        (dict(preset=3), "--preset must be text, got 3"),
        (dict(settings=["lr=1"]), "--settings must be an object with named values, got"),
        (dict(paid="yes"), "--paid must be true or false, got 'yes'"),
        (dict(eval_steps=5), "--eval-steps must be a list, got 5"),
        (dict(changeable=("lr", 5)), "--changeable must be a list, got"),
        (dict(log="print"), "--log must be "),
        (dict(progress=print), "--progress must be "),
    ],
)
def test_options_of_a_run_that_cannot_be(wrong, said):
    RunOptions("shakespeare", eval_steps={3}, changeable=("lr",), log=print)
    refuses("^" + re.escape(said), RunOptions, **dict(preset="shakespeare") | wrong)
