"""`gpub rehearse --processes` compares numbers: mistakes that run at full speed, and that only
several processes make, are planted in a copy of the package and must be found."""

import os
import re
import shutil
import subprocess
import sys

import pytest

import gpub
from gpub.core import GpubError
from gpub.guards.two_processes import two_processes

ASK = """
import sys
from gpub.guards.two_processes import two_processes
print(two_processes("shakespeare", sys.argv[1]))
"""
# how the model is shared, the module, what stands there, what is planted, what must be said
MISTAKES = {
    "every process reads the same rows": (
        "ddp", "train/rows.py", "rank=world.rank", "rank=0", "loss|gradient norm"
    ),
    "the logged loss is one process's": (
        "ddp", "train/parallel.py",
        "return self._all(t, dist.ReduceOp.SUM) / self.size", "return t",
        r"step \d: loss",
    ),
    "gradients are divided twice": (
        "fsdp", "train/memory.py", "scaled.backward()",
        "(scaled / (torch.distributed.get_world_size() "
        "if torch.distributed.is_initialized() else 1)).backward()",
        "step 1: gradient norm",
    ),
    "the norm of one slice clips": (
        "fsdp", "train/loop.py",
        "gradients = [p.grad for p in params if p.grad is not None]",
        "gradients = [p.grad for p in params if p.grad is not None]\n"
        "    gradients = [getattr(g, '_local_tensor', g) for g in gradients]",
        "step 1: gradient norm",
    ),
    "Muon keeps what it did itself": (
        "ddp", "train/parallel.py", "gather(out, padded)", "out.zero_()[: len(mine)] = done",
        "step 2: loss|step 2: gradient norm|does not train",
    ),
    "the embedding is left out of the slices": (
        "fsdp", "train/parallel.py", "fully_shard(model, mesh=mesh)",
        "fully_shard(model, mesh=mesh, ignored_params={model.tok.weight})",
        r"does not train on 2 processes: .*has no attribute .device_mesh",
    ),
}  # fmt: skip


def planted(folder, module, here, mistake):
    "A copy of the package with a mistake in it"
    copy = folder / "gpub"
    shutil.copytree(
        os.path.dirname(gpub.__file__), copy, ignore=shutil.ignore_patterns("__pycache__")
    )
    path = copy / module
    text = path.read_text(encoding="utf-8")
    assert text.count(here) == 1, (module, text.count(here))
    path.write_text(text.replace(here, mistake), encoding="utf-8")


@pytest.mark.full(instead="test_rehearse_compares_numbers_when_there_are_several_processes")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(name, tmp_path):
    how, module, here, mistake, says = MISTAKES[name]
    planted(tmp_path, module, here, mistake)
    ask = [sys.executable, "-c", ASK, how]
    # Python looks for packages where it stands first, and so do the processes it starts
    done = subprocess.run(ask, cwd=tmp_path, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert "numbers: a twin" not in said and re.search(says, said), said


@pytest.mark.full(instead="test_rehearse_compares_numbers_when_there_are_several_processes")
@pytest.mark.parametrize("preset, how", [("shakespeare", "fsdp"), ("burn-1b", "ddp")])
def test_a_right_program_agrees(preset, how):
    found = two_processes(preset, how, dict(vocab_size="50304"))
    assert found.problems == () and found.loss_gap < 1e-4 and "within" in str(found)


def test_a_twin_that_does_not_train_says_why():
    with pytest.raises(GpubError, match="does not train on 1 processes: .*optimizer"):
        two_processes("shakespeare", "ddp", dict(optimizer="nothing.Here"))


@pytest.mark.parametrize("problems", [(), ("step 1: gradient norm 0.6, alone 1.2",)])
def test_rehearse_compares_numbers_when_there_are_several_processes(problems):
    words = ["shakespeare", "--gpu", "A100-80", "--processes", "2", "--parallel", "fsdp"]
    script = (
        "from gpub.cli.guards import rehearse_command\n"
        "import gpub.guards.two_processes as t\n"
        "from gpub.guards.two_processes import TwoProcesses\n"
        f"t.two_processes = lambda *asked: TwoProcesses('fsdp', 1e-7, 1e-6, {problems!r})\n"
        f"rehearse_command({words!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    if problems:
        assert any(line.startswith("WRONG    numbers: step 1") for line in lines), done.stdout
        assert "NOT READY" in done.stderr and done.returncode
    else:
        assert any(line.startswith("numbers: a twin") for line in lines) and lines[-1] == "ready"
