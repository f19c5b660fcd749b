"""Hand a run over to torchtitan for real, and write down what came of it: data/torchtitan.json.

    python tools/torchtitan_trial.py RUN CONVERTER

in an environment that has torchtitan. RUN is a Llama trained on shards; CONVERTER is torchtitan's
own scripts/checkpoint_conversion/convert_from_hf.py, which its package leaves out."""

import json
import runpy
import sys
import tempfile
from datetime import date
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import torch
import torch.distributed.checkpoint as dcp

from gpub.core import write_atomic
from gpub.model.llama import Llama
from gpub.model.llama_architecture import BURN_1B
from gpub.record.run import Run, load
from gpub.share.hub import _torchtitan_config, export_run
from gpub.share.weights import to_theirs

RECEIPT = Path(__file__).parents[1] / "data/torchtitan.json"


def largest_difference(
    run: Run,
    module: ModuleType,  # the file that goes along, imported
    weights: Path,  # what the converter wrote
) -> dict[str, float]:
    "Compare logits: with torchtitan's fresh weights, which has to be large, and with ours"
    model = module.model_config().build()
    model.init_states(buffer_device=torch.device("cpu"))
    length = run.model.cfg.context_length
    ids = torch.randint(run.model.cfg.vocab_size, (4, length))
    positions = torch.arange(length).expand(4, -1)
    masks = model.get_attention_masks(positions)
    found = {}
    with torch.no_grad():
        ours = run.model(ids)
        found["fresh"] = float((model(ids, positions, masks) - ours).abs().max())
        state = model.state_dict()
        dcp.load(state, checkpoint_id=str(weights))
        model.load_state_dict(state)
        found["converted"] = float((model(ids, positions, masks) - ours).abs().max())
    return found


def same_shapes(run: Run) -> int:  # tensors
    "Compare names and shapes of a 1B, on `meta`: those that torchtitan asks for, and ours"
    model = SimpleNamespace(cfg=BURN_1B)
    large = SimpleNamespace(
        model=model, config=run.config, path=run.path, name="burn-1b", step=1, recipe=run.recipe
    )
    module = ModuleType("large")
    module.__file__ = str(run.path / "large.py")
    exec(_torchtitan_config(large, run.path), module.__dict__)
    config = module.model_config()
    with torch.device("meta"):
        theirs = config.build().state_dict()
        ours = to_theirs(Llama(BURN_1B))
    asked = module.llama3.Llama3StateDictAdapter(config, None).to_hf(theirs)
    assert {k: v.shape for k, v in asked.items()} == {k: v.shape for k, v in ours.items()}
    return len(ours)


def try_converter(run_folder: str, converter: str):
    "Export, convert, load, compare and write the receipt"
    torch.manual_seed(0)
    run = load(run_folder, device="cpu")
    with tempfile.TemporaryDirectory() as place:
        folder = export_run(run_folder, Path(place, "out"), torchtitan=True)
        sys.path.insert(0, str(folder))
        module = import_module("torchtitan_run")
        weights = Path(place, "dcp")
        words = [converter, str(folder), str(weights), "--model_name=llama3", "--model_flavor=gpub"]
        with patch.object(sys, "argv", words):
            runpy.run_path(converter, run_name="__main__")
        difference = largest_difference(run, module, weights)
    receipt = dict(
        date=str(date.today()),
        torchtitan=version("torchtitan"),
        torch=torch.__version__,
        converter="scripts/checkpoint_conversion/convert_from_hf.py",
        parameters=run.config["parameters"],
        largest_difference_of_logits=difference,
        tensors_of_a_1b=same_shapes(run),
    )
    write_atomic(RECEIPT, json.dumps(receipt, indent=1) + "\n")
    print(json.dumps(receipt, indent=1))


if __name__ == "__main__":
    try_converter(*sys.argv[1:])
