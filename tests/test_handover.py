"""A run of ours, taken over by torchtitan's own code: the same logits, and the rows that would have
come next. Where torchtitan is not installed, what needs it is skipped."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
import numpy as np
import pytest
import torch
from gpub.core import GpubError
from gpub.data.shards import ShardWriter
from gpub.data.tokenizer import BPETokenizer
from gpub.files import changed_files
from gpub.record.load import load
from gpub.share.handover import CONFIG_FILE, export_to_torchtitan
from gpub.train.trainer import Trainer

SHAPE = dict(n_layers=3, d_model=64, n_heads=8, n_kv_heads=2, d_ff=160, context_length=16)
OTHER = dict(rope_base=5000.0, norm_eps=1e-4)  # not what anybody would take by default


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    "Documents of a few tokens, in one source"
    folder = tmp_path_factory.mktemp("shards") / "out"
    tok = BPETokenizer.train(["to be or not to be, that is the question"], 300)
    writer = ShardWriter(folder, tok)
    numbers = np.random.default_rng(0)
    for split, n in (("train", 200), ("val", 20)):
        docs = [numbers.integers(0, 250, numbers.integers(5, 40)) for _ in range(n)]
        writer.add("edu", docs, [f"edu {i}" for i in range(n)], [1] * n, split)
    writer.close()
    return folder


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def handed_over(request, shards, tmp_path_factory):
    "A run of three steps, and its folder for torchtitan"
    place = tmp_path_factory.mktemp("run")
    few = dict(steps=3, batch_tokens=64, compile="no", precision="fp32", tied=request.param)
    settings = SHAPE | OTHER | few
    Trainer("burn-toy", place / "run", str(shards), settings, device="cpu", log=list).go()
    return place / "run", export_to_torchtitan(place / "run", place / "out")


def taken_over(folder):
    "The module that torchtitan reads, in a process that has torchtitan"
    pytest.importorskip(
        "torchtitan.trainer", reason="torchtitan is not installed", exc_type=ImportError
    )
    spec = importlib.util.spec_from_file_location("gpub_run", folder / CONFIG_FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_folder_is_whole_and_its_config_a_module(handed_over):
    run, folder = handed_over
    assert not changed_files(folder)
    assert {"model.safetensors", "tokenizer.json", CONFIG_FILE} <= {
        p.name for p in folder.iterdir()
    }
    text = (folder / CONFIG_FILE).read_text()
    compile(text, CONFIG_FILE, "exec")
    assert "FIRST_TOKEN = 192  # of gpub's order: 3 steps are done" in text


def test_torchtitan_computes_the_same_logits(handed_over):
    "Its own model code, and the weights by its own way: DCP's reader and its adapter"
    run, folder = handed_over
    ours, module = load(run, device="cpu").model, taken_over(folder)
    import torch.distributed.checkpoint as dcp

    config = module.model_config()
    theirs = config.build()
    theirs.init_states(buffer_device=torch.device("cpu"))
    adapter = module.llama3.Llama3StateDictAdapter(config, str(folder))
    wanted = adapter.to_hf(theirs.state_dict())
    dcp.load(wanted, storage_reader=adapter.get_hf_storage_reader(str(folder)))
    ids = torch.randint(0, ours.cfg.vocab_size, (2, 16), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(16).expand(2, -1)
    masks = theirs.get_attention_masks(positions)
    with torch.no_grad():
        logits, fresh = ours(ids), theirs(ids, positions, masks)
        theirs.load_state_dict(adapter.from_hf(wanted))
        found = theirs(ids, positions, masks)
    assert (fresh - logits).abs().max() > 0.01  # or the test could not fail
    assert torch.allclose(found, logits, atol=2e-6)


def next_step(run, shards):
    "Ids and targets of the step after the run's last"
    from gpub.data.batches import Batches

    settings = load(run, device="cpu").config["train"]
    return Batches.from_shards(shards, context_length=16, batch=4, seed=settings["seed"])[3]


def test_torchtitan_reads_the_rows_that_come_next(handed_over, shards):
    run, folder = handed_over
    module = taken_over(folder)
    ids, targets = next_step(run, shards)
    ranks = [module.ShardRows(rank, 2, 16, 2) for rank in (0, 1)]
    rows = [iter(rank) for rank in ranks]
    read = [next(row) for row in rows for _ in range(2)]
    assert torch.equal(torch.stack([x["input"] for x, _ in read]), ids)
    assert torch.equal(torch.stack([y for _, y in read]), targets)
    again = module.ShardRows(0, 2, 16, 2)
    again.load_state_dict(ranks[0].state_dict())
    assert torch.equal(next(iter(again))[1], next(rows[0])[1])


def test_torchtitan_parses_the_config(handed_over, monkeypatch):
    run, folder = handed_over
    taken_over(folder)
    monkeypatch.syspath_prepend(str(folder))
    from torchtitan.config import ConfigManager

    asked = ["--module", "gpub_run", "--config", "further", "--training.steps", "7"]
    config = ConfigManager().parse_args(asked)
    assert config.training.steps == 7 and config.training.global_batch_size == 4
    assert config.checkpoint.initial_load_in_hf


ON_CPU = Path(__file__).parent / "torchtitan_on_cpu.py"


def titan(folder, dump, *asked, program=("-m", "torchtitan.train"), **env):
    "torchtitan's training, in the folder that was handed over; all that it said"
    taken_over(folder)
    chosen = ["--module", "gpub_run", "--config", "further", "--dump_folder", dump, *asked]
    here = dict(LOCAL_RANK="0", RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    done = subprocess.run(
        [sys.executable, *map(str, program), *map(str, chosen)],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | here | env,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout + done.stderr


def test_torchtitan_makes_its_own_dry_run(handed_over, tmp_path):
    "`--comm.mode=local_tensor`: 64 GPUs that are not there, its config loaded and checked"
    run, folder = handed_over
    said = titan(folder, tmp_path, "--comm.mode=local_tensor", NGPU="64")
    assert "Local tensor mode enabled - skipping training execution" in said


def test_torchtitan_trains_further_on_a_cpu(handed_over, shards, tmp_path):
    "Its trainer, its DCP, its loss and optimizer, our weights and rows: the first loss is ours"
    run, folder = handed_over
    few = ["--training.steps=2", "--metrics.disable_color_printing"]
    said = titan(folder, tmp_path, *few, program=[ON_CPU])
    assert "Finished loading the checkpoint" in said
    losses = re.findall(r"step: +(\d+) +loss: +([\d.]+)", said)
    ours = load(run, device="cpu").model
    ids, targets = next_step(run, shards)
    with torch.no_grad():
        loss = float(ours.loss(ids, targets))
    assert losses[0][0] == "1" and abs(float(losses[0][1]) - loss) < 1e-4, (losses, loss)
    assert "Training completed" in said


def test_what_torchtitan_cannot_take_over_is_refused(tmp_path):
    few = dict(steps=1, batch_tokens=64, compile="no", precision="fp32", n_layers=1, d_model=32)
    small = few | dict(n_heads=2, context_length=16)
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be\n" * 200)
    Trainer("shakespeare", tmp_path / "gpt", str(text), small, device="cpu", log=list).go()
    with pytest.raises(GpubError, match="is no Llama"):
        export_to_torchtitan(tmp_path / "gpt", tmp_path / "out")
    assert not (tmp_path / "out").exists()
