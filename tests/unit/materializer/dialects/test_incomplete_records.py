"""Tests of records that have what was known later about a call, and not the call."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.materializer.dialects.jsonl import decode_record
from ratchet.materializer.quarantine.advice import advice
from tests.unit.materializer.records import T0


def decoded(assumed: bool = True, **record: Any) -> Decoded:
    into = Decoded()
    limits = Limits(now=T0 // 1000 + 10**12, assume_consent=assumed)
    decode_record({"id": "c1", "timestamp": "2026-09-21T00:00:00Z", **record}, "line 1", limits, into)
    return into


@pytest.mark.parametrize(
    ("named", "record"),
    [
        ("reference", {"reference": "2"}),
        ("feedback", {"feedback": 0}),
        ("correction and feedback", {"correction": "2", "feedback": False}),
        ("signals", {"signals": ["copied"], "user_id": "u", "model": "m"}),
    ],
)
def test_the_reason_says_what_to_send(named: str, record: dict[str, Any]) -> None:
    found = decoded(**record)
    [bad] = found.bad
    assert bad.reason == "incomplete_record"
    assert bad.detail.startswith(f"the record has {named}, but not the call")
    assert bad.detail.endswith("send the whole record again, with messages and response")
    assert (found.traces, found.feedback) == ([], [])
    assert "Export the whole record again" in advice(bad.reason)


def test_a_right_answer_of_nobodys_consent_is_not_dropped_silently() -> None:
    assert [bad.reason for bad in decoded(assumed=False, reference="2").bad] == ["incomplete_record"]


@pytest.mark.parametrize(
    "record",
    [{"feedback": 1}, {"consent": False, "reference": "2"}, {"status": "error", "reference": "2", "consent": True}],
)
def test_a_record_that_may_lack_its_content_is_kept(record: dict[str, Any]) -> None:
    """One without consent has metadata and a rating only, one with a refusal no content, and a failed call no answer."""
    assert not decoded(assumed=False, **record).bad


def test_a_call_without_an_answer_keeps_its_reason() -> None:
    assert [bad.reason for bad in decoded(messages="1 + 1?", reference="2").bad] == ["empty_response"]
