"""What llama.cpp itself makes of our GGUF files: tokens, logits and text, beside gpub's own.

    npm install node-llama-cpp      in any folder: it brings llama.cpp, compiled
    python tools/in_llama_cpp.py FOLDER --receipt data/gguf.json

`tests/test_llama_cpp.py` does the same with fewer texts where LLAMA_CPP names such a folder.
"""

import argparse
import json
import platform
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import get_args

import torch

from gpub.core import write_atomic
from gpub.data.bpe import GPT2_PATTERN, LLAMA3_PATTERN, PATTERN, BPETokenizer
from gpub.data.plays import plays
from gpub.model.architectures import build_model
from gpub.model.generate import generate_ids
from gpub.model.gpt import GPTConfig
from gpub.model.llama import LlamaConfig
from gpub.share.gguf import GgufNumbers, gguf_warning, write_gguf
from gpub.share.weights import DIGITS_PATTERN

PROGRAM = Path(__file__).with_suffix(".mjs")
PATTERNS = {
    "Llama-3's": LLAMA3_PATTERN,
    "GPT-2's": GPT2_PATTERN,
    "SmolLM's": DIGITS_PATTERN,
    "gpub's own, of earlier runs": PATTERN,
}
ODD = [
    *("😀", "👩‍👩‍👧", "naïve", "한국어", "Ω≈ç", "日本語", "‏שלום", "½", "ǆ", "\u00a0", "\u200b"),
    *(
        "DON'T",
        "f'text'",
        "we'll",
        "12345",
        "3.14",
        "\t",
        "    ",
        "\n\n",
        " \n",
        "\r\n",
        "...",
        "_x",
    ),
]
WINDOW, NEW = 64, 24  # positions of the models, and tokens they write


def texts(n):
    "kind -> n texts: plays, modules of Python's library, and strings of odd pieces"
    library = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    code = [p.read_text(encoding="utf-8", errors="replace")[:5_000] for p in library]
    draw = random.Random(0)
    odd = ["".join(draw.choice([*ODD, " ", "a", "the"]) for _ in range(60)) for _ in range(n)]
    found = dict(prose=[plays(2_000, seed) for seed in range(n)], code=code[:n], odd=odd)
    short = [kind for kind, some in found.items() if len(some) < n]
    if short:
        sys.exit(f"this Python's library has fewer than {n} modules: ask for fewer texts")
    return found


def trained(pattern):
    "A tokenizer that has read some of everything"
    some = texts(4)
    return BPETokenizer.train([t for kind in some.values() for t in kind], 700, pattern=pattern)


def shapes(vocab_size):
    "name -> config of the models whose files llama.cpp reads"
    size = dict(vocab_size=vocab_size, context_length=WINDOW, d_model=64, n_layers=2, n_heads=4)
    llama = LlamaConfig(**size, n_kv_heads=2, d_ff=96)
    rule = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=32)
    slower = LlamaConfig.from_dict(llama.to_dict() | dict(rope_scaling=rule, head_dim=32))
    return {
        "Llama": llama,
        "Llama, untied head": replace(llama, tied=False),
        "Llama-3.2's rotations, wide heads": slower,
        "Qwen2's biases": replace(llama, qkv_bias=True),
        "Qwen3's norms, wide heads": replace(llama, qk_norm="per_head", head_dim=32),
        "OLMo 2's norms": replace(llama, qk_norm="all_heads", norm_after=True),
        "SmolLM3's layers without rotations": replace(llama, nope_every=4, n_layers=5),
        "GPT-2": GPTConfig(**size),
    }


def loud(cfg):
    "A model whose every weight is heard in its logits"
    torch.manual_seed(0)
    model = build_model(cfg).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.15)
    return model


def ask(folder, file, texts=(), prompts=()):
    "The answer of the program beside this one"
    job = dict(model=str(file), texts=[*texts], prompts=[*prompts], n=NEW, window=2 * WINDOW)
    command = [shutil.which("node") or "node", str(PROGRAM), str(folder)]
    done = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"llama.cpp did not answer: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)


def compare_tokens(folder, place, n):
    "pattern -> of n texts of each kind, how many get the ids of training; and what export says"
    found, asked = {}, texts(n)
    for name, pattern in PATTERNS.items():
        tok = trained(pattern)
        file = write_gguf(loud(shapes(tok.vocab_size)["Llama"]), tok, place / "tokens.gguf")
        answer = ask(folder, file, [t for some in asked.values() for t in some])
        theirs = iter(answer["tokens"])
        equal = {
            kind: sum(next(theirs) == tok.encode(t).tolist() for t in some)
            for kind, some in asked.items()
        }
        found[name] = dict(texts=n, equal=equal, warned=bool(gguf_warning(tok)))
    return found


@torch.no_grad()
def compare_model(folder, place, cfg, tok, numbers):
    "Largest difference of logits in standard deviations of ours, and texts that came out the same"
    model = loud(cfg)
    file = write_gguf(model, tok, place / "model.gguf", numbers)
    prompts = [tok.encode(t).tolist()[:24] for t in texts(2)["prose"] + texts(2)["code"]]
    answer = ask(folder, file, prompts=prompts)
    worst, same = 0.0, 0
    for ids, logits, written in zip(prompts, answer["logits"], answer["greedy"], strict=True):
        ours = model(torch.tensor([ids]))[0, -1]
        worst = max(worst, float((torch.tensor(logits) - ours).abs().max() / ours.std()))
        same += generate_ids(model, ids, NEW, temperature=0)[len(ids) :] == written
    return dict(logits=float(f"{worst:.1e}"), texts=len(prompts), same=same)


def compare(folder, n):
    "The receipt: versions, tokens by pattern, logits and texts by model and numbers"
    tok = trained(LLAMA3_PATTERN)
    with tempfile.TemporaryDirectory() as d:
        tokens = compare_tokens(folder, Path(d), n)
        models = {
            name: {
                numbers: compare_model(folder, Path(d), cfg, tok, numbers)
                for numbers in get_args(GgufNumbers)
            }
            for name, cfg in shapes(tok.vocab_size).items()
        }
        about = ask(folder, Path(d) / "model.gguf")
    versions = {"node-llama-cpp": about["version"], "llama.cpp": about["release"]["release"]}
    versions |= dict(torch=torch.__version__, python=platform.python_version())
    return dict(date=str(date.today()), versions=versions, tokens=tokens, models=models)


def main():
    ask_for = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask_for.add_argument("folder", help="where npm install node-llama-cpp was run")
    ask_for.add_argument("--receipt", default="data/gguf.json", help="written here")
    given = ask_for.parse_args()
    found = compare(given.folder, 100)
    write_atomic(given.receipt, json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
