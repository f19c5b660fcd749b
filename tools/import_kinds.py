"""Small models of today as transformers builds them, with random weights and tokenizers of their
layout: what `gpub import` makes of each, beside what transformers says.

    python tools/import_kinds.py        writes data/imports.json

`tests/test_imports.py` tests the same models in more ways.
"""

import json
import tempfile
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from gpub.core import write_atomic
from gpub.data.bpe import GPT2_PATTERN, LLAMA3_PATTERN, BPETokenizer
from gpub.data.plays import plays
from gpub.model.generate import generate_ids
from gpub.record.run import load
from gpub.share.hub import export_run, import_run
from gpub.share.weights import to_tokenizer

RECEIPT = Path(__file__).parents[1] / "data/imports.json"
TEXT = plays(30_000, 0)
ODD = (
    TEXT[:2000]
    + "\n\n it's   we'll DON'T\t 12345 1  2\n 3 ½ \u00d8\u00e9!? 😀 한국어  \n    if x:\n\ty "
)


def trained(pattern=GPT2_PATTERN, specials=("<|endoftext|>",)):
    return to_tokenizer(
        BPETokenizer.train([TEXT], vocab_size=300, pattern=pattern, specials=specials)
    )


def llama3_words():
    "Laid out as Llama-3's: its pattern, whole words first, a text that begins with a mark"
    specials = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>")
    d = json.loads(trained(LLAMA3_PATTERN, specials).to_str())
    d["model"]["ignore_merges"] = True
    return Tokenizer.from_str(json.dumps(d))


def smollm_words():
    "Laid out as SmolLM's: single digits, then GPT-2's pattern, which the file does not name"
    tok = trained(specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    return tok


def spaced_words(metaspace=False):
    "Laid out as TinyLlama's: spaces belong to words, what has no token falls back on bytes"
    specials = ["<unk>", "<s>", "</s>"]
    vocab = {name: i for i, name in enumerate(specials)}
    vocab |= {f"<0x{b:02X}>": len(vocab) + b for b in range(256)}
    pairs = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "▁"), ("e", "r"), ("i", "n")]
    for word in [*sorted(set(TEXT.replace(" ", "▁"))), *map("".join, pairs)]:
        vocab.setdefault(word, len(vocab))
    tok = Tokenizer(models.BPE(vocab, pairs, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if metaspace:
        tok.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    else:
        tok.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    tok.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1),
        ]
    )
    tok.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    return tok


def qwen_words():
    "Laid out as Qwen2's, which changes a text before it is cut: not read here"
    tok = trained()
    tok.normalizer = normalizers.NFC()
    return tok


SHAPE = dict(
    hidden_size=32,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
)
LLAMA3_ROPE = dict(
    rope_type="llama3",
    rope_theta=500_000.0,
    factor=32.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)


GRANITE = dict(
    embedding_multiplier=12.0,
    logits_scaling=0.5,
    residual_multiplier=0.22,
    attention_multiplier=0.0625,
    tie_word_embeddings=True,
)
NO_MARKS = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)


@dataclass
class Case:
    kind: str  # model_type
    words: object  # makes the tokenizer
    settings: dict
    more: int = 0  # rows of the model without a token


def llama(words, more=0, **settings):
    return Case("llama", words, SHAPE | settings, more)


CASES = {
    "Llama-3.2": llama(llama3_words, tie_word_embeddings=True, rope_parameters=LLAMA3_ROPE),
    "SmolLM2": llama(smollm_words, tie_word_embeddings=True, rope_theta=100_000.0),
    "TinyLlama": llama(spaced_words, tie_word_embeddings=False),
    "TinyLlama, newer file": llama(lambda: spaced_words(True), tie_word_embeddings=False),
    "padded vocabulary": llama(llama3_words, more=7, tie_word_embeddings=True),
    "padded and spaced": llama(spaced_words, more=5),
    "wide heads": llama(smollm_words, head_dim=16, tie_word_embeddings=False),
    "GPT-2": Case("gpt2", trained, dict(n_embd=32, n_layer=2, n_head=4, n_positions=128), more=3),
    "Qwen2": Case("qwen2", trained, SHAPE | dict(tie_word_embeddings=True)),
    "Qwen3": Case("qwen3", trained, SHAPE | dict(tie_word_embeddings=True, head_dim=16)),
    "SmolLM3": Case("smollm3", llama3_words, SHAPE | dict(num_hidden_layers=5)),
    "OLMo 2": Case("olmo2", trained, SHAPE),
    "Mistral": Case("mistral", spaced_words, SHAPE | dict(sliding_window=None)),
    "Mixtral": Case("mixtral", spaced_words, SHAPE | dict(num_local_experts=4)),
    "Phi-3": Case("phi3", spaced_words, SHAPE | dict(sliding_window=128)),
    "ERNIE 4.5": Case("ernie4_5", trained, SHAPE | dict(head_dim=16)),
    "Granite": Case("granite", trained, SHAPE | GRANITE),
}
WHAT = {  # what each is the only one to have
    "Llama-3.2": "rotations of rope_type llama3, a tied head, whole words before merges",
    "SmolLM2": "single digits before GPT-2's pattern",
    "TinyLlama": "spaces as parts of words, bytes for what has no token, an untied head",
    "TinyLlama, newer file": "the same, with Metaspace in place of a normalizer",
    "padded vocabulary": "7 rows of the model without a token",
    "padded and spaced": "5 rows without a token, spaces as parts of words",
    "wide heads": "a head_dim that is not width / heads",
    "GPT-2": "learned positions, LayerNorm, biases, transposed matrices",
    "Qwen2": "biases of queries, keys and values",
    "Qwen3": "norms of queries and keys, heads wider than width / heads",
    "SmolLM3": "no rotations in every fourth layer",
    "OLMo 2": "norms after attention and MLP, norms of all queries and keys together",
    "Mistral": "a Llama under another name",
    "Mixtral": "four experts of which two work",
    "Phi-3": "matrices stored together, a window that never slides",
    "ERNIE 4.5": "neighbouring channels rotated, written back as a Llama",
    "Granite": "four constants, multiplied into the matrices, and a head that is untied by them",
}


def make_folder(case, folder, seed=0):
    "A folder as transformers saves it: random weights, loud enough that a wrong one is heard"
    words = case.words()
    config = transformers.AutoConfig.for_model(
        case.kind, vocab_size=words.get_vocab_size() + case.more, **NO_MARKS, **case.settings
    )
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.15)
    model.save_pretrained(folder)
    words.save(str(Path(folder) / "tokenizer.json"))
    return model, words


def prove(case, folder):
    "One model there and back: the largest differences of its logits, its tokens and its text"
    theirs, words = make_folder(case, folder / "hf")
    run = load(import_run(folder / "hf", folder / "run"))
    export_run(run.path, folder / "back")
    again = transformers.AutoModelForCausalLM.from_pretrained(folder / "back").eval()
    words.encode_special_tokens = True
    ids = words.encode(ODD, add_special_tokens=False).ids
    x = torch.randint(theirs.config.vocab_size, (2, 128), generator=torch.manual_seed(1))
    start = x[:1, :20]
    options = dict(max_new_tokens=30, do_sample=False, eos_token_id=None, pad_token_id=0)
    options |= dict(attention_mask=torch.ones_like(start))  # a 0 among the ids is no padding
    with torch.no_grad():
        want = theirs(x).logits
        far = [float((logits - want).abs().max()) for logits in (run.model(x), again(x).logits)]
    written = theirs.generate(start, **options)[0].tolist()
    return dict(
        parameters=sum(p.numel() for p in theirs.parameters()),
        imported=far[0],
        exported_again=far[1],
        spread=float(want.std()),
        tokens_equal=run.tokenizer.encode(ODD).tolist() == ids,
        text_equal=generate_ids(run.model, start[0].tolist(), 30, temperature=0) == written,
    )


def main():
    with tempfile.TemporaryDirectory() as d:
        kinds = {}
        for i, (name, case) in enumerate(CASES.items()):
            (Path(d) / str(i)).mkdir()
            kinds[name] = dict(what=WHAT[name]) | prove(case, Path(d) / str(i))
    versions = dict(transformers=transformers.__version__, torch=torch.__version__)
    receipt = dict(date=str(date.today()), versions=versions, kinds=kinds)
    write_atomic(RECEIPT, json.dumps(receipt, indent=1) + "\n")
    print(json.dumps(receipt, indent=1))


if __name__ == "__main__":
    main()
