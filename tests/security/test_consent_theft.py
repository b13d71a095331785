"""Who may change consent: everybody who sends records may refuse, and nobody may give consent for the traces of another sender."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.data.senders import Role, Sender
from ratchet.materializer.datasets import LakeDatasets
from tests.security.test_roles import deliver
from tests.unit.materializer.conftest import make_datasets, make_loop, signed
from tests.unit.materializer.records import T0, attribute, evaluation, log, logs, span, spans
from tests.unit.materializer.small_datasets import TRAIN, frozen, rows

ROUTER = Sender(name="router", roles=(Role.ROUTER,))
SHOP = Sender(name="shop", roles=(Role.TRACES, Role.FEEDBACK))
HOUR = 3_600 * 10**9


def said(name: str, given: bool, **more: Any) -> dict[str, Any]:
    """A record that states a refusal an hour after the calls, or a consent after two hours."""
    return evaluation(name, float(given), at=T0 + (2 if given else 1) * HOUR, **more) | {"eventName": "gen_ai.evaluation.result"}


def used(datasets: LakeDatasets, name: str) -> set[str]:
    return {row["answer"] for row in rows(datasets, frozen(datasets, name=name).samples)}


REFUSAL = logs(said("user_consent", False, user__id="user-1"))
EVERY_WAY = [
    logs(said("user_consent", True, user__id="user-1")),
    logs(log(1, said("trace_consent", True)), said("session_consent", True, session__id="s")),
    logs(said("trace_consent", True, gen_ai__response__id="r-1")),
    spans(span(1, TRAIN[0], "A: 3", session__id="s", metadata__consent_time=str(T0 + 2 * HOUR))),
]
"""Requests that give consent for trace 1 of user-1, in every way that exists."""
THIEVES = {
    "feedback": Sender(name="thief", roles=(Role.FEEDBACK,)),
    "trusted feedback": Sender(name="thief", roles=(Role.FEEDBACK,), trusted=True),
    "traces": Sender(name="thief", roles=(Role.TRACES,)),
    "traces and feedback, trusted": Sender(name="thief", roles=(Role.TRACES, Role.FEEDBACK), trusted=True),
    "review": Sender(name="thief", roles=(Role.REVIEW,)),
    "the router's token": ROUTER,
}


@pytest.mark.parametrize("thief", list(THIEVES))
def test_no_other_sender_can_lift_a_refusal(tmp_path: Path, thief: str) -> None:
    datasets = make_datasets(tmp_path)
    deliver(datasets, tmp_path, SHOP, [spans(span(1, TRAIN[0], "A: 3", session__id="s")), REFUSAL])
    assert used(datasets, "a") == set()
    report = deliver(datasets, tmp_path, THIEVES[thief], EVERY_WAY)
    assert report.traces.adds_up
    assert report.feedback.adds_up
    assert used(datasets, "b") == set()
    deliver(datasets, tmp_path, Sender(name="ops", roles=(Role.OPERATOR,)), [logs(log(1, said("trace_consent", True)))])
    assert used(datasets, "c") == {"A: 3"}


def test_a_credential_for_feedback_may_refuse_but_its_consent_is_quarantined(tmp_path: Path) -> None:
    datasets, desk = make_datasets(tmp_path), Sender(name="desk", roles=(Role.FEEDBACK,), trusted=True)
    report = deliver(
        datasets, tmp_path, desk, [logs(said("user_consent", True, user__id="user-1"), said("user_consent", False, user__id="a"))]
    )
    assert (report.feedback.kept, report.feedback.reasons) == (1, {"role_not_allowed": 1})
    reviewer = Sender(name="rev", roles=(Role.REVIEW,))
    report = deliver(datasets, tmp_path, reviewer, [REFUSAL])
    assert (report.feedback.kept, report.feedback.reasons) == (0, {"role_not_allowed": 1})


@pytest.mark.parametrize("thief", [SHOP, Sender(name="thief", roles=(Role.TRACES,), trusted=True)], ids=["shop", "thief"])
def test_nobody_puts_content_into_a_trace_that_another_sender_sent_without_consent(tmp_path: Path, thief: Sender) -> None:
    datasets = make_datasets(tmp_path)
    silent = signed(tmp_path, span(1, "", "", metadata__consent=None))
    deliver(datasets, tmp_path, ROUTER, [spans(silent)])
    deliver(datasets, tmp_path, Sender(name="other", roles=(Role.TRACES,)), [spans(span(2, metadata__consent=None))])
    report = deliver(datasets, tmp_path, thief, [spans(span(1, TRAIN[0], "forged"), span(2, TRAIN[1], "forged"))])
    assert (report.traces.kept, report.traces.reasons) == (0, {"id_conflict": 2})
    assert used(datasets, "a") == set()
    ours = Sender(name="desk", roles=(Role.FEEDBACK,))
    correction = log(1, evaluation("user_correction", text="words of a user", user__id="user-1"))
    assert deliver(datasets, tmp_path, ours, [logs(correction)]).feedback.reasons == {"no_consent": 1}


def test_a_resource_cannot_give_consent_for_a_signed_span_but_can_refuse_it(tmp_path: Path) -> None:
    """The signature does not cover the resource: otherwise a replay of the router's span could add consent."""
    datasets = make_datasets(tmp_path, make_loop(governance={"consent": "required"}))
    for n, agreed in ((1, True), (2, False)):
        request = spans(signed(tmp_path, span(n, TRAIN[n], f"A: {n}", metadata__consent=None if agreed else True)))
        request["resourceSpans"][0]["resource"] = {"attributes": [attribute("metadata.consent", agreed)]}
        deliver(datasets, tmp_path, SHOP, [request])
    assert used(datasets, "a") == set()
    assert datasets.lake.scan("traces").filter(datasets.lake.scan("traces")["verified"])["messages"].to_list() == [None, None]
