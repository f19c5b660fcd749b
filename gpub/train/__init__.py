"""The loop, its recipe and what holds a run. Called, it trains by name: `gpub.train("shakespeare")`"""

import importlib
import sys
from types import ModuleType


class _CallablePackage(ModuleType):
    def __call__(self, *names: object, **options: object) -> object:
        by_name = importlib.import_module("gpub.cli.python")
        return by_name.train_by_name(*names, **options)


sys.modules[__name__].__class__ = _CallablePackage
