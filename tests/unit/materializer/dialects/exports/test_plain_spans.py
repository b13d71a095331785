"""Tests of spans that are not in OTLP: columns, nested attributes, and traces of MLflow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.materializer.dialects.exports.plain_spans import is_plain_spans
from ratchet.materializer.dialects.jsonl import decode_record

NOW = 1_800_000_000_000_000
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def decoded(record: Any, assumed: bool = True) -> Decoded:
    into = Decoded()
    decode_record(record, "line 1", Limits(now=NOW, assume_consent=assumed, mapping={}), into)
    return into


COLUMNS = {
    "context.trace_id": TRACE,
    "context.span_id": SPAN,
    "start_time": "2026-01-05T09:00:00",
    "end_time": "2026-01-05T09:00:02",
    "status_code": "OK",
    "span_kind": "LLM",
    "attributes.llm.model_name": "clerk-1",
    "attributes.llm.input_messages": [{"message.role": "user", "message.content": "When do you open?"}],
    "attributes.llm.output_messages": [{"message.role": "assistant", "message.content": "At nine."}],
    "attributes.user.id": "u-1",
    "attributes.metadata": '{"consent": true}',
}
NESTED = {
    "name": "llm",
    "context": {"trace_id": f"0x{TRACE}", "span_id": f"0x{SPAN}", "trace_state": "[]"},
    "start_time": "2026-01-05T09:00:00.000000Z",
    "end_time": "2026-01-05T09:00:02.000000Z",
    "status": {"status_code": "UNSET"},
    "attributes": {
        "openinference": {"span": {"kind": "LLM"}},
        "llm": {
            "model_name": "clerk-1",
            "input_messages": [{"message": {"role": "user", "content": "When do you open?"}}],
            "output_messages": [{"message": {"role": "assistant", "content": "At nine."}}],
        },
        "user": {"id": "u-1"},
        "metadata": {"consent": True},
    },
    "events": [],
    "resource": {"attributes": {"service.name": "desk"}, "schema_url": ""},
}
FLAT = NESTED | {
    "attributes": {
        "gen_ai.operation.name": "chat",
        "gen_ai.response.model": "clerk-1",
        "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": "When do you open?"}]}]),
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "At nine."}]}]),
        "user.id": "u-1",
        "metadata.consent": True,
    }
}  # fmt: skip
MLFLOW = {
    "info": {"trace_id": "tr-1", "state": "OK", "trace_metadata": {"mlflow.trace.user": "u-1"}, "tags": {"consent": "true"}},
    "data": {
        "spans": [
            {
                "trace_id": TRACE,
                "span_id": SPAN,
                "start_time_unix_nano": 1767603600000000000,
                "end_time_unix_nano": 1767603602000000000,
                "status": {"code": "STATUS_CODE_OK", "message": ""},
                "attributes": {
                    "mlflow.spanType": '"CHAT_MODEL"',
                    "mlflow.llm.model": '"clerk-1"',
                    "mlflow.spanInputs": json.dumps({"messages": [{"role": "user", "content": "When do you open?"}]}),
                    "mlflow.spanOutputs": json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", "content": "At nine."}}]}),
                },
            },
            {
                "trace_id": TRACE,
                "span_id": "00f067aa0ba902b7",
                "start_time_unix_nano": 1767603600000000000,
                "status": {"code": "STATUS_CODE_OK"},
                "attributes": {"mlflow.spanType": '"CHAIN"'},
            },
        ]
    },
}


@pytest.mark.parametrize("record", [COLUMNS, NESTED, FLAT, MLFLOW], ids=["columns", "nested", "flat", "mlflow"])
def test_a_call_is_read_in_each_form(record: dict[str, Any]) -> None:
    assert is_plain_spans(record)
    into = decoded(record)
    assert not into.bad
    [row] = into.traces
    assert json.loads(row["messages"]) == [{"role": "user", "content": "When do you open?"}]
    assert (row["answer"], row["user"], row["id"]) == ("At nine.", "u-1", f"{TRACE}:{SPAN}")
    assert (row["latency_ms"], row["status"]) == (2000.0, "ok")
    assert row["model"] == "clerk-1"


REFUSED: list[dict[str, Any]] = [
    COLUMNS | {"attributes.metadata": '{"consent": false}'},
    COLUMNS | {"attributes.metadata": None, "metadata": {"consent": False}},
    COLUMNS | {"attributes.metadata": None, "consent": False},
    COLUMNS | {"attributes": {"metadata": {"consent": False}}, "attributes.metadata": None, "attributes.metadata.consent": True},
    NESTED | {"attributes": {**NESTED["attributes"], "metadata": {"consent": False}, "metadata.consent": True}},  # type: ignore[dict-item]
    MLFLOW | {"info": {"tags": {"consent": "no"}}},
    MLFLOW | {"info": {"trace_metadata": {"consent": "false"}, "tags": {"consent": "true"}}},
    MLFLOW | {"info": {"tags": [{"key": "consent", "value": "false"}]}},
]


@pytest.mark.parametrize("record", REFUSED)
def test_a_refusal_is_heard(record: dict[str, Any]) -> None:
    assert [row["answer"] for row in decoded(record).traces] == [None]


def test_a_user_beside_the_attributes_is_known() -> None:
    record = {key: value for key, value in COLUMNS.items() if key != "attributes.user.id"} | {"metadata": {"user_id": "u-2"}}
    assert [row["user"] for row in decoded(record).traces] == ["u-2"]


@pytest.mark.parametrize("status", [{"status_code": "ERROR"}, {"status": {"status_code": "StatusCode.ERROR"}}, {"status": {"code": 2}}])
def test_a_failed_call_is_no_success(status: dict[str, Any]) -> None:
    record = {key: value for key, value in COLUMNS.items() if key != "status_code"} | status
    assert [row["status"] for row in decoded(record).traces] == ["error"]


def test_spans_of_chains_are_skipped_and_a_bad_id_costs_only_its_span() -> None:
    assert decoded(MLFLOW).skipped["traces"]["not_a_generation"] == 1
    bad = decoded(COLUMNS | {"context.trace_id": "tr-1"})
    assert [one.reason for one in bad.bad] == ["bad_id"]


def test_a_record_of_ratchet_with_attributes_is_no_span() -> None:
    assert not is_plain_spans({"id": "1", "timestamp": "2026-01-05T09:00:00", "trace_id": TRACE, "attributes": {"a": 1}})


KEYS = st.sampled_from(["message", "role", "content", "llm", "a.b", ""])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.sampled_from([*COLUMNS, "attributes", "status", "events", "resource", "context", "trace_id"]), VALUES, max_size=8)
)
def test_no_record_raises(changed: dict[str, Any]) -> None:
    into = decoded(COLUMNS | changed)
    assert into.traces or into.bad or into.skipped["traces"]
