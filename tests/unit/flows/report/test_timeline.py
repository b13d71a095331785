"""Tests of the sentences about a cycle, for every end of a simulated cycle."""

from __future__ import annotations

import pytest

from ratchet.contracts.cycle import ApprovalKind, Entry
from ratchet.contracts.ids import approval_stream, rollout_stream
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import Adjustment, JobEvent, Method, Proposal
from ratchet.flows.report.timeline import _event_text, timeline
from tests.simulation.simulated_line import Scenario, SimulatedLine


def lived(**how) -> SimulatedLine:
    sim = SimulatedLine(Scenario(seed=1, **how))
    sim.live()
    return sim


def streams(sim: SimulatedLine) -> list[list[Entry]]:
    names = [sim.cycle_stream(), rollout_stream(sim.cycle_stream()), *(approval_stream(sim.cycle_stream(), kind) for kind in ApprovalKind)]
    return [sim.ledger.read(name) for name in names]


ENDS = [
    {},
    {"difference": -0.2},
    {"difference": 0.0},
    {"bad_canary": True},
    {"people": "no"},
    {"people": "never"},
    {"people": "auto"},
    {"method": Method.NONE},
    {"outcomes": (Outcome.FAILED, Outcome.PREEMPTED), "asks": (Proposal(rule="kl", adjustment=Adjustment(kl=2.0), good=1),)},
    {"outcomes": (Outcome.PERMANENT,)},
    {"search": True},
    {"search": True, "outcomes": (Outcome.FAILED,) * 9},
    {"cancel_at": 3},
]


@pytest.mark.parametrize("how", ENDS, ids=str)
def test_every_row_is_a_sentence_and_the_last_one_is_the_end(how) -> None:
    sim = lived(**how)
    found = timeline(streams(sim), {})
    assert [one.at for one in found] == sorted(one.at for one in found)
    raw = {f"{row.kind} {row.key}".strip() for rows in streams(sim) for row in rows}
    assert not raw & {one.text for one in found}, "a row without a sentence of its own"
    [end] = [one for one in found if one.source == sim.cycle_stream() and one.kind == "ended"]
    assert end.text == f"ended {sim.view().state.replace('_', ' ')}: {sim.view().reason}"
    assert len({(one.source, one.number) for one in found}) == len(found)


def test_the_answer_of_a_person_is_told_when_it_was_given() -> None:
    sim = lived()
    [answer] = [one for one in timeline(streams(sim), {}) if one.source.endswith("/training") and one.kind == "answered"]
    assert answer.text == "ada approved the training via cli"
    [row] = [row for row in sim.ledger.read("approval/sim/0001/training") if row.kind == "answered"]
    assert answer.at == row.at


def test_progress_of_the_job_is_thinned_out() -> None:
    steps = [JobEvent(at=float(n), incarnation=1, kind="progress", step=n, total=100, data={"loss": 1 / n}) for n in range(1, 101)]
    warning = JobEvent(at=50.5, incarnation=1, kind="warning", step=50, data={"reason": "the loss rises"})
    found = timeline([], {1: [*steps, warning]})
    assert len(found) == 12
    assert "training, attempt 1: step 1 of 100, loss 1" in found[0].text
    assert any(one.text == "training, attempt 1: warning at step 50: the loss rises" for one in found)


def test_a_row_of_an_unknown_kind_is_named() -> None:
    sim = lived()
    row = sim.ledger.read(sim.cycle_stream())[0].model_copy(update={"kind": "novelty", "key": "x", "seq": 99})
    assert [one.text for one in timeline([[row]], {})] == ["novelty x"]


def test_a_cross_validation_is_told_with_its_folds_and_its_result() -> None:
    data = {"fold": 2, "folds": 4, "score": 0.5, "prompts": 15}
    fold = JobEvent(at=0.0, incarnation=1, kind="measured", step=1, total=160, data=data | {"fold_step": 26})
    assert _event_text(fold) == "fold 2 of 4 measured at step 26: score 0.500 on 15 of its prompts"
    reason = "26 steps, chosen by cross-validation over 62 prompts: +0.11 ± 0.04 against the start model"
    result = JobEvent(at=0.0, incarnation=1, kind="cross_validated", step=26, total=160, data={"reason": reason})
    assert _event_text(result) == f"cross-validation: {reason}"


def test_a_comparison_of_answers_of_teachers_is_told() -> None:
    event = JobEvent(at=0.0, incarnation=1, kind="sifted", step=2, total=160, data={"reason": "62 of 310 answers of teachers are left out"})
    assert _event_text(event) == "comparison: 62 of 310 answers of teachers are left out"
