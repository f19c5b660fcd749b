"""Files that nobody's program wrote: every parser reads them or says in one line what is wrong"""

import json

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpub.chat.conversations import ChatSet, read_conversations
from gpub.core import GpubError, read_config, read_json
from gpub.data.bpe import BPETokenizer
from gpub.data.shards import read_manifest
from gpub.data.tokenizer_file import load_tokenizer
from gpub.data.transfer import fetch_shards
from gpub.evals.sandbox import problems
from gpub.evals.tasks import TASKS, items_in
from gpub.files import SUMS, changed_files, file_sha256
from gpub.guards.verify import verify
from gpub.lab.bench.rates import read_rates
from gpub.model.gpt import GPT, GPTConfig
from gpub.plans.annealing import given_up
from gpub.plans.ladder import read_forecast, read_ladder
from gpub.plans.phases import read_plan
from gpub.plans.prices import known_price
from gpub.plans.verdicts import verdicts
from gpub.prep.config import load_recipe
from gpub.prep.contamination import benchmark_items
from gpub.prep.sources import parse_line
from gpub.prep.store import load_chunk
from gpub.record.checkpoint import load_checkpoint
from gpub.record.checkpoint_folder import MODEL
from gpub.record.folder import cut_log
from gpub.record.ledger import read_ledger
from gpub.record.log import read_bill, read_log, read_settings, sample_table
from gpub.share.hub import INDEX, import_folder, read_weights
from gpub.share.weights import read_tokenizer
from gpub.tune.lora import load_lora


def read_state(folder):
    "A checkpoint whose state.json is this"
    inside = folder / "checkpoints" / "step-00000001"
    inside.mkdir(parents=True, exist_ok=True)
    (folder / "state.json").replace(inside / "state.json")
    load_checkpoint(folder, log=lambda line: None)


def read_chats(folder):
    "Chats whose checksum is right, whatever they are"
    name = "train.safetensors"
    head = dict(format=3, tokenizer="x", vocab_size=9, longest=9, val_share=0.1)
    head |= dict(split="first user turn", held_out=0)
    more = dict(files={name: file_sha256(folder / name)}, sources=[], licenses={})
    (folder / "manifest.json").write_text(json.dumps(head | more))
    ChatSet(folder)


def read_questions(folder, ending):
    "Each benchmark reads its own rows"
    for task in TASKS.values():
        if task.file.endswith(ending):
            try:
                items_in(task, folder / f"questions{ending}")
            except GpubError as refusal:
                assert "line" in str(refusal)


def read_rungs(folder):
    "A ladder of one rung"
    rung = folder / "rung"
    rung.mkdir(exist_ok=True)
    (folder / "result.json").replace(rung / "result.json")
    read_ladder(folder)


def read_vocabulary(folder):
    "GPT-2's two files"
    (folder / "merges.txt").write_text("a b\n")
    BPETokenizer.from_gpt2(folder / "vocab.json", folder / "merges.txt")


def read_merges(folder):
    "The other of the two"
    (folder / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2}')
    BPETokenizer.from_gpt2(folder / "vocab.json", folder / "merges.txt")


def read_adapter_weights(folder):
    "An adapter whose settings are sound"
    about = dict(peft_type="LORA", r=2, lora_alpha=2, target_modules=["attn.q"])
    (folder / "adapter_config.json").write_text(json.dumps(about))
    load_lora(tiny_model(), folder)


def read_documents(folder):
    "Text that is to be learned: a bad line is a problem of its document, not an error"
    for line in (folder / "documents.jsonl").read_bytes().split(b"\n"):
        assert parse_line(line, "text") is not None


def tiny_model():
    "Something an adapter may be for"
    return GPT(GPTConfig(vocab_size=9, context_length=8, d_model=8, n_layers=1, n_heads=1))


PARSERS = {
    "config.json": [
        read_config,
        read_settings,
        import_folder,
        lambda d: read_json(d / "config.json", "model"),
    ],
    "log.jsonl": [read_log, lambda d: cut_log(d / "log.jsonl", 3)],
    "samples.jsonl": [sample_table],
    "ledger.jsonl": [read_ledger],
    "phases.jsonl": [verdicts],
    "state.json": [read_state],
    "manifest.json": [read_manifest, ChatSet, verify, lambda d: fetch_shards(d.as_uri())],
    "plan.json": [lambda d: read_plan(d / "plan.json")],
    "recipe.json": [lambda d: load_recipe(d / "recipe.json")],
    "conversations.jsonl": [lambda d: [*read_conversations(d / "conversations.jsonl")]],
    "train.safetensors": [read_chats],
    "adapter_config.json": [lambda d: load_lora(tiny_model(), d)],
    "adapter_model.safetensors": [read_adapter_weights, verify],
    "tokenizer.json": [load_tokenizer, read_tokenizer],
    "vocab.json": [read_vocabulary],
    "merges.txt": [read_merges],
    "bill.json": [read_bill],
    SUMS: [changed_files, verify],
    MODEL: [read_weights],
    INDEX: [read_weights],
    "prices.json": [lambda d: known_price("A100-80", d / "prices.json")],
    "ends.jsonl": [lambda d: given_up(d, "proof")],
    "forecast.json": [lambda d: read_forecast(d / "forecast.json")],
    "result.json": [read_rungs],
    "rates.json": [lambda d: read_rates(d / "rates.json")],
    "questions.jsonl": [lambda d: read_questions(d, ".jsonl")],
    "questions.csv": [lambda d: read_questions(d, ".csv")],
    "HumanEval.jsonl.gz": [lambda d: problems(folder=d)],
    "documents.jsonl": [read_documents],
    "benchmark.jsonl": [lambda d: [*benchmark_items(d / "benchmark.jsonl")]],
    "benchmark.json": [lambda d: [*benchmark_items(d / "benchmark.json")]],
    "benchmark.csv": [lambda d: [*benchmark_items(d / "benchmark.csv")]],
    "chunk.arrow": [lambda d: load_chunk(d / "chunk.arrow")],
}
# what broke something once, and what is known to break parsers
SEEDS = [
    b"",
    b"null",
    b"[]",
    b"{",
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"\xff\xfe\x00{",
    b"\x00" * 64,
    b'{"step": 1e999}\n',
    b'{"step": 9007199254740993, "loss": NaN}\n',
    b'{"step": "1", "step": 1}\n{"step": 1',
    b'{"step": -1, "n": 0, "at": -5, "usd_per_hour": 1e308}\n',
    b'{"n": 0, "open": true, "at": 1, "step": 0, "usd_per_hour": 1}\n{"n": 1',
    b'{"format": 99}',
    b'{"format": true, "model": []}',
    b'{"model": {"n_layers": 10000000, "d_model": 1e400}}',
    b'{"format": 1, "step": 1, "seal": null, "files": {"model.safetensors": 5}}',
    b'{"version": 1, "shards": [{"file": "../../etc/passwd", "tokens": 1}]}',
    b'{"type": "char", "chars": 5}',
    b'{"model": {"type": "BPE", "vocab": [], "merges": {}}}',
    "0".encode() * 64 + b"  ../outside\n",
    b"\xff\xff\xff\xff\xff\xff\xff\x7f{}",
    b"\x02\x00\x00\x00\x00\x00\x00\x00{}",
    json.dumps({"a": {"dtype": "F32", "shape": [2**62], "data_offsets": [0, 8]}}).encode(),
]


def reads_or_refuses(folder, name, content):
    "Each parser of such a file; what it raises is one line for people"
    for parser in PARSERS[name]:
        (folder / name).write_bytes(content)
        if name == "samples.jsonl":
            (folder / "log.jsonl").write_text('{"step": 1}\n')
        try:
            parser(folder)
        except GpubError as refusal:
            assert "\n" not in str(refusal) and len(str(refusal)) <= 600, str(refusal)[:300]


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize(
    "number",
    [pytest.param(n, marks=pytest.mark.full if n % 4 else ()) for n in range(len(SEEDS))],
)
def test_seeds(tmp_path, name, number):
    reads_or_refuses(tmp_path, name, SEEDS[number])


def with_seeds(test):
    "Hypothesis begins with what is known"
    for seed in SEEDS:
        test = example(content=seed)(test)
    return test


KEYS = (
    "step n at format files state shards model data seal type weight_map runs machines kind usd "
    "usd_per_hour gpu provider source world rank ctx endings label question answerKey choices "
    "text task_id prompt test entry_point peft_type r lora_alpha target_modules messages role"
).split()
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)
contents = st.binary(max_size=200) | anything.map(lambda value: json.dumps(value).encode())


@pytest.fixture
def smallest_numbers():
    "A training before this, in the same process, has numbers below 1e-308 taken for zero"
    torch.set_flush_denormal(False)


@pytest.mark.full(instead="test_seeds")
@pytest.mark.usefixtures("smallest_numbers")
@pytest.mark.parametrize("name", PARSERS)
def test_whatever_hypothesis_makes(tmp_path, name):
    @settings(
        max_examples=150,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(content=contents)
    def holds(content):
        reads_or_refuses(tmp_path, name, content)

    with_seeds(holds)()
