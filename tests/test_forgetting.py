"""The walk whose phase of examples reads no old text again."""

from gpub.core import read_json
from gpub.plans.phases import read_plan
from tools.forgetting import MEASURED, RECEIPT, without_replay


def test_only_the_phase_of_examples_loses_its_old_text():
    usual = {phase.name: phase for phase in read_plan("chat-toy").phases}
    changed = [phase for phase in without_replay().phases if phase != usual[phase.name]]
    (phase,) = changed
    assert phase.name == "sft" and usual["sft"].replay and phase.replay is None


def test_the_receipt_failed_the_gate_that_the_plan_has():
    receipt = read_json(RECEIPT)
    (most,) = (g.most for g in read_plan("chat-toy").phase("sft").gates if g.metric == "forgotten")
    assert receipt["failed"] == ["forgotten"] and receipt["phase"] == "sft"
    assert set(receipt["rows"][-1]) == set(MEASURED)
    assert receipt["rows"][-1]["forgotten"] > most
