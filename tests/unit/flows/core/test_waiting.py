"""Tests of the sentence that says what an open cycle waits for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ratchet.contracts.cycle import Answer, ApprovalKind, Identity
from ratchet.contracts.steps import State
from ratchet.flows.core.requests import ApprovalView
from ratchet.flows.core.waiting import waiting_text
from tests.unit.flows.cycles import NOON, cycle

KIND = ApprovalKind.TRAINING
ASKED = cycle(State.PLANNED, asked={KIND: NOON + timedelta(hours=1)})
YES = Answer(approve=True, actor="hana", identity=Identity.CLAIMED, via="cli")


def request(**changes: Any) -> ApprovalView:
    fields = {"id": "approval/sim/0001/training", "seq": 1, "cycle": ASKED.id, "kind": KIND, "subject": "", "evidence": ""}
    return ApprovalView(**(fields | {"expires": NOON + timedelta(hours=1)} | changes))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "planned; waiting for approval: ratchet approve sim/0001/training"),
        ({"answer": YES, "answered_at": NOON + timedelta(minutes=176)}, "planned; approved by hana 14:56 UTC; continuing"),
        ({"answer": YES.model_copy(update={"approve": False}), "answered_at": NOON}, "planned; rejected by hana 12:00 UTC; ending"),
        ({"expired": True}, "planned; the request to approve the training has expired; ending"),
    ],
)
def test_an_answered_request_does_not_look_unanswered(changes: dict[str, Any], text: str) -> None:
    assert waiting_text(ASKED, {KIND: request(**changes)}, NOON) == text


def test_a_request_whose_time_has_passed_has_expired() -> None:
    assert "has expired" in waiting_text(ASKED, {KIND: request()}, NOON + timedelta(hours=1))


def test_the_last_error_of_a_step_that_is_tried_again_is_named() -> None:
    failing = cycle(State.ACCEPTED, tries={"evaluate": ("the server is away", "the disk is full")})
    assert waiting_text(failing, {}, NOON) == "accepted; evaluate failed 2 times; last error: the disk is full"
    assert waiting_text(cycle(State.ACCEPTED), {}, NOON) == "accepted"
