"Wrong answers to the exercises of a chapter: each is a case, and each must be refused in words."

import textwrap
from functools import cache

import pytest
from test_exercises import exercises, namespace

page_namespace = cache(namespace)


def cases(wrong):
    """exercise -> {what is wrong: answer}, as parameters of a test; `make test` asks the first of
    each exercise"""
    return [
        pytest.param(name, answer, id=f"{name}-{how}", marks=pytest.mark.full if n else ())
        for name, answers in wrong.items()
        for n, (how, answer) in enumerate(answers.items())
    ]


def refusal(page, name, answer):
    "What the check of an exercise says to an answer, which it must refuse"
    space = dict(page_namespace(page))
    exec(textwrap.dedent(answer), space)
    with pytest.raises(AssertionError) as refused:
        exec(exercises(page)[1][name], space)
    return str(refused.value)
