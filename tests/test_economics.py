"Economics: dollars per token, cards compared, communication, and eight failures caught"

import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from cells import defined_here
from click.testing import CliRunner
from contracts import refuses

from gpub.cli.main import cli
from gpub.core import GpubError
from gpub.lab.museum.machines import INFRA, _installed, check_first_batch, check_versions
from gpub.model.architectures import SHAPES, config_of
from gpub.model.gpu_plan import ROOM, plan, plan_table
from gpub.model.gpus import GPUS
from gpub.model.step_memory import memory_forecast
from gpub.plans import gpus
from gpub.plans.economics import (
    CHECKLIST,
    LINKS,
    all_reduce_seconds,
    break_even,
    checklist,
    compare_gpus,
    compare_table,
    scale_out,
    usd_per_billion,
)
from gpub.plans.gpus import find_card, hourly, informed_plan, machine_for
from gpub.plans.multi_gpu import (
    Sharing,
    price_shared,
    shared_cost_table,
    shared_step,
    shared_step_text,
)
from gpub.plans.prices import DAY, known_price
from gpub.plans.published import lookup
from gpub.train.presets import PRESETS

NBS = Path(__file__).parents[1] / "nbs"
checkpointing_price, fits_table = defined_here(
    NBS / "season2/04_ten_lessons.ipynb", "checkpointing_price", "fits_table"
)
(failure_table,) = defined_here(NBS / "season2/deeper/before_you_rent.ipynb", "failure_table")


def test_published_dollars_per_billion_come_out():
    for r in lookup("costs/usd_per_billion_tokens"):
        assert r["usd_per_billion_tokens"] in (
            None,
            round(usd_per_billion(r["usd_per_hour"], r["tokens_per_s"]), 2),
        )


def test_break_even_is_where_the_costs_meet():
    s = break_even(3.39, 1.45, 28_300)
    assert math.isclose(
        usd_per_billion(3.39, s), usd_per_billion(1.45, 28_300)
    ) and s == pytest.approx(66_163, abs=1)


@pytest.mark.parametrize(
    "usd, tok_s", [(0, 1), (-1, 1), (math.nan, 1), (1, 0), (1, -5), (1, math.inf), ("1", 1)]
)
def test_no_price_and_no_speed_are_refused(usd, tok_s):
    refuses("above 0, got", usd_per_billion, usd, tok_s)


def test_every_price_of_autumn_has_a_day_and_an_address():
    known = lookup("autumn/prices")
    assert [find_card(row["gpu"]).name for row in known] == [row["gpu"] for row in known]
    newer = lookup("autumn/not_in_the_table")
    assert not {row["gpu"] for row in newer} & GPUS.keys()
    for row in [*known, *(row for row in newer if row["usd_per_hour"] is not None)]:
        assert row["usd_per_hour"] > 0 and DAY.fullmatch(row["date"]), row
        assert row["url"].startswith("https://") and row["provider"], row


def test_a_card_without_a_price_asks_for_one():
    assert hourly(GPUS["T4"]) == (
        None,
        "none known: give --usd-per-hour",
    ) and "give --usd-per-hour" in str(compare_table(compare_gpus("gpt2-134m", "1B", ["T4"])))
    assert compare_gpus("gpt2-134m", "1B", ["T4"], usd_per_hour=0.35)[0].usd > 0


def test_a_card_that_no_table_has_is_measured_where_it_is_and_asks_for_its_price(monkeypatch):
    "A new card in this machine is a question with an answer; one that is elsewhere is refused"
    here = "NVIDIA GB999"
    seen = replace(gpus.measure_gpu("cpu", n=256), name=here, memory_gb=96.0, fp32=150.0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *device: here)
    monkeypatch.setattr(gpus, "measure_gpu", lambda *device: seen)
    assert find_card(here) is seen
    machine = machine_for("burn-1b", here, 2.0)
    assert machine.name == here and machine.usd_per_hour == 2.0
    expected = seen.mfu * seen.peak / informed_plan("burn-1b", here, "1B", 2.0).flops_per_token
    assert machine.tok_s("off") == pytest.approx(expected, rel=0.01)
    refuses("no price is known for NVIDIA GB999: give --usd-per-hour", machine_for, "burn-1b", here)
    refuses("no GPU 'Voodoo 2' in the table", find_card, "Voodoo 2")


PCIE = "NVIDIA A100 80GB PCIe"


def test_one_price_for_every_command():
    for g in GPUS.values():
        known = known_price(g.name) or (None, "")
        assert hourly(g)[0] == known[0], g.name
        assert g.usd in (None, known[0]), g.name  # the table of cards repeats the dated one
    assert (
        known_price("A100-80") == (1.49, "RunPod, 2026-04-07, on demand") == hourly(GPUS["A100-80"])
    )
    said = [
        CliRunner().invoke(cli, ["plan", "burn-1b", "--tokens", "1B", *more]).output
        for more in (["--gpu", "A100-80"], ["--gpu", "A100-80", "--compare"])
    ]
    assert (
        "$1.49 an hour, RunPod, 2026-04-07, on demand" in said[0]
        and "1.49" in said[1]
        and all("28,300" in s for s in said)
        and not any("1.45" in s for s in said)
    )


def test_a_plan_begins_with_the_class_of_card_and_shows_what_one_host_reached():
    sxm, small, slot = (machine_for("burn-1b", c, 1.49) for c in ("A100-80", "A100-40", PCIE))
    assert sxm.peak_share == small.peak_share == pytest.approx(0.5)
    assert sxm.tok_s() == small.tok_s() > 1.2 * slot.tok_s()
    assert slot.name == "A100-80 PCIe" and "300 W" in slot.speed
    assert "assumed: 50%" in sxm.speed and "one host reached 28,300 tok/s, 63.8%" in sxm.speed
    assert sxm.pace == "22,168 tok/s, 50% of its peak"


def test_what_is_known_goes_before_what_is_assumed():
    kinds = [
        informed_plan("burn-1b", c, "1B", mfu=m).kind
        for c, m in (("A100-80", None), ("H100", None), ("H200", None), ("A100-80", 0.5))
    ]
    assert kinds == ["forecast", "measured", "forecast", "asked for"]
    p = informed_plan("burn-1b", "NVIDIA L40S", "1B", 2.0)
    assert (
        p.usd_per_hour == 2
        and p.price == "asked for"
        and "none known" in plan_table(informed_plan("burn-1b", "T4", "1B"))
    )
    refuses("above 0, got 0", informed_plan, "burn-1b", "A100-80", "1B", 0)


def test_every_price_in_the_table_was_published():
    costs, rows = (
        lookup("costs/hourly_prices"),
        json.loads((NBS.parent / "data/prices.json").read_text(encoding="utf-8")),
    )
    dates = {s["slug"]: s["date"] for s in lookup("sources/items")}
    guides = [r for r in rows if r.get("third_party")]  # cards that the blog never rented
    assert all(re.fullmatch(r"[\w.-]+\.\w+/\S+", s) for r in guides for s in r["source"])
    assert not {find_card(r["gpu"]).name for r in guides} & {
        find_card(r["gpu"]).name for r in rows if r not in guides
    }
    for r in guides:  # and wherever such a price is shown, it is called so
        machine = machine_for("burn-toy", r["gpu"])
        assert f"at ${r['usd_per_hour']:.2f} (a third party's figure)" in machine.priced
        assert machine.price.startswith("a third party's figure: RunPod, 2026-")
    rows = [r for r in rows if r not in guides]
    assert not any("third party" in known_price(r["gpu"])[1] for r in rows)
    assert len(rows) == len(costs) + 1 and all(
        r["date"] in [dates.get(s) for s in r["source"]] and r["usd_per_hour"] > 0 for r in rows
    )
    assert sorted(r["usd_per_hour"] for r in rows if r["provider"] != "Colab") == sorted(
        r["usd_per_hour"] for r in costs
    )


def is_known(row):
    "Whether somebody ran it there: we, or another who published it"
    return bool(row.published) or row.kind == "measured"


def test_compare_is_plan_on_every_card():
    rows = compare_gpus("gpt2-134m", "2.6B", optimizer="adamw")
    assert {r.gpu for r in rows} == {*GPUS}
    for r in rows:
        p = plan("gpt2-134m", find_card(r.gpu), "2.6B", r.usd_per_hour, optimizer="adamw")
        best = min((x for x in p.rows if x.fits), key=lambda x: x.hours)
        assert (r.tok_s, r.usd) == (
            best.tok_s,
            best.usd if r.usd_per_hour else None,
        ) and r.checkpointing == best.checkpointing
    costs = [(not is_known(r), r.usd_per_billion) for r in rows if r.usd_per_billion]
    assert costs == sorted(costs) and [bool(r.usd_per_billion) for r in rows] == sorted(
        (bool(r.usd_per_billion) for r in rows), reverse=True
    )


def test_a_gpu_on_which_nobody_ran_it_does_not_lead_a_comparison():
    "The cheapest of the others comes behind every one with a published or measured speed"
    rows = [r for r in compare_gpus("burn-1b", "1B") if r.usd_per_billion]
    known = [is_known(r) for r in rows]
    assert any(known) and not all(known) and known == sorted(known, reverse=True)


def test_every_command_counts_with_the_forecast_and_shows_the_published_speed_beside():
    "What `gpub run --show` starts from, `gpub plan` and `--compare` start from too"
    rented = machine_for("burn-1b", "A100-80")
    (row,) = compare_gpus("burn-1b", "1B", ["A100-80"])
    told = informed_plan("burn-1b", "A100-80", "1B")
    assert row.tok_s == told.rows[0].tok_s == rented.tok_s() < 28_300
    assert row.published == told.published == 28_300
    assert row.speed == told.speed == rented.speed


def test_a_receipt_replaces_the_forecast(tmp_path):
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench/x.json").write_text(
        json.dumps(
            dict(
                machine=dict(gpu="NVIDIA H200", cpu="x"),
                speed=dict(preset="burn-1b", tok_s=70_000, mode="off", micro=8),
            )
        )
    )
    seen, other = (
        next(
            r
            for r in compare_gpus(
                "burn-1b", "1B", ["H200", "A100-80"], {"H200": 3.39}, folder=tmp_path
            )
            if r.gpu == n
        )
        for n in ("H200", "A100-80")
    )
    assert (
        seen.kind == "measured"
        and math.isclose(seen.tok_s, 70_000)
        and round(seen.usd_per_billion, 2) == 13.45
        and other.kind == "forecast"
        and other.published == 28_300
    )
    assert [r[4] for r in compare_table([seen, other]).rows] == [
        "measured",
        "forecast",
    ] and compare_gpus("gpt2-134m", "1B", ["A100-80"], folder=tmp_path)[0].kind == "forecast"


def test_what_does_not_fit_is_last_and_says_what_it_needs():
    rows = compare_gpus("burn-1b", "1B", ["T4", "A100-80", "L4"], optimizer="adamw")
    assert (
        rows[0].gpu == "A100-80"
        and not rows[-1].fits
        and rows[-1].tok_s is None
        and "does not fit" in str(compare_table(rows))
    )


@pytest.mark.parametrize(
    "kw, said",
    [
        (dict(gpus=["Voodoo 2"]), "no GPU 'Voodoo 2'"),
        (dict(usd_per_hour=0), "above 0, got 0"),
        (dict(usd_per_hour=-3), "got -3"),
        (dict(usd_per_hour={"A40": 0}), "got 0"),
        (dict(usd_per_hour={"A400": 1}), "'A400', which is not compared"),
        (dict(model="burn-9b"), "no preset 'burn-9b'"),
        (dict(tokens="much"), "got 'much'"),
        (dict(optimizer="sgd"), "muon, adamw or"),
    ],
)
def test_refusals(kw, said):
    refuses(said, compare_gpus, **dict(model="burn-1b", tokens="1B") | kw)


def test_memory_and_what_it_buys():
    rows = {r[0]: r for r in fits_table("burn-1b").rows}
    assert (
        rows["T4"][2] == "no"
        and rows["A100-80"][2] != "no"
        and list(rows)[-1] == "smallest that holds one"
    )
    least = float(rows["smallest that holds one"][2].split()[0])
    recipe = dict(half=True, optimizer="muon", accumulate=True, chunked=True)
    one = memory_forecast(config_of("burn-1b"), 1, **recipe)["peak"] / 1e9
    assert one == pytest.approx(least * ROOM, abs=0.1)
    w = checkpointing_price("burn-1b", 24_000, 28_300 / 24_000 - 1, 6_553_600_000, 1.45)
    assert (
        w["usd"] == pytest.approx(lookup("ladder/ladder_1b/0/saved_usd"), abs=1)
        and w["before"] > w["after"]
        and 0.18 < w["most"] < 1 / 3
    )


@pytest.mark.parametrize("link", LINKS)
def test_more_cards_never_cost_less(link):
    rows = [
        scale_out("burn-1b", n, 28_300, 1.45, LINKS[link][0], 131_072, "21B")
        for n in (1, 2, 4, 8, 64)
    ]
    assert (
        rows[0].share == 0
        and all(b.usd >= a.usd * (1 - 1e-12) and b.share > a.share for a, b in zip(rows, rows[1:]))
        and math.isclose(rows[0].hours, 21e9 / 28_300 / 3600)
    )
    assert (
        scale_out("burn-1b", 8, 28_300, 1.45, LINKS[link][0], 131_072, "21B", hidden=0.3).usd
        <= rows[3].usd
    )


def test_the_ring():
    assert (
        all_reduce_seconds(8e9, 2, 1) == 8
        and all_reduce_seconds(8e9, 1, 1) == 0
        and all_reduce_seconds(8e9, 1000, 1) == pytest.approx(16, rel=0.01)
    )
    for n, gb_s in ((0, 1), (2, 0), (2, -1)):
        refuses("at least 1 GPU and a link above 0", all_reduce_seconds, 1, n, gb_s)


@pytest.mark.parametrize("e", INFRA, ids=lambda e: e.name)
def test_every_failure_is_caught_and_its_repair_is_silent(e):
    said = e.message(True)
    assert said and "\n" not in said and len(said) > 40
    assert e.message(False) is None


def test_failures_and_lessons_are_those_published():
    assert [e.source for e in INFRA] == lookup("lessons/infra_failures_8/*/id")
    assert len(checklist().rows) == len(CHECKLIST)
    deaf = replace(INFRA[0], alarm=lambda **evidence: None)
    assert failure_table([deaf]).rows[0][3] == "NOT CAUGHT"


def test_versions(tmp_path):
    _installed(
        tmp_path,
        "a",
        "1.0",
        "b>=2",
        'c; extra == "more"',
        'd; python_version < "3"',
        "not a requirement ???",
    )
    _installed(tmp_path, "b", "2.1", "A")
    check_versions(["a"], [tmp_path])
    check_versions(["unknown"], [tmp_path])
    _installed(tmp_path, "e", "1", "f<1", "missing")
    _installed(tmp_path, "f", "1.5")
    refuses("e 1 needs .*(f<1, 1.5 is|missing, nothing is)", check_versions, ["e"], [tmp_path])


def test_the_first_batch_is_told_in_one_line():
    check_first_batch(lambda n: (torch.zeros(1), torch.zeros(1)))

    def broken(n):
        raise RuntimeError("DataLoader worker (pid 7)\nexited unexpectedly")

    refuses("cannot be drawn: RuntimeError: DataLoader worker .pid 7.;", check_first_batch, broken)


def test_the_comparison_fits_a_terminal(tmp_path):
    "No line over 80 columns, every card with its price's source, and the rows as JSON"
    file = tmp_path / "cards.json"
    words = ["burn-1b", "--compare", "--tokens", "11.8B", "--json", str(file)]
    said = CliRunner().invoke(cli, ["plan", *words], catch_exceptions=False).output
    assert max(map(len, said.splitlines())) <= 80
    rows = json.loads(file.read_text())
    assert [row["gpu"] for row in rows] == [card.gpu for card in compare_gpus("burn-1b", "11.8B")]
    assert all(f"\n{row['gpu']}:" in said for row in rows) and "does not fit" in said


SEVERAL = ["burn-1b", "--gpu", "A100-80", "--tokens", "1B"]


@pytest.mark.parametrize(
    "processes, parallel",
    [
        pytest.param(8, "ddp", marks=pytest.mark.full),
        (8, "fsdp"),
        pytest.param(16, "hsdp", marks=pytest.mark.full),
    ],
)
def test_plan_for_several_cards_is_the_librarys(tmp_path, processes, parallel):
    file = tmp_path / "plan.json"
    words = ["plan", *SEVERAL, "--processes", str(processes), "--parallel", parallel]
    said = CliRunner().invoke(cli, [*words, "--json", str(file)], catch_exceptions=False).output
    step = shared_step("burn-1b", "A100-80", Sharing(processes, parallel))
    costs = price_shared(step, informed_plan("burn-1b", "A100-80", "1B"))
    assert said.endswith(f"\n\n{shared_step_text(step)}\n\n{shared_cost_table(costs)}\n")
    assert f"{processes} x A100-80, {parallel}" in said
    told = json.loads(file.read_text())["several"]
    assert told["sharing"] == dict(processes=processes, parallel=parallel)
    assert told["moments"] == step.moments and told["traffic"] == step.traffic
    assert told["costs"] == json.loads(json.dumps([asdict(cost) for cost in costs]))
    assert told["peak"] == max(step.moments.values()) and told["fits"] == step.fits
    whole = processes * told["rows"] * SHAPES["burn-1b"].config.context_length
    assert whole == PRESETS["burn-1b"].train.batch_tokens


@pytest.mark.parametrize(
    "words, wanted",
    [
        ([*SEVERAL, "--processes", "7"], "cannot be shared equally by 7 processes"),
        ([*SEVERAL, "--processes", "0"], "--processes must be a whole number of at least 1, got 0"),
        ([*SEVERAL, "--processes", "8", "--parallel", "tp"], "ddp, fsdp or hsdp, got 'tp'"),
        (["burn-1b", "--compare", "--tokens", "1B", "--processes", "8"], "give it alone"),
        (["burn-1b", "--forecast", "--parallel", "fsdp"], "give it alone"),
        (
            ["burn-1b", "--gpu", "T4", "--tokens", "1B", "--processes", "8", "--parallel", "fsdp"],
            "fp16 needs whole gradients",
        ),
    ],
)
def test_what_several_cards_cannot_share_is_one_line(words, wanted):
    "And nothing is printed before it"
    got = CliRunner().invoke(cli, ["plan", *words])
    assert isinstance(got.exception, GpubError) or got.exit_code, got.output
    said = got.output + str(got.exception)
    assert wanted in said
    assert got.output.count("\n") <= 1 and "MFLOP" not in said
