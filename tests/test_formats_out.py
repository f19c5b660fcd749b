"""What leaves gpub, opened by others: the card's code as printed, bf16 and fp16 in transformers,
GGUF in all its numbers through its own reader and through transformers."""

import json
import os
import re
import stat
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from gpub.cli.main import cli
from gpub.core import GpubError
from gpub.data.bpe import BPETokenizer
from gpub.data.char import CharTokenizer
from gpub.data.plays import plays
from gpub.model.architectures import build_model
from gpub.model.gpt import GPTConfig
from gpub.model.llama import LlamaConfig
from gpub.record.run import load
from gpub.share.gguf import LLAMA3_PATTERN, gguf_tensors, write_gguf
from gpub.share.hub import export_model, import_run

hf = pytest.importorskip("transformers")
TEXT = plays(30_000, 0)
CODE = "def f(x):\n    if x:\n        return 'it\\'s'  # 12345\n\n\tclass A:\n\t\tpass\n"
TEXTS = dict(
    prose=TEXT[:3000], code=CODE * 20, emoji="😀 naïve 👩‍👩‍👧 한국어 \u00d8  DON'T f'text'\n" * 9
)
BPE = BPETokenizer.train([TEXT, CODE * 50], vocab_size=400, pattern=LLAMA3_PATTERN)
LLAMA = LlamaConfig(
    vocab_size=BPE.vocab_size,
    context_length=64,
    d_model=64,
    n_layers=2,
    n_heads=4,
    n_kv_heads=2,
    d_ff=96,
)


def loud(cfg):
    torch.manual_seed(0)
    model = build_model(cfg)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.15)
    return model.eval()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    "Imported runs: of byte pairs, and of characters"
    place, made = tmp_path_factory.mktemp("out"), {}
    chars = CharTokenizer.from_text(TEXT)
    letters = GPTConfig(
        vocab_size=chars.vocab_size, context_length=48, d_model=32, n_layers=2, n_heads=2
    )
    for name, cfg, tok in (("pairs", LLAMA, BPE), ("letters", letters, chars)):
        export_model(loud(cfg), tok, place / f"{name}.hf")
        made[name] = import_run(place / f"{name}.hf", place / name)
    return made


def export(run, folder, *words, code=0):
    done = CliRunner().invoke(cli, ["export", str(run), str(folder), *words])
    assert done.exit_code == code, done.output
    return done.output + str(done.exception or "")


@pytest.mark.parametrize("name", [pytest.param("pairs"), "letters"])
@pytest.mark.full(instead="test_half_the_bytes")
def test_the_card_runs_as_printed(runs, name, tmp_path):
    "In a process that does not know gpub, in the folder itself"
    export(runs[name], tmp_path / "hf", "--license", "mit", "--dtype", "bfloat16")
    card = (tmp_path / "hf/README.md").read_text(encoding="utf-8")
    assert "\nlicense: mit\n" in card and f"Imported by gpub from {name}.hf." in card
    size = (tmp_path / "hf/model.safetensors").stat().st_size / 1e6
    said = re.search(r"([\d.]+) MB of weights in bfloat16", card)
    assert abs(float(said[1]) - size) <= 0.1
    (code,) = re.findall(r"~~~python\n(.+?)~~~", card, re.S)
    done = subprocess.run(
        [sys.executable, "-c", code + "\nimport sys; assert 'gpub' not in sys.modules"],
        capture_output=True,
        text=True,
        cwd=tmp_path / "hf",
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )
    assert done.returncode == 0, done.stderr[-1500:]
    assert len(done.stdout) > 20


@pytest.mark.parametrize("name", ["pairs", "letters"])
def test_lm_eval_is_told_what_to_begin_with(runs, name, tmp_path):
    """Letters have no token that ends a text: declaring a newline as one would lose all newlines of
    what transformers decodes. Its harness takes the number instead, and the card has it"""
    export(runs[name], tmp_path / "hf")
    found = re.search(r"prefix_token_id=(\d+)", (tmp_path / "hf/README.md").read_text("utf-8"))
    tok = load(runs[name], device="cpu").tokenizer
    theirs = hf.AutoTokenizer.from_pretrained(tmp_path / "hf")
    if name == "pairs":
        assert found is None and theirs.eos_token_id == tok.end
    else:
        assert theirs.eos_token_id is None and tok.decode([int(found[1])]) == "\n"
    ids = theirs("a\nb")["input_ids"]
    assert theirs.decode(ids, skip_special_tokens=True) == "a\nb"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_the_bytes(runs, dtype, tmp_path):
    "transformers opens it as what it is, with the rounded weights, readable by all; so do we"
    export(runs["pairs"], tmp_path / "hf", "--dtype", dtype, "--gguf")
    files = [p for p in (tmp_path / "hf").iterdir() if p.is_file()]
    assert {stat.S_IMODE(p.stat().st_mode) for p in files} == {0o644}
    theirs = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype="auto")
    assert theirs.dtype == getattr(torch, dtype)
    ours = load(runs["pairs"], device="cpu").model
    want = dict(ours.state_dict())["blocks.0.ffn.up.weight"].to(theirs.dtype)
    assert torch.equal(theirs.model.layers[0].mlp.up_proj.weight, want)
    back = load(import_run(tmp_path / "hf", tmp_path / "run"), device="cpu").model
    assert torch.equal(back.blocks[0].ffn.up.weight, want.float())


def test_a_weight_beyond_fp16_is_refused(tmp_path):
    model = loud(LLAMA)
    with torch.no_grad():
        model.blocks[0].ffn.up.weight[0, 0] = 1e5
    with pytest.raises(GpubError, match="up_proj.weight holds 100,000, beyond float16"):
        export_model(model, BPE, tmp_path / "hf", dtype="float16")
    with pytest.raises(GpubError, match="holds 100,000, beyond f16: export with --gguf-type f32"):
        write_gguf(model, BPE, tmp_path / "x.gguf", "f16")
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize("numbers, most", [("f32", 1e-4), ("f16", 2e-2), ("q8_0", 0.3)])
def test_gguf_in_other_hands(runs, numbers, most, tmp_path):
    "transformers reads the GGUF file alone and gives our logits, as near as the numbers allow"
    pytest.importorskip("gguf")
    said = export(runs["pairs"], tmp_path / "hf", "--gguf", "--gguf-type", numbers)
    assert "warning" not in said
    (tmp_path / "alone").mkdir()
    (tmp_path / "hf/model.gguf").rename(tmp_path / "alone/model.gguf")
    theirs = hf.AutoModelForCausalLM.from_pretrained(
        tmp_path / "alone", gguf_file="model.gguf", dtype=torch.float32
    )
    ours = load(runs["pairs"], device="cpu").model
    x = torch.randint(LLAMA.vocab_size, (2, 64))
    with torch.no_grad():
        want = ours(x)
        assert (theirs(x).logits - want).abs().max() <= most * want.std()


def test_gguf_gives_the_tokens_of_training(runs, tmp_path):
    "The words and merges in the file, cut by the pattern it names, on prose, code and emoji"
    gguf = pytest.importorskip("gguf")
    export(runs["pairs"], tmp_path / "hf", "--gguf")
    fields = gguf.GGUFReader(tmp_path / "hf/model.gguf").fields
    assert fields["tokenizer.ggml.pre"].contents() == "llama-bpe"
    words = {w: i for i, w in enumerate(fields["tokenizer.ggml.tokens"].contents())}
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    theirs = Tokenizer(models.BPE(vocab=words, merges=merges))
    cut = pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    theirs.pre_tokenizer = pre_tokenizers.Sequence([cut, to_bytes])
    for kind, text in TEXTS.items():
        assert theirs.encode(text).ids == BPE.encode(text).tolist(), kind


def test_letters_have_no_gguf(runs, tmp_path):
    said = export(runs["letters"], tmp_path / "hf", "--gguf", code=1)
    assert "this model reads characters: export without --gguf" in said
    assert not (tmp_path / "hf").exists()


def test_longer_rotations_go_along(tmp_path):
    "Llama 3.2's angles stand in the file as what each pair is slowed down by, at most its factor"
    pytest.importorskip("gguf")
    rule = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=32)
    cfg = replace(
        LLAMA,
        head_dim=32,
        rope_scaling=type(LLAMA).from_dict(LLAMA.to_dict() | dict(rope_scaling=rule)).rope_scaling,
    )
    slower = gguf_tensors(loud(cfg))["rope_freqs.weight"]
    assert len(slower) == 16 and slower[0] == 1 and np.isclose(slower[-1], 8)
    assert json.loads(json.dumps(cfg.to_dict()))["rope_scaling"] == rule
