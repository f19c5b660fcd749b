"""Learn to train a language model, from 400K parameters on a laptop to 1B on one rented GPU.

The names below are the front door. Each is imported when it is first used, so that `import gpub`
and `gpub --help` do not wait for torch."""

import importlib
from types import ModuleType

TYPE_CHECKING = False  # type checkers take it for True; `typing` would be read for it alone

__version__ = "0.2.0"

if TYPE_CHECKING:
    from .core import GpubError as GpubError
    from .data.batches import Batches as Batches
    from .data.text import load_shakespeare as load_shakespeare
    from .data.bpe import BPETokenizer as BPETokenizer
    from .data.char import CharTokenizer as CharTokenizer
    from .cli.python import evaluate_by_name as evaluate
    from .cli.python import generate_by_name as generate
    from .cli.python import plan_by_name as plan
    from .cli.python import train_by_name as train
    from .evals.evaluate import evaluate_run as evaluate_run
    from .model.gpt import GPT as GPT
    from .model.gpt import GPTConfig as GPTConfig
    from .model.llama import Llama as Llama
    from .model.llama import LlamaConfig as LlamaConfig
    from .prep.pipeline import PrepConfig as PrepConfig
    from .prep.pipeline import prepare as prepare
    from .record.run import Run as Run
    from .record.run import load as load
    from .share.hub import export_run as export_run
    from .share.hub import import_run as import_run
    from .train.config import TrainConfig as TrainConfig
    from .train.trainer import Trainer as Trainer

_HOME = {  # name -> the module that defines it, and its name there if that is another
    "BPETokenizer": "data.bpe",
    "Batches": "data.batches",
    "CharTokenizer": "data.char",
    "GPT": "model.gpt",
    "GPTConfig": "model.gpt",
    "GpubError": "core",
    "Llama": "model.llama",
    "LlamaConfig": "model.llama",
    "PrepConfig": "prep.pipeline",
    "Run": "record.run",
    "TrainConfig": "train.config",
    "Trainer": "train.trainer",
    "evaluate": "cli.python:evaluate_by_name",
    "evaluate_run": "evals.evaluate",
    "export_run": "share.hub",
    "generate": "cli.python:generate_by_name",
    "import_run": "share.hub",
    "load": "record.run",
    "load_shakespeare": "data.text",
    "plan": "cli.python:plan_by_name",
    "prepare": "prep.pipeline",
}
__all__ = [  # noqa: F822, they come from `__getattr__`
    "BPETokenizer",
    "Batches",
    "CharTokenizer",
    "GPT",
    "GPTConfig",
    "GpubError",
    "Llama",
    "LlamaConfig",
    "PrepConfig",
    "Run",
    "TrainConfig",
    "Trainer",
    "evaluate",
    "evaluate_run",
    "export_run",
    "generate",
    "import_run",
    "load",
    "load_shakespeare",
    "plan",
    "prepare",
]


_TUNE = "gpub.train(init='runs/shakespeare', data='mydata.txt')"
_MEANT = {  # a name that is no name here: what to call
    "export": "gpub.export_run('runs/shakespeare', 'FOLDER')",
    "finetune": _TUNE,
    "fine_tune": _TUNE,
    "resume": "gpub.train('runs/shakespeare')",
    "sample": "gpub.generate('runs/shakespeare', 'ROMEO:')",
}


def __getattr__(name: str):
    "Import what is asked for, and keep it"
    if name not in _HOME:
        hint = f": {_MEANT[name]}" if name in _MEANT else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    module, _, own_name = _HOME[name].partition(":")
    found = getattr(importlib.import_module(f"{__name__}.{module}"), own_name or name)
    globals()[name] = found
    return found


def __dir__():
    return sorted({*globals(), *__all__})


class _CallablePackage(ModuleType):
    "The modules that train; called, it trains:"

    def __call__(self, *names: object, **options: object) -> object:
        by_name = importlib.import_module(f"{__name__}.cli.python")
        return by_name.train_by_name(*names, **options)


# no function can have the name of a package, so the package (an empty one) is made callable
importlib.import_module(f"{__name__}.train").__class__ = _CallablePackage
