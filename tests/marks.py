"""Which cases of a test `make test` asks."""

import pytest


def first_ones(count, cases):
    "Parameters of a test: the first few are for every day, the others for `make test-all`"
    return [
        case
        if number < count
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.full)
        for number, case in enumerate(cases)
    ]
