"""Small models of today as transformers builds them, with random weights and tokenizers of their
layout: imported by the command, they say what transformers says, go on learning, and go back."""

import json
import os
import sys
from pathlib import Path

import forked
import numpy as np
import pytest
import torch
from commands import output_of

from gpub.chat.packing import packed_batch, packed_logits
from gpub.chat.template import EncodedChat
from gpub.core import GpubError
from gpub.data.sentencepiece import SentencePieceTokenizer
from gpub.data.tokenizer import IdTokenizer
from gpub.model.batching import agreeing_batch_sizes
from gpub.model.engine import DecodeEngine
from gpub.model.generate import generate_ids
from gpub.model.kv_cache import KVCache
from gpub.model.requests import GenerationRequest
from gpub.model.sampling import SamplingConfig
from gpub.record.run import load
from gpub.share.hub import import_folder, import_run
from gpub.share.weights import from_config

pytestmark = pytest.mark.usefixtures("short_texts")

hf = pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from import_kinds import CASES, ODD, SHAPE, TEXT, make_folder, qwen_words

# every other kind; the others in `make test-all`
LATER = [*CASES][1::2]
EACH = [
    pytest.param(case, id=name, marks=pytest.mark.full if name in LATER else ())
    for name, case in CASES.items()
]


@pytest.mark.parametrize("case", EACH)
def test_says_what_transformers_says(case, tmp_path):
    "Ids of any text, logits over a whole context, the likeliest continuation; there and back"
    theirs, words = make_folder(case, tmp_path / "hf")
    assert "imported to" in output_of("import", tmp_path / "hf", tmp_path / "run")
    run = load(tmp_path / "run")
    words.encode_special_tokens = True
    ids = words.encode(ODD, add_special_tokens=False).ids
    assert run.tokenizer.encode(ODD).tolist() == ids
    assert run.tokenizer.decode(run.tokenizer.encode(ODD)) == ODD
    x = torch.randint(theirs.config.vocab_size, (2, 128))
    with torch.no_grad():
        want = theirs(x).logits
        assert (run.model(x) - want).abs().max() <= 2e-5
    options = dict(max_new_tokens=30, do_sample=False, eos_token_id=None, pad_token_id=0)
    everything = torch.ones_like(x[:1, :20])  # a 0 among the ids is no padding
    more = theirs.generate(x[:1, :20], attention_mask=everything, **options)
    assert generate_ids(run.model, x[0, :20].tolist(), 30, temperature=0) == more[0].tolist()
    output_of("export", tmp_path / "run", tmp_path / "back")
    again = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "back").eval()
    with torch.no_grad():
        assert (again(x).logits - want).abs().max() <= 2e-5
    tok = hf.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert (
        tok(TEXT[:500], add_special_tokens=False)["input_ids"]
        == run.tokenizer.encode(TEXT[:500]).tolist()
    )
    assert len(tok) == theirs.config.vocab_size


# 25 kinds of small models that somebody may bring: those that come in, and of each what is proved
# above; and the word by which the others are refused
COMES_IN = {
    "gpt2": "GPT-2",
    "llama": "TinyLlama",
    "llama, rotations of llama3": "Llama-3.2",
    "smollm2": "SmolLM2",
    "tinyllama": "TinyLlama, newer file",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "smollm3": "SmolLM3",
    "olmo2": "OLMo 2",
    "mistral, no window": "Mistral",
    "mixtral": "Mixtral",
    "phi3": "Phi-3",
    "ernie4_5": "ERNIE 4.5",
    "granite": "Granite",
}
REFUSED = {
    "mistral": "sliding_window = 64: beyond 64 of its 128 positions",
    "qwen3_moe": "a mixture of experts",
    "olmo3": "windows that slide",
    "gemma": "a gate of GELU",
    "gemma2": "windows that slide",
    "gemma3_text": "windows that slide",
    "phi": "attention and MLP side by side",
    "gpt_neox": "attention and MLP side by side",
    "stablelm": "LayerNorm",
    "starcoder2": "LayerNorm",
    "nanochat": "squared ReLU",
}


def test_25_kinds():
    assert len(COMES_IN) + len(REFUSED) == 25 and len(COMES_IN) >= 12


@pytest.mark.parametrize("name", COMES_IN)
def test_a_kind_that_comes_in(name, tmp_path):
    "Logits of transformers, whole, token by token, beside other texts, and in a batch of requests"
    theirs, _ = make_folder(CASES[COMES_IN[name]], tmp_path / "hf")
    model, _ = import_folder(tmp_path / "hf", weights_only=True)
    size = theirs.config.vocab_size
    x = torch.randint(size, (2, 100))
    with torch.no_grad():
        want = theirs(x).logits
        assert want.std() > 0.5 and (model(x) - want).abs().max() <= 2e-5
        cache = KVCache(model.cfg)
        for start, end in ((0, 50), (50, 51), (51, 60), *((t, t + 1) for t in range(60, 100))):
            step = cache.read(model, x[:, start:end])
            assert (step - want[:, start:end]).abs().max() <= 2e-5
        chats = [EncodedChat(row.numpy(), np.ones(60, bool)) for row in x[:, :60]]
        packed = packed_logits(model, packed_batch([chats], 128))[0]
        assert (packed[60:120] - want[1, :60]).abs().max() <= 2e-5
    engine = DecodeEngine(model, agreeing_batch_sizes(model, 2))
    prompts = [x[0, :30].tolist(), x[1, :7].tolist()]
    greedy = SamplingConfig(n=20, temperature=0)
    asked = [engine.add_request(GenerationRequest([p], greedy)) for p in prompts]
    while engine.requests:
        engine.step()
    options = dict(max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0)
    for prompt, running in zip(prompts, asked):
        ids = torch.tensor([prompt])
        more = theirs.generate(ids, attention_mask=torch.ones_like(ids), **options)
        assert running.new_ids[0] == more[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", REFUSED)
def test_a_kind_that_is_refused(name):
    "In one line: why, and which small models would do"
    shape = SHAPE | dict(num_hidden_layers=4)
    if name == "mistral":
        shape["sliding_window"] = 64
    config = hf.AutoConfig.for_model(name, vocab_size=300, **shape).to_dict()
    with pytest.raises(GpubError) as refused:
        from_config(config)
    said = str(refused.value)
    assert REFUSED[name] in said and "\n" not in said
    assert name == "mistral" or (
        "Qwen3-0.6B" in said and f"model_type is '{name}', which has" in said
    )


def test_the_wrong_rotation_is_heard(tmp_path):
    "The comparison above would notice plain angles where the file says llama3"
    theirs, _ = make_folder(CASES["Llama-3.2"], tmp_path / "hf")
    path = tmp_path / "hf/config.json"
    config = json.loads(path.read_text())
    config["rope_parameters"] = dict(rope_type="default", rope_theta=500_000.0)
    path.write_text(json.dumps(config))
    import_run(tmp_path / "hf", tmp_path / "run")
    x = torch.randint(300, (2, 128))
    with torch.no_grad():
        assert (load(tmp_path / "run").model(x) - theirs(x).logits).abs().max() > 1e-2


def test_weights_only(tmp_path):
    "A tokenizer that is not read is named with the way out; the model then reads and writes ids"
    theirs, _ = make_folder(CASES["Qwen2"], tmp_path / "hf")
    qwen_words().save(str(tmp_path / "hf/tokenizer.json"))
    with pytest.raises(GpubError, match="changes a text .*NFC.*--weights-only takes the model"):
        import_run(tmp_path / "hf", tmp_path / "run")
    output_of("import", tmp_path / "hf", tmp_path / "run", "--weights-only")
    run = load(tmp_path / "run")
    assert isinstance(run.tokenizer, IdTokenizer)
    said = output_of("sample", tmp_path / "run", "--prompt", "5 6 7", "-n", 4, "--temperature", 0)
    x = torch.tensor([[5, 6, 7]])
    want = theirs.generate(x, max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert [int(word) for word in said.split()] == want[0].tolist()
    output_of("export", tmp_path / "run", tmp_path / "back")
    assert not (tmp_path / "back/tokenizer.json").exists()
    assert hf.AutoModelForCausalLM.from_pretrained(tmp_path / "back").config.model_type == "qwen2"


@pytest.mark.parametrize("metaspace", [False, True])
def test_spaces_written_otherwise_are_refused(tmp_path, metaspace):
    make_folder(CASES["TinyLlama"], tmp_path / "hf")
    path = tmp_path / "hf/tokenizer.json"
    d = json.loads(path.read_text())
    if metaspace:
        d |= dict(normalizer=None, pre_tokenizer={"type": "Whitespace"})
    else:
        d["normalizer"]["normalizers"].append({"type": "Lowercase"})
    path.write_text(json.dumps(d))
    with pytest.raises(GpubError, match="does not write spaces as Llama 2 does"):
        import_run(tmp_path / "hf", tmp_path / "run")
    assert isinstance(
        load(import_run_of("TinyLlama", tmp_path / "b")).tokenizer, SentencePieceTokenizer
    )


def import_run_of(name, folder):
    make_folder(CASES[name], folder / "hf")
    return import_run(folder / "hf", folder / "run")


@pytest.mark.parametrize("name", ["SmolLM2", pytest.param("TinyLlama", marks=pytest.mark.full)])
def test_an_imported_run_is_a_run(name, tmp_path):
    "Listed, examined, billed as what it is; it learns on, from the loss that transformers measures"
    theirs, words = make_folder(CASES[name], tmp_path / "hf")
    output_of("import", tmp_path / "hf", tmp_path / "run")
    assert "imported" in output_of("ls", tmp_path)
    assert "imported from" in output_of("bill", tmp_path / "run")
    said = output_of("doctor", tmp_path / "run")
    assert "0 alarms" in said and "imported from" in said
    (tmp_path / "text.txt").write_text(TEXT)
    out, recipe = tmp_path / "tuned", ["--set", "batch_tokens=1024", "--set", "log_every=1"]
    given = ["--init", tmp_path / "run", "--data", tmp_path / "text.txt", "--out", out]
    output_of("train", *given, "--steps", 3, "--device", "cpu", *recipe, "--quiet")
    first, *_, last = [json.loads(line) for line in open(out / "log.jsonl")]
    ids = torch.tensor(words.encode(TEXT, add_special_tokens=False).ids)[: 64 * 128].view(64, 128)
    with torch.no_grad():
        want = theirs(ids, labels=ids).loss
    assert abs(first["loss"] - want) < 0.15 and last["val_loss"] < first["loss"]
    assert load(out).tokenizer.fingerprint == load(tmp_path / "run").tokenizer.fingerprint
    assert "nats/token" in output_of("show", out)


@pytest.mark.full(instead="test_an_imported_run_is_a_run")
def test_a_name_on_the_hub(tmp_path):
    "OWNER/NAME is read from the Hub's own cache, where it lies as huggingface_hub leaves it"
    commit = "0" * 40
    place = tmp_path / "cache/models--me--tiny"
    make_folder(CASES["SmolLM2"], place / "snapshots" / commit)
    (place / "refs").mkdir()
    (place / "refs/main").write_text(commit)
    env = os.environ | dict(HF_HUB_CACHE=str(tmp_path / "cache"), HF_HUB_OFFLINE="1")
    for name, code, says in (("me/tiny", 0, "imported to"), ("me/none", 1, "Hub did not give")):
        words = ["-m", "gpub", "import", name, tmp_path / name]
        done = forked.run(words, capture_output=True, text=True, env=env, cwd=tmp_path)
        assert done.returncode == code and says in done.stdout + done.stderr
    config = json.loads((tmp_path / "me/tiny/config.json").read_text())
    assert config["imported"] == "me/tiny" and config["unit"] == "nats/token"


def test_a_name_on_the_hub_without_an_import(tmp_path):
    "OWNER/NAME writes, is served and is taught at once; a name in runs/ is never asked for there"
    commit = "0" * 40
    place = tmp_path / "cache/models--me--tiny"
    make_folder(CASES["SmolLM2"], place / "snapshots" / commit)
    (place / "refs").mkdir()
    (place / "refs/main").write_text(commit)
    env = os.environ | dict(HF_HUB_CACHE=str(tmp_path / "cache"), HF_HUB_OFFLINE="1")

    def typed(*words):
        done = forked.run(
            ["-m", "gpub", *words], capture_output=True, text=True, env=env, cwd=tmp_path
        )
        return done.returncode, done.stdout, done.stderr

    code, said, told = typed("sample", "me/tiny", "--prompt", "To be", "--tokens", "3")
    assert code == 0 and said.startswith("To be") and "taken from the Hugging Face Hub" in told
    code, said, told = typed("sft", "me/tiny", "--data", "sums:40", "--steps", "1")
    assert code == 0 and (tmp_path / "runs/tiny-sft/bill.json").is_file(), told
    (tmp_path / "lambada_test.jsonl").write_text(json.dumps(dict(text="To be or not to be")))
    asked = ("--tasks", "lambada", "--data", str(tmp_path), "--check", "0")
    code, said, told = typed("eval", "me/tiny", *asked)
    assert code == 0 and "written to runs/evals-me-tiny/evals.json" in said, told
    assert told.count("taken from the Hugging Face Hub") == 1
    code, _, told = typed("sample", "runs/none", "--tokens", "3")
    assert code == 1 and "Hub" not in told and "is not a run folder" in told
    assert not (tmp_path / "me").exists()
