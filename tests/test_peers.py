"""The races against peers in tools/bench: a contender does the job, and a receipt can be read"""

import json
import math
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from gpub.core import GpubError
from gpub.data.bpe import BPETokenizer
from gpub.data.corpus import load_corpus
from gpub.model.architectures import config_of
from gpub.model.gpt import GPT, GPTConfig
from gpub.prep.clean import clean
from gpub.tune.losses import preferred_end
from tools.bench.generate import (
    GenerationRace,
    bench_generate,
    bench_generate_table,
    generation_speed,
    shortfall,
)
from tools.bench.loader import bench_loader, bench_loader_table
from tools.bench.prep import bench_text, shard_writing, stage_speeds, trove_way, usual_way
from tools.bench.shakespeare import HFModel, ours, published_rate, random_windows, time_to
from tools.bench.train import alone, gpub_steps, overhead
from tools.kl_ends import chain_ends, shared_ends

ROOT = Path(__file__).parents[1]


def test_a_contender_in_a_process_of_its_own(forks):
    model = dict(vocab_size=65, context_length=16, d_model=8, n_layers=1, n_heads=1)
    done = alone(gpub_steps, model=model, batch=2, steps=3)
    assert len(done["seconds"]) == 3 and done["rss"] > 1e7 and 3 < done["loss"] < 6
    with pytest.raises(GpubError, match="gpub_steps failed: .*vocab_size"):
        alone(gpub_steps, model={}, batch=2, steps=1)


def test_the_engine_takes_turns_with_a_bare_loop():
    tiny = dict(d_model=32, context_length=64, batch_tokens=256, compile="no")
    cost = overhead(steps=32, settings=tiny)
    assert cost["steps"] == 30 and cost["engine_ms"] > 0 and 0.3 < cost["ratio"] < 5


def test_ours_ends_and_the_peers_model_starts_where_a_model_starts():
    corpus = load_corpus(None, 64, log=lambda text: None)
    contender = ours("gpub", "shakespeare-short", corpus, dict(steps=3))
    contender.go(60)
    assert contender.done == 3 == contender.steps and contender.seconds > 0
    ids = corpus.tok.encode(corpus.texts[0]).astype(np.int64)
    peer = HFModel(GPTConfig(vocab_size=65, context_length=64, d_model=128, n_layers=4, n_heads=4))
    assert abs(peer.loss(*random_windows(ids, 64, 4, 0)()).item() - math.log(65)) < 0.2
    assert (published_rate(0), published_rate(100)) == (0.01, 1)
    assert time_to([(1, 1, 3.0), (2, 2, 2.0)], 2.5) == 1.5
    assert time_to([(1, 1, 3.0)], 2.5) is None


def test_who_computes_the_same_writes_the_same():
    pytest.importorskip("transformers")
    family = generation_speed("burn-toy", "cpu", GenerationRace(24, 1, flat=False))
    assert [*family["tok_s"]] == ["gpub", "without memory", "transformers"]
    assert all(family["same_text"].values()) and max(family["short_of_best"].values()) < 1e-3
    letters = GPT(config_of("shakespeare")).eval()
    worst = int(letters(torch.tensor([[1, 2]]))[0, -1].argmin())
    assert shortfall(letters, [1, 2, worst], 2) > 0.1


def test_writing_without_a_peer(capsys):
    receipt = bench_generate(("shakespeare",), "cpu", n=20, rounds=1, peers=False)
    (race,) = receipt["speed"]
    assert race["n"] == 20 and race["last_over_first_quarter"] > 0
    assert "shakespeare fp32 without memory" in capsys.readouterr().out
    assert "20 tokens after 16" in bench_generate_table(receipt)


def test_the_loader_races_a_loop_and_a_copy():
    shape = dict(vocab_size=500, context_length=64, d_model=32, n_layers=2, n_heads=2)
    receipt = bench_loader(1 << 16, 64, batch=4, rounds=3, shape=shape)
    assert receipt["batch"] == [4, 65] and all(us > 0 for us in receipt["microseconds"].values())
    assert set(receipt["microseconds"]) >= {"ram", "mmap", "slices_mmap", "slices_ram", "memcpy"}
    assert 0 < receipt["share_of_step"] < 1
    assert "times_memcpy" in bench_loader_table(receipt)


@pytest.mark.full(instead="test_prep.py::test_shards_hold_the_documents")
def test_the_usual_ways_to_prepare_do_the_same_job(tmp_path):
    _, texts = bench_text(0.05)
    tok = BPETokenizer.train(texts, 300)
    lines = "".join(json.dumps(dict(text=text)) + "\n" for text in texts + texts[:3])
    (tmp_path / "t.jsonl").write_text(lines)
    tok.save(tmp_path / "tok")
    usual_way(tmp_path / "t.jsonl", tok, tmp_path / "usual.bin", tmp_path / "cache")
    kept = {text for text in texts if clean(text)[0] is not None}
    assert sum(np.fromfile(tmp_path / "usual.bin", np.uint16) == tok.end) == len(kept)
    if find_spec("datatrove"):
        file, end = tmp_path / "tok/tokenizer.json", tok.decode([tok.end])
        trove_way(tmp_path / "t.jsonl", file, end, tmp_path / "trove")
        tokens = [np.fromfile(f, np.uint16) for f in (tmp_path / "trove").rglob("*.ds")]
        assert sum(np.concatenate(tokens) == tok.end) == len(kept) + 3  # it keeps the three copies
    assert "near dedup, datasketch" in stage_speeds(texts)
    assert shard_writing(tok, tok.encode_batch(texts), tmp_path, 1, 1000)["copy"] > 0


def test_the_penalty_in_the_reward_ends_where_the_formula_says():
    coins_nt = torch.tensor([[0.5, 0.5], [0.9, 0.25]])
    ends = chain_ends("reward", 0.5, coins_nt, 600)
    formula = [float(preferred_end(float(p), 0.5)) for p in coins_nt.prod(1)]
    assert torch.allclose(ends, torch.tensor(formula).double(), atol=5e-3)
    assert not torch.allclose(chain_ends("k3", 0.5, coins_nt, 600), ends, atol=5e-3)


def test_moved_together_one_toss_ends_as_alone_and_two_end_elsewhere():
    toss_nt, two_nt = torch.tensor([[0.5]]), torch.tensor([[0.5, 0.5]])
    for penalty in ("reward", "k3", "k3_ratio"):
        alone = chain_ends(penalty, 0.25, toss_nt, 2000)
        assert torch.allclose(shared_ends(penalty, 0.25, toss_nt), alone, atol=1e-3)
    together = {name: float(shared_ends(name, 0.25, two_nt)) for name in ("reward", "k3_ratio")}
    assert together["reward"] == together["k3_ratio"]  # no toss changes what the next one costs
    assert together["reward"] > float(chain_ends("reward", 0.25, two_nt, 2000)) + 0.01


@pytest.mark.full(instead="test_a_contender_in_a_process_of_its_own")
def test_the_command_lists_the_races():
    command = [sys.executable, "-m", "tools.bench", "--help"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "shakespeare" in shown and "--json" in shown
