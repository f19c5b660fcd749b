"""How many bytes a token of the 1B's vocabulary holds, in each source of its mix: the tokenizer of
season 2, chapter 1 is learned again and measured on documents that it did not learn from.

GPUB_DATA=folder python tools/bytes_per_token.py     some seconds; writes data/bytes_per_token.json
"""

import json
from pathlib import Path

from gpub.core import GpubError
from gpub.data.bpe import BPETokenizer
from gpub.data.tokenizer_report import stratified, tokenizer_report
from gpub.device import machine
from gpub.files import data_dirs
from gpub.prep.config import load_recipe
from gpub.prep.sources import Source, chunks, records

DATA = Path(__file__).resolve().parent.parent / "data"
STEMS = {"fineweb-edu": "edu", "finemath": "math", "python-edu": "python"}
SIZE = 9_000_000  # bytes that the vocabulary is learned from, as in the chapter


def read_documents(stem, most):
    "The first documents of a source, up to `most` bytes"
    file = f"{stem}.jsonl.zst"
    path = next((d / file for d in map(Path, data_dirs()) if (d / file).is_file()), None)
    if path is None:
        raise GpubError(f"no {file} in $GPUB_DATA")
    texts = []
    for chunk in chunks(Source(name=stem, path=str(path))):
        for text in (record[0] for block in chunk.blocks for record in records(block)):
            if text:
                texts.append(text)
                most -= len(text.encode("utf-8", "replace"))
            if most <= 0:
                return texts
    return texts


def main():
    recipe = load_recipe(DATA / "recipes/burn1b.json")
    texts, held_out = {}, {}
    for name, share in recipe.weights.items():
        documents = read_documents(STEMS[name], 2 * SIZE * share + 300_000)
        cut = len(documents) - len(documents) // 4
        texts[name], held_out[name] = documents[:cut], documents[cut:]
    sampled = stratified(texts, SIZE, recipe.weights)
    mixed = (text for sample in sampled.values() for text in sample)
    tokenizer = BPETokenizer.train(mixed, vocab_size=recipe.vocab_size)
    measured = tokenizer_report(tokenizer, held_out)["sources"]
    receipt = dict(
        command="python tools/bytes_per_token.py",
        vocab_size=tokenizer.vocab_size,
        learned_from_bytes=SIZE,
        share_of_tokens=recipe.weights,
        held_out={
            name: dict(documents=len(held_out[name]), bytes=m["bytes"], tokens=m["tokens"])
            for name, m in measured.items()
        },
        machine=machine(),
    )
    text = json.dumps(receipt, indent=1, ensure_ascii=False)
    (DATA / "bytes_per_token.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
