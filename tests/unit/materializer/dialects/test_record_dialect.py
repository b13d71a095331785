"""Tests of dialects of other packages: which one decodes a record, what an error costs, and which rows are accepted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.contracts.data.records import FEEDBACK, TRACES
from ratchet.contracts.errors import ConfigError, Rejected
from ratchet.materializer.dialects.decode import BUILT_IN, decode
from ratchet.materializer.lake.schemas import arrow_table
from tests.unit.materializer.records import T0, raw, span, spans

NOW = T0 // 1000
LIMITS = Limits(now=NOW)
TRACE = {"id": "1", "time": NOW, "messages": [{"role": "user", "content": "q"}], "answer": "a", "consent": True}
FEEDBACK_ROW = {"trace_id": "1", "time": NOW, "kind": "rating", "value": 0.5}
OURS = {"id": "b", "timestamp": NOW, "messages": "q", "response": "a", "consent": True}


class Scripted:
    """Recognises records with its own mark, and decodes them with a function."""

    def __init__(self, name: str, into: Callable[[Any, Decoded], None], mark: str = "mine") -> None:
        self.name, self._into, self._mark = name, into, mark

    def recognises(self, record: Any) -> bool:
        return bool(record["mark"] == self._mark) if isinstance(record, dict) and "mark" in record else False

    def decode(self, record: Any, position: str, limits: Limits, into: Decoded) -> None:
        self._into(record, into)


def rows(*traces: Any, feedback: Any = ()) -> Callable[[Any, Decoded], None]:
    def into(_record: Any, found: Decoded) -> None:
        found.traces.extend(traces)
        found.feedback.extend(feedback)

    return into


def decoded(*records: Any, dialects: Any = (), kind: str = "jsonl", limits: Limits = LIMITS) -> Decoded:
    data = "\n".join(json.dumps(record) for record in records).encode()
    return decode(raw(data, kind=kind), limits, {**BUILT_IN, **{dialect.name: dialect for dialect in dialects}})


def one(*traces: Any, feedback: Any = (), limits: Limits = LIMITS) -> Decoded:
    return decoded({"mark": "mine"}, dialects=[Scripted("d", rows(*traces, feedback=feedback))], limits=limits)


def test_a_recognised_record_is_decoded_by_its_dialect_and_all_others_by_the_one_of_the_format() -> None:
    found = decoded({"mark": "mine"}, OURS, {"mark": "other"}, dialects=[Scripted("d", rows(TRACE))])
    assert [row["id"] for row in found.traces] == ["1", "b"]
    assert [bad.reason for bad in found.bad] == ["missing_id"], "the third record belongs to no dialect but that of the format"
    assert [row["position"] for row in found.traces] == ["line 1", "line 2"]


def test_a_request_can_be_recognised_as_well() -> None:
    found = decoded({"mark": "mine"}, spans(span(1)), dialects=[Scripted("d", rows(TRACE))], kind="otlp-json")
    assert len(found.traces) == 2


def test_a_record_that_several_dialects_recognise_is_quarantined() -> None:
    twice = [Scripted("first", rows(TRACE)), Scripted("second", rows(TRACE))]
    found = decoded({"mark": "mine"}, OURS, dialects=twice)
    assert [(bad.reason, bad.position) for bad in found.bad] == [("ambiguous_dialect", "line 1")]
    assert "first, second" in found.bad[0].detail
    assert [row["id"] for row in found.traces] == ["b"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [({}, None), ({"subject": "everyone"}, "bad_row"), ({"given": "no"}, "bad_row"), ({"id": None}, "bad_row"), ({"x": 1}, "bad_row")],
)
def test_a_dialect_can_state_consent(change: dict[str, Any], reason: str | None) -> None:
    statement = {"subject": "user", "id": "u-1", "given": False, "time": "2026-01-06T09:00:00Z"} | change
    found = decoded({"mark": "mine"}, dialects=[Scripted("d", lambda _, into: into.consents.append(statement))])
    assert [bad.reason for bad in found.bad] == ([reason] if reason else [])
    assert [(row["id"], row["given"]) for row in found.consents] == ([] if reason else [("u-1", False)])


def test_a_format_can_name_a_dialect_which_then_needs_not_recognise_the_record() -> None:
    found = decoded({"anything": 1}, dialects=[Scripted("d", rows(TRACE))], kind="d")
    assert [row["id"] for row in found.traces] == ["1"]
    with pytest.raises(ConfigError, match=r"unknown format 'e'; known: d, jsonl, langfuse, litellm, otlp-json, otlp-proto"):
        decoded({}, dialects=[Scripted("d", rows(TRACE))], kind="e")


def test_an_exception_quarantines_the_record_without_its_message() -> None:
    def fails(_record: Any, found: Decoded) -> None:
        found.traces.append(TRACE)
        raise ValueError("ada said so")

    found = decoded({"mark": "mine"}, OURS, dialects=[Scripted("d", fails)])
    assert [(bad.reason, bad.detail) for bad in found.bad] == [("dialect_failed", "dialect 'd' raised ValueError")]
    assert [row["id"] for row in found.traces] == ["b"], "the row that the failing dialect had appended is dropped"


def test_an_exception_while_recognising_quarantines_the_record() -> None:
    class Broken(Scripted):
        def recognises(self, record: Any) -> bool:
            return bool(record["mark"])

    found = decoded(OURS, dialects=[Broken("d", rows(TRACE))])
    assert [(bad.reason, bad.detail) for bad in found.bad] == [("dialect_failed", "dialect 'd' raised KeyError")]


def test_a_rejected_record_keeps_its_reason_and_skipped_ones_are_counted() -> None:
    def rejects(_record: Any, _found: Decoded) -> None:
        raise Rejected("no_such_tool")

    assert [bad.reason for bad in decoded({"mark": "mine"}, dialects=[Scripted("d", rejects)]).bad] == ["no_such_tool"]
    skips = Scripted("d", lambda _record, found: found.skip("traces", "greeting"))
    assert decoded({"mark": "mine"}, {"mark": "mine"}, dialects=[skips]).skipped["traces"] == {"greeting": 2}


def test_missing_columns_are_completed_and_rows_fit_the_tables() -> None:
    found = one(TRACE | {"time": "2026-09-20T10:00:00Z", "latency_ms": 3, "user": "a\x00b"}, feedback=[FEEDBACK_ROW])
    assert not found.bad
    ours = {"source": "s", "batch": "b", "ingested": NOW, "sender": None, "trusted": True}
    assert arrow_table([row | ours for row in found.traces], TRACES).num_rows == 1
    assert arrow_table([row | ours for row in found.feedback], FEEDBACK).num_rows == 1
    (row,) = found.traces
    assert (row["origin"], row["status"], row["region"], row["user"], row["latency_ms"]) == ("traffic", "ok", None, "ab", 3.0)
    assert json.loads(row["messages"]) == TRACE["messages"]


@pytest.mark.parametrize(("consent", "assumed", "kept"), [(True, False, True), (False, False, False), (False, True, True)])
def test_content_without_consent_is_dropped(consent: bool, assumed: bool, kept: bool) -> None:
    (row,) = one(TRACE | {"consent": consent, "reference": "r"}, limits=Limits(now=NOW, assume_consent=assumed)).traces
    assert [row[key] is not None for key in ("messages", "answer", "reference")] == [kept] * 3
    assert row["consent"] is consent


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"id": None}, "bad_row"),
        ({"id": 7}, "bad_row"),
        ({"time": None}, "bad_row"),
        ({"time": "soon"}, "bad_timestamp"),
        ({"time": NOW + 10 * 86_400_000_000}, "future_timestamp"),
        ({"colour": "red"}, "bad_row"),
        ({"latency_ms": float("nan")}, "bad_row"),
        ({"latency_ms": True}, "bad_row"),
        ({"input_tokens": 1.5}, "bad_row"),
        ({"input_tokens": 1 << 63}, "bad_row"),
        ({"consent": "yes"}, "bad_row"),
        ({"origin": "elsewhere"}, "bad_row"),
        ({"status": "fine"}, "bad_row"),
        ({"answer": "\ud800"}, "invalid_encoding"),
        ({"answer": " "}, "empty_response"),
        ({"answer": "x" * 200_000}, "too_large"),
        ({"messages": []}, "empty_prompt"),
        ({"messages": "not json"}, "malformed_json"),
        ({"messages": ["x"]}, "wrong_type"),
    ],
)
def test_an_invalid_trace_quarantines_its_record(change: dict[str, Any], reason: str) -> None:
    found = one(TRACE | change, feedback=[FEEDBACK_ROW])
    assert [bad.reason for bad in found.bad] == [reason]
    assert not found.traces
    assert not found.feedback


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "applause"}, "bad_row"),
        ({"trace_id": None}, "missing_id"),
        ({"value": 3}, "rating_scale"),
        ({"value": None}, "bad_value"),
        ({"kind": "correction", "value": None}, "bad_value"),
        ({"time": None}, "bad_row"),
    ],
)
def test_invalid_feedback_quarantines_its_record(change: dict[str, Any], reason: str) -> None:
    assert [bad.reason for bad in one(feedback=[FEEDBACK_ROW | change]).bad] == [reason]


def test_a_correction_needs_its_text_only() -> None:
    (row,) = one(feedback=[{"response_id": "r", "time": NOW, "kind": "correction", "text": "better"}]).feedback
    assert (row["text"], row["value"], row["trace_id"]) == ("better", None, None)
