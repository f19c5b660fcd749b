from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpub.core import GpubError, read_config
from gpub.files import similar_run
from gpub.record.checkpoint_folder import folder_weights
from gpub.record.run import Run
from gpub.share.hub import is_hub_folder, model_folder

@dataclass(frozen=True)
class ModelIdentity:
    "Which weights results belong to"

    run_id: str | None  # None: an imported run
    step: int
    weights: str  # their SHA-256


def model_identity(
    run: Path | str,  # a run folder, a Hugging Face folder, or OWNER/NAME on the Hub
    step: int | None = None,  # which checkpoint; default the newest
    log: Callable[[str], None] = print,  # told of checkpoints that are damaged
) -> ModelIdentity:
    "Find the checkpoint that results will belong to; raises `GpubError` where there is none"
    folder = model_folder(run)
    if is_hub_folder(folder):
        if step is not None:
            raise GpubError(f"{run} is a Hugging Face folder and has no steps: leave --step out")
        return ModelIdentity(None, 0, folder_weights(folder))
    if not (folder / "config.json").is_file():
        raise GpubError(f"{run} is not a run folder: it has no config.json{similar_run(run)}")
    run_id = read_config(run, "model").get("run_id")
    checkpoint = Run(run, step, log=log).weights()
    return ModelIdentity(run_id, checkpoint.step, checkpoint.weights_checksum())


def run_name(
    run: Path | str,  # a run folder, a Hugging Face folder, or OWNER/NAME on the Hub
) -> str:
    "Name a model in results: a run by its folder, one of Hugging Face as it was asked for"
    return str(run) if is_hub_folder(model_folder(run)) else Path(run).resolve().name
