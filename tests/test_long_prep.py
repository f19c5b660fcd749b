"""A job that stands for a much longer one: failures are met and counted, disk is as foretold"""

import json
import pytest
from gpub.lab.bench.corpus import LongJob, bench_corpus


def small_job():
    return bench_corpus(LongJob(documents=120, size=4000, share=0.25, fails=0.02))


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
