"""A URL where a path of this machine is needed is refused in one line; the options that read URLs
go on to read them."""

import os
import sys
from pathlib import Path

import click
import fsspec
import pytest

import gpub
from gpub.cli import main as entry
from gpub.cli.forensics import read_command
from gpub.cli.options import PATH, LocalPath
from gpub.core import GpubError, is_url
from gpub.data.corpus import load_corpus
from gpub.prep.pipeline import PrepConfig, prepare
from gpub.share.hub import import_run
from gpub.train.options import RunOptions
from gpub.tune.methods import SftOptions

URLS = ["s3://bucket/x", "gs://bucket/x", "hf://datasets/a/b", "https://host/x", "file:///tmp/x"]
READS_URLS = {
    ("train", "--data"),
    ("grow", "--data"),
    ("preflight", "--data"),
    ("run", "--data"),
    ("prep", "--source"),
}
# options that write to URLs; `run` refuses one, as its phases go back and change what is there
WRITES_URLS = {(c, "--mirror") for c in ("train", "grow", "run", "sft", "dpo", "grpo", "prep")}
# texts that name no file: values, names of lists, and what a model is told
TEXTS = set(
    "--device --prompt --stop --system --set --gpu --tokens --optimizer --parallel --license "
    "--host --key --until --tasks --filter --cluster --cluster-option --preset --rung --axis "
    "--shape --base --accept --more --notify --count --cors repo".split()
)


def commands(command, words=()):
    "Every command below one, with the words that are typed for it"
    if hasattr(command, "fetch"):
        command = command.fetch()
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from commands(inner, (*words, name))
    else:
        yield words, command


def parameters(cli):
    "Every option and argument that takes text, as (words of the command, command, parameter)"
    every = [*commands(cli), (("data",), read_command)]
    for words, command in every:
        for param in command.params:
            if isinstance(param.type, LocalPath) or param.type is click.STRING:
                yield words, command, param


def flag(param):
    return param.opts[0] if isinstance(param, click.Option) else param.name


def unsorted(cli):
    "What is neither known to be a path of this machine, nor to read URLs, nor to be another text"
    return [
        (words, flag(param))
        for words, _, param in parameters(cli)
        if not isinstance(param.type, LocalPath)
        and (words[0], flag(param)) not in READS_URLS | WRITES_URLS
        and flag(param) not in TEXTS
    ]


def local_paths():
    for words, command, param in parameters(entry.cli):
        if isinstance(param.type, LocalPath):
            yield words, command, param


def type_in(monkeypatch, capsys, *words):
    "What `gpub` says to these words, and its exit code"
    monkeypatch.setattr(sys, "argv", ["gpub", *map(str, words)])
    code = 0
    try:
        entry.main()
    except SystemExit as e:
        code = e.code
    return capsys.readouterr().err, code


def test_every_text_is_sorted():
    assert unsorted(entry.cli) == []
    new = click.Group("gpub", commands=[click.Command("x", params=[click.Option(["--new"])])])
    assert unsorted(new) == [(("x",), "--new")]


@pytest.mark.parametrize(
    "words, command, param",
    [pytest.param(*row, id=" ".join((*row[0], flag(row[2])))) for row in local_paths()],
)
def test_a_url_is_no_path(words, command, param, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    url = URLS[len(flag(param)) % len(URLS)]
    typed = [flag(param), url]
    if isinstance(param, click.Argument):
        arguments = [p for p in command.params if isinstance(p, click.Argument)]
        typed = ["x" for _ in arguments[: arguments.index(param)]] + [url]
    said, code = type_in(monkeypatch, capsys, *words, *typed)
    assert code == 2 and said.count("\n") == 1
    assert f"'{url}' is a URL: give a file or folder of this machine" in said
    if isinstance(param, click.Option):
        assert f"'{flag(param)}'" in said
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("url", URLS)
def test_every_scheme_is_known(url):
    with pytest.raises(click.BadParameter, match="is a URL"):
        PATH.convert(url, None, None)
    assert is_url(Path(url))  # which has one slash only


@pytest.mark.parametrize(
    "path", ["runs/a", "C:/runs/a", r"C:\runs\a", "./s3:/a", "a:b", "sums:5000", "me.py:rule", ""]
)
def test_a_path_is_no_url(path):
    assert PATH.convert(path, None, None) == path


PREP = dict(sources=("a=x.txt",))


@pytest.mark.parametrize(
    "call",
    [
        lambda url: gpub.Trainer(RunOptions("burn-toy", out=url)),
        lambda url: RunOptions("burn-toy", out=Path(url)),
        lambda url: RunOptions("burn-toy", mirror=Path(url)),
        lambda url: RunOptions("burn-toy", init=url),
        lambda url: PrepConfig(**PREP, store=url),
        lambda url: PrepConfig(**PREP, excluded=url),
        lambda url: PrepConfig(**PREP, tokenizer=url),
        lambda url: PrepConfig(**PREP, benchmarks=(url,)),
        lambda url: prepare(PrepConfig(**PREP), url),
        lambda url: SftOptions(run="a", out=url, data="sums"),
        lambda url: gpub.load(url),
        lambda url: import_run("a", url),
        lambda url: gpub.core.read_json(f"{url}/a.json"),
        lambda url: gpub.core.write_atomic(f"{url}/a.json", "{}"),
    ],
)
def test_the_library_takes_no_url(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.txt").write_text("some text")
    with pytest.raises(GpubError, match="s3:/.* is a URL: give a file or folder of this machine"):
        call("s3://bucket/x")
    assert os.listdir(tmp_path) == ["x.txt"]


@pytest.fixture(scope="module")
def in_memory(tmp_path_factory):
    "A text and shards made of it, in the object store that fsspec has in memory"
    pytest.importorskip("upath")
    store, here = fsspec.filesystem("memory"), tmp_path_factory.mktemp("shards")
    text = "\n\n".join(
        f"Document {i} says {i * i} and {i**3} about the sea." * 5 for i in range(90)
    )
    store.pipe("/guard/texts/a.txt", text.encode())
    cfg = dict(
        sources=("a=memory://guard/texts/a.txt",), vocab_size=300, val=0.1, shard_tokens=5000
    )
    manifest = prepare(PrepConfig(**cfg), here, log=lambda line: None)
    store.put(f"{here}/", "/guard/shards/", recursive=True)
    yield manifest
    store.rm("/guard", recursive=True)


def test_source_and_data_read_urls(in_memory, tmp_path, monkeypatch):
    monkeypatch.setenv("GPUB_CACHE", str(tmp_path))
    corpus = load_corpus("memory://guard/shards", 32, lambda line: None)
    assert corpus.source == "memory://guard/shards"
    assert corpus.tokens == in_memory["mix"]["a"]["train"]["tokens"] > 1000


@pytest.mark.parametrize(
    "command", sorted(command for command, option in READS_URLS if option == "--data")
)
def test_data_arrives_as_a_url(command, tmp_path, monkeypatch, capsys):
    def opened(data, *others):
        raise GpubError(f"opened {data}")

    def grown(run, *others, **options):
        return RunOptions("burn-toy", **options)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gpub.train.pretraining.load_corpus", opened)
    monkeypatch.setattr("gpub.train.growing.grow_options", grown)
    price = ["--usd-per-hour", 1]
    said, code = type_in(monkeypatch, capsys, command, "burn-toy", "--data", URLS[0], *price)
    assert code == 1 and f"opened {URLS[0]}" in said


def test_chats_are_not_written_to_a_url(tmp_path, monkeypatch):
    from gpub.chat.conversations import ChatCounts, write_chats
    from gpub.data.char import CharTokenizer

    monkeypatch.chdir(tmp_path)
    for url in URLS:
        with pytest.raises(GpubError, match="folder .*" + url.split(":")[0]):
            write_chats(url, [], ChatCounts(), CharTokenizer("ab"), 8)
    assert not list(tmp_path.iterdir())


def test_a_plan_takes_no_mirror_at_a_url(tmp_path, monkeypatch, capsys):
    "Its phases go back, and set aside what came later: that is a folder's"
    monkeypatch.chdir(tmp_path)
    said, code = type_in(monkeypatch, capsys, "run", "burn-toy", "--mirror", URLS[0])
    assert code == 1 and said.count("\n") == 1
    assert f"mirror '{URLS[0]}' is a URL: give a file or folder of this machine" in said
    assert os.listdir(tmp_path) == []
