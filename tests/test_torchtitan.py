"""A run of ours, taken over by torchtitan: the same names, shapes and logits, and the rows that
would have come next. What needs torchtitan itself is skipped where it is not installed."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gpub.core import GpubError
from gpub.data.bpe import BPETokenizer
from gpub.data.shards import ShardWriter
from gpub.files import changed_files
from gpub.model.llama import Llama
from gpub.model.llama_architecture import BURN_TOY
from gpub.record.run import load
from gpub.share.hub import (
    TORCHTITAN,
    TORCHTITAN_FILE,
    export_run,
)
from gpub.share.weights import to_theirs
from gpub.train.options import RunOptions
from gpub.train.trainer import Trainer

SHAPE = dict(n_layers=3, d_model=64, n_heads=8, n_kv_heads=2, d_ff=160, context_length=16)
OTHER = dict(rope_base=5000.0, norm_eps=1e-4)  # not what anybody would take by default
FEW = dict(steps=3, batch_tokens=64, compile="no", precision="fp32", lr=0.01)


def run_of(preset, out, data, settings):
    options = RunOptions(preset, out, str(data), settings, device="cpu", log=lambda line: None)
    Trainer(options).go()
    return out


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
    run = run_of("burn-toy", place / "run", shards, SHAPE | OTHER | FEW | dict(tied=request.param))
    return run, export_run(run, place / "out", torchtitan=True)


# torchtitan 0.3.0's own names of what a Llama holds, and what they are at Hugging Face
NAMES = {
    "tok_embeddings": "model.embed_tokens",
    "norm": "model.norm",
    "lm_head": "lm_head",
    "attention.qkv_linear.wq": "self_attn.q_proj",
    "attention.qkv_linear.wk": "self_attn.k_proj",
    "attention.qkv_linear.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w3": "mlp.up_proj",
    "feed_forward.w2": "mlp.down_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def hugging_face_names(n_layers, tied):
    "All tensors that torchtitan asks a Hugging Face folder for"
    names = set()
    for ours, theirs in NAMES.items():
        in_layer = "." in ours or ours.endswith("_norm")
        for i in range(n_layers if in_layer else 1):
            names.add(f"model.layers.{i}.{theirs}.weight" if in_layer else f"{theirs}.weight")
    return names - {"lm_head.weight"} if tied else names


@pytest.mark.parametrize("tied", [True, False])
def test_the_folder_has_every_tensor_that_torchtitan_asks_for(tied):
    model = Llama(replace(BURN_TOY, n_layers=2, tied=tied))
    assert set(to_theirs(model)) == hugging_face_names(2, tied)


def test_the_folder_is_whole_and_its_paths_are_relative(handed_over, shards):
    run, folder = handed_over
    assert not changed_files(folder)
    text = (folder / TORCHTITAN_FILE).read_text()
    compile(text, TORCHTITAN_FILE, "exec")
    assert "FIRST_STEP = 3 " in text and f"torchtitan {TORCHTITAN}" in text
    for lost in ("optimizer's moments", "schedule", "ledger"):
        assert lost in text.partition('"""\n\n')[0]
    relative = next(line for line in text.splitlines() if line.startswith("SHARDS"))
    relative = relative.partition("'")[2].rstrip("'")
    assert (folder / relative).resolve() == shards.resolve()
    assert str(shards.parent) not in text and str(run) not in text


def test_what_torchtitan_cannot_take_over_is_refused(shards, tmp_path):
    small = FEW | dict(steps=1, n_layers=1, d_model=32, n_heads=2, context_length=16)
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be\n" * 200)
    gpt = run_of("shakespeare", tmp_path / "gpt", text, small)
    with pytest.raises(GpubError, match="is no Llama"):
        export_run(gpt, tmp_path / "out", torchtitan=True)
    few = small | dict(n_kv_heads=1, d_ff=64)
    with pytest.raises(GpubError, match="no folder of them here"):
        export_run(
            run_of("burn-toy", tmp_path / "text", text, few), tmp_path / "out", torchtitan=True
        )
    experts = run_of("burn-toy", tmp_path / "experts", shards, few | dict(n_experts=2))
    with pytest.raises(GpubError, match="Llama 3 has no n_expert"):
        export_run(experts, tmp_path / "out", torchtitan=True)
    assert not (tmp_path / "out").exists()


def taken_over(folder):
    "The module that torchtitan reads, where torchtitan is"
    pytest.importorskip("torchtitan", reason=f"pip install torchtitan=={TORCHTITAN} to try it")
    pytest.importorskip("torchtitan.trainer", exc_type=ImportError)
    spec = importlib.util.spec_from_file_location("torchtitan_run", folder / TORCHTITAN_FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def farthest(ours, module, tensors_of):
    "The largest difference between our logits and torchtitan's, with fresh weights and with ours"
    config = module.model_config()
    theirs = config.build()
    theirs.init_states(buffer_device=torch.device("cpu"))
    adapter = module.llama3.Llama3StateDictAdapter(config, None)
    length = ours.cfg.context_length
    ids = torch.randint(
        ours.cfg.vocab_size, (2, length), generator=torch.Generator().manual_seed(0)
    )
    positions = torch.arange(length).expand(2, -1)
    masks = theirs.get_attention_masks(positions)
    with torch.no_grad():
        logits = ours(ids)
        fresh = (theirs(ids, positions, masks) - logits).abs().max()
        theirs.load_state_dict(tensors_of(theirs, adapter), strict=False)
        return float(fresh), float((theirs(ids, positions, masks) - logits).abs().max())


def test_torchtitan_computes_the_same_logits(handed_over):
    "By the way its trainer loads: DCP's reader and its adapter"
    import torch.distributed.checkpoint as dcp

    run, folder = handed_over
    module = taken_over(folder)

    def tensors_of(theirs, adapter):
        wanted = adapter.to_hf(theirs.state_dict())
        dcp.load(wanted, storage_reader=adapter.get_hf_storage_reader(str(folder)))
        return adapter.from_hf(wanted)

    fresh, found = farthest(load(run, device="cpu").model, module, tensors_of)
    assert fresh > 0.01  # or the test could not fail
    assert found < 2e-5


def test_torchtitan_reads_the_rows_that_come_next(handed_over, shards):
    run, folder = handed_over
    module = taken_over(folder)
    from gpub.data.corpus import shard_corpus
    from gpub.train.config import TrainConfig
    from gpub.train.rows import RunRows

    cfg = TrainConfig.from_dict(load(run, device="cpu").config["train"])
    batch = RunRows(shard_corpus(shards, 16), cfg, 16).read(3, 16)
    ranks = [module.ShardRows(rank, 2) for rank in (0, 1)]
    rows = [iter(rank) for rank in ranks]
    read = [next(row) for row in rows for _ in range(2)]
    for ours, theirs in (
        (batch.ids, [x["input"] for x, _ in read]),
        (batch.targets, [y for _, y in read]),
    ):
        assert sorted(ours.tolist()) == sorted(torch.stack(theirs).tolist())
    again = module.ShardRows(0, 2)
    again.load_state_dict(ranks[0].state_dict())
    assert torch.equal(next(iter(again))[1], next(rows[0])[1])


def test_torchtitan_parses_the_config(handed_over, monkeypatch):
    run, folder = handed_over
    taken_over(folder)
    monkeypatch.syspath_prepend(str(folder))
    sys.modules.pop("torchtitan_run", None)
    from torchtitan.config import ConfigManager

    asked = ["--module", "torchtitan_run", "--config", "further", "--training.steps", "7"]
    config = ConfigManager().parse_args(asked)
    assert config.training.steps == 7 and config.training.global_batch_size == 4
    assert config.checkpoint.initial_load_in_hf
    assert Path(config.checkpoint.initial_load_path) == folder.resolve()
