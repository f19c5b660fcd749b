"""A job that stands for a much longer one: failures are met and counted, disk is as foretold"""

import contextlib
import gzip
import json
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from gpub.data.bpe import BPETokenizer
from tools.bench.corpus import LongJob, MadeUp, bench_corpus, bookkeeping, foretold


def small_job():
    return bench_corpus(LongJob(documents=120, size=4000, share=0.25, fails=0.02))


def test_a_made_up_document_is_the_same_each_time_and_some_requests_fail():
    made = MadeUp(size=400, every=3)
    try:
        found = []
        for name in ("7", "8", "7", "9"):
            with contextlib.suppress(HTTPError), urlopen(made.url + name) as answer:
                found.append(gzip.decompress(answer.read()).decode())
        assert (made.asked, made.failed) == (4, 1)
        first, second, last = found
        assert first == made.document("7") != second and last == made.document("9")
        assert len(first) == 400 + 19  # twenty pieces, joined
    finally:
        made.close()


def test_what_is_foretold_is_the_line_through_two_jobs():
    small, larger = dict(bytes=100, disk_bytes=30), dict(bytes=200, disk_bytes=50)
    assert foretold(small, larger, "disk_bytes", 1000) == 50 + 0.2 * 800


LARGER = pytest.param(100_000, 30, marks=pytest.mark.full)


@pytest.mark.parametrize(("documents", "mb"), ((40_000, 12), LARGER))
@pytest.mark.full(instead="test_what_is_foretold_is_the_line_through_two_jobs")
def test_what_knows_all_documents_takes_few_bytes_of_each(tmp_path, documents, mb):
    "Duplicates, split, order and shards of many documents, beside those of a few"
    BPETokenizer.train(["to be or not to be"], 300).save(tmp_path / "tok")
    found = []
    for count in (2_000, documents):
        (tmp_path / str(count)).mkdir()
        found.append(bookkeeping(count, tmp_path / str(count)))
    few, many = found
    assert many["documents"] == documents and many["dropped"] == documents // 10 - 7
    assert many["grown_mb"] - few["grown_mb"] < mb


@pytest.mark.slow
def test_failures_are_met_and_the_disk_is_foretold():
    r = small_job()
    whole = r["whole"]
    assert whole["documents"] == 120  # none is lost
    assert whole["waits"] == whole["failed"] >= 2
    assert abs(r["forecast_of_found"]["disk_bytes"] - 1) < 0.15
    assert json.dumps(r)


@pytest.mark.slow
def test_memory_stays_while_the_job_is_long():
    r = bench_corpus(LongJob(documents=4000))
    assert r["memory_growth_mb"] < 30, r["whole"]["memory_mb"]
    assert r["whole"]["waits"] == r["whole"]["failed"] > 0
    assert all(abs(x - 1) < 0.15 for x in r["forecast_of_found"].values())
