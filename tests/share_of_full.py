"""`--full 2/5` asks the second fifth of the tests marked `full`; CI asks one with each commit."""

from zlib import crc32

import pytest


def share(text):
    "Read `2/5`: the second of five shares"
    try:
        number, shares = (int(part) for part in text.split("/"))
    except ValueError:
        number = shares = 0
    if not 1 <= number <= shares:
        raise pytest.UsageError(f"--full {text}: wanted is a share such as 2/5, from 1/5 to 5/5")
    return number, shares


def falls_to(nodeid, number, shares):
    "Tell whether a test belongs to a share; each test belongs to one"
    return crc32(nodeid.encode()) % shares == number - 1


def pytest_addoption(parser):
    parser.addoption(
        "--full", metavar="K/N", help="of the tests marked `full` only the K-th of N shares"
    )


def pytest_collection_modifyitems(config, items):
    "Leave out the tests marked `full` of the other shares"
    if not (wanted := config.getoption("--full")):
        return
    number, shares = share(wanted)
    later = []
    now = []
    for item in items:
        is_full = item.get_closest_marker("full") is not None
        (later if is_full and not falls_to(item.nodeid, number, shares) else now).append(item)
    config.hook.pytest_deselected(items=later)
    items[:] = now
