"""`gpub prep` and `gpub data` as a user types them: exit by one line, torchrun's variables, up- and
unpacking."""

import json
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner
from contracts import refuses

import gpub.data.transfer as gpub_transfer
from gpub.cli.prep import SHAKESPEARE_CONTEXT, data_group, prep_command
from gpub.core import GpubError
from gpub.data.bpe import LLAMA3_PATTERN, PATTERN, BPETokenizer
from gpub.data.plays import plays
from gpub.data.shards import read_manifest
from gpub.data.tokenizer_file import load_tokenizer
from gpub.guards.verify import verify
from gpub.model.architectures import config_of
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
    assert contents(drive).items() >= whole.items() and all(part.ok for part in verify(drive))


def test_a_mirror_of_something_else_or_that_is_full(text, tmp_path):
    out, drive = tmp_path / "o", tmp_path / "drive"
    run(prep_command, *flags(text, out), "--mirror", drive)
    other = [*flags(text, tmp_path / "p"), "--val", 0.1]
    refuses("drive belongs to another job: val", run, prep_command, *other, "--mirror", drive)
    run(prep_command, *other)
    before = contents(drive)
    behind = "is behind: it holds the shards of another job"
    refuses(behind, run, prep_command, *other, "--mirror", drive)
    assert contents(drive) == before
    (tmp_path / "in the way").touch()
    behind = "is behind: File exists.*are whole"
    refuses(behind, run, prep_command, *flags(text, out), "--mirror", tmp_path / "in the way")


def test_a_recipe_with_sources_from_elsewhere(text, tmp_path, root):
    """The 1B's own recipe, at another place and a smaller vocabulary: shares as it says, what is
    typed comes first"""
    names = "fineweb-edu", "finemath", "python-edu"
    words = [x for s in names for x in ("--source", f"{s}={tmp_path}/{s}.jsonl")]
    (tmp_path / "quiz.txt").write_text("Which of the many rivers of this country is the longest?")
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
        "--benchmark",
        tmp_path / "quiz.txt",
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
    refuses("leave out --no-scan", run, prep_command, *flags(text, tmp_path / "o"), *words)
    assert not (tmp_path / "o").exists()


def test_a_damaged_upload_is_refused(text, tmp_path):
    run(prep_command, *flags(text, tmp_path / "o"), "--compress")
    z = tmp_path / "o-zst" / "train-00000.bin.zst"
    z.write_bytes(z.read_bytes()[:-50])
    refuses("train-00000.bin.zst", run, prep_command, "--unpack", f"{tmp_path}/o-zst")
    assert not (tmp_path / "o-zst" / "train-00000.bin").exists()


def test_prep_needs_no_torch(text, tmp_path):
    "From the first line to the next command, which knows how long the model's context is"
    assert config_of("shakespeare").context_length == SHAKESPEARE_CONTEXT
    program = (
        "import sys; from gpub.cli.prep import prep_command\n"
        f"prep_command(['--source', 'a={text}', '--vocab', '300', '--val', '0.5', '--out', "
        f"{str(tmp_path / 'shards')!r}], standalone_mode=False)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False", done.stdout + done.stderr
