"""`gpub prep` and `gpub data` as a user types them: exit by one line, torchrun's variables, up- and
unpacking."""

import gzip, json, re, shutil, sys
import pytest, zstandard
from click.testing import CliRunner
import gpub.data.transfer as gpub_transfer
from gpub.cli.main import main
from gpub.core import GpubError
from gpub.cli.prep import data_group, prep_command
from gpub.data.plays import plays
from gpub.data.shards import read_manifest, verify_shards
from gpub.data.tokenizer import (
    LLAMA3_PATTERN,
    PATTERN,
    BPETokenizer,
    CharTokenizer,
    load_tokenizer,
)
from gpub.guards.verify import verify
from gpub.share.gguf import gguf_warning


def run(cmd, *args, env=None):
    r = CliRunner().invoke(cmd, list(map(str, args)), env=env)
    if r.exception and not isinstance(r.exception, SystemExit):
        raise r.exception
    return r


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    d = tmp_path_factory.mktemp("text")
    for i, s in enumerate("ab"):
        (d / f"{s}.txt").write_text(plays(120_000, seed=i))
    return d


def flags(text, out):
    return [
        "--source",
        f"a={text}/a.txt:0.7",
        "--source",
        f"b={text}/b.txt:0.3",
        "--out",
        out,
        "--vocab",
        350,
        "--workers",
        1,
        "--no-scan",
    ]


def test_a_tokenizer_of_prep_is_one_that_llama_cpp_has(text, tmp_path):
    "Trained by the command, it gives no reason to warn of; one of earlier days does"
    run(prep_command, *flags(text, tmp_path / "o"))
    tok = load_tokenizer(tmp_path / "o")
    assert tok.pattern == LLAMA3_PATTERN and gguf_warning(tok) == ""
    assert gguf_warning(BPETokenizer.train(["To be"], vocab_size=258, pattern=PATTERN))


def test_prep_compress_unpack_what(text, tmp_path):
    out = run(prep_command, *flags(text, tmp_path / "o"), "--compress").output
    assert "70.00%" in out and "30.00%" in out and "MB/s" in out
    assert "restored and verified" in run(prep_command, "--unpack", f"{tmp_path}/o-zst").output
    for f in (tmp_path / "o").iterdir():
        assert (tmp_path / "o-zst" / f.name).read_bytes() == f.read_bytes()
    rows = run(
        data_group, "what", tmp_path / "o", "--step", 4, "--ctx", 32, "--batch", 6
    ).output.splitlines()
    assert (
        rows[0].startswith("step 4, seed 0: 6 rows of 32 tokens")
        and len(rows) == 7
        and all(".txt" in r for r in rows[1:])
        and "70.00%" in run(data_group, "mix", tmp_path / "o").output
    )


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_lost_machine_does_not_prepare_twice(text, tmp_path, monkeypatch):
    "Finished shards come back from the mirror, every byte checked, and no source is read"
    import gpub.prep.pipeline as pipeline

    out, drive = tmp_path / "o", tmp_path / "drive"
    argv = [*flags(text, out), "--mirror", drive]
    first = run(prep_command, *argv).output
    assert f"to {drive}" in first and contents(out) == contents(drive)
    whole = contents(drive)
    read, copy = pipeline.read_sources, gpub_transfer._copy_checked
    # the machine goes, and the next one while it copies
    shutil.rmtree(out)
    monkeypatch.setattr(pipeline, "read_sources", lambda job: pytest.fail("a source is read"))

    def killed(folder, to, name, expected):
        if name.startswith("val"):
            raise KeyboardInterrupt
        copy(folder, to, name, expected)

    monkeypatch.setattr(gpub_transfer, "_copy_checked", killed)
    assert CliRunner().invoke(prep_command, [*map(str, argv)]).exit_code
    assert not (out / "manifest.json").exists()
    kept = (out / "train-00000.bin").stat().st_mtime_ns
    monkeypatch.setattr(gpub_transfer, "_copy_checked", copy)
    assert "is complete" in run(prep_command, *argv).output and contents(out) == whole
    assert (out / "train-00000.bin").stat().st_mtime_ns == kept, "what was there is kept"
    # a mirror that is damaged is said, and made again from the sources
    monkeypatch.setattr(pipeline, "read_sources", read)
    shutil.rmtree(out)
    (drive / "train-00000.bin").write_bytes(whole["train-00000.bin"][:-1] + b"?")
    said = run(prep_command, *argv).output
    assert "cannot be used" in said and "train-00000.bin" in said and contents(out) == whole
    assert contents(drive).items() >= whole.items() and all(part.whole for part in verify(drive))


def test_a_mirror_of_something_else_or_that_is_full(text, tmp_path):
    out, drive = tmp_path / "o", tmp_path / "drive"
    run(prep_command, *flags(text, out), "--mirror", drive)
    other = [*flags(text, tmp_path / "p"), "--val", 0.1]
    with pytest.raises(GpubError, match="drive belongs to another job: val"):
        run(prep_command, *other, "--mirror", drive)
    run(prep_command, *other)
    before = contents(drive)
    said = run(prep_command, *other, "--mirror", drive).output
    assert "is behind: it holds the shards of another job" in said and contents(drive) == before
    (tmp_path / "in the way").touch()
    said = run(prep_command, *flags(text, out), "--mirror", tmp_path / "in the way").output
    assert "is behind: File exists" in said and "are whole" in said
    with pytest.raises(GpubError, match="leave --mirror out"):
        run(prep_command, *other, "--mirror", drive, "--no-dedup", "--world", 2, "--tokenizer", out)


def test_a_recipe_with_sources_from_elsewhere(text, tmp_path, root):
    """The 1B's own recipe, at another place and a smaller vocabulary: shares as it says, what is
    typed comes first"""
    names = "fineweb-edu", "finemath", "python-edu"
    words = [x for s in names for x in ("--source", f"{s}={tmp_path}/{s}.jsonl")]
    for i, n in enumerate(names):
        (tmp_path / f"{n}.jsonl").write_text(
            "".join(
                json.dumps(dict(text=t)) + "\n" for t in plays(120_000, seed=20 + i).split("\n\n")
            )
        )
    out = run(
        prep_command,
        "--recipe",
        root / "data/recipes/burn1b.json",
        *words,
        "--out",
        tmp_path / "o",
        "--vocab",
        350,
        "--workers",
        1,
        "--no-scan",
        "--min-chars",
        40,
    ).output
    assert (
        "87.00%" in out
        and "10.00%" in out
        and "3.00%" in out
        and read_manifest(tmp_path / "o")["vocab"] == 355
        and read_manifest(tmp_path / "o")["settings"]["rules"]["min_chars"] == 40
    )
    with pytest.raises(GpubError, match="no source 'wiki' to replace"):
        run(
            prep_command,
            "--recipe",
            root / "data/recipes/burn1b.json",
            "--source",
            f"wiki={text}/a.txt",
            "--out",
            tmp_path / "p",
        )


@pytest.mark.parametrize("words", [("--gate", 5)])
def test_what_belongs_to_the_scan_is_refused_without_it(text, tmp_path, words):
    with pytest.raises(GpubError, match="leave out --no-scan"):
        run(prep_command, *flags(text, tmp_path / "o"), *words)
    assert not (tmp_path / "o").exists()


def test_a_damaged_upload_is_refused(text, tmp_path):
    run(prep_command, *flags(text, tmp_path / "o"), "--compress")
    z = tmp_path / "o-zst" / "train-00000.bin.zst"
    z.write_bytes(z.read_bytes()[:-50])
    with pytest.raises(GpubError, match="train-00000.bin.zst"):
        run(prep_command, "--unpack", f"{tmp_path}/o-zst")
    assert not (tmp_path / "o-zst" / "train-00000.bin").exists()


def test_torchrun_gives_each_node_its_part(text, tmp_path):
    """Nodes share a tokenizer that one of them made: each would learn another from its own part"""
    env = dict(RANK="1", WORLD_SIZE="2")
    with pytest.raises(GpubError, match="world 2: .* give it to all with --tokenizer"):
        run(prep_command, *flags(text, tmp_path / "n1"), "--no-dedup", env=env)
    run(prep_command, *flags(text, tmp_path / "one"))
    for r in (0, 1):
        run(
            prep_command,
            *flags(text, tmp_path / f"n{r}"),
            "--no-dedup",
            "--tokenizer",
            tmp_path / "one",
            env=dict(RANK=str(r), WORLD_SIZE="2"),
        )
    assert json.loads((tmp_path / "n1" / "manifest-00001-of-00002.json").read_text())["rank"] == 1
    assert (
        "70.00%"
        in run(
            prep_command, "--merge", tmp_path / "n0", tmp_path / "n1", "--out", tmp_path / "all"
        ).output
    )


@pytest.mark.parametrize("how", ("typed", "torchrun"))
def test_two_nodes_do_not_keep_what_one_would_drop(text, tmp_path, how):
    """Twins that differ in their line ends go to different nodes, where neither sees the other:
    refused before anything is written"""
    typed = ("--rank", 1, "--world", 2) if how == "typed" else ()
    env = dict(RANK="1", WORLD_SIZE="2") if how == "torchrun" else None
    with pytest.raises(GpubError, match="world 2: .*--world 1.*--no-dedup") as e:
        run(prep_command, *flags(text, tmp_path / "o"), *typed, env=env)
    assert "\n" not in str(e.value)
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("weights", [("", ""), (":0.7", ":0.3")])
def test_two_nodes_and_one_make_the_same(text, tmp_path, weights):
    """torchrun's variables split the work, --merge joins it: the same documents, or the same
    shares, as from one node"""
    for s in "ab":
        (tmp_path / f"{s}.jsonl").write_text(
            "".join(
                json.dumps(dict(text=t)) + "\n"
                for t in (text / f"{s}.txt").read_text().split("\n\n") * 2
            )
        )

    def job(out, *more, **env):
        run(
            prep_command,
            *[
                x
                for s, w in zip("ab", weights)
                for x in ("--source", f"{s}={tmp_path}/{s}.jsonl{w}")
            ],
            "--out",
            out,
            "--vocab",
            350,
            "--workers",
            1,
            "--no-scan",
            "--no-dedup",
            "--min-chars",
            40,
            *more,
            env=env,
        )

    job(tmp_path / "one")
    for r in "01":
        job(tmp_path / f"n{r}", "--tokenizer", tmp_path / "one", RANK=r, WORLD_SIZE="2")
    run(prep_command, "--merge", tmp_path / "n0", tmp_path / "n1", "--out", tmp_path / "all")
    one, both = (verify_shards(tmp_path / x) for x in ("one", "all"))
    parts = [
        json.loads((tmp_path / f"n{r}" / f"manifest-0000{r}-of-00002.json").read_text())["sources"]
        for r in (0, 1)
    ]
    assert both["tokenizer"] == one["tokenizer"] and all(
        0.3 < p["a"]["documents"] / both["sources"]["a"]["documents"] < 0.7 for p in parts
    )
    if weights[0]:
        train = {
            m: {
                s: sum(
                    x["tokens"] for x in d["shards"] if (x["source"], x["split"]) == (s, "train")
                )
                for s in "ab"
            }
            for m, d in dict(one=one, all=both).items()
        }
        assert all(abs(t["a"] / sum(t.values()) - 0.7) < 0.001 for t in train.values())
    else:
        assert both["sources"] == one["sources"], (
            "documents, tokens, bytes, and what was dropped and why"
        )

        def names(d, m):
            return sorted(
                l
                for s in m["shards"]
                for l in (tmp_path / d / s["file"].replace(".bin", ".docs"))
                .read_text()
                .splitlines()
            )

        assert names("all", both) == names("one", one)


def test_damaged_names_are_noticed(text, tmp_path):
    run(prep_command, *flags(text, tmp_path / "o"))
    d = tmp_path / "o" / "train-00000.docs"
    d.write_bytes(d.read_bytes().replace(b"a.txt", b"b.txt", 1))
    with pytest.raises(GpubError, match="train-00000.docs: expected xxh3"):
        run(data_group, "what", tmp_path / "o", "--step", 0, "--ctx", 32, "--batch", 6)


def gpub(monkeypatch, capsys, *args):
    "(exit code, lines on stderr) of the command as installed"
    monkeypatch.setattr(sys, "argv", ["gpub", *map(str, args)])
    try:
        main()
        code = 0
    except SystemExit as e:
        code = e.code
    return code, capsys.readouterr().err.splitlines()


PLAYS = "".join(
    json.dumps(dict(text=t)) + "\n" for t in plays(300_000, seed=7).split("\n\n")
).encode()


@pytest.mark.parametrize(
    "name, content, line",
    [
        (
            "a.jsonl.zst",
            zstandard.compress(PLAYS)[:-200],
            "a.jsonl.zst: cannot be read past byte .*ends in the middle",
        ),
        ("a.jsonl.gz", gzip.compress(PLAYS)[:-200], "a.jsonl.gz.*ends in the middle"),
        ("a.txt", b"", "no document is left"),
        ("a.jsonl", b"\xff\xfe\x00" * 500, "no document is left.*not JSON"),
        ("a.txt", b"\0" * 10_000, "no document is left"),
        ("a.parquet", b"PAR1", "not a readable Parquet"),
        (
            "a.jsonl",
            b'{"text": "' + b"x" * (100 << 20) + b'"}\n',
            "no document is left.*line over the limit",
        ),
    ],
    ids=["cut zst", "cut gz", "empty", "bytes", "NULs", "parquet", "100 MB line"],
)
def test_unusable_input_exits_1_with_one_line(tmp_path, monkeypatch, capsys, name, content, line):
    import re

    (tmp_path / name).write_bytes(content)
    CharTokenizer("ab").save(tmp_path / "tok")
    out = tmp_path / "o"
    code, said = gpub(
        monkeypatch,
        capsys,
        "prep",
        "--source",
        f"a={tmp_path}/{name}",
        "--out",
        out,
        "--tokenizer",
        tmp_path / "tok",
        "--workers",
        1,
    )
    assert (
        code == 1
        and len(said) == 1
        and said[0].startswith("gpub: ")
        and re.search(line, said[0])
        and not (out / "manifest.json").exists()
    )


@pytest.mark.parametrize(
    "options, line",
    [
        (["--sample-mb", "1e308"], "sample_mb must be a number of megabytes above 0"),
        (["--sample-mb", "nan"], "sample_mb must be a number of megabytes above 0"),
        (["--filter", "os:system"], "filter 'os:system' is built into Python: write a function"),
        (
            ["--filter", "json:loads"],
            "filter loads failed on a.txt 0.1 .TypeError: .*a reason or None",
        ),
        (["--filter", "copy:copy"], "filter copy gave Document.text=.*: a rule gives a text"),
    ],
)
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.full)])
def test_numbers_and_rules_that_make_no_sense(
    text, tmp_path, monkeypatch, capsys, options, line, workers
):
    source = ["--source", f"a={text}/a.txt", "--out", tmp_path / "o", "--workers", workers]
    code, said = gpub(monkeypatch, capsys, "prep", *source, *options)
    assert code == 1 and len(said) == 1 and re.search(line, said[0])
    assert not (tmp_path / "o" / "manifest.json").exists()


def test_a_full_disk_exits_1_and_the_same_command_goes_on(
    text, tmp_path, monkeypatch, capsys, small_disk
):
    disk = small_disk(120)
    code, said = gpub(monkeypatch, capsys, "prep", *flags(text, disk / "o"))
    assert (
        code == 1
        and len(said) == 1
        and "No space left on device" in said[0]
        and "same command" in said[0]
        and not (disk / "o" / "manifest.json").exists()
    )
    small_disk(8000)
    assert (
        gpub(monkeypatch, capsys, "prep", *flags(text, disk / "o"))[0]
        == 0
        == gpub(monkeypatch, capsys, "prep", *flags(text, tmp_path / "o"))[0]
    )
    assert {f.name: f.read_bytes() for f in (disk / "o").iterdir()} == {
        f.name: f.read_bytes() for f in (tmp_path / "o").iterdir()
    }


def test_without_the_extra_it_says_which(text, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, said = gpub(monkeypatch, capsys, "prep", *flags(text, tmp_path / "o"))
    assert code == 1 and len(said) == 1 and "pyarrow" in said[0] and "gpub[data]" in said[0]


def test_shards_of_another_tokenizer_exit_1(text, tmp_path, monkeypatch, capsys):
    run(prep_command, *flags(text, tmp_path / "o"))
    CharTokenizer("ab").save(tmp_path / "o")
    code, said = gpub(monkeypatch, capsys, "data", "what", tmp_path / "o", "--step", 0)
    assert code == 1 and len(said) == 1 and "expected tokenizer" in said[0]


def test_nothing_asked_is_refused(text, tmp_path):
    with pytest.raises(GpubError, match="--out is missing"):
        run(prep_command, "--source", f"a={text}/a.txt")
    with pytest.raises(GpubError, match="no source given"):
        run(prep_command, "--out", tmp_path / "o")
    assert run(prep_command, "--help").output.count("--") > 15


def test_workers_are_the_cores_this_process_may_use(monkeypatch, tmp_path):
    "In a container with a share of a large server, not one for each core of the server"
    asked = []

    def prepared(cfg, out, workers, *rest, **how):
        asked.append(workers)
        raise GpubError("enough")

    monkeypatch.setattr("os.cpu_count", lambda: 999)
    monkeypatch.setattr("gpub.host.cpu_quota", lambda root: 1.5)
    monkeypatch.setattr("gpub.prep.pipeline.prepare", prepared)
    (tmp_path / "a.txt").write_text("a text")
    with pytest.raises(GpubError, match="enough"):
        run(prep_command, "--source", f"a={tmp_path}/a.txt", "--out", tmp_path / "o")
    assert asked == [1]
