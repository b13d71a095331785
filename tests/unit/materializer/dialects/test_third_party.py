"""Tests of the consent to sending a prompt to a third party, in all forms of records, and of who may deliver answers of a teacher."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.contracts.data.records import FeedbackKind
from ratchet.contracts.data.senders import Role, Sender
from ratchet.materializer.dialects.decode import BUILT_IN, decode
from ratchet.materializer.dialects.review import ReviewDialect
from tests.unit.materializer.dialects.test_record_dialect import FEEDBACK_ROW, one
from tests.unit.materializer.records import T0, batch, raw, span, spans

NOW = T0 // 1000
LIMITS = Limits(now=NOW)
RECORD = {"id": "b", "timestamp": NOW, "messages": "q", "response": "a", "consent": True}


def jsonl(limits: Limits = LIMITS, **more: Any) -> bool | None:
    found = decode(raw(json.dumps(RECORD | more).encode(), kind="jsonl"), limits, BUILT_IN)
    (row,) = [*found.traces, *(found.plain.row(n) for n in range(len(found.plain)))] if hasattr(found, "plain") else found.traces
    return row["third_party"]


@pytest.mark.parametrize(
    ("more", "stated"),
    [
        ({}, None),
        ({"consent_third_party": True}, True),
        ({"consent_third_party": "true"}, True),
        ({"consent_third_party": False}, False),
        ({"consent_third_party": "perhaps"}, False),
        ({"metadata": {"consent_third_party": True}}, None),
        ({"metadata": {"consent_third_party": False}}, False),
        ({"consent_third_party": True, "metadata": {"consentThirdParty": False}}, False),
    ],
)
def test_a_record_of_json_lines_states_it_at_its_key_and_refuses_everywhere(more: dict[str, Any], stated: bool | None) -> None:
    assert jsonl(**more) is stated


def test_a_mapped_key_states_it() -> None:
    limits = Limits(now=NOW, mapping={"consent_third_party": "meta.share"})
    assert jsonl(limits, meta={"share": True}) is True
    assert jsonl(limits, meta={"share": False}) is False


@pytest.mark.parametrize(
    ("key", "value", "stated"),
    [
        ("metadata__consent_third_party", True, True),
        ("metadata__consent_third_party", False, False),
        ("langfuse__trace__metadata__consent_third_party", True, None),
        ("langfuse__trace__metadata__consent_third_party", False, False),
    ],
)
def test_a_span_states_it_where_its_consent_to_training_counts(key: str, value: bool, stated: bool | None) -> None:
    found: Decoded = decode(batch(spans(span(1, **{key: value}))), LIMITS, BUILT_IN)
    assert found.traces[0]["third_party"] is stated
    assert found.traces[0]["consent"] is True, "it says nothing about training"


def test_only_the_service_delivers_answers_of_a_teacher() -> None:
    lines = json.dumps({"trace": "1", "answer": "x", "teacher": "v1", "time": "2026-09-01T00:00:00Z"}).encode()
    (row,) = decode(raw(lines, kind="review"), LIMITS, {**BUILT_IN, "review": ReviewDialect()}).feedback
    assert (row["kind"], row["signal"], row["rater"], row["text"]) == ("teacher", "v1", None, "x")
    found = one(feedback=[FEEDBACK_ROW | {"kind": "teacher", "text": "x", "value": None}])
    assert [bad.reason for bad in found.bad] == ["bad_row"]
    everybody = Sender(name="all", roles=tuple(Role))
    assert not everybody.may_send_feedback(FeedbackKind.TEACHER)
