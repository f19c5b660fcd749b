"""Claims: every key leads somewhere, a false number is found, a missing receipt is said, and the
page shows all of it."""

import inspect
import json
import math
import re
import shutil
import sys
from pathlib import Path

import pytest
from contracts import refuses

from gpub.core import GpubError
from gpub.plans.published import (
    STATUS,
    VALUES,
    Claim,
    Missing,
    claim_table,
    conflict_table,
    function_body,
    judge_all,
    judge_claim,
    load_claims,
    lookup,
    parse_number,
    pick_value,
    read_value,
    shipped,
    show_value,
    tally,
    with_numbers,
)

CLAIMS = load_claims()
PAGE = Path(__file__).parents[1] / "nbs/published_and_measured.ipynb"


@pytest.fixture(scope="module")
def verdicts():
    return judge_all(CLAIMS)


@pytest.fixture
def data(tmp_path):
    return Path(shutil.copytree(shipped(), tmp_path / "data"))


def test_enough_claims_about_every_chapter(verdicts):
    chapters = {c.chapter for c in CLAIMS}
    assert (
        len(CLAIMS) >= 40
        and {f"season1/0{i}" for i in range(1, 7)} | {f"season2/0{i}" for i in range(1, 6)}
        <= chapters
    )
    assert {v.status for v in verdicts} <= set(STATUS) and all(v.source for v in verdicts)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.id)
def test_every_key_exists(claim):
    parse_number(lookup(claim.published), claim.end)
    for key in claim.names.values():
        try:
            lookup(key)
        except Missing as e:
            needed = {"speed": "gpub bench train", "gain": "a ladder of"}
            assert str(e).startswith(needed.get(key.split("/")[0], "data/"))
    if claim.conflict:
        assert lookup(f"conflicts/items/{claim.conflict}")["id"] == claim.conflict


def test_what_is_certain(verdicts):
    got = {v.claim.id: v.status for v in verdicts}
    for i in (
        "134m-parameters",
        "1b-parameters",
        "token-file",
        "bill-175",
        "phase-3-point",
        "billion-a100",
        "hours-130",
        "checkpointing-17",
        "bill-861",
        "1b-a100-possible",
    ):
        assert got[i] == "agrees", i
    for i in (
        "note-parameters",
        "1b-layers",
        "chinchilla-228",
        "minutes-21",
        "hours-80",
        "phase-1-cost",
        "phase-4-cost",
        "phase-6-cost",
        "fp32-0.8",
        "step-45",
        "contamination-share",
        "predicted-arc-easy",
    ):
        assert got[i] == "does not", i
    for i in ("loss-bump", "first-context", "3b-validation"):
        assert got[i] == "open", i


def test_hellaswag_of_the_1b_does_not_fit_its_loss_and_is_undecided():
    case = lookup("conflicts/items/hellaswag-sanity")
    assert case["status"] == "open" and "do not fit" in case["decision"]
    vocabulary = json.loads((shipped() / "bytes_per_token.json").read_text(encoding="utf-8"))
    held_out, shares = vocabulary["held_out"], vocabulary["share_of_tokens"]
    size = sum(s * held_out[n]["bytes"] / held_out[n]["tokens"] for n, s in shares.items())
    loss = lookup("runs/runs/s2-1b/phases/phase=4/train_loss_end")
    vocab_size, bits = vocabulary["vocab_size"], loss / math.log(2) / size
    assert (
        f"loss {loss} nats a token at step 90,000; our vocabulary of {vocab_size:,} has "
        f"{size:.3f} bytes a token of the mix: {bits:.2f} bits a byte"
    ) in case["arithmetic"]


def test_a_bill_that_does_not_fit_has_one_verdict(verdicts):
    chapter = json.loads((PAGE.parent / "season2/deeper/the_bill_again.ipynb").read_text())
    code = "".join("".join(c["source"]) for c in chapter["cells"])
    (wrong,) = re.findall(r"wrong_bills == \[([\d, ]+)\]", code)
    got = {v.claim.id: v.status for v in verdicts}
    for phase in wrong.split(", "):
        assert got[f"phase-{phase}-cost"] == "does not", phase


def test_every_planted_disagreement_is_found(data, verdicts):
    found, before = 0, {p: p.read_bytes() for p in (data / "published").glob("*.json")}
    for v in (v for v in verdicts if v.status == "agrees" and v.claim.compare == "close"):
        name, *way = v.claim.published.split("/")
        path = data / f"published/{name}.json"
        d = json.loads(before[path])
        holder, key = pick_value(d, way[:-1], "x"), way[-1]
        holder[int(key) if isinstance(holder, list) else key] = (v.published or 1) * 1.5
        path.write_text(json.dumps(d), encoding="utf-8")
        assert judge_claim(v.claim, data).status in ("does not", "open"), v.claim.id
        path.write_bytes(before[path])
        found += 1
    assert found > 40


def test_a_missing_receipt_is_not_measured_yet(data):
    claim = next(c for c in CLAIMS if c.id == "first-minutes")
    assert judge_claim(claim, data).status == "agrees"
    (data / "runs/shakespeare/bill.json").unlink()
    v = judge_claim(claim, data)
    assert (
        v.status == "not measured yet"
        and v.found is None
        and "data/runs/shakespeare/bill.json" in v.how
    )


def test_a_receipt_that_comes_is_read(data):
    claim = next(c for c in CLAIMS if c.id == "1b-a100")
    assert judge_claim(claim, data).status == "not measured yet"
    receipt = dict(
        machine=dict(gpu="NVIDIA A100-SXM4-80GB", cpu="x"),
        speed=dict(preset="burn-1b", tok_s=28_000),
    )
    path = data / "bench/burn-1b-a100.json"
    path.write_text(json.dumps(receipt))
    assert judge_claim(claim, data).status == "agrees"
    receipt["speed"]["tok_s"] = 20_000
    path.write_text(json.dumps(receipt))
    v = judge_claim(claim, data)
    assert v.status == "does not" and v.found == 20_000
    liger = next(c for c in CLAIMS if c.id == "liger-0")
    ladder = dict(
        kind="ladder",
        preset="burn-1b",
        machine=dict(gpu="H200"),
        rows=[dict(rung="Liger", gain=1.01)],
    )
    (data / "bench/l.json").write_text(json.dumps(ladder))
    assert judge_claim(liger, data).status == "agrees"


def test_every_conflict_is_on_the_page(verdicts):
    ids = lookup("conflicts/items/*/id")
    assert [r[0] for r in conflict_table(verdicts).rows] == ids and len(ids) == lookup(
        "conflicts/count"
    )
    stored = PAGE.read_text(encoding="utf-8")
    assert all(i in stored for i in ids)
    assert not [c.id for c in CLAIMS if json.dumps(c.what)[1:-1] not in stored], (
        "claims that the stored page does not show: execute it again"
    )
    said = [
        "".join(o["data"].get("text/markdown", ""))
        for c in json.loads(stored)["cells"]
        for o in c.get("outputs", [])
        if "data" in o
    ]
    assert (
        all(any(s in t for t in said) for s in STATUS if any(v.status == s for v in verdicts))
        and sum("comes out as" in t for t in said) == 12
    )


def test_the_page_adds_up(verdicts):
    rows = tally(verdicts).rows
    assert rows[-1][1] == len(CLAIMS) == sum(r[1] for r in rows[:-1]) and all(
        r[1] == sum(r[2:]) for r in rows
    )
    assert len(claim_table(verdicts).rows) == len(CLAIMS) and {
        r[3] for r in claim_table(verdicts, "season2/02").rows
    } <= set(STATUS)


@pytest.mark.parametrize(
    "key, said",
    [
        ("costs/s2_bil", "s2_bill"),
        ("bill/usd", "there is no"),
        ("runs/runs/s2-1c/gpu", "s2-1b"),
        ("costs/s2_bill/0/usd/cents", "nothing more"),
        ("costs/s2_bill/99/usd", "has no"),
    ],
)
def test_unknown_key(key, said):
    with pytest.raises(GpubError, match=said) as e:
        lookup(key)
    assert "\n" not in str(e.value) and not isinstance(e.value, Missing)


@pytest.mark.parametrize(
    "content, said",
    [
        ("[{", "not valid JSON"),
        ("{}", "not a list of claims"),
        ("[7]", "entry 1: a claim is an object"),
        ('[{"id": "x"}]', "entry 1.*needs a value for 'chapter'"),
        ('[{"id": "x", "speed": 1}]', "entry 1.*does not know 'speed'"),
        (
            '[{"id": "x", "chapter": "a", "what": "b", "published": "c", "compare": "near"}]',
            "compare must be",
        ),
        (
            '[{"id": "x", "chapter": "a", "what": "b", "published": "c", "tolerance": -1}]',
            "tolerance must be 0 or more, got -1",
        ),
        (
            '[{"id": "x", "chapter": "a", "what": "b", "published": "c", "end": "middle"}]',
            "end must be",
        ),
        (
            "["
            + ", ".join(['{"id": "x", "chapter": "a", "what": "b", "published": "c"}'] * 2)
            + "]",
            "entry 2: there is a claim 'x' already",
        ),
    ],
)
def test_malformed_claims(content, said, tmp_path):
    (tmp_path / "c.json").write_text(content)
    refuses(said, load_claims, tmp_path / "c.json")


def test_every_function_belongs_to_a_claim_and_takes_its_numbers():
    "A claim that names numbers has a function of them; one without a function names none"
    names = {c.id: set(c.names) for c in CLAIMS}
    assert set(VALUES) <= set(names)
    assert {i for i in names if names[i]} <= set(VALUES)
    for i, function in VALUES.items():
        assert set(inspect.signature(function).parameters) == names[i], i


def test_the_arithmetic_that_is_shown_is_what_ran(verdicts):
    "Put into the line that is read from the source, the numbers give what the function gave"
    module = vars(sys.modules[judge_claim.__module__])
    for v in (v for v in verdicts if v.found is not None):
        numbers = {n: read_value(lookup(k), v.claim.end) for n, k in v.claim.names.items()}
        assert eval(function_body(VALUES[v.claim.id]), module | numbers) == v.found, v.claim.id


def test_a_damaged_file_is_named(data):
    (data / "published/costs.json").write_text('{"s2_bill": [')
    with pytest.raises(GpubError, match="costs.json is not valid JSON"):
        judge_claim(next(c for c in CLAIMS if c.id == "bill-175"), data)


@pytest.mark.parametrize("words, low, high", [("mid 30s", 34, 36), ("low 20s", 20, 23)])
def test_a_spoken_number_is_read_as_in_chapter_5(words, low, high):
    assert (parse_number(words), parse_number(words, "high")) == (low, high)


def test_numbers_and_how_they_are_shown():
    assert (
        [parse_number(x, "high") for x in ("10-15", "$1.45-1.49", "~2", "4")] == [15, 1.49, 2, 4]
        and show_value([1, 2.5]) == "1 + 2.5"
        and show_value(28_300) == "28,300"
        and show_value(0.56783) == "0.5678"
    )
    assert (
        with_numbers("a * b / log(c)", dict(a=3, b=[1, 2], c=1e6)) == "3 × 1 + 2 / log(1,000,000)"
    )
    refuses("no number in 'none'", parse_number, "none")


def test_a_claim_needs_no_receipts_folder(tmp_path):
    shutil.copytree(shipped("published"), tmp_path / "published")
    shutil.copytree(shipped("recipes"), tmp_path / "recipes")
    assert {v.status for v in judge_all(CLAIMS, tmp_path)} == set(STATUS)
    assert Claim.from_dict(CLAIMS[0].to_dict()) == CLAIMS[0]
