"""The pipeline: the same bytes for any number of workers and any number of kills; nothing half done
can be taken for whole."""

import errno
import io
import json
import multiprocessing as mp
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from contracts import refuses
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from marks import first_ones

from gpub.core import GpubError
from gpub.data.batches import Batches
from gpub.data.bpe import BPETokenizer
from gpub.data.shards import ShardWriter, read_manifest, verify_shards
from gpub.data.tokenizer_file import load_tokenizer
from gpub.prep.config import PrepConfig
from gpub.prep.pipeline import findings_table, mix_table, prepare
from gpub.prep.progress import PrepProgress
from gpub.record.folder import lock_folder

SHARES = {"edu": 0.87, "math": 0.10, "code": 0.03}


def quiet(*a):
    pass


def write_corpus(folder, docs=400, seed=0):
    "Three sources of a random language, with duplicates planted across them"
    rng = random.Random(seed)
    vocab = [
        "".join(rng.choice("abcdefghij") for _ in range(rng.randrange(2, 9))) for _ in range(900)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for s, n in (("edu", docs), ("math", docs // 4), ("code", docs // 8)):
        rows = [
            " ".join(rng.choice(vocab) for _ in range(rng.randrange(40, 160))) for _ in range(n)
        ]
        rows[n // 2] = rows[3]
        rows[5] = "too short"
        (folder / f"{s}.jsonl").write_text("".join(json.dumps(dict(text=t)) + "\n" for t in rows))
    return folder


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "text")


@pytest.fixture(scope="session")
def tokenizer(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tok")
    BPETokenizer.train(
        [json.loads(l)["text"] for f in sorted(corpus.iterdir()) for l in open(f)], 500
    ).save(folder)
    return folder


def config(corpus, tokenizer, **kw):
    d = dict(
        sources=tuple(f"{s}={corpus}/{s}.jsonl:{w}" for s, w in SHARES.items()),
        tokenizer=str(tokenizer),
        val=0.05,
        chunk_mb=0.02,
        shard_tokens=60_000,
        near=0.8,
    )
    return PrepConfig(**(d | kw))


def content(folder):
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(Path(folder).rglob("*"))
        if p.is_file()
    }


@pytest.fixture(scope="session")
def whole(corpus, tokenizer, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "out"
    prepare(config(corpus, tokenizer), out, log=quiet)
    return out


def decoded(folder, split=None):
    m, tok = read_manifest(folder), load_tokenizer(folder)
    out = []
    for s in m["shards"]:
        if split in (None, s["split"]):
            ids = np.fromfile(folder / s["file"], m["dtype"])
            out += [
                (s["split"], s["source"], tok.decode(d))
                for d in np.split(ids, np.flatnonzero(ids == m["end"]) + 1)
                if len(d)
            ]
    return [(sp, so, t.removesuffix("<|endoftext|>")) for sp, so, t in out]


def test_shards_hold_the_documents(corpus, tokenizer, tmp_path):
    out = tmp_path / "all"
    cfg = config(
        corpus, tokenizer, sources=tuple(f"{s}={corpus}/{s}.jsonl" for s in SHARES), near=None
    )
    m = prepare(cfg, out, log=quiet)
    verify_shards(out)
    rows = [(s, json.loads(l)["text"]) for s in SHARES for l in open(corpus / f"{s}.jsonl")]
    first = {}
    for s, t in rows:
        first.setdefault(t, s)
    want = sorted((s, t) for t, s in first.items() if len(t) >= 100)
    assert sorted((s, t) for _, s, t in decoded(out)) == want
    for s in SHARES:
        assert (
            m["sources"][s]["dropped"] == {"duplicate": 1, "too short": 1}
            or m["sources"][s]["dropped"]["duplicate"] == 1
        )
    assert all(
        c["seen"] == c["kept"] + sum(c["dropped"].values()) for c in m["counts"].values()
    ) and not list(out.glob(".*"))


def test_the_mix_is_what_was_asked(whole):
    m = read_manifest(whole)
    train = {
        s: sum(x["tokens"] for x in m["shards"] if x["source"] == s and x["split"] == "train")
        for s in SHARES
    }
    for s, w in SHARES.items():
        assert (
            abs(100 * train[s] / sum(train.values()) - 100 * w) < 0.1
            and train[s] == m["mix"][s]["train"]["tokens"]
        )
    assert (
        m["mix"]["edu"]["train"]["epochs"] == 1
        and m["mix"]["code"]["train"]["epochs"] < 1
        and "87.00%" in mix_table(m)
    )


def test_repeated_sources_are_reported(corpus, tokenizer, tmp_path):
    m = prepare(config(corpus, tokenizer, tokens=400_000), tmp_path / "o", log=quiet)
    train = {s: v["train"] for s, v in m["mix"].items()}
    assert (
        abs(sum(v["tokens"] for v in train.values()) - 400_000) <= 2 and train["edu"]["epochs"] > 2
    )
    for s, w in SHARES.items():
        assert abs(train[s]["share"] - w) < 0.001


def test_two_workers_same_bytes(corpus, tokenizer, whole, tmp_path):
    prepare(config(corpus, tokenizer), tmp_path / "o", workers=2, log=quiet)
    assert content(tmp_path / "o") == content(whole)


def test_no_leak_and_a_split_that_ignores_order(corpus, tokenizer, whole, tmp_path):
    train, val = ({t for *_, t in decoded(whole, s)} for s in ("train", "val"))
    assert val and not train & val
    other = tmp_path / "shuffled"
    other.mkdir()
    for s in SHARES:
        lines = open(corpus / f"{s}.jsonl").readlines()
        random.Random(1).shuffle(lines)
        (other / f"{s}.jsonl").write_text("".join(lines))
    a = prepare(config(corpus, tokenizer, near=None), tmp_path / "a", log=quiet)
    b = prepare(config(other, tokenizer, near=None), tmp_path / "b", log=quiet)
    assert a["mix"] == b["mix"] and sorted(decoded(tmp_path / "a")) == sorted(
        decoded(tmp_path / "b")
    )


def deadly(nth, cfg, out, call):
    "Run `prepare`, and die before the nth call of `os.replace` or `os.fsync`"
    real, count = getattr(os, call), [0]

    def f(*a, **kw):
        count[0] += 1
        if count[0] == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*a, **kw)

    setattr(os, call, f)
    prepare(cfg, out, log=quiet)


def killed_at(nth, cfg, out, call="replace"):
    "True if `prepare` got to its end before its nth call"
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["gpub.prep.pipeline"])
    p = context.Process(target=deadly, args=(nth, cfg, out, call))
    p.start()
    p.join(60)
    assert p.exitcode in (0, -signal.SIGKILL), "the child failed by itself"
    return p.exitcode == 0


@pytest.mark.full(instead="test_goes_on.py::test_goes_on")
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
@pytest.mark.parametrize(
    "call, nth", [("replace", 32), pytest.param("fsync", 24, marks=pytest.mark.full)]
)
def test_killed_again_and_again(corpus, tokenizer, whole, tmp_path, call, nth):
    """Each attempt gets a few writes further: every stage is interrupted, and the end is the same.
    The last stage, closing seven shards, is gone through whole: it takes up to 31 renames"""
    out, attempts = tmp_path / "o", 0
    while not killed_at(nth, config(corpus, tokenizer), out, call):
        attempts += 1
        assert attempts < 30
        if not (out / "manifest.json").exists():
            with pytest.raises(GpubError):
                verify_shards(out)
    assert attempts > 0 and content(out) == content(whole)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_killed_at_each_single_write(corpus, tokenizer, whole, tmp_path):
    n, finished = 1, False
    while not finished:
        out = tmp_path / str(n)
        finished = killed_at(n, config(corpus, tokenizer), out)
        prepare(config(corpus, tokenizer), out, log=quiet)
        assert content(out) == content(whole), n
        shutil.rmtree(out)
        n += 1
    assert n > 20


SCRIPT = (
    "import sys, json; from gpub.prep.pipeline import PrepConfig, prepare; "
    "prepare(PrepConfig.from_dict(json.loads(sys.argv[1])), sys.argv[2], int(sys.argv[3]), "
    "log=lambda *a: None)"
)


@pytest.mark.slow
def test_twenty_random_kills_with_two_workers(tmp_path):
    corpus = write_corpus(tmp_path / "big", 12_000)
    cfg = PrepConfig(
        sources=tuple(f"{s}={corpus}/{s}.jsonl:{w}" for s, w in SHARES.items()),
        vocab_size=500,
        sample_mb=0.5,
        chunk_mb=0.2,
        near=0.8,
    )
    start = time.time()
    prepare(cfg, tmp_path / "whole", 1, log=quiet)
    rng, kills = random.Random(0), 0
    command = [sys.executable, "-c", SCRIPT, json.dumps(cfg.to_dict()), str(tmp_path / "o"), "2"]
    while kills < 20:
        p = subprocess.Popen(command, start_new_session=True)
        while not (tmp_path / "o").exists() and p.poll() is None:
            time.sleep(0.05)
        try:
            p.wait(rng.uniform(0, 3))
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
            kills += 1
        else:
            assert p.returncode == 0 and content(tmp_path / "o") == content(tmp_path / "whole")
            shutil.rmtree(tmp_path / "o")
    assert subprocess.run(command).returncode == 0 and content(tmp_path / "o") == content(
        tmp_path / "whole"
    )


def test_finished_is_finished_and_another_job_is_refused(corpus, tokenizer, whole):
    before, said = content(whole), []
    prepare(config(corpus, tokenizer), whole, log=said.append)
    assert content(whole) == before and "complete" in said[0]
    with pytest.raises(GpubError, match="another job: val: this run 0.05, asked 0.1"):
        prepare(config(corpus, tokenizer, val=0.1), whole, log=quiet)
    assert content(whole) == before


@pytest.mark.full(instead="test_run.py::test_second_process_is_refused")
def test_a_second_process_is_refused(corpus, tokenizer, tmp_path):
    "Two that append to the same shards would both finish, with tokens twice"
    killed_at(8, config(corpus, tokenizer), tmp_path / "o")
    with (
        lock_folder(tmp_path / "o" / ".work"),
        pytest.raises(GpubError, match=f"in use by process {os.getpid()}"),
    ):
        prepare(config(corpus, tokenizer), tmp_path / "o", log=quiet)


@pytest.mark.parametrize(
    "name, how",
    first_ones(
        3,
        [
            (".work/plan.json", b"5"),
            (".work/scan.json", b"[]"),
            (".work/tokenizer/sample.json", b"5"),
            (".progress.json", b"5"),
            (".work/store/documents/*/000000.arrow", b""),
            (".work/store/documents/*/000000.arrow", None),
            (".work/store/ids-*/*/000000.arrow", None),
            ("train-00000.bin.part", None),
            ("val-00000.docs.part", None),
        ],
    ),
)
def test_damage_while_nothing_ran_is_one_line(corpus, tokenizer, tmp_path, name, how, monkeypatch):
    "Another content of the same size too: what was committed has its checksum"

    def stop(self, **kw):
        raise KeyboardInterrupt

    monkeypatch.setattr(ShardWriter, "close", stop)
    out = tmp_path / "o"
    with pytest.raises(KeyboardInterrupt):
        prepare(config(corpus, tokenizer, shard_tokens=1 << 27), out, log=quiet)
    monkeypatch.undo()
    p = sorted(out.glob(name))[0]
    b = p.read_bytes()
    p.write_bytes(how if how is not None else b[:9] + bytes([b[9] ^ 1]) + b[10:])
    with pytest.raises(GpubError, match=re.escape(p.name)) as e:
        prepare(config(corpus, tokenizer, shard_tokens=1 << 27), out, log=quiet)
    assert "\n" not in str(e.value) and not (out / "manifest.json").exists()


@pytest.mark.full(instead="test_finished_is_finished_and_another_job_is_refused")
def test_changed_input_is_noticed(corpus, tokenizer, tmp_path):
    mine = shutil.copytree(corpus, tmp_path / "text")
    cfg = config(mine, tokenizer)
    out = tmp_path / "o"
    killed_at(8, cfg, out)
    (mine / "math.jsonl").open("a").write('{"text": "one more"}\n')
    refuses("another job: inputs.math", prepare, cfg, out, log=quiet)


def train_tokens(manifest):
    "What lies in the training shards, by source"
    return {
        s: sum(f["tokens"] for f in manifest["shards"] if (f["split"], f["source"]) == ("train", s))
        for s in SHARES
    }


def test_disk_full_loses_nothing(corpus, tokenizer, whole, tmp_path, monkeypatch):
    real, count = os.fsync, [0]

    def full(fd):
        count[0] += 1
        if count[0] > 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd)

    with monkeypatch.context() as m:
        m.setattr(os, "fsync", full)
        with pytest.raises(GpubError, match="No space left on device; nothing is lost"):
            prepare(config(corpus, tokenizer), tmp_path / "o", log=quiet)
    prepare(config(corpus, tokenizer), tmp_path / "o", log=quiet)
    assert content(tmp_path / "o") == content(whole)


@pytest.mark.full(instead="test_disk_full_loses_nothing")
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.full), 2])
def test_a_disk_that_is_really_full(corpus, tokenizer, whole, small_disk, workers, monkeypatch):
    """Every attempt gets some more room: all stages meet the end of the disk, and the end is the
    same. The room was there when it began: others write on the disk too"""
    monkeypatch.setattr("gpub.prep.pipeline.check_free_disk", lambda job: None)
    cfg, refused, disk = config(corpus, tokenizer), 0, small_disk(40)
    for kb in range(40 if workers == 1 else 400, 4000, 60 if workers == 1 else 400):
        small_disk(kb)
        try:
            prepare(cfg, disk / "o", workers, log=quiet)
            break
        except GpubError as e:
            assert (
                "cannot write to" in str(e)
                and "No space left on device" in str(e)
                and "\n" not in str(e)
            )
        refused += 1
        assert not (disk / "o" / "manifest.json").exists()
        with pytest.raises(GpubError):
            verify_shards(disk / "o")
    assert refused >= (5 if workers == 1 else 1) and content(disk / "o") == content(whole)


def test_dirty_input_is_counted_with_examples(tokenizer, tmp_path):
    text = "The quick brown fox jumps over the lazy dog. " * 5
    good = [text + str(i) for i in range(20)]
    (tmp_path / "a.jsonl").write_bytes(
        "".join(json.dumps(dict(text=t)) + "\n" for t in good).encode()
        + b"nonsense\n" * 7
        + json.dumps(dict(text="a\0b" * 100)).encode()
        + b'\n{"text": "'
        + "naïve ".encode("cp1252") * 40
        + b'"}\n'
    )
    m = prepare(
        PrepConfig(sources=(f"a={tmp_path}/a.jsonl",), tokenizer=str(tokenizer)),
        tmp_path / "o",
        log=quiet,
    )
    c = m["counts"]["a"]
    assert (
        c["seen"] == 29
        and c["kept"] == 22
        and c["dropped"] == {"not JSON": 7}
        and c["examples"]["not JSON"] == ["nonsense"] * 5
        and c["repaired"] == {"controls": 1, "cp1252": 1}
    )


@pytest.mark.parametrize(
    "make, line",
    [
        (lambda d: (d / "a.txt").touch(), "no document is left"),
        (lambda d: (d / "a.txt").write_text("short"), "no document is left.*too short"),
        (lambda d: (d / "a.bin").write_text("x"), "no such file"),
        (lambda d: (d / "a.jsonl").write_text('{"body": "x"}\n' * 9), "no text in 'text'"),
        (lambda d: (d / "a.jsonl.zst").write_bytes(b"\x28\xb5\x2f\xfd\x04"), "a.jsonl.zst"),
    ],
)
def test_unusable_input_is_one_line(tokenizer, tmp_path, make, line):
    (tmp_path / "in").mkdir()
    make(tmp_path / "in")
    with pytest.raises(GpubError, match=line) as e:
        prepare(
            PrepConfig(sources=(f"a={tmp_path}/in",), tokenizer=str(tokenizer)),
            tmp_path / "o",
            log=quiet,
        )
    assert "\n" not in str(e.value) and not (tmp_path / "o" / "manifest.json").exists()


@pytest.mark.parametrize(
    "bad, line",
    [
        (dict(sources=()), "no source given"),
        (dict(sources=("a=x:1", "a=y:1")), "called 'a'"),
        (dict(sources=("a=x:1", "b=y")), "give all a weight"),
        (dict(sources=("a=x",), val=2), "val must be a share .* got 2"),
        (dict(sources=("a=x",), near=0), "near must be a similarity.* got 0"),
        (dict(sources=("a=x",), tokens=5), "tokens 5"),
        (dict(sources=("a=x",), chunk_mb=0), "chunk_mb .* got 0"),
        (dict(sources=("a=x",), vocab_size=100), "vocab_size 100"),
        (dict(sources=("a=x",), shard_tokens=0.5), "shard_tokens .* got 0.5"),
        (dict(sources=("a=x",), sample_mb=float("nan")), "sample_mb .* got nan"),
        (dict(sources=("a=x",), sample_mb=float("inf")), "sample_mb .* got inf"),
        (dict(sources=("a=x",), gate=-1), "gate must be a number of documents .* got -1"),
    ],
)
def test_bad_settings(bad, line):
    refuses(line, PrepConfig, **bad)


def test_what_the_scan_cannot_find_is_said(corpus, tokenizer, tmp_path):
    items, said = ("too short", "each of these words tells where the sentence comes from"), []
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(dict(q=q)) + "\n" for q in items))
    prepare(
        config(corpus, tokenizer, benchmarks=(str(tmp_path / "q.jsonl"),)),
        tmp_path / "o",
        log=said.append,
    )
    assert said[0] == "benchmarks: 2 items, of which 1 are too short to be found"


def test_the_gate_stops_before_tokenizing(corpus, tokenizer, tmp_path):
    (tmp_path / "g.jsonl").write_text(
        (corpus / "edu.jsonl").read_text()
        + json.dumps(dict(text="PersonX thanks PersonX. " * 20))
        + "\n"
    )
    cfg = dict(sources=(f"a={tmp_path}/g.jsonl",), tokenizer=str(tokenizer))
    with pytest.raises(GpubError, match="'PersonX' in 1 documents of 'a'"):
        prepare(PrepConfig(**cfg, gate=0), tmp_path / "o", log=quiet)
    assert not list((tmp_path / "o").glob("*.bin")) and json.loads(
        (tmp_path / "o" / ".work" / "scan.json").read_text()
    )["sources"]["a"]["known"] == {"PersonX": 1}
    m = prepare(PrepConfig(**cfg, gate=1e6), tmp_path / "o", log=quiet)
    assert "PersonX" in m["scan"]["table"]


@settings(
    deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(texts=st.lists(st.text(min_size=1, max_size=80), min_size=2, max_size=12, unique=True))
@example(texts=["0", "¯"])  # both draw a lot below the share of validation
def test_any_text_comes_back(texts, tokenizer, tmp_path_factory):
    from gpub.prep.clean import Rules, clean

    rules = Rules(min_chars=0, max_broken=1, max_symbols=1, max_repeats=1)
    want = {t for t in (clean(x, rules)[0] for x in texts) if t is not None}
    d = tmp_path_factory.mktemp("any")
    (d / "a.jsonl").write_text("".join(json.dumps(dict(text=t)) + "\n" for t in texts))
    prepare(
        PrepConfig(
            sources=(f"a={d}/a.jsonl",), tokenizer=str(tokenizer), rules=rules, scan=False, val=0.2
        ),
        d / "o",
        log=quiet,
    )
    tok = load_tokenizer(tokenizer)
    m = read_manifest(d / "o")
    got = set()
    for s in m["shards"]:
        ids = np.fromfile(d / "o" / s["file"], m["dtype"])
        got |= {
            tok.decode(x[:-1]) for x in np.split(ids, np.flatnonzero(ids == m["end"]) + 1) if len(x)
        }
    assert got == want


def test_batches_name_their_documents(whole):
    batches = Batches.from_shards(whole, context_length=32, batch=8, seed=1)
    rows = batches.trace_rows(5)
    assert len(rows) == 8 and all(".jsonl" in row.documents[0] for row in rows)


def test_progress_line():
    p = PrepProgress("encode")
    p.update(5_000_000, 1_000_000, 0.25)
    assert (
        "MB/s" in p.line(0.25)
        and "1,000,000 tokens" in p.line(0.25)
        and "ETA" in p.line(0.25)
        and "ETA" not in p.line(0)
    )


RSS = r"""
import json, os, random, sys, threading, psutil
from gpub.prep.pipeline import PrepConfig, prepare
peak, each, me, stop = [0], [0], psutil.Process(), threading.Event()
def watch():
    while not stop.wait(.1):
        family = [me, *me.children(recursive=True)]; sizes, pss = [], []
        for p in family:
            try: i = p.memory_full_info(); sizes.append(i.rss); pss.append(i.pss)
            except psutil.Error: pass
        each[0] = max(each[0], max(sizes, default=0)); peak[0] = max(peak[0], sum(pss))
t = threading.Thread(target=watch); t.start()
sources = (f'a={sys.argv[1]}',)
cfg = PrepConfig(sources=sources, vocab_size=8000, sample_mb=20, near=.8, benchmarks=())
try:
    prepare(cfg, sys.argv[2], 2)
finally:
    stop.set()
    t.join()
print(json.dumps(dict(one=each[0]/1e6, together=peak[0]/1e6)))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_input(tmp_path):
    from gpub.data.plays import plays

    rng = random.Random(0)
    base = plays(4_000_000, seed=0).split()
    mb = int(os.environ.get("GPUB_RSS_MB", 500))
    with open(tmp_path / "a.jsonl", "w") as f:
        while f.tell() < mb * 1e6:
            k = rng.randrange(len(base) - 2000)
            d = base[k : k + rng.randrange(100, 1500)]
            rng.shuffle(d)
            f.write(json.dumps(dict(text=" ".join(d))) + "\n")
    r = subprocess.run(
        [sys.executable, "-c", RSS, str(tmp_path / "a.jsonl"), str(tmp_path / "o")],
        capture_output=True,
        text=True,
    )
    assert r.returncode == 0, r.stderr[-2000:]
    print(r.stdout)
    peak = json.loads(r.stdout.strip().split("\n")[-1])
    assert peak["one"] < 1000 and peak["together"] < 1000


def stopped(cfg, out, monkeypatch, **how):
    "A job that got as far as the end of its last stage"

    def stop(self, **kw):
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr(ShardWriter, "close", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare(cfg, out, log=quiet, **how)


@pytest.mark.full(instead="test_damage_while_nothing_ran_is_one_line")
def test_one_bit_of_a_chunk_changes_nothing_in_silence(corpus, tokenizer, whole, tmp_path):
    """Each bit that is turned is noticed, or does no harm: three of sixteen went into the shards"""
    out = tmp_path / "o"
    cfg = config(corpus, tokenizer)
    killed_at(20, cfg, out)
    files = sorted((out / ".work").rglob("0*.arrow"))
    assert len(files) > 3
    rng = random.Random(4)
    noticed = 0
    for n in range(24):
        mine = shutil.copytree(out, tmp_path / f"o{n}")
        p = mine / rng.choice(files).relative_to(out)
        b = bytearray(p.read_bytes())
        at = rng.randrange(len(b))
        b[at] ^= 1 << rng.randrange(8)
        p.write_bytes(b)
        try:
            prepare(cfg, mine, log=quiet)
        except GpubError as e:
            assert p.name in str(e) and "\n" not in str(e)
            noticed += 1
        else:
            assert content(mine) == content(whole), f"byte {at} of {p.name}"
        shutil.rmtree(mine)
    assert noticed > 12


RULES = """
def no_fox(document):
    return "fox" if "fox" in document.text else None

def politely(document):
    document.text = document.text.replace("damn", "darn")
"""


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.full)])
def test_own_rules_work_with_any_number_of_workers(tokenizer, tmp_path, monkeypatch, workers):
    """A rule put into `DROPS` in a notebook was lost in the workers; a rule is an object that can
    be imported, named in the config"""
    (tmp_path / "my_rules.py").write_text(RULES)
    monkeypatch.syspath_prepend(str(tmp_path))
    good = "The damn quick brown dog jumps over the lazy dog. " * 5
    rows = [good + str(i) + " fox" * (i % 4 == 0) for i in range(40)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(dict(text=t)) + "\n" for t in rows))
    cfg = PrepConfig(
        sources=(f"a={tmp_path}/a.jsonl",),
        tokenizer=str(tokenizer),
        filters=("my_rules:no_fox", "my_rules:politely"),
        chunk_mb=0.001,
    )
    m = prepare(cfg, tmp_path / "o", workers, log=quiet)
    assert m["counts"]["a"]["dropped"] == {"fox": 10} and m["counts"]["a"]["kept"] == 30
    assert all("darn" in t and "damn" not in t for *_, t in decoded(tmp_path / "o"))
    sys.modules.pop("my_rules", None)


def test_a_rule_that_was_edited_is_another_job(corpus, tokenizer, tmp_path, monkeypatch):
    (tmp_path / "their_rules.py").write_text("def keep(document):\n    return None\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    cfg = config(corpus, tokenizer, filters=("their_rules:keep",))
    stopped(cfg, tmp_path / "o", monkeypatch)
    (tmp_path / "their_rules.py").write_text("def keep(document):\n    return 'no'\n")
    sys.modules.pop("their_rules")
    refuses("another job: filter_code", prepare, cfg, tmp_path / "o", log=quiet)


@pytest.mark.parametrize(
    "name, line",
    [
        ("no_such_module:f", "no_such_module"),
        ("json:no_such_rule", "no_such_rule"),
        ("json:__name__", "not a function"),
        ("nonsense", "it knows"),
    ],
)
def test_a_rule_that_cannot_be_had_is_one_line(corpus, tokenizer, name, line):
    refuses(line, config, corpus, tokenizer, filters=(name,))


def test_the_built_in_rules_cannot_be_changed_by_accident():
    from gpub.prep.clean import DROPS, REPAIRS

    for rules in (DROPS, REPAIRS):
        with pytest.raises(TypeError):
            rules["mine"] = len


def test_another_version_of_gpub_does_not_go_on(corpus, tokenizer, whole, tmp_path, monkeypatch):
    "Half of the chunks made by one version and half by another are no corpus"
    import gpub

    assert read_manifest(whole)["gpub"] == gpub.__version__
    cfg = config(corpus, tokenizer)
    stopped(cfg, tmp_path / "o", monkeypatch)
    monkeypatch.setattr(gpub, "__version__", "0.0.7")
    refuses("another job: gpub: .*0.0.7", prepare, cfg, tmp_path / "o", log=quiet)
    said = []
    assert prepare(cfg, whole, log=said.append) == read_manifest(whole)
    assert "complete" in said[0], "what is finished is finished, whoever made it"


def test_a_moving_source_keeps_its_commit(tokenizer, tmp_path, monkeypatch):
    """The commit that a branch had when the job began is in plan and manifest; the branch moves
    on, the job does not; another commit is another job"""
    from gpub.prep import job, sources

    heads = ["1" * 40]

    def resolve(hub):
        return replace(hub, revision=hub.revision or heads[0])

    read = []

    def hub_blocks(hub, task, tasks, state):
        read.append(hub.revision)
        rows = [f"row {i} of a text that is long enough to stay " * 4 for i in range(40)]
        yield sources.RecordBlock("arrow", sources.to_arrow(rows), hub.repo), dict(at=1)

    monkeypatch.setattr(job, "pinned", resolve)
    monkeypatch.setattr(sources, "hub_blocks", hub_blocks)
    cfg = PrepConfig(sources=("a=hf:some/set",), tokenizer=str(tokenizer))
    stopped(cfg, tmp_path / "o", monkeypatch)
    heads[0] = "2" * 40
    m = prepare(cfg, tmp_path / "o", log=quiet)
    assert set(read) == {"1" * 40}
    assert m["settings"]["inputs"]["a"][0][-1] == "1" * 40
    assert prepare(cfg, tmp_path / "o", log=quiet) == m
    other = PrepConfig(sources=("a=hf:some/set@@" + "3" * 40,), tokenizer=str(tokenizer))
    refuses("another job", prepare, other, tmp_path / "o", log=quiet)


def test_progress_without_a_terminal_is_a_line_now_and_then(monkeypatch):
    "A log file of an hour holds 120 lines, not none and not 7,000"
    from gpub.prep import progress

    now, said = [0.0], []
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    p = PrepProgress("encode", stream=io.StringIO(), log=said.append)
    for _ in range(600):
        now[0] += 0.5
        p.update(1_000_000, 250_000, 0.25)
    assert len(said) == 10
    assert "encode" in said[0] and "25.0%" in said[0] and "ETA" in said[0]
    assert "30.0 MB  " not in said[0] and "60.0 MB" in said[0]


def families_of(corpus, source, texts):
    "Rows of a source with an id each, five pieces to a book"
    return [json.dumps(dict(text=t, id=f"shelf/book {i // 5}#{i}")) for i, t in enumerate(texts)]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    "Three sources in which five neighbours are pieces of one book; the third is a single text"
    folder = tmp_path_factory.mktemp("library")
    rng = random.Random(11)
    words = ["".join(rng.choice("abcdefghij") for _ in range(6)) for _ in range(600)]
    for s, n in (("edu", 500), ("math", 150), ("code", 1)):
        texts = [" ".join(rng.choice(words) for _ in range(80)) for _ in range(n)]
        rows = families_of(folder, s, texts)
        (folder / f"{s}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def books(folder, split):
    "Books of a split, by the texts that are in it"
    return {(s, t) for sp, s, t in decoded(folder, split)}


def test_no_book_is_on_both_sides(library, tokenizer, tmp_path):
    """85 of 100 validation documents had a sibling of the same book in training"""
    cfg = config(library, tokenizer, near=None, chunk_mb=0.01)
    m = prepare(cfg, tmp_path / "o", log=quiet)
    book = {}
    for s in SHARES:
        for line in open(library / f"{s}.jsonl"):
            row = json.loads(line)
            book[s, row["text"]] = row["id"].split("#")[0]
    sides = {
        split: {book[pair] for pair in books(tmp_path / "o", split) if pair in book}
        for split in ("train", "val")
    }
    assert len(sides["val"]) >= 4 and not sides["train"] & sides["val"]
    assert m["split_by"]["edu"] == "family"


def test_a_source_of_one_text_does_not_empty_the_validation_of_the_others(
    library, tokenizer, tmp_path
):
    "Its only document stays in training, and the others keep what they hold out"
    cfg = config(library, tokenizer, near=None, chunk_mb=0.01, tokens=20_000)
    mix = prepare(cfg, tmp_path / "o", log=quiet)["mix"]
    assert mix["code"]["val"]["available"] == 0 and mix["code"]["train"]["tokens"] == 600
    for s in ("edu", "math"):
        assert mix[s]["val"]["tokens"] >= 0.6 * 0.05 * mix[s]["train"]["tokens"], s


@pytest.fixture
def leaky(corpus, tmp_path):
    "A source with questions of a benchmark in it, and the benchmark"
    long = "which of the many rivers of the old country ran dry in the summer of that year"
    short = dict(q="Which metal is liquid at room temperature?", a=["mercury", "iron", "gold"])
    (tmp_path / "quiz.jsonl").write_text(json.dumps(dict(q=long)) + "\n" + json.dumps(short))
    rows = [json.loads(line)["text"] for line in open(corpus / "edu.jsonl")]
    rows[20] += " \u201c" + long.upper() + "\u201d"
    rows[30] += "\n" + short["q"] + " A. mercury B. iron C. gold"
    (tmp_path / "leaky.jsonl").write_text("".join(json.dumps(dict(text=t)) + "\n" for t in rows))
    return tmp_path


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.full)])
def test_leaked_questions_are_dropped_with_receipts(leaky, tokenizer, workers):
    """24 flagged documents, all real, went into the shards"""
    cfg = PrepConfig(
        sources=(f"a={leaky}/leaky.jsonl",),
        tokenizer=str(tokenizer),
        benchmarks=(str(leaky / "quiz.jsonl"),),
        chunk_mb=0.02,
    )
    out = leaky / f"o{workers}"
    m = prepare(cfg, out, workers, log=quiet)
    assert m["counts"]["a"]["dropped"]["benchmark question"] == 2 and m["contaminated"] == {"a": 2}
    assert not any("RIVERS" in t or "mercury" in t for *_, t in decoded(out))
    receipts = [json.loads(line) for line in (out / "contaminated.jsonl").read_text().splitlines()]
    assert [(r["file"], r["item"]) for r in receipts] == [("quiz.jsonl", 0), ("quiz.jsonl", 1)]
    assert receipts[0]["document"].startswith("leaky.jsonl ")
    assert receipts[0]["words"].startswith("WHICH OF THE MANY RIVERS")
    other = replace(cfg, benchmarks=())
    refuses("another job: benchmarks", prepare, other, out, log=quiet)


def findings(manifest):
    "The cells of the table, by check"
    rows = [line.split("  ") for line in findings_table(manifest).splitlines()]
    return {cells[0]: [c.strip() for c in cells[1:] if c.strip()] for cells in rows}


def test_what_nobody_looked_for_is_not_zero(leaky, tokenizer):
    "Benchmark questions stand in this text: without --benchmark there is no count of them"
    cfg = PrepConfig(sources=(f"a={leaky}/leaky.jsonl",), tokenizer=str(tokenizer))
    lines = []
    m = prepare(replace(cfg, scan=False), leaky / "blind", log=lines.append)
    assert m["contaminated"] is None and m["scan"] is None
    assert not (leaky / "blind" / "contaminated.jsonl").exists()
    assert not any(v for k, v in m["looked_for"].items() if k != "equal documents")
    table = findings(m)
    assert table.pop("looked for") == ["a", "done"]
    assert table.pop("equal documents") == ["1", "dropped"]
    assert {tuple(v) for v in table.values()} == {("not looked for", "-")}
    assert findings_table(m) in lines
    some = replace(
        cfg, near=0.9, benchmarks=(str(leaky / "quiz.jsonl"),), filters=("language", "addresses")
    )
    table = findings(prepare(some, leaky / "seeing", log=quiet))
    assert table["benchmark questions"] == ["2", "dropped"]
    assert table["filter quality"] == ["not looked for", "-"]
    assert table["near duplicates"][0].isdecimal()
    assert table["chanted strings"] == ["0", "kept, counted"]
    assert table["filter addresses"] == ["0", "masked"]
    assert re.fullmatch(r"\d+, \d+ not known", table["filter language"][0])


def test_a_chant_that_no_list_has_is_kept_with_an_example(corpus, tokenizer, tmp_path):
    "What the scan discovers outlives the work folder, and is said"
    chants = [f"The wind of day {i} says " + f"zorbleflux {i} " * 40 for i in range(3)]
    lines = [json.dumps(dict(text=text)) + "\n" for text in chants]
    (tmp_path / "z.jsonl").write_text((corpus / "edu.jsonl").read_text() + "".join(lines))
    cfg = PrepConfig(sources=(f"a={tmp_path}/z.jsonl",), tokenizer=str(tokenizer))
    said = []
    prepare(cfg, tmp_path / "o", log=said.append)
    words = read_manifest(tmp_path / "o")["scan"]["sources"]["a"]["attractors"]
    assert len(words) <= 20 and max(len(w["example"]) for w in words) <= 100
    found = [w for w in words if w["word"] == "zorbleflux"]
    assert [(w["documents"], w["times"]) for w in found] == [(3, 40.0)]
    assert found[0]["example"].startswith("The wind of day 0 says zorbleflux")
    assert any("zorbleflux" in line and "The wind of day 0" in line for line in said)


@pytest.mark.full(instead="test_a_store_keeps_the_tokenizer_that_was_learned")
def test_a_store_makes_another_mix_without_reading_again(corpus, tokenizer, tmp_path, monkeypatch):
    "Another budget, another mix, another tokenizer: no source is opened, the shards are the same"
    from gpub.prep import sources

    def cfg(**kw):
        return config(corpus, tokenizer, **kw)

    store = str(tmp_path / "store")
    prepare(cfg(store=store), tmp_path / "first", log=quiet)
    wanted = dict(tokens=30_000, val=0.02)
    prepare(cfg(**wanted), tmp_path / "fresh", log=quiet)
    read = []
    real = sources.documents
    monkeypatch.setattr("gpub.prep.pipeline.documents", lambda b: read.append(b) or real(b))
    prepare(cfg(**wanted, store=store), tmp_path / "again", log=quiet)
    assert not read and content(tmp_path / "again") == content(tmp_path / "fresh")
    other = BPETokenizer.train(["abcdefghij " * 50, "jihg fedc ba " * 50], 300)
    other.save(tmp_path / "other")
    spelled = replace(cfg(store=store), tokenizer=str(tmp_path / "other"))
    m = prepare(spelled, tmp_path / "o", log=quiet)
    assert not read and m["tokenizer"] == other.fingerprint
    prepare(cfg(store=store, rules=dict(min_chars=300)), tmp_path / "p", log=quiet)
    assert read, "other rules keep other documents"


def test_a_store_keeps_the_tokenizer_that_was_learned(corpus, tokenizer, tmp_path, monkeypatch):
    cfg = config(corpus, tokenizer, store=str(tmp_path / "store"))
    cfg = replace(cfg, tokenizer=None, vocab_size=400, sample_mb=0.2)
    first = prepare(cfg, tmp_path / "first", log=quiet)
    monkeypatch.setattr(BPETokenizer, "train", None)
    m = prepare(replace(cfg, val=0.02), tmp_path / "second", log=quiet)
    assert m["tokenizer"] == first["tokenizer"]


def test_each_record_is_parsed_once(corpus, tmp_path, monkeypatch):
    "Scan, tokenizer and encoding read the source three times"
    from gpub.prep import pipeline

    parsed = []
    real = pipeline.documents

    def counting(block):
        for d in real(block):
            parsed.append(d.name)
            yield d

    monkeypatch.setattr(pipeline, "documents", counting)
    cfg = replace(config(corpus, "none"), tokenizer=None, vocab_size=400, sample_mb=0.2)
    prepare(cfg, tmp_path / "o", log=quiet)
    assert len(parsed) == sum(len(open(corpus / f"{s}.jsonl").readlines()) for s in SHARES)


def test_the_tokenizer_learns_from_random_documents(tmp_path):
    "The first documents of a corpus are of one kind: of one crawl, one book, one language"
    rows = ["early " * 60 + str(i) for i in range(100)]
    rows += ["late " * 60 + str(i) for i in range(100)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(dict(text=t)) + "\n" for t in rows))
    cfg = PrepConfig(
        sources=(f"a={tmp_path}/a.jsonl",),
        vocab_size=300,
        sample_mb=0.02,
        rules=dict(max_repeats=1.0),
        scan=False,
    )
    prepare(cfg, tmp_path / "o", log=quiet)
    tok = load_tokenizer(tmp_path / "o")
    assert len(tok.encode("late late late")) < 9 > len(tok.encode("early early early"))


def test_what_was_dropped_can_be_read(corpus, tokenizer, tmp_path):
    cfg = config(corpus, tokenizer, excluded=str(tmp_path / "excluded"))
    m = prepare(cfg, tmp_path / "o", log=quiet)
    rows = [
        json.loads(line)
        for p in sorted((tmp_path / "excluded").rglob("*.jsonl"))
        for line in p.read_text().splitlines()
    ]
    assert [r["text"] for r in rows] == ["too short"] * 3
    assert sum(c["dropped"]["too short"] for c in m["counts"].values()) == 3
