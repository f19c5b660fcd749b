"""llama.cpp itself reads our GGUF files: the ids of training, the logits, the text. It runs where
LLAMA_CPP names a folder in which `npm install node-llama-cpp` was run; data/gguf.json is what it
gave on more texts."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
pytest.importorskip("gguf")
import in_llama_cpp

FAR = dict(f32=2e-5, f16=2e-2, q8_0=0.3)  # standard deviations of the logits
DEEP = 3  # times that where numbers are rounded in five layers in place of two
GELU = 3e-3  # llama.cpp looks GELU up in a table of fp16, also where the file is f32
OLD = "gpub's own, of earlier runs"


def wrong(receipt):
    "What does not hold of what was found, a line each"
    found = []
    for name, row in receipt["tokens"].items():
        built_in = name != OLD
        whole = all(n == row["texts"] for n in row["equal"].values())
        if row["warned"] is built_in or whole is not built_in:
            found.append(f"tokens, {name}: {row}")
    for name, by_numbers in receipt["models"].items():
        for numbers, row in by_numbers.items():
            exact = numbers == "f32" and row["same"] != row["texts"]
            most = max(FAR[numbers], GELU) if name == "GPT-2" else FAR[numbers]
            if "SmolLM3" in name and numbers != "f32":
                most *= DEEP
            if row["logits"] > most or exact:
                found.append(f"{name} in {numbers}: {row}")
    return found


@pytest.fixture(scope="module")
def folder():
    "Where node-llama-cpp lies"
    named = os.environ.get("LLAMA_CPP")
    if not named or not shutil.which("node"):
        pytest.skip("needs node, and LLAMA_CPP=a folder with npm install node-llama-cpp")
    assert Path(named, "node_modules/node-llama-cpp").is_dir(), f"{named} has no node-llama-cpp"
    return Path(named).resolve()


@pytest.mark.slow
def test_llama_cpp_says_what_we_say(folder):
    assert wrong(in_llama_cpp.compare(folder, 12)) == []


def test_the_receipt_holds(root):
    receipt = json.loads((root / "data/gguf.json").read_text(encoding="utf-8"))
    assert wrong(receipt) == []
    assert receipt["tokens"].keys() == in_llama_cpp.PATTERNS.keys()
    assert len(receipt["models"]) >= 4 and "llama.cpp" in receipt["versions"]


def test_what_does_not_hold_is_found(root):
    receipt = json.loads((root / "data/gguf.json").read_text(encoding="utf-8"))
    receipt["tokens"]["Llama-3's"]["equal"]["code"] -= 1
    receipt["tokens"][OLD]["warned"] = False
    receipt["models"]["Llama"]["f32"]["logits"] = 1e-3
    receipt["models"]["GPT-2"]["f32"]["same"] = 0
    assert len(wrong(receipt)) == 4
