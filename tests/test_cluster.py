"""The same shards by any cluster: who works, and where, decides no byte"""

import hashlib
import http.server
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import forked
import pytest
from contracts import refuses

from gpub.core import GpubError
from gpub.data.bpe import BPETokenizer
from gpub.data.shards import verify_shards
from gpub.files import shipped
from gpub.prep.cluster import Cluster, ClusterStep, run_on_cluster
from gpub.prep.config import PrepConfig, load_recipe
from gpub.prep.filters import DECODED, MASKED_EMAIL, MASKED_PHONE, NO_SCORE
from gpub.prep.job import Job, ReadingPlan
from gpub.prep.pipeline import LEAKED, prepare, read_parts
from gpub.prep.sources import Reading, find_files

TASKS = 6
needs_datatrove = pytest.mark.skipif(
    not find_spec("datatrove"), reason="datatrove is not installed: pip install 'gpub[cluster]'"
)
needs_ray = pytest.mark.skipif(
    not (find_spec("ray") and find_spec("datatrove")),
    reason="Ray is not installed: pip install ray",
)
needs_upath = pytest.mark.skipif(
    not find_spec("upath"), reason="no fsspec paths: pip install 'gpub[cluster]'"
)


def quiet(*a):
    pass


WORDS = (
    "the and that with this from which are their have river stone village road light water tree "
    "evening letter window garden number question answer because between under over into again"
).split()
QUESTION = "How many of the forty lamps in the old harbour are still lit when the last ship is gone"
FAULTS = (
    "write to jane.roe@mail.example.org",
    "call (212) 555-7788",
    "salt &amp; pepper",
    QUESTION,
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    "Seven files of one source, two of another, with copies between them, and faults for each rule"
    folder, rng = tmp_path_factory.mktemp("parts"), random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=rng.randrange(50, 120))) + "." for _ in range(260)]
    for i, fault in enumerate(FAULTS * 3):
        texts[i] += f" {fault}."
    for source, count in (("edu", 7), ("math", 2)):
        (folder / source).mkdir()
        for k in range(count):
            rows = [rng.choice(texts) for _ in range(20 + 9 * k)]
            lines = "".join(json.dumps(dict(text=t)) + "\n" for t in rows)
            (folder / source / f"{k}.jsonl").write_text(lines)
    (folder / "quiz.jsonl").write_text(json.dumps(dict(question=QUESTION)) + "\n")
    BPETokenizer.train(texts, 400).save(folder / "tok")
    return folder


def config(corpus, **kw):
    "The rules of the shipped recipe, for two sources"
    recipe = load_recipe(shipped("recipes/burn1b.json"))
    sources = (f"edu={corpus}/edu/*.jsonl:0.8", f"math={corpus}/math:0.2")
    rules = dict(near=recipe.near, filters=recipe.filters, benchmarks=(f"{corpus}/quiz.jsonl",))
    rules |= dict(source_filters=dict(edu=recipe.source_filters["fineweb-edu"]))
    told = dict(sources=sources, tokenizer=str(corpus / "tok"), val=0.05, chunk_mb=0.01)
    return PrepConfig(**(told | rules | dict(tasks=TASKS) | kw))


def digest(out):
    "SHA-256 of everything that is trained on"
    verify_shards(out)
    files = sorted(p for p in Path(out).iterdir() if p.suffix in (".bin", ".docs"))
    assert files
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.fixture(scope="module")
def built_in(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("local") / "out"
    counts = prepare(config(corpus), out, log=quiet)["counts"]["edu"]
    assert {"duplicate", LEAKED} <= counts["dropped"].keys() and counts["kept"] > 50
    assert {MASKED_EMAIL, MASKED_PHONE, DECODED, NO_SCORE} <= counts["noted"].keys()
    return digest(out)


def test_readers_share_the_files_in_order(corpus):
    files = find_files(f"{corpus}/edu")
    parts = [Reading(task=t, tasks=3).files(files) for t in range(3)]
    assert sum(parts, []) == files and all(parts)
    sizes = [sum(f.stat().st_size for f in part) for part in parts]
    largest = max(f.stat().st_size for f in files)
    assert all(abs(size - sum(sizes) / 3) <= largest for size in sizes)
    assert Reading().files(files) == files


def test_tasks_are_part_of_the_recipe(corpus, tmp_path):
    prepare(config(corpus), tmp_path / "out", log=quiet)
    refuses("another job", prepare, config(corpus, tasks=2), tmp_path / "out", log=quiet)


@pytest.mark.full(instead="test_prep.py::test_two_workers_same_bytes")
def test_two_local_workers_make_the_same(corpus, built_in, tmp_path):
    prepare(config(corpus), tmp_path / "out", 2, log=quiet)
    assert digest(tmp_path / "out") == built_in


@pytest.mark.full(instead="test_prep.py::test_two_workers_same_bytes")
@needs_datatrove
@pytest.mark.parametrize("workers", [2, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 3))])
def test_datatrove_makes_the_same(corpus, built_in, tmp_path, workers):
    out = tmp_path / "out"
    prepare(config(corpus), out, cluster=Cluster(executor="local", workers=workers), log=quiet)
    assert digest(out) == built_in


CHILD = """
import json, sys
from gpub.prep.config import PrepConfig
from gpub.prep.cluster import Cluster
from gpub.prep.pipeline import prepare
if __name__ == "__main__":
    cfg, out, workers = sys.argv[1:]
    cfg = PrepConfig.from_dict(json.loads(cfg))
    prepare(cfg, out, cluster=Cluster(executor="local", workers=int(workers)), log=print)
"""


def run_and_kill(cfg, out, workers, after):
    "Start the job, and kill the process that leads it once so many chunks are stored"
    words = ["-c", CHILD, json.dumps(cfg.to_dict()), out, workers]
    child = forked.Python(
        words, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    end = time.monotonic() + 200
    while child.poll() is None and time.monotonic() < end:
        if len(list(out.glob(".work/store/*/*/*.arrow"))) >= after:
            break
        time.sleep(0.02)
    killed = child.poll() is None
    child.kill()
    child.wait()
    return killed, child.pid


def is_gone(group):
    "Whether all processes of a group end within a minute"
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    os.killpg(group, signal.SIGKILL)
    return False


@pytest.mark.full(instead="test_goes_on.py::test_goes_on")
@needs_datatrove
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_datatrove_killed_and_resumed_makes_the_same(corpus, built_in, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    killed, group = run_and_kill(config(corpus), out, "2", after=3)
    assert killed, "it ended before the kill"
    assert not (out / "manifest.json").exists()
    assert is_gone(group)
    # goes on with another number of workers: they decide nothing
    prepare(config(corpus), out, cluster=Cluster(executor="local", workers=3), log=quiet)
    assert digest(out) == built_in


@needs_ray
def test_ray_makes_the_same(corpus, built_in, tmp_path):
    out = tmp_path / "out"
    prepare(config(corpus), out, cluster=Cluster(executor="ray", workers=2), log=quiet)
    assert digest(out) == built_in


SBATCH = """#!/usr/bin/env bash
# runs an array of jobs here and now, two tasks at a time
script="${@: -1}"
cp "$script" "$GPUB_TEST_SLURM/$(date +%s%N).sh"
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$script")
if grep -q launch_pickled_pipeline "$script"; then
  for i in $(seq 0 "$last"); do
    SLURM_ARRAY_TASK_ID=$i SLURM_NODELIST=localhost RUN_OFFSET=0 bash "$script" \\
      > "$GPUB_TEST_SLURM/task-$i.log" 2>&1 || exit 1
  done
fi
echo Submitted batch job 7
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    "Commands of Slurm that run the script they get on this machine"
    commands = dict(
        sbatch=SBATCH, squeue="#!/bin/sh\nexit 0\n", srun='#!/bin/sh\nshift 3\nexec "$@"\n'
    )
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, text in commands.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    scontrol = "#!/bin/sh\necho localhost\n"
    (folder / "scontrol").write_text(scontrol)
    (folder / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("GPUB_TEST_SLURM", str(folder))
    return folder


@needs_datatrove
@pytest.mark.skipif(sys.platform == "win32", reason="scripts of a shell")
@pytest.mark.full(instead="test_prep.py::test_two_workers_same_bytes")
def test_the_script_for_slurm_runs_and_makes_the_same(corpus, built_in, slurm, tmp_path):
    out = tmp_path / "out"
    options = dict(partition="long", time="1:30:00", mem_per_cpu_gb=8)
    cluster = Cluster(executor="slurm", workers=2, options=options)
    prepare(config(corpus), out, cluster=cluster, log=quiet)
    assert digest(out) == built_in
    scripts = [p for p in sorted(slurm.glob("*.sh")) if "launch_pickled" in p.read_text()]
    text = scripts[0].read_text()
    for line in ("--partition=long", "--time=1:30:00", "--mem-per-cpu=8G", "--array=0-11%2"):
        assert f"#SBATCH {line}\n" in text, text
    assert len(scripts) == 2  # reading, encoding
    if checker := shutil.which("shellcheck"):
        # SC1091: the environment's own script is not looked at; datatrove leaves a space in a path
        words = [checker, "-S", "warning", "-e", "SC1091", *map(str, scripts)]
        assert subprocess.run(words).returncode == 0


LOSES_A_NODE = """#!/usr/bin/env bash
# task 0 is killed when it has stored a chunk, the node of task 1 is never heard of again
script="${@: -1}"
if ! grep -q launch_pickled_pipeline "$script"; then
  echo Submitted batch job 7
  exit
fi
export SLURM_NODELIST=localhost RUN_OFFSET=0
SLURM_ARRAY_TASK_ID=0 setsid bash "$script" > /dev/null 2>&1 &
until compgen -G "$GPUB_TEST_STORE" > /dev/null || ! kill -0 $! 2> /dev/null; do sleep 0.001; done
kill -9 -- -$!
for i in 2 3; do
  SLURM_ARRAY_TASK_ID=$i bash "$script" > /dev/null 2>&1 || exit 1
done
echo Submitted batch job 7
"""


@needs_datatrove
@pytest.mark.skipif(sys.platform == "win32", reason="scripts of a shell")
@pytest.mark.full(instead="test_jobs_of_slurm_that_end_undone_are_one_line")
def test_a_task_killed_and_a_node_lost_under_slurm_are_tried_again(
    corpus, slurm, tmp_path, monkeypatch
):
    "The same command again makes what nobody has made, and the bytes of a run without a loss"
    cfg = config(corpus, tasks=2, chunk_mb=0.03)
    prepare(cfg, tmp_path / "whole", log=quiet)
    out = tmp_path / "out"
    stored = out / ".work/store/documents"
    monkeypatch.setenv("GPUB_TEST_STORE", f"{stored}/*/*.arrow")
    options = dict(partition="long", time="1:30:00")
    cluster = Cluster(executor="slurm", workers=2, options=options)
    (slurm / "sbatch").write_text(LOSES_A_NODE)
    with pytest.raises(GpubError, match="2 of 4 tasks did not: .* run the same command again"):
        prepare(cfg, out, cluster=cluster, log=quiet)
    assert len(list(stored.glob("*/*.done"))) == 2  # of tasks 2 and 3
    assert list(stored.glob("edu-*/*.arrow"))  # of task 0, before it was killed
    (slurm / "sbatch").write_text(SBATCH)
    prepare(cfg, out, cluster=cluster, log=quiet)
    assert digest(out) == digest(tmp_path / "whole")


@needs_datatrove
def test_jobs_of_slurm_that_end_undone_are_one_line(corpus, slurm, tmp_path):
    (slurm / "sbatch").write_text("#!/bin/sh\necho Submitted batch job 7\n")
    out = tmp_path / "out"
    with pytest.raises(GpubError, match="job 7 of Slurm ended, 12 of 12 tasks did not"):
        options = dict(partition="long", time="1:30:00")
        cluster = Cluster(executor="slurm", workers=2, options=options)
        prepare(config(corpus), out, cluster=cluster, log=quiet)


@pytest.mark.full(instead="test_url_guard.py::test_source_and_data_read_urls")
@needs_upath
def test_sources_at_a_url(corpus, built_in, tmp_path):
    "What fsspec reads over a network is what lies in a folder"

    class Files(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *a, **kw):
            super().__init__(*a, directory=str(corpus), **kw)

        def log_message(self, *a):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        sources = (f"edu={url}/edu/*.jsonl:0.8", f"math={url}/math/*.jsonl:0.2")
        prepare(config(corpus, sources=sources), tmp_path / "out", log=quiet)
        refuses("nothing there ends in|cannot be read", find_files, f"{url}/none/*.jsonl")
    finally:
        server.shutdown()
        server.server_close()
    assert digest(tmp_path / "out") == built_in


@pytest.mark.parametrize("executor", ["local", "slurm", "ray"])
def test_without_the_extra_it_says_which(monkeypatch, tmp_path, executor):
    for name in [m for m in sys.modules if m.split(".")[0] == "datatrove"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "datatrove", None)
    step = ClusterStep(print, [1], ())
    with pytest.raises(GpubError, match=r"pip install 'gpub\[cluster\]'"):
        run_on_cluster(Cluster(executor=executor), step, tmp_path / "logs")


@needs_datatrove
def test_an_option_that_the_executor_does_not_have_is_one_line(tmp_path):
    step = ClusterStep(print, [1], ())
    with pytest.raises(GpubError, match="option does not fit.*speed"):
        run_on_cluster(Cluster(executor="local", options=dict(speed=9)), step, tmp_path / "logs")


def test_parts_that_a_task_has_read_are_not_read_again(corpus, tmp_path):
    "What tasks left in the store is all that the process that started them looks at"
    cfg = config(corpus, store=str(tmp_path / "store"))
    job = Job(cfg, tmp_path / "out", log=quiet)
    plan = ReadingPlan(job.cfg, job.store, job.keys)
    assert sum(len(list(plan.missing_chunks(part))) for part in plan.parts()) > 3
    read_parts(plan.parts(), cfg.to_dict(), str(job.store), job.keys)
    meter = dict(read=0)
    assert not [chunk for part in plan.parts() for chunk in plan.missing_chunks(part, meter)]
    assert meter == dict(read=0)
