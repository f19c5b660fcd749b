"""Four processes started once: every way of sharing learns what one process learns, and nobody does
or holds what is another's."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import forked
import pytest
from test_parallel import ARGS, alone, same_curve  # noqa: F401
from test_shards import fill

from gpub.record.checkpoint_folder import MODEL, checkpoints

PROGRAM = Path(__file__).parent / "several.py"


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    "What the program found, part by part"
    folder = tmp_path_factory.mktemp("several")
    fill(folder / "data").close()
    env = os.environ | dict(OMP_NUM_THREADS="1", GPUB_CACHE=str(folder / "cache"))
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process = forked.torchrun([PROGRAM, folder / "data"], 4, env=env, **pipes)
    said, err = process.communicate(timeout=600)
    assert process.returncode == 0, err[-6000:]
    return {found.pop("part"): found for found in map(json.loads, said.splitlines())}


@pytest.mark.full(instead="test_parallel.py::test_two_processes_with_slices_learn_what_one_learns")
@pytest.mark.parametrize("how", ["ddp", "fsdp", "hsdp"])
def test_four_processes_learn_what_one_learns_step_by_step(told, how):
    found = told[how]
    assert found["steps"] == 3 and found["clipped"] and found["moved"] > 0.01
    assert found["loss"] < 1e-6 and found["grad_norm"] < 1e-5, found
    assert found["far"] < 3e-5, found  # rounding, which Muon enlarges: 1.5e-5 on one CPU


@pytest.mark.full(instead="test_parallel.py::test_each_process_writes_its_slices")
def test_two_machines_hold_a_copy_each_in_slices(told):
    found = told["hsdp"]
    assert found["mesh"] == [2, 2] and found["here"] == [0.5] * 4
    assert [name[0] for name in found["slices"]] == ["R", "S"]  # between machines, inside one
    assert told["fsdp"]["mesh"] == [4] and told["fsdp"]["here"] == [0.25] * 4
    assert told["ddp"]["here"] == [1] * 4


@pytest.mark.full(instead="test_parallel.py::test_two_processes_with_slices_learn_what_one_learns")
def test_slices_begin_as_the_whole_model_does(told):
    "To the bit, and only process 0 ever has a whole one, in its host's memory"
    for how in ("fsdp", "hsdp"):
        assert told[how]["same_start"]
        first, *others = told[how]["memory"]
        assert first >= 1 and max(others) < 0.75, told[how]["memory"]
    # a quarter of four blocks, and the largest piece as it is taken apart
    assert max(told["fsdp"]["memory"][1:]) < 0.5
    assert min(told["ddp"]["memory"]) >= 1


@pytest.mark.full(instead="test_train.py::test_a_process_shrinks_when_another_is_full")
def test_a_full_memory_of_one_process_makes_all_take_smaller_pieces(told):
    "And what is learned is the same"
    found = told["cramped"]
    assert found["micro"] == [1] * 4
    assert all(
        len(said) == 1 and "out of memory with 2 sequences" in said[0] for said in found["said"]
    )
    assert found["loss"] < 1e-6 and found["far"] < 1e-5, found


@pytest.mark.full(instead="test_parallel.py::test_two_processes_with_slices_learn_what_one_learns")
def test_buffers_are_not_sent_around(told):
    assert told["buffers"]["found"] == [[rank] * 3 for rank in range(4)]


@pytest.mark.full(instead="test_parallel.py::test_two_processes_with_slices_learn_what_one_learns")
def test_muons_work_is_divided(told):
    "Each matrix is turned by one process, and the step is the one of a process alone"
    found = told["muon"]
    assert found["far"] < 5e-7
    assert sum(found["each"]) == found["all"] and max(found["each"]) <= 0.5 * found["all"]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.mark.full(instead="test_parallel.py::test_each_process_writes_its_slices")
@pytest.mark.skipif(sys.platform == "win32", reason="torchrun of two machines needs POSIX")
def test_two_machines_by_the_command(alone, text, tmp_path):  # noqa: F811
    "One torchrun on each of them; the checkpoints are one run's"
    out, port = tmp_path / "run", free_port()
    argv = ["train", "shakespeare", "--data", text, "--out", out, "--parallel", "hsdp", *ARGS]
    meet = ["--nnodes=2", "--nproc_per_node=2", "--master_addr=127.0.0.1", f"--master_port={port}"]
    launch = [sys.executable, "-m", "torch.distributed.run", *meet]
    env = os.environ | dict(OMP_NUM_THREADS="1")
    machines = [
        subprocess.Popen(
            [*launch, f"--node_rank={n}", "-m", "gpub", *map(str, argv)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        for n in range(2)
    ]
    said = [p.communicate(timeout=300) for p in machines]
    assert all(p.returncode == 0 for p in machines), said
    assert sum(out.count("done:") for out, _ in said) == 1
    config = json.loads((out / "config.json").read_text())
    assert config["processes"] == 4
    assert any(not (p / MODEL).exists() for p in checkpoints(out))  # in slices
    same_curve(out, alone)
