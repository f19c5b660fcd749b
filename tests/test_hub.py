"""Folders for Hugging Face and back: bit-equal round trips, transformers in another process, and
everything that is refused."""

import errno
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from commands import gpub
from contracts import refuses
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from gpub.chat.template import check_talks
from gpub.cli.main import cli
from gpub.core import GpubError
from gpub.data.bpe import GPT2_PATTERN, PATTERN, SPECIALS, BPETokenizer, pieces
from gpub.data.char import CharTokenizer
from gpub.data.plays import plays
from gpub.data.tokenizer_file import load_tokenizer
from gpub.model.architectures import build_model
from gpub.model.gpt import GPTConfig
from gpub.model.llama import LlamaConfig
from gpub.progress import SilentProgress
from gpub.record import folder as folder_module
from gpub.record.run import load, load_run
from gpub.share.gguf import LLAMA3_PATTERN, gguf_tensors, gguf_warning, write_gguf
from gpub.share.hub import (
    INDEX,
    WEIGHTS,
    export_model,
    export_run,
    import_folder,
    import_run,
    model_card,
    open_run,
    push,
    read_weights,
)
from gpub.share.weights import from_config, to_config, to_theirs, to_tokenizer
from gpub.train.loop import evaluate
from gpub.train.options import RunOptions
from gpub.train.trainer import Trainer

pytestmark = pytest.mark.usefixtures("short_texts")

TEXT = plays(30_000, 0)
CHARS, BPE = CharTokenizer.from_text(TEXT + "é\t\r"), BPETokenizer.train([TEXT], vocab_size=300)
GPT_BPE = BPETokenizer.train([TEXT], vocab_size=300, specials=SPECIALS[:1], pattern=GPT2_PATTERN)
LLAMA = LlamaConfig(
    vocab_size=BPE.vocab_size,
    context_length=64,
    d_model=32,
    n_layers=3,
    n_heads=4,
    n_kv_heads=2,
    d_ff=96,
)
GPT2 = GPTConfig(vocab_size=CHARS.vocab_size, context_length=64, d_model=32, n_layers=3, n_heads=4)
GPT_OF_PAIRS = replace(GPT2, vocab_size=BPE.vocab_size)
KINDS = {
    "llama": (LLAMA, BPE),
    "llama untied": (replace(LLAMA, tied=False, rope_base=500_000.0, norm_eps=1e-6), BPE),
    "llama of characters": (replace(LLAMA, vocab_size=CHARS.vocab_size), CHARS),
    "gpt2": (GPT2, CHARS),
    "gpt2 untied": (replace(GPT2, tied=False), CHARS),
    "gpt2 without biases": (replace(GPT2, bias=False), CHARS),
    "gpt2 of byte pairs": (GPT_OF_PAIRS, BPE),
    "llama with normed queries": (replace(LLAMA, qk_norm="per_head"), BPE),
    "norms after": (replace(LLAMA, qk_norm="all_heads", norm_after=True, tied=False), BPE),
    "no rotations": (replace(LLAMA, nope_every=4, n_layers=4), BPE),
}
CASES = [pytest.param(*v, id=k) for k, v in KINDS.items()]


def loud(cfg, seed=0):
    torch.manual_seed(seed)
    model = build_model(cfg)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.15)
    return model.eval()


def export_bare(model, tok, folder, **options):
    "An export without its sums, as folders from elsewhere are: tests change a file of it"
    export_model(model, tok, folder, **options)
    (folder / "SHA256SUMS").unlink()
    return folder


@pytest.fixture
def exported(tmp_path):
    return export_bare(loud(LLAMA), BPE, tmp_path / "hf")


def edit(folder, **changes):
    c = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(c | changes))
    return folder


@pytest.mark.parametrize("cfg, tok", CASES)
def test_round_trip_is_bit_equal(cfg, tok, tmp_path):
    model = loud(cfg)
    folder = export_model(model, tok, tmp_path / "hf", limit=15_000)
    back, tok2 = import_folder(folder)
    ids = torch.randint(cfg.vocab_size, (2, 64))
    assert (
        torch.equal(back(ids), model(ids))
        and back.cfg == cfg
        and tok2.fingerprint == tok.fingerprint
        and len(list(folder.glob("*.safetensors"))) > 2
    )


@pytest.mark.parametrize("cfg, tok", CASES)
def test_transformers_reads_it(cfg, tok, tmp_path):
    hf = pytest.importorskip("transformers")
    model = loud(cfg)
    folder = export_model(model, tok, tmp_path / "hf", limit=15_000)
    theirs, words = (
        hf.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False).eval(),
        hf.AutoTokenizer.from_pretrained(folder),
    )
    ids = words(TEXT)["input_ids"]
    assert (
        ids == tok.encode(TEXT).tolist()
        and words.decode(ids) == TEXT
        and len(words) == cfg.vocab_size
    )
    x = torch.tensor(ids[:128]).view(2, 64)
    with torch.no_grad():
        assert (model(x) - theirs(x).logits).abs().max() <= 1e-5
    assert (
        theirs.config.eos_token_id == tok.end
        and theirs.generation_config.eos_token_id == tok.end
        and theirs.config.tie_word_embeddings == cfg.tied
    )


@pytest.mark.parametrize("cfg, tok", CASES[:5])
def test_we_read_what_transformers_writes(cfg, tok, tmp_path):
    hf = pytest.importorskip("transformers")
    export_model(loud(cfg), tok, tmp_path / "a")
    theirs = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "a").eval()
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    theirs.save_pretrained(tmp_path / "b", max_shard_size="20KB")
    hf.AutoTokenizer.from_pretrained(tmp_path / "a").save_pretrained(tmp_path / "b")
    ours, tok2 = import_folder(tmp_path / "b")
    x = torch.randint(cfg.vocab_size, (2, 64))
    with torch.no_grad():
        assert (ours(x) - theirs(x).logits).abs().max() <= 1e-5
    assert (tmp_path / "b" / INDEX).is_file() and tok2.encode(TEXT).tolist() == tok.encode(
        TEXT
    ).tolist()


ALONE = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, text = sys.argv[1:]
tok = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder).eval()
ids = torch.tensor(tok(text)['input_ids'])
n = model.config.max_position_embeddings
total = 0
with torch.no_grad():
    for i in range(0, len(ids) - 1, n):
        y = ids[i + 1:i + n + 1]
        logits = model(ids[i:i + len(y)][None]).logits[0]
        total += float(torch.nn.functional.cross_entropy(logits, y, reduction='sum'))
out = model.generate(ids[None, :5], max_new_tokens=8, do_sample=False)[0].tolist()
print(json.dumps([total/(len(ids) - 1), out, 'gpub' in sys.modules, type(model).__name__]))"""


@pytest.mark.full(instead="test_a_run_and_its_card")
@pytest.mark.parametrize("cfg, tok", [CASES[0], pytest.param(*CASES[3].values, id=CASES[3].id)])
def test_in_a_separate_process(cfg, tok, tmp_path):
    pytest.importorskip("transformers")
    model = loud(cfg)
    folder, text = export_model(model, tok, tmp_path / "hf"), TEXT[-2000:]
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(folder), text],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-1500:]
    loss, out, knows, kind = json.loads(done.stdout.splitlines()[-1])
    ids = tok.encode(text).astype(np.int64)
    assert (
        abs(loss - evaluate(model, ids, 64)) < 1e-3
        and not knows
        and kind in ("LlamaForCausalLM", "GPT2LMHeadModel")
    )
    want = torch.from_numpy(ids[None, :5])
    for _ in range(8):
        want = torch.cat((want, model(want)[:, -1:].argmax(-1)), 1)
    assert out == want[0].tolist()


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    d = tmp_path_factory.mktemp("run")
    (d / "text.txt").write_text(TEXT, encoding="utf-8")
    run = Trainer(
        RunOptions(
            "shakespeare-short",
            d / "run",
            d / "text.txt",
            dict(steps=4, batch_tokens=512, log_every=1, compile="no"),
            usd_per_hour=3.0,
            progress=SilentProgress(),
        )
    )
    return run.go()


def test_a_run_and_its_card(run_folder, tmp_path):
    folder = export_run(run_folder, tmp_path / "hf")
    model, tok, config = load_run(run_folder, device="cpu")
    back, _ = import_folder(folder)
    ids = torch.randint(tok.vocab_size, (1, 64))
    assert torch.equal(model(ids), back(ids))
    card = (folder / "README.md").read_text(encoding="utf-8")
    bill = json.loads((run_folder / "bill.json").read_text())
    for part in (
        "## Data",
        "## Loss",
        "## Bill",
        "## Limits",
        f"{config['parameters']:,} parameters",
        f"{bill['val_loss']:.4f}",
        f"${bill['usd']:.2f}",
        "$3.00",
        "text.txt",
        "AutoModelForCausalLM",
        config["data"]["tokenizer"],
    ):
        assert part in card, part
    assert (
        str(run_folder.parent) not in card
        and (folder / "loss.png").read_bytes() == (run_folder / "loss.png").read_bytes()
        and card.startswith("---\n")
    )
    assert {p.name for p in folder.iterdir()} == {
        "README.md",
        "loss.png",
        "SHA256SUMS",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        WEIGHTS,
    }


def test_an_imported_run_is_a_run(run_folder, tmp_path):
    out = import_run(export_run(run_folder, tmp_path / "hf"), tmp_path / "run")
    assert (
        load(out).generate("The", 30, seed=1) == load(run_folder).generate("The", 30, seed=1)
        and len(load(out).generate(n=5)) == 6
    )
    refuses("already", import_run, tmp_path / "hf", out)


def test_a_folder_of_hugging_face_is_no_run(exported):
    "Where a run is wanted, the line says how to make one of it"
    refuses(f"gpub import {exported} NEW makes a run of it", load, exported)


@pytest.mark.parametrize("place", ["tokenizer_config.json", "chat_template.jinja"])
def test_a_chat_template_that_is_not_used_is_said(exported, tmp_path, place):
    "At the import, and whenever somebody wants to talk: never that the model did not learn to"
    template = "{{ bos_token }}[INST] {{ messages[0]['content'] }} [/INST]"
    if place.endswith(".json"):
        settings = json.loads((exported / place).read_text())
        template = json.dumps(settings | dict(chat_template=template))
    (exported / place).write_text(template)
    said = []
    run = load(import_run(exported, tmp_path / "run", log=said.append))
    assert len(said) == 1 and "its own chat template is not used" in said[0]
    with pytest.raises(GpubError, match="chat template of its own, which gpub does not use"):
        check_talks(run.config, run.tokenizer, "run")


def test_no_chat_template_is_nothing_to_say(exported, tmp_path):
    said = []
    assert (
        "other_template" not in load(import_run(exported, tmp_path / "run", log=said.append)).config
    )
    assert said == []


def test_all_or_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("gpub.share.hub.write_tokenizer", lambda *a: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_model(loud(LLAMA), BPE, tmp_path / "hf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["", ".run.tmp/run"])
def test_an_import_is_there_whole_or_not_at_all(exported, tmp_path, monkeypatch, place):
    "The disk fails while a folder is forced onto it; the same command does the rest"
    sync = folder_module.sync_to_disk
    out = tmp_path / "run"

    def fail(path):
        if path == tmp_path / place or path.parent == tmp_path / place:
            raise OSError(errno.EIO, "Input/output error")
        sync(path)

    with monkeypatch.context() as m:
        m.setattr(folder_module, "sync_to_disk", fail)
        refuses("cannot write .*run: Input/output error", import_run, exported, out)
    assert [p.name for p in tmp_path.iterdir()] == ["hf"]
    killed = tmp_path / ".run.tmp" / "run" / ".config.json.1.0a.part"
    killed.parent.mkdir(parents=True)
    killed.write_text("{")
    assert load(import_run(exported, out)).model
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hf", "run"]
    assert not [*out.rglob(".*")]


def test_not_over_something(exported):
    (exported.parent / "full").mkdir()
    (exported.parent / "full" / "mine.txt").write_text("x")
    refuses("not empty", import_run, exported, exported.parent / "full")
    refuses("not empty", export_model, loud(LLAMA), BPE, exported)
    (exported.parent / "file").write_text("x")
    refuses("not empty", export_model, loud(LLAMA), BPE, exported.parent / "file")
    refuses("the folder you are in", export_model, loud(LLAMA), BPE, ".")


HUGE = 10**30


def edit_tokenizer(folder, **changes):
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), encoding="utf-8")
    return folder


def setting(**changes):
    return partial(edit, **changes)


def tokenizer(**changes):
    return partial(edit_tokenizer, **changes)


def vocabulary(**changes):
    "Changes inside the model of a tokenizer.json"

    def damage(folder):
        model = json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]
        edit_tokenizer(folder, model=model | changes)

    return damage


def text(file, content):
    return lambda folder: (folder / file).write_text(content)


def weights(change):
    "Other weights under the same settings"

    def damage(folder):
        changed = change(load_file(folder / WEIGHTS))
        save_file({name: w.contiguous() for name, w in changed.items()}, folder / WEIGHTS)

    return damage


def stored_as(dtype):
    return weights(lambda read: {name: w.to(dtype) for name, w in read.items()})


def without_a_setting(folder):
    config = json.loads((folder / "config.json").read_text())
    del config["hidden_size"]
    (folder / "config.json").write_text(json.dumps(config))


def with_a_word_of_text(folder):
    "A token that is to be cut out of any text first"
    added = json.loads((folder / "tokenizer.json").read_text("utf-8"))["added_tokens"]
    edit_tokenizer(folder, added_tokens=[*added[:-1], added[-1] | dict(special=False, lstrip=True)])


def huge_vocabulary(folder):
    (folder / "tokenizer.json").unlink()
    edit(folder, vocab_size=HUGE)


SHAPE = r"embed_tokens.* has shape \(305, 32\), config.json asks for \(500, 32\)"
UNREAD = "tokenizer.json is not a whole tokenizer file .*fetch it again"
CHANGES = "tokenizer.json changes a text before it is cut .normalizer"
NO_TEXT = "has (end_of_word_suffix|continuing_subword_prefix) = .*give every text back"
WORDS = {"type": "WordLevel", "vocab": {"hello": 0, "w": 1}, "unk_token": "w"}
BYTES = {"type": "ByteLevel", "add_prefix_space": False}
REPLACE = {"type": "Replace", "pattern": {"String": "king"}, "content": "duke"}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0}
YARN = {"rope_type": "yarn", "rope_theta": 1e4}
REFUSED = [  # the folder's family, what is done to it, what is said
    ("llama", setting(rope_scaling=LLAMA3), "lacks 'original_max_pos"),
    ("llama", setting(rope_scaling={"type": "linear", "factor": 2.0}), "rope scaling.*linear"),
    ("llama", setting(rope_parameters=YARN), "rope scaling.*yarn"),
    ("llama", setting(rope_parameters="plain"), "makes no sense"),
    (
        "llama",
        setting(rope_parameters=dict(rope_type="default", rope_theta=10**400)),
        "makes no sense",
    ),
    ("llama", setting(attention_bias=True), "attention_bias = True"),
    ("llama", setting(mlp_bias=True), "mlp_bias = True"),
    ("llama", setting(hidden_act="gelu"), "hidden_act = 'gelu'"),
    ("llama", setting(head_dim=16), r"q_proj.* has shape .* config.json asks for \(128, 32\)"),
    ("llama", setting(sliding_window=32), "sliding_window = 32; gpub's llama has none"),
    ("llama", setting(quantization_config={"bits": 4}), "quantization_config"),
    ("llama", setting(model_type="mamba"), "'mamba'.*gpt2, llama, .* and granite"),
    ("llama", setting(num_attention_heads=5), "5 n_heads and 2 n_kv_heads"),
    ("llama", setting(num_attention_heads=5, head_dim=None), "d_model 32 and 5 heads"),
    ("llama", setting(num_attention_heads="four"), "n_heads must be a whole number .* got 'four'"),
    ("llama", setting(num_key_value_heads=3), "4 n_heads and 3 n_kv_heads"),
    ("llama", setting(hidden_size=36, head_dim=9), "even.*9"),
    ("llama", setting(vocab_size=500), SHAPE),
    ("llama", setting(num_hidden_layers=4), "lack 'model.layers.3"),
    ("llama", setting(num_hidden_layers=2), "9 tensors .*no place"),
    ("llama", setting(intermediate_size=97), r"\(96, 32\).*\(97, 32\)"),
    ("llama", setting(tie_word_embeddings=False), "lack 'lm_head.weight'"),
    ("llama", without_a_setting, "lacks 'hidden_size'"),
    ("llama", text("config.json", "[]"), "model_type is None"),
    ("gpt2", setting(activation_function="gelu"), "activation_function = 'gelu'"),
    ("gpt2", setting(n_inner=99), "n_inner = 99"),
    ("gpt2", setting(add_cross_attention=True), "add_cross_attention"),
    ("gpt2", setting(layer_norm_epsilon=1e-6), "layer_norm_epsilon"),
    ("gpt2", setting(n_head=3), "d_model 32 and 3 heads"),
    # sizes beyond all memory: refused before anything is made
    ("llama", setting(num_hidden_layers=HUGE), "asks for .* parameters, the weights hold"),
    ("llama", setting(num_hidden_layers=10_000_000), "asks for"),
    ("llama", setting(hidden_size=HUGE, head_dim=None), "asks for"),
    ("llama", setting(intermediate_size=HUGE), "asks for"),
    ("llama", setting(max_position_embeddings=HUGE), "max_position_embeddings = 1,000.*16,777,216"),
    ("llama", setting(num_attention_heads=HUGE), "asks for"),
    ("llama", huge_vocabulary, "asks for"),
    ("gpt2", setting(n_positions=HUGE), "asks for"),
    ("gpt2", setting(n_layer=HUGE), "asks for"),
    ("gpt2", setting(n_embd=HUGE), "asks for"),
    ("gpt2", setting(vocab_size=HUGE), "vocabulary of"),
    # weights
    ("llama", weights(lambda _: to_theirs(loud(GPT2))), "says llama, .* weights of a gpt2"),
    ("gpt2", weights(lambda _: to_theirs(loud(LLAMA))), "says gpt2, .* weights of a llama"),
    ("llama", stored_as(torch.int8), "holds int8: quantized weights are not read"),
    ("llama", stored_as(torch.float8_e4m3fn), "holds float8_e4m3fn: quantized weights are not"),
    # tokenizers
    ("llama", text("tokenizer.json", json.dumps({"model": WORDS})), "words, such as 'hello'"),
    *(
        ("llama", tokenizer(model=model, pre_tokenizer=BYTES, normalizer=None), UNREAD)
        for model in (
            {"type": "WordLevel"},
            {"type": "WordLevel", "vocab": ["a"]},
            {"type": "WordLevel", "vocab": {}},
            {"type": "WordLevel", "vocab": {"a": "b"}},
            {"type": "BPE"},
        )
    ),
    *(
        (family, tokenizer(normalizer=normalizer), CHANGES)
        for family in ("llama", "gpt2")
        for normalizer in ({"type": "NFC"}, {"type": "Lowercase"}, REPLACE, "NFC")
    ),
    ("llama", with_a_word_of_text, "has .* as a token that is not special"),
    ("llama", vocabulary(end_of_word_suffix="</w>"), NO_TEXT),
    ("llama", vocabulary(continuing_subword_prefix="##"), NO_TEXT),
    ("llama", vocabulary(dropout=0.9), "has dropout 0.9, which draws other ids each time"),
    ("llama", tokenizer(pre_tokenizer=3), UNREAD),
    ("llama", tokenizer(pre_tokenizer=["ByteLevel"]), UNREAD),
    ("llama", tokenizer(added_tokens=[3]), UNREAD),
    ("llama", tokenizer(added_tokens="x"), UNREAD),
    ("llama", tokenizer(added_tokens=[{"id": 9}]), UNREAD),
    (
        "gpt2",
        tokenizer(pre_tokenizer={"type": "Whitespace"}),
        "vocabulary of characters, but does not cut a text into them",
    ),
]


@pytest.fixture(scope="module")
def families(tmp_path_factory):
    "A whole export of each family, to be copied and damaged"
    folder = tmp_path_factory.mktemp("families")
    export_bare(loud(LLAMA), BPE, folder / "llama")
    export_bare(loud(GPT2), CHARS, folder / "gpt2")
    return folder


@pytest.mark.parametrize("family, damage, words", REFUSED)
def test_a_folder_that_is_not_read(families, tmp_path, family, damage, words):
    folder = tmp_path / "hf"
    shutil.copytree(families / family, folder)
    damage(folder)
    refuses(words, import_folder, folder)


def test_untied_head_in_a_tied_folder(exported):
    w = load_file(exported / WEIGHTS)
    save_file(w | {"lm_head.weight": w["model.embed_tokens.weight"].clone()}, exported / WEIGHTS)
    import_folder(exported)
    save_file(w | {"lm_head.weight": w["model.embed_tokens.weight"] + 1}, exported / WEIGHTS)
    refuses("another lm_head", import_folder, exported)


def test_old_gpt2_folders(tmp_path):
    "The first GPT-2 files have no prefix and carry their masks along"
    folder, model = export_bare(loud(GPT2), CHARS, tmp_path / "hf"), loud(GPT2)
    w = {k.removeprefix("transformer."): v for k, v in load_file(folder / WEIGHTS).items()}
    save_file(
        w | {f"h.{i}.attn.bias": torch.ones(1, 1, 64, 64).tril() for i in range(3)},
        folder / WEIGHTS,
    )
    ids = torch.randint(CHARS.vocab_size, (1, 64))
    assert torch.equal(import_folder(folder)[0](ids), model(ids))


def test_missing_and_broken_files(tmp_path):
    folder = export_bare(loud(LLAMA), BPE, tmp_path / "hf", limit=15_000)
    shards = sorted(p.name for p in folder.glob("model-*"))
    whole = (folder / shards[1]).read_bytes()
    assert set(json.loads((folder / INDEX).read_text())["weight_map"].values()) == set(
        shards
    ) and all((folder / s).stat().st_size < 45_000 for s in shards)
    (folder / shards[1]).unlink()
    refuses(f"1 of its {len(shards)} weight files: {shards[1]}", import_folder, folder)
    (folder / shards[1]).write_bytes(whole[: len(whole) // 2])
    refuses(f"{shards[1]} is not a whole", import_folder, folder)
    (folder / INDEX).write_text('{"weight_map": {"a": 3}}')
    refuses("lacks 1 of its 1 weight files: 3", import_folder, folder)
    for broken in ("[]", '{"weight_map": 3}', '{"files": {}}'):
        (folder / INDEX).write_text(broken)
        refuses("has no weight_map", import_folder, folder)
    for p in [*folder.glob("model*")]:
        p.unlink()
    refuses("holds no model.safetensors", import_folder, folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    refuses("pickle only .pytorch_model.bin.*run any code", read_weights, folder)
    (folder / "config.json").unlink()
    refuses("no config.json", import_folder, folder)
    refuses("there is no folder", import_folder, folder / "nothing")


def test_no_tokenizer(exported, tmp_path):
    (exported / "tokenizer.json").unlink()
    model, tok = import_folder(exported)
    assert tok is None and model.cfg == LLAMA
    refuses("has no tokenizer", import_run, exported, tmp_path / "run")


def test_gpt2_as_it_is_published(tmp_path):
    """Its tokenizer.json leaves the cutting to the library: the same ids, and the same tokenizer as
    from its two older files"""
    hf = pytest.importorskip("transformers")
    d, cfg = (
        json.loads(to_tokenizer(GPT_BPE).to_str()),
        replace(GPT2, vocab_size=GPT_BPE.vocab_size),
    )
    vocab = d["model"]["vocab"]
    (tmp_path / "vocab.json").write_text(json.dumps(vocab | GPT_BPE.specials))
    (tmp_path / "merges.txt").write_text(
        "#version: 0.2\n"
        + "\n".join(m if isinstance(m, str) else " ".join(m) for m in d["model"]["merges"])
    )
    theirs = hf.GPT2TokenizerFast.from_pretrained(tmp_path)
    folder = export_bare(loud(cfg), GPT_BPE, tmp_path / "hf")
    theirs.save_pretrained(folder)
    assert (
        json.loads((folder / "tokenizer.json").read_text())["pre_tokenizer"]["type"] == "ByteLevel"
    )
    odd = TEXT + "\n\n it's   we'll\t 12345 \u00d8\u00e9!?  "
    _, tok = import_folder(folder)
    assert (
        tok.encode(odd).tolist() == theirs(odd)["input_ids"]
        and tok.fingerprint == load_tokenizer(tmp_path).fingerprint
    )


@pytest.mark.parametrize(
    "bad, value",
    [
        ("model.layers.1.mlp.up_proj.weight", float("nan")),
        ("model.layers.0.self_attn.k_proj.weight", float("inf")),
        ("model.norm.weight", -float("inf")),
    ],
)
def test_weights_that_are_no_numbers(exported, bad, value):
    w = load_file(exported / WEIGHTS)
    w[bad].view(-1)[-1] = value
    save_file(w, exported / WEIGHTS)
    with pytest.raises(
        GpubError, match=f"^{bad} has NaN or infinity at 1 of its {w[bad].numel():,} places"
    ):
        import_folder(exported)


@pytest.mark.parametrize("kind", [["llama"], {"llama": 1}, 3, None])
def test_a_model_type_that_is_no_word(kind):
    with pytest.raises(
        GpubError, match="model_type is .*: gpub imports gpt2, llama, .* and granite"
    ):
        from_config({"model_type": kind})


def test_a_rotation_beyond_all_numbers(exported):
    folder = edit(exported, rope_parameters=dict(rope_type="default", rope_theta=HUGE))
    assert import_folder(folder)[0].cfg.rope_base == 1e30


def test_what_is_for_batches_is_left_out(exported):
    pad = dict(
        strategy={"Fixed": 100_000},
        direction="Right",
        pad_to_multiple_of=None,
        pad_id=0,
        pad_type_id=0,
        pad_token="!",
    )
    edit_tokenizer(
        exported,
        truncation=dict(direction="Right", max_length=8, strategy="LongestFirst", stride=0),
        padding=pad,
    )
    _, tok = import_folder(exported)
    assert (
        tok.encode(TEXT).tolist()
        == BPE.encode(TEXT).tolist()
        == tok.encode_batch([TEXT])[0].tolist()
    )


def spoiled(config, **changes):
    return config | {k: v(config[k]) if callable(v) else v for k, v in changes.items()}


@pytest.mark.parametrize(
    "file, content, says",
    [
        ("bill.json", "[]", ""),
        ("bill.json", "{}", "it lacks 'hours'"),
        (
            "bill.json",
            '{"hours": "three", "usd_per_hour": 1, "price_source": "x", "usd": 1, "tok_s": 1}',
            "",
        ),
        (
            "bill.json",
            '{"hours": null, "usd_per_hour": 1, "price_source": "x", "usd": 1, "tok_s": 1}',
            "",
        ),
        ("log.jsonl", '{"val_loss": 1.5, "step": 1, "val_bpb": 2.1}', "it lacks 'tokens'"),
    ],
)
def test_receipts_damaged_by_hand(run_folder, tmp_path, file, content, says):
    shutil.copytree(run_folder, tmp_path / "run")
    (tmp_path / "run" / file).write_text(content)
    with pytest.raises(GpubError, match=f"{file} is damaged .{says}.*restore it") as e:
        export_run(tmp_path / "run", tmp_path / "hf")
    assert "\n" not in str(e.value) and not (tmp_path / "hf").exists()


@pytest.mark.parametrize(
    "change",
    [
        dict(machine=[1]),
        dict(machine=None),
        dict(data=lambda d: d | dict(source=5)),
        dict(data=lambda d: d | dict(source="x" * 5000)),
        dict(data=[1]),
    ],
)
def test_settings_damaged_by_hand(run_folder, change):
    model, _, config = load_run(run_folder, device="cpu")
    with pytest.raises(GpubError, match="config.json is damaged .*restore it"):
        model_card(run_folder, model, spoiled(config, **change))


@pytest.mark.parametrize(
    "manifest",
    [
        "[]",
        '{"format": 1, "dtype": "uint16", "vocab": "many", "tokenizer": "", "shards": [], '
        '"sources": {}}',
        '{"format": 1, "dtype": "uint16", "vocab": 9, "tokenizer": "", "shards": [], "sources": '
        '{"a": {"tokens": "b"}}}',
        '{"format": 1, "dtype": "uint16", "vocab": 9, "tokenizer": "", "shards": [], "sources": '
        '{"a": {"tokens": 0}}}',
    ],
)
def test_a_manifest_damaged_by_hand(run_folder, tmp_path, manifest):
    model, _, config = load_run(run_folder, device="cpu")
    (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(GpubError, match="manifest.json") as e:
        model_card(
            run_folder, model, spoiled(config, data=lambda d: d | dict(source=str(tmp_path)))
        )
    assert "\n" not in str(e.value)


def test_rows_without_a_validation(run_folder, tmp_path):
    "A row whose validation is null is passed over; without any the card says so"
    shutil.copytree(run_folder, tmp_path / "run")
    (tmp_path / "run/log.jsonl").write_text('{"val_loss": null, "step": 1, "tokens": 9}')
    assert "No validation was logged." in (
        export_run(tmp_path / "run", tmp_path / "hf") / "README.md"
    ).read_text(encoding="utf-8")


def test_places_that_cannot_be_written(exported, tmp_path):
    (tmp_path / "file").write_text("x")
    for write in (
        lambda out: import_run(exported, out / "run"),
        lambda out: export_model(loud(LLAMA), BPE, out / "hf"),
    ):
        with pytest.raises(GpubError, match="cannot write .*another folder") as e:
            write(tmp_path / "file")
        assert "\n" not in str(e.value) and (tmp_path / "file").read_text() == "x"
    with pytest.raises(GpubError, match="cannot write"):
        export_model(
            loud(LLAMA),
            BPE,
            Path("/proc/hf" if sys.platform == "linux" else tmp_path / "file" / "hf"),
        )


def test_characters_for_the_rust_library():
    fast = to_tokenizer(CHARS)
    fast = Tokenizer.from_str(fast.to_str())
    odd = " \t\r\n  é" + TEXT[:500]
    assert (
        fast.encode(odd).ids == CHARS.encode(odd).tolist()
        and fast.decode(fast.encode(odd).ids) == odd
    )
    with pytest.raises(Exception):
        fast.encode("☃")
    refuses("surrogate", to_tokenizer, CharTokenizer("a\ud800"))


def test_vocabulary_must_match(tmp_path):
    with pytest.raises(GpubError, match="vocabulary of 305, the tokenizer one of"):
        export_model(loud(LLAMA), CHARS, tmp_path / "hf")


def test_push(exported, monkeypatch):
    said = []
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert (
        push(exported, "me/it", dry_run=True, log=said.append).endswith("me/it")
        and "would upload 5 files" in said[0]
        and WEIGHTS in said[0]
    )
    for repo, says in (("it", "OWNER/NAME"), ("me/it", "HF_TOKEN is not set")):
        refuses(says, push, exported, repo, log=said.append)
    refuses("not an exported model", push, exported.parent, "me/it", dry_run=True)


def test_push_uses_the_token_and_never_says_it(exported, monkeypatch, capsys):
    hub = pytest.importorskip("huggingface_hub")
    calls = []
    monkeypatch.setenv("HF_TOKEN", "hf_secret")

    class Api:
        def __init__(self, token):
            calls.append(("token", token))

        def create_repo(self, repo, private, exist_ok):
            calls.append(("create", repo, private))

        def upload_folder(self, repo_id, folder_path, allow_patterns):
            calls.append(("upload", repo_id, sorted(allow_patterns)))
            assert folder_path == str(exported)

    monkeypatch.setattr(hub, "HfApi", Api)
    push(exported, "me/it")
    assert (
        calls[:2] == [("token", "hf_secret"), ("create", "me/it", True)]
        and WEIGHTS in calls[2][2]
        and "hf_secret" not in capsys.readouterr().out
    )

    def refuse(*a, **kw):
        raise RuntimeError("401 for token hf_secret\nmore")

    monkeypatch.setattr(Api, "create_repo", refuse)
    refuses(r"the Hub refused: 401 for token \*\*\*$", push, exported, "me/it")

    def hang_up(*a, **kw):
        raise ConnectionError

    monkeypatch.setattr(Api, "create_repo", hang_up)
    refuses("the Hub refused: ConnectionError$", push, exported, "me/it")


@pytest.mark.parametrize("cfg, tok", [c for c in CASES if c.values[1] is BPE])
def test_gguf_reads_back_equal(cfg, tok, tmp_path):
    gguf = pytest.importorskip("gguf")
    model = loud(cfg)
    export_model(model, tok, tmp_path / "hf", gguf="f32")
    r = gguf.GGUFReader(tmp_path / "hf" / "model.gguf")
    got = {t.name: t for t in r.tensors}
    want = gguf_tensors(model)

    def field(k):
        return r.fields[k].contents()

    assert (
        got.keys() == want.keys()
        and all(np.array_equal(got[k].data, want[k]) for k in want)
        and sum(t.n_elements for t in r.tensors) == sum(p.numel() for p in model.parameters())
    )
    kind = field("general.architecture")
    assert field(f"{kind}.context_length") == 64 and field(f"{kind}.attention.head_count") == 4
    if kind != "gpt2":
        assert (
            field(f"{kind}.attention.head_count_kv") == 2
            and field(f"{kind}.rope.freq_base") == cfg.rope_base
            and field(f"{kind}.rope.dimension_count") == 8
        )
    if tok is BPE:
        assert (
            len(field("tokenizer.ggml.tokens")) == BPE.vocab_size
            and field("tokenizer.ggml.eos_token_id") == BPE.end
            and len(field("tokenizer.ggml.merges")) == len(BPE.merges)
        )


PATTERNS = [
    pytest.param(PATTERN, "llama-bpe", True, id="ours"),
    pytest.param(LLAMA3_PATTERN, "llama-bpe", False, id="llama-3"),
    pytest.param(GPT2_PATTERN, "gpt-2", False, id="gpt-2"),
]


@pytest.mark.parametrize("pattern, name, warned", PATTERNS)
def test_gguf_says_where_llama_cpp_splits_differently(pattern, name, warned, tmp_path):
    """In the command and in the model card, decided by the pattern; without --gguf there is nothing
    to warn of"""
    gguf = pytest.importorskip("gguf")
    tok = BPETokenizer.train([TEXT], vocab_size=300, pattern=pattern)
    cfg = replace(LLAMA, vocab_size=tok.vocab_size)
    run = import_run(export_model(loud(cfg), tok, tmp_path / "hf"), tmp_path / "run")
    said = CliRunner().invoke(cli, ["export", str(run), str(tmp_path / "out"), "--gguf"])
    assert said.exit_code == 0, said.output
    assert said.stdout.startswith(f"written to {tmp_path / 'out'}\nnext: gpub push ")
    assert len(said.stdout.splitlines()) == 2
    card = (tmp_path / "out/README.md").read_text(encoding="utf-8")
    fields = gguf.GGUFReader(tmp_path / "out/model.gguf").fields
    assert fields["tokenizer.ggml.pre"].contents() == name
    warning = gguf_warning(tok)
    assert bool(warning) == warned and "\n" not in warning
    assert said.stderr == (f"warning: {warning}\n" if warned else "")
    for text in (said.stderr, card):
        assert ("indented text" in text and "llama.cpp" in text) == warned
    plain = CliRunner().invoke(cli, ["export", str(run), str(tmp_path / "plain")])
    assert plain.exit_code == 0 and plain.stderr == ""
    assert "llama.cpp" not in (tmp_path / "plain/README.md").read_text(encoding="utf-8")


def test_the_warning_for_llama_cpp_names_what_differs():
    "Nothing of prose, all of indented text, until the pattern has the branch for it"
    code = "def f(x):\n    if x:\n        return 1\n"
    assert pieces(TEXT) == pieces(TEXT, LLAMA3_PATTERN)
    assert pieces(code) != pieces(code, LLAMA3_PATTERN)
    nearer = PATTERN.replace(r"|\s+", r"|\s+(?!\S)|\s+")
    assert pieces(code, nearer) == pieces(code, LLAMA3_PATTERN)
    ours, near = (
        gguf_warning(BPETokenizer.train([TEXT], vocab_size=300, pattern=p))
        for p in (PATTERN, nearer)
    )
    assert "indented text" in ours and "single quote" in ours and "numbers" not in ours
    assert "indented text" not in near and "single quote" in near
    digits = gguf_warning(
        BPETokenizer.train([TEXT], vocab_size=300, pattern=LLAMA3_PATTERN.replace("{1,3}", ""))
    )
    assert "numbers" in digits and "indented text" not in digits


def test_gguf_order_is_the_one_of_neighbours():
    "Rotating neighbouring channels of the permuted rows gives the scores of our layout"
    from gpub.model.llama import Rope, apply_rope

    model = loud(LLAMA)
    x, d = torch.randn(5, 32), 8
    q, k = (
        torch.from_numpy(gguf_tensors(model)["blk.0.attn_q.weight"]),
        torch.from_numpy(gguf_tensors(model)["blk.0.attn_k.weight"]),
    )
    cos, sin = Rope(64, d)(5)

    def neighbours(w):
        z = (x @ w.T).unflatten(-1, (-1, d))
        a, b = z[..., ::2], z[..., 1::2]
        return torch.stack(
            (a * cos[:, None] - b * sin[:, None], b * cos[:, None] + a * sin[:, None]), -1
        ).flatten(-2)

    ours = apply_rope(
        (x @ model.blocks[0].attn.qkv.weight.T)[None].unflatten(-1, (-1, d)), cos, sin
    )[0]
    for theirs, mine, g in ((neighbours(q), ours[:, :4], 4), (neighbours(k), ours[:, 4:6], 2)):
        torch.testing.assert_close(
            torch.einsum("thd,shd->hts", theirs, theirs),
            torch.einsum("thd,shd->hts", mine, mine),
            atol=1e-4,
            rtol=1e-4,
        )


def test_gguf_refusals(tmp_path, monkeypatch):
    refuses("biases", write_gguf, loud(replace(GPT_OF_PAIRS, bias=False)), BPE, tmp_path / "x.gguf")
    with pytest.raises(GpubError, match="holds byte pairs, and this model reads characters"):
        write_gguf(loud(GPT2), CHARS, tmp_path / "x.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    refuses("pip install gguf", write_gguf, loud(LLAMA), BPE, tmp_path / "x.gguf")


def test_settings_survive_json():
    for cfg, tok in KINDS.values():
        assert from_config(json.loads(json.dumps(to_config(cfg, tok)))) == cfg


def test_from_recipe_to_hugging_face(tmp_path, root):
    "The 1B's recipe on files of one's own, its toy twin trained on them, exported and read again"
    from gpub.prep.config import load_recipe
    from gpub.prep.pipeline import prepare

    names = ("fineweb-edu", "finemath", "python-edu")
    for i, n in enumerate(names):
        (tmp_path / f"{n}.jsonl").write_text(
            "\n".join(
                json.dumps(dict(text=t)) for t in plays(120_000, i).split("\n\n") if len(t) > 60
            )
        )
    recipe = load_recipe(
        root / "data/recipes/burn1b.json",
        [f"{n}={tmp_path}/{n}.jsonl" for n in names],
        vocab_size=300,
        sample_mb=0.1,
        val=0.1,
    )
    prepare(recipe, tmp_path / "shards", log=lambda text: None)
    run = Trainer(
        RunOptions(
            "burn-toy",
            tmp_path / "run",
            tmp_path / "shards",
            dict(steps=2, batch_tokens=256, log_every=1, compile="no"),
            progress=SilentProgress(),
        )
    )
    run.go()
    folder = export_run(tmp_path / "run", tmp_path / "hf")
    model, tok, _ = load_run(tmp_path / "run", device="cpu")
    back, tok2 = import_folder(folder)
    ids = torch.randint(tok.vocab_size, (1, 64))
    assert (
        isinstance(model.cfg, LlamaConfig)
        and torch.equal(model(ids), back(ids))
        and tok2.fingerprint == tok.fingerprint
    )
    card = (folder / "README.md").read_text(encoding="utf-8")
    shares = [
        float(l.split()[-1].rstrip("%")) for l in card.splitlines() if l.startswith("- of them")
    ]
    assert "a LLaMA-style model" in card and all(
        abs(s - w) < 0.5 for s, w in zip(shares, (87, 10, 3), strict=True)
    )


@pytest.mark.parametrize(
    "recipe, sources, says",
    [
        ([1], (), "not a recipe"),
        (5, (), "not a recipe"),
        ({"sources": "x"}, (), "not a recipe"),
        ({"sources": [{"name": "a", "path": "b"}]}, ("c=d",), "no source 'c'"),
        ({"sources": [{"name": "a", "path": "b"}], "speed": 1}, (), "'speed'"),
        ({"sources": [{"name": "a"}]}, (), "'path'"),
    ],
)
def test_recipes_refused(tmp_path, recipe, sources, says):
    from gpub.prep.config import load_recipe

    (tmp_path / "r.json").write_text(json.dumps(recipe))
    refuses(says, load_recipe, tmp_path / "r.json", sources)


def test_an_exported_folder_is_opened_as_its_run(run_folder, tmp_path, capsys):
    "The same text, without an import; what a run alone has is refused in one line"
    folder = export_run(run_folder, tmp_path / "hf")
    texts = []
    for where in (run_folder, folder):
        assert gpub("sample", where, "--prompt", "the ", "-n", 20) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and texts[0].startswith("the ")
    opened = open_run(folder, device="cpu")
    assert opened.config["imported"] == str(folder) and opened.step == 0
    for words, part in (
        (("sample", folder, "--step", 3), "has no steps"),
        (("chat", folder), "did not learn from conversations"),
    ):
        assert gpub(*words) == 1
        assert part in capsys.readouterr().err
