"""What README and CONTRIBUTING promise: commands that exist, links that lead somewhere, figures
that are the published ones; and how `gpub` starts."""

import ast
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import click
import pytest
import yaml
from cells import chapters, course_pages, deeper_pages
from click.testing import CliRunner

from gpub.cli.main import cli
from gpub.model.gpt import GPTConfig, count_params
from gpub.train.options import RunOptions
from gpub.train.trainer import Trainer

PAGES = ["README.md", "CONTRIBUTING.md", "data/README.md"]


def targets(root):
    return set(
        re.findall(r"^([a-z][a-z-]*):", (root / "Makefile").read_text(encoding="utf-8"), re.M)
    )


def options_of(command):
    "The options of a command, and of the commands below it"
    if hasattr(command, "fetch"):
        command = command.fetch()
    below = getattr(command, "commands", {}).values()
    own = {"--help", *(flag for p in command.params for flag in p.opts)}
    return own.union(*map(options_of, below))


def missing(root, page):
    "Make targets, relative links, gpub commands and their options: those that do not exist"
    text = (root / page).read_text(encoding="utf-8")
    fenced = "\n".join(
        re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S) + re.findall(r"`([^`\n]+)`", text)
    )
    wanted = set(re.findall(r"\bmake ([a-z][a-z-]*)", fenced))
    links = [u for u in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in u]
    typed = re.findall(r"^\S*gpub ([a-z]+)([^#\n]*)", fenced, re.M)
    flags = [(w, f) for w, rest in typed for f in re.findall(r"--[a-z-]+", rest)]
    return (
        [f"make {t}" for t in wanted - targets(root)]
        + [u for u in links if not ((root / page).parent / u).exists()]
        + [f"gpub {w}" for w, _ in typed if w not in cli.commands]
        + [
            f"gpub {w} {f}"
            for w, f in flags
            if w in cli.commands and f not in options_of(cli.commands[w])
        ]
    )


@pytest.mark.parametrize("page", PAGES)
def test_names_exist(root, page):
    assert missing(root, page) == []


def test_missing_is_found(tmp_path):
    (tmp_path / "Makefile").write_text("train: x\n")
    (tmp_path / "README.md").write_text(
        "```sh\nmake train\nmake tea\ngpub brew x\ngpub plan x --gpu y --milk  # --sugar\n```\n"
        "[a](no.md) [b](https://x.org) `make honey`, make peace"
    )
    assert sorted(missing(tmp_path, "README.md")) == [
        "gpub brew",
        "gpub plan --milk",
        "make honey",
        "make tea",
        "no.md",
    ]


@pytest.mark.parametrize("page", ["README.md", "nbs/index.ipynb"])
def test_the_first_lines_to_type(root, page):
    "A stranger has nothing yet: the clone comes before the two commands"
    text = (root / page).read_text(encoding="utf-8")
    if page.endswith(".ipynb"):
        text = "\n".join("".join(c["source"]) for c in json.loads(text)["cells"])
    first = re.search(r"```sh\n(.*?)```", text, re.S)[1]
    assert re.findall(r"^(git clone|make \w+)", first, re.M) == [
        "git clone",
        "make train",
        "make test",
    ]


COLAB = """#| hide
#| eval: false
# Fetches the course on Colab, does nothing anywhere else
if "google.colab" in str(get_ipython()):
    !git clone -q https://github.com/gpuburnout/gpub /content/gpub
    !{install}
    %cd /content/gpub/nbs/{folder}"""
INSTALL = "pip install -q '/content/gpub[data,hub]'"


def test_chapters_open_in_colab(root):
    "Not installed editable: a notebook that runs already would not find it"
    for p in course_pages(root):
        sources = ["".join(c["source"]) for c in json.loads(p.read_text(encoding="utf-8"))["cells"]]
        folder = p.parent.relative_to(root / "nbs").as_posix()
        assert COLAB.format(install=INSTALL, folder=folder) in sources, p.name


def facts(root):
    "The figures the README's table of models may quote, per row"

    def load(name):
        return json.loads((root / "data/published" / f"{name}.json").read_text(encoding="utf-8"))

    runs = load("runs")
    model, run = ({x["id"]: x for x in runs[k]} for k in ("models", "runs"))
    small, gpt2, big = run["s1-phase1"], run["s1-phase3"], run["s2-1b"]
    total = big["totals"][0]
    first = big["phases"][:4]
    assert total["at_step"] == first[-1]["step_end"] == 90_000

    def billion(n, digits=1):
        return f"{n / 1e9:.{digits}f}"

    ours = count_params(
        GPTConfig(vocab_size=65, context_length=256, d_model=128, n_layers=2, n_heads=4)
    )
    return [
        {
            f"{ours:,}",
            "2",
            model["char-400k"]["layers"],
            small["dataset_mb"],
            small["minutes"],
            small["rows"][-1]["train_loss"],
        },
        {
            f"{model['gpt2-134m']['computed']['exact']:,}",
            model["gpt2-134m"]["layers"],
            "2",
            gpt2["epochs"],
            billion(load("data")["datasets"][2]["train_tokens_from_steps"]),
            *re.findall(r"\d+", gpt2["gpu"]),
            gpt2["hours_total_stated"],
            f"{gpt2['compute_units_total']:,}",
            gpt2["rows"][-1]["train_loss"],
        },
        {
            f"{model['gpub-1b']['computed']['exact']:,}",
            model["gpub-1b"]["layers"],
            billion(total["tokens_exact"]),
            *re.findall(r"\d+", big["gpu"]),
            f"{sum(p['hours_computed'] for p in first):.0f}",
            total["cost_usd"],
            first[-1]["train_loss_end"],
        },
    ]


def quoted(row):
    return re.findall(r"\d[\d,]*(?:\.\d+)?", row)


def test_readme_figures_are_the_published_ones(root):
    rows = re.findall(
        r"^\| .*(?:\d{3},){1,3}\d{3} .*$", (root / "README.md").read_text(encoding="utf-8"), re.M
    )
    assert len(rows) == 3
    for row, known in zip(rows, facts(root)):
        wrong = set(quoted(row)) - {str(k) for k in known}
        assert not wrong, f"{wrong} in {row!r}: published are {known}"


def sidebar(items):
    found = []
    for x in items:
        if isinstance(x, str):
            found.append(x)
        else:
            found += [x["href"]] if "href" in x else sidebar(x["contents"])
    return found


def test_chapters_are_numbered_in_the_sidebar(root):
    "With the number of their file and the name they give themselves"
    site = yaml.safe_load((root / "_quarto.yml").read_text(encoding="utf-8"))["website"]
    seasons = [x for x in site["sidebar"]["contents"] if "Season" in str(x)][:3]
    listed = {x["href"]: x["text"] for s in seasons for x in s["contents"] if "href" in x}
    there = chapters(root)
    assert sorted(listed) == [p.relative_to(root / "nbs").as_posix() for p in there]
    for page in there:
        first = json.loads(page.read_text(encoding="utf-8"))["cells"][0]["source"]
        title = re.match(r"# (.+)", "".join(first))[1]
        said = listed[page.relative_to(root / "nbs").as_posix()]
        assert said == f"{int(page.name[:2])} {title}"


def test_deeper_pages_are_a_section_of_their_season_in_the_sidebar(root):
    site = yaml.safe_load((root / "_quarto.yml").read_text(encoding="utf-8"))["website"]
    seasons = [x for x in site["sidebar"]["contents"] if "Season" in str(x)][:3]
    for number, season in enumerate(seasons, 1):
        inner = [x for x in season["contents"] if "section" in x]
        there = [
            p.relative_to(root / "nbs").as_posix() for p in deeper_pages(root, f"season{number}")
        ]
        assert [x["section"] for x in inner] == (["Deeper"] if there else [])
        assert sorted(page for x in inner for page in x["contents"]) == there


def test_sidebar_lists_every_notebook(root):
    listed = sidebar(
        yaml.safe_load((root / "_quarto.yml").read_text(encoding="utf-8"))["website"]["sidebar"][
            "contents"
        ]
    )
    there = [
        p.relative_to(root / "nbs").as_posix()
        for p in (root / "nbs").rglob("*.ipynb")
        if ".ipynb_checkpoints" not in p.parts
    ]
    assert sorted(listed) == sorted(there)


def test_the_front_page_leaves_the_size_of_its_model_to_the_box(root):
    "The site is built with whatever run is there, and the box says what is in it"
    cells = json.loads((root / "nbs/index.ipynb").read_text(encoding="utf-8"))["cells"]
    hero = next(s for c in cells if 'class="hero"' in (s := "".join(c["source"])))
    assert re.findall(r"\d+,\d{3}", hero) == []
    sources = ["".join(c["source"]) for c in cells]
    first = next(i for i, s in enumerate(sources) if "training_scrubber(" in s)
    clone = next(i for i, s in enumerate(sources) if "git clone" in s)
    assert sources.index(hero) < first < clone, "the training stands above the commands"


def test_readme_quotes_our_own_run(root):
    "Figures of the README's run are those of its receipt"
    text, run = (root / "README.md").read_text(encoding="utf-8"), root / "data/runs/shakespeare"
    config, bill = (
        json.loads((run / f"{n}.json").read_text(encoding="utf-8")) for n in ("config", "bill")
    )
    section = re.search(r"^## What `make train` gave us\n(.*?)^## ", text, re.M | re.S)[1]
    figures = (
        f"{bill['val_loss']:.2f} nats/char",
        f"{bill['val_bpb']:.2f} bits per byte",
        f"{config['reference']['uniform']:.2f} nats",
        f"{bill['seconds'] / 60:.1f} minutes",
        config["machine"]["cpu"],
        f"{config['parameters']:,}",
        f"${bill['usd']:.2f}",
    )
    for figure in figures:
        assert figure in section, figure
    assert config["data"]["source"] == "tiny shakespeare" and config["parameters"] == 437_888


def test_readme_samples_are_the_runs(root):
    text, samples = (
        (root / "README.md").read_text(encoding="utf-8"),
        (root / "data/runs/shakespeare/samples.jsonl").read_text(encoding="utf-8"),
    )
    rows = [json.loads(l) for l in samples.splitlines()]
    quoted = re.findall(r"^\| (\d+) \| `(.+)` \|$", text, re.M)
    known = {str(r["step"]): r["text"] for r in rows}
    assert len(quoted) > 2 and [s for s, t in quoted if f"\n{t}" not in known.get(s, "")] == []


def started(root, folder, argv, before=(), comes="SIGINT"):
    "(exit code, what it said) of `gpub` where a signal comes while torch is on its way"
    (folder / "torch.py").write_text(
        f'import signal; signal.raise_signal(signal.{comes}); raise SystemExit("went on")'
    )
    env = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{root}"}
    done = subprocess.run(
        [*before, sys.executable, *argv, "doctor", "x"],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    "how, comes", [("module", "SIGINT"), ("script", "SIGINT"), ("module", "SIGTERM")]
)
def test_a_signal_while_torch_is_on_its_way(root, tmp_path, how, comes):
    module, name = re.search(
        r"^console_scripts = gpub=(\S+):(\w+)$",
        (root / "settings.ini").read_text(encoding="utf-8"),
        re.M,
    ).groups()
    argv = ["-m", "gpub"] if how == "module" else ["-c", f"from {module} import {name}; {name}()"]
    assert started(root, tmp_path, argv, comes=comes) == (130, "gpub: stopped\n")


@pytest.mark.skipif(sys.platform == "win32", reason="a job that ignores Ctrl-C is made by a shell")
def test_a_job_that_ignores_ctrl_c_goes_on(root, tmp_path):
    assert started(
        root, tmp_path, ["-m", "gpub"], ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
    ) == (1, "went on\n")


@pytest.mark.parametrize("typed, kept", [("", None), ("copy", "copy")])
def test_an_empty_mirror_is_none(typed, kept, monkeypatch):
    '`--mirror "$PLACE"` with PLACE unset used to fill the folder one stood in'
    seen = []

    def stub(options):
        seen.append(options.mirror)

    monkeypatch.setattr("gpub.train.trainer.Trainer", stub)
    monkeypatch.setattr("gpub.cli.train.train_and_tell", lambda trainer: None)
    cli.main(["train", "shakespeare", "--mirror", typed], standalone_mode=False)
    assert seen == [kept]


@pytest.mark.parametrize(
    "seconds, fault",
    [
        ("inf", "no number to count with"),
        ("nan", "no number to count with"),
        ("0", "not in the range"),
    ],
)
def test_no_endless_bench(seconds, fault):
    with pytest.raises(click.BadParameter, match=fault):
        cli.main(["bench", "ladder", "--seconds", seconds], standalone_mode=False)


def limited(root, seconds, *command):
    "(exit code, stdout, stderr) of a command under tools/limit.py"
    argv = [sys.executable, root / "tools/limit.py", str(seconds), *command]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def python(program):
    "The words that run a program"
    return sys.executable, "-c", program


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no Ctrl-C for another process")
def test_a_command_over_its_limit_is_stopped_with_a_sentence(root):
    shell = "trap 'echo test 7 was running; exit 1' INT; sleep 300 & wait"
    code, out, err = limited(root, 1, "sh", "-c", shell)
    assert (code, out) == (124, "test 7 was running\n"), (
        "it is interrupted first, and can say where it was"
    )
    assert len(err.splitlines()) == 1
    for part in ("sh: stopped after 1 second", "busy", "LIMIT=2 ", "LIMIT=0"):
        assert part in err


@pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has neither process groups nor SIGKILL"
)
def test_what_a_command_over_its_limit_started_ends_with_it(root, tmp_path):
    """A worker that ignores Ctrl-C holds the pipe open: it is gone when the limit's sentence has
    come"""
    worker = (
        "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print(1, "
        "flush=True); time.sleep(300)"
    )
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {worker!r}])"
    code, out, err = limited(root, 1, *python(program))
    assert code == 124 and "stopped after 1 second" in err


@pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has neither process groups nor SIGKILL"
)
@pytest.mark.parametrize("name, code", (("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)))
def test_whoever_stops_the_limit_stops_the_command(root, name, code):
    "Its sleep ignores Ctrl-C and holds the pipe open until it is killed"
    shell = "trap 'echo heard' INT; echo ready; sleep 300 & wait"
    argv = [sys.executable, root / "tools/limit.py", "300", "sh", "-c", shell]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(getattr(signal, name))
        assert process.communicate(timeout=60)[0] == "heard\n"
    assert process.returncode == code


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_command_that_was_killed_is_told_apart_from_the_limit(root):
    code, _, err = limited(root, 300, *python("import os; os.kill(os.getpid(), 9)"))
    assert code == 137 and "killed" in err and "memory" in err and "LIMIT" not in err


@pytest.mark.parametrize("seconds", (0, 300))
@pytest.mark.parametrize("code", (0, 1, 124, 5))
def test_within_the_limit_nothing_is_said(root, seconds, code):
    assert limited(root, seconds, *python(f"raise SystemExit({code})")) == (code, "", "")


@pytest.mark.parametrize("seconds", ("", "20m", "-1", "1.5"))
def test_a_limit_is_whole_seconds(root, seconds):
    code, _, err = limited(root, seconds, *python("print(1)"))
    assert code == 2 and len(err.splitlines()) == 1 and repr(seconds) in err and "LIMIT=3600" in err


def bare_clone(root, folder, tests):
    """A folder with the Makefile and an environment of stubs, whose `nbdev_test` is a given shell
    line"""
    (folder / "tools").mkdir()
    for name in ("Makefile", "tools/limit.py"):
        shutil.copy(root / name, folder / name)
    for name in (
        "settings.ini",
        "setup.py",
        "constraints.txt",
        ".venv/core.stamp",
        ".venv/dev.stamp",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    (folder / ".venv/bin").mkdir()
    for name, line in (("nbdev_test", tests), ("python", f'exec "{sys.executable}" "$@"')):
        (folder / ".venv/bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / ".venv/bin" / name).chmod(0o755)
    return folder


@pytest.mark.skipif(
    sys.platform == "win32" or not shutil.which("make"), reason="needs make and a shell"
)
def test_make_test_says_that_its_time_is_up(root, tmp_path):
    "A bare `Error 124` after twenty minutes of a busy machine told nobody what to do"
    folder = bare_clone(root, tmp_path, "exec sleep 300")
    env = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    done = subprocess.run(
        ["make", "test", "LIMIT=1"], cwd=folder, env=env, capture_output=True, text=True, timeout=60
    )
    assert (
        done.returncode == 2
        and "stopped after 1 second" in done.stderr
        and "LIMIT=0" in done.stderr
    )
    assert (
        int(re.search(r"^LIMIT := (\d+)", (root / "Makefile").read_text(encoding="utf-8"), re.M)[1])
        >= 3600
    )


HEAVY = {"torch", "numpy", "matplotlib"}


def arrived(root, program, *argv):
    """(heavy packages that a program imported, what it printed), in a process of its own"""
    code = f"""
import sys
sys.argv = ["gpub", *{argv!r}]
try:
    {program}
except SystemExit as e:
    assert not e.code, e.code
print("ARRIVED", *sorted({HEAVY!r} & set(sys.modules)))
"""
    env = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run(python(code), cwd=root, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said, _, names = done.stdout.rpartition("ARRIVED")
    return set(names.split()), said


MAIN = "from gpub.__main__ import _start; _start()"


@pytest.mark.parametrize(
    "argv, word",
    [
        (["--help"], "Start with: gpub train shakespeare"),
        (["--version"], "gpub, version"),
        (["bench", "--help"], "ladder"),
        ([], "Train a model:"),
    ],
)
def test_help_and_version_do_not_wait_for_torch(root, argv, word):
    names, said = arrived(root, MAIN, *argv)
    assert names == set() and word in said


def test_a_mistyped_option_does_not_wait_for_torch(root):
    program = "from gpub.cli import main; main.sys.exit = print; main.main()"
    names, said = arrived(root, program, "sample", "runs/shakespeare", "--temp", "1")
    assert names == set() and said.split() == ["2"]


@pytest.mark.parametrize("command", ["train", "preflight"])
def test_help_tells_of_every_kind_of_data(command):
    shown = CliRunner().invoke(cli, [command, "--help"])
    words = " ".join(shown.output.split())
    assert shown.exit_code == 0 and "gpub prep" in words and "URL" in words


@pytest.mark.parametrize(
    "words, incomplete, found",
    [("", "tr", {"train"}), ("train", "--tra", {"--track"}), ("bench", "lad", {"ladder"})],
)
def test_completion_does_not_wait_for_torch(root, words, incomplete, found):
    program = (
        "from click.shell_completion import ShellComplete; from gpub.cli.main import cli; "
        "done = ShellComplete(cli, {}, 'gpub', '_GPUB_COMPLETE'); "
        f"print(*[c.value for c in done.get_completions({words.split()!r}, {incomplete!r})])"
    )
    names, said = arrived(root, program)
    assert names == set() and set(said.split()) == found


def test_help_and_page_begin_with_train(root):
    "In the order of a first week, not of the alphabet"
    names = list(cli.commands)
    assert names[:2] == ["train", "sample"] and cli.list_commands(None) == names
    page = json.loads((root / "nbs/lib/cli/commands.ipynb").read_text(encoding="utf-8"))
    shown = "".join(str(o) for c in page["cells"] for o in c.get("outputs", []))
    listed = re.findall(r"<summary><code>gpub (\w+)", shown)
    assert listed[0] == "train" and set(listed) == set(names)


def test_the_table_of_commands_is_true():
    "Name and line of each, as the command itself says them"
    for name, deferred in cli.commands.items():
        real = deferred.fetch()
        assert real.name == name
        first = " ".join(real.help.split("\n\n")[0].split())
        assert deferred.help == first, name


def test_the_help_of_all_lists_each_command_whole():
    "In 80 columns, each on one line, without a cut sentence"
    shown = CliRunner().invoke(cli, ["--help"], terminal_width=80).output
    assert "..." not in shown.replace("FILE...", "").replace("[ARGS]...", "")
    for name, command in cli.commands.items():
        line = next(line for line in shown.splitlines() if line.split()[:1] == [name])
        assert line.endswith(command.help) and len(line) <= 80


def test_the_package_does_not_wait_for_torch(root):
    names, said = arrived(root, "import gpub; print(len(dir(gpub)))")
    assert names == set() and int(said) >= 20


def test_names_of_the_front_door(root):
    "Each is what its module defines, a type checker sees the same, and no subpackage is hidden"
    import gpub

    tree = ast.parse((root / "gpub/__init__.py").read_text(encoding="utf-8"))
    block = next(n for n in tree.body if isinstance(n, ast.If))
    checked = {a.asname: (f"gpub.{n.module}", a.name) for n in block.body for a in n.names}
    assert checked.pop("train") == ("gpub.cli.python", "train_by_name")  # a package that is called
    assert sorted(checked) == sorted(gpub._HOME) == gpub.__all__
    for name, (module, own_name) in checked.items():
        assert getattr(gpub, name) is getattr(importlib.import_module(module), own_name)
    rooms = {p.name for p in (root / "gpub").iterdir()} | {
        p.stem for p in (root / "gpub").glob("*.py")
    }
    assert not rooms & set(gpub.__all__) and set(gpub.__all__) <= set(dir(gpub))
    with pytest.raises(AttributeError, match="no attribute 'teapot'"):
        gpub.teapot
    for name, call in dict(sample="gpub.generate", finetune="gpub.train").items():
        with pytest.raises(AttributeError, match=call):
            getattr(gpub, name)
    with pytest.raises(ImportError):
        from gpub import teapot  # noqa: F401


GUESSED = """
import sys
import gpub
from gpub import train
assert train is gpub.train and callable(train) and "train" in dir(gpub)
assert "torch" not in sys.modules and "click" not in sys.modules
tiny = dict(steps=4, d_model=16, n_layers=1, context_length=16, batch_tokens=64, compile="no")
run = gpub.train("mydata.txt", learning_rate=0.01, **tiny)
from gpub.train.loop import train as steps
assert callable(gpub.train) and steps is not gpub.train
assert run.path.as_posix() == "runs/mydata" and run.step == 4
assert gpub.generate("runs/mydata", "to be", max_tokens=9) == run.generate("to be", 9)
assert gpub.generate(run.model, run.tokenizer, "to be", 9, temperature=0).startswith("to be")
assert abs(gpub.evaluate("runs/mydata")["val_loss"] - run.log[-1]["val_loss"]) < 1e-3
assert gpub.evaluate(run.model, run.tokenizer.encode("to be or not"), 8) > 0
assert gpub.train("runs/mydata").step == gpub.load("runs/mydata").step == 4
plan = gpub.plan("gpt2-134m", "A100-40")
assert plan.tokens > 1e9 and "micro-batch" in str(plan) and "PlanRow" not in str(plan)
for call, hint in (
    (lambda: gpub.plan("gpt2-134m"), "A100-40"),
    (lambda: gpub.plan(), "gpub.plan('gpt2-134m', 'A100-40')"),
    (lambda: gpub.Trainer('shakespeare'), "gpub.train('shakespeare')"),
    (lambda: gpub.train("mydata.txt", **tiny | dict(lr=0.5)), "such as out='runs/mydata-2'"),
    (lambda: gpub.train("mydta.txt"), "did you mean mydata.txt?"),
    (lambda: gpub.train("shakespeare", widht=3), "no setting 'widht'"),
    (lambda: gpub.generate("runs/mydta", "to"), "did you mean runs/mydata?"),
):
    try:
        call()
        raise SystemExit(f"{hint!r} was not said")
    except gpub.GpubError as error:
        assert hint in str(error), error
print("all of it")
"""


def test_names_that_one_guesses(tmp_path):
    "In a fresh interpreter: nothing was imported before, and nothing heavy before it is called"
    (tmp_path / "mydata.txt").write_text("to be or not to be, that is the question. " * 30)
    done = subprocess.run(
        [sys.executable, "-c", GUESSED], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.endswith("all of it\n"), done.stderr[-600:]


def test_readme_python_works(root, text, tmp_path, monkeypatch, capsys):
    section = re.search(
        r"^## In an environment of your own\n(.*?)^## ",
        (root / "README.md").read_text(encoding="utf-8"),
        re.M | re.S,
    )[1]
    lines = re.search(r"```python\n(.*?)```", section, re.S)[1]
    settings = dict(steps=4, d_model=16, n_layers=1, n_heads=2, context_length=16)
    settings |= dict(batch_tokens=64, precision="fp32")
    monkeypatch.chdir(tmp_path)
    Trainer(
        RunOptions(
            "shakespeare",
            "runs/shakespeare",
            text,
            settings=settings,
            device="cpu",
            log=lambda line: None,
        )
    ).go()
    capsys.readouterr()
    names = {}
    exec(lines, names)
    run = names["run"]
    said = capsys.readouterr().out
    assert said.startswith("ROMEO:") and len(said) == len("ROMEO:") + 200 + len("\n")
    assert run.step == run.log[-1]["step"] == 4 and len(run.log.column("loss")) == len(run.log)
    assert "| step | tokens |" in run.log._repr_markdown_() and "loss" in repr(run.log)
    assert "GPT" in repr(run) and "step 4" in repr(run) and len(repr(run).splitlines()) == 1
