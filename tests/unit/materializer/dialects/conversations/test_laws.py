"""Whatever a batch contains: read = kept + duplicate + skipped + quarantined, and no record stops another one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ratchet.contracts.conversation import answer_message
from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.contracts.data.records import TRACES
from ratchet.materializer.dialects.decode import decode
from ratchet.materializer.lake.schemas import arrow_table
from ratchet.materializer.lake.tables import Lake
from tests.unit.materializer.conftest import make_datasets
from tests.unit.materializer.dialects.conversations import forms as f
from tests.unit.materializer.records import T0, attribute, batch, logs, raw, span, spans

LIMITS = Limits(now=T0 // 1000 + 10**12, assume_consent=True)
GOOD = span(99, "good", "fine")
_DEEP: dict[str, Any] = {"stringValue": "end"}
for _ in range(70):
    _DEEP = {"arrayValue": {"values": [_DEEP]}}
VALUES: dict[str, Any] = {
    "string": {"stringValue": "x"},
    "empty": {"stringValue": ""},
    "nul": {"stringValue": "a\x00b"},
    "bool": {"boolValue": True},
    "int": {"intValue": "7"},
    "wrong int": {"intValue": "seven"},
    "double": {"doubleValue": 1.5},
    "not a number": {"doubleValue": "NaN"},
    "array": {"arrayValue": {"values": [{"stringValue": "x"}, {"intValue": "1"}, {}]}},
    "kvlist": {"kvlistValue": {"values": [{"key": "role", "value": {"stringValue": "user"}}]}},
    "bytes": {"bytesValue": "AAEC"},
    "nothing": {},
    "null": None,
    "unknown": {"colourValue": "red"},
    "deep": _DEEP,
    "a list": [1],
}
FORMS: dict[str, dict[str, Any]] = {
    "otel": f.otel_attributes(f.HISTORY, f.FINAL) | {"gen_ai.operation.name": "chat"},
    "openllmetry": f.openllmetry(f.ASKED, f.CALLING) | {"llm.request.type": "chat"},
    "openinference": f.openinference(f.ASKED, f.CALLING),
    "vercel": f.vercel(f.ASKED, f.CALLING) | {"ai.prompt.tools": json.dumps([f.SCHEMA])},
}


def span_of(attributes: list[dict[str, Any]], n: int = 1) -> dict[str, Any]:
    return span(n) | {"attributes": attributes}


def listed(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [attribute(key, value) for key, value in values.items() if value is not None]


def outcomes(found: Decoded) -> int:
    return len(found.traces) + found.skipped["traces"].total() + sum(bad.count for bad in found.bad if bad.kind == "traces")


@pytest.mark.parametrize("form", FORMS)
def test_every_type_of_value_in_every_attribute(form: str) -> None:
    attributes = listed(FORMS[form] | {"user.id": "u", "gen_ai.usage.input_tokens": 1, "metadata.consent": True})
    changed = [
        span_of(
            [*attributes[:at], {"key": attributes[at]["key"], "value": value}, *attributes[at + 1 :]], n=len(attributes) * place + at + 1
        )
        for place, value in enumerate(VALUES.values())
        for at in range(len(attributes))
    ]
    found = decode(batch(spans(*changed), spans(GOOD)), LIMITS)
    assert outcomes(found) == len(changed) + 1
    assert found.traces[-1]["id"] == f"{99:032x}:{99:016x}"
    arrow_table([row | {"source": "s", "ingested": 0, "batch": "b", "sender": None} for row in found.traces], TRACES)
    assert not any("\x00" in (row["messages"] or "") + (row["answer"] or "") for row in found.traces)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"startTimeUnixNano": "253402300799000000000"}, "bad_timestamp"),  # the year 9999, which no time in nanoseconds reaches
        ({"startTimeUnixNano": "9999-12-31T23:59:59Z"}, "future_timestamp"),
        ({"startTimeUnixNano": "9" * 40}, "bad_timestamp"),
        ({"traceId": "0" * 32}, "bad_id"),
        ({"attributes": "none"}, "wrong_type"),
        (
            {"attributes": listed(f.otel_attributes(f.ASKED, f.FINAL | {"content": "x" * 10_000_000}) | {"gen_ai.operation.name": "chat"})},
            "too_large",
        ),
        (
            {
                "attributes": listed(
                    {"gen_ai.operation.name": "chat", "gen_ai.input.messages": "[" * 100_000, "gen_ai.output.messages": "x"}
                )
            },
            None,
        ),
    ],
)
def test_a_bad_span_affects_no_other(change: dict[str, Any], reason: str | None) -> None:
    found = decode(batch(spans(span(1) | change, GOOD)), LIMITS)
    assert [row["id"] for row in found.traces] == [f"{99:032x}:{99:016x}"]
    assert len(found.bad) == 1
    assert reason in (None, found.bad[0].reason)


def test_bytes_in_other_encodings() -> None:
    text = json.dumps(spans(GOOD))
    data = b"\n".join([b"\xff\xfe" + "{}".encode("utf-16-le"), '{"id": "é"}'.encode("latin-1"), b'{"id": "\\ud800"}', text.encode()])
    found = decode(raw(data), LIMITS)
    assert outcomes(found) == len([line for line in data.split(b"\n") if line.strip()])
    assert len(found.traces) == 1


def observation(n: int, **changes: Any) -> dict[str, Any]:
    times = {"startTime": "2026-09-01T00:00:00Z", "endTime": "2026-09-01T00:00:01Z"}
    return {"id": f"o{n}", "traceId": "t", "type": "GENERATION", "name": "chat", **times, "input": f.HISTORY, "output": f.FINAL} | changes


def test_observations_of_langfuse() -> None:
    lines = [
        observation(
            1, metadata=json.dumps({"tools": [f.TOOL], "consent": True, "slice": "weather"}), usageDetails={"input": 3, "output": 4}
        ),
        observation(2, type="SPAN"),
        observation(3, name="ai.generateText"),
        observation(4, metadata={"attributes": {"openinference.span.kind": "AGENT"}}),
        observation(5, input={"query": "x"}),
        observation(6, level="ERROR", output=None),
        observation(7, startTime="9999-01-01"),
        observation(8, type={"a": 1}),
        observation(9, metadata="{broken", input="Hello", output="Hi"),
    ]
    found = decode(batch(*lines, kind="jsonl"), LIMITS)
    assert outcomes(found) == len(lines)
    rows = {row["id"]: row for row in found.traces}
    assert rows.keys() == {"o1", "o6", "o9"}
    assert found.skipped["traces"] == {"not_a_generation": 3}
    one = rows["o1"]
    assert json.loads(one["messages"]) == f.HISTORY
    assert (one["answer"], json.loads(one["tools"])) == (f.ANSWER, [f.TOOL])
    assert (one["consent"], one["slice"], one["latency_ms"], one["input_tokens"]) == (True, "weather", 1000.0, 3)
    assert (rows["o6"]["status"], rows["o9"]["answer"]) == ("error", "Hi")


def record_of_event(name: str, body: dict[str, Any] | None, attributes: dict[str, Any], n: int = 1) -> dict[str, Any]:
    values = [{"key": key, "value": {"stringValue": value}} for key, value in (body or {}).items()]
    ids = {"traceId": f"{n:032x}", "spanId": f"{n:016x}", "timeUnixNano": str(T0)}
    return ids | {"eventName": name, "body": {"kvlistValue": {"values": values}} if body else None, "attributes": listed(attributes)}


def test_log_records_of_a_call() -> None:
    new = record_of_event(
        "gen_ai.client.inference.operation.details", None, f.otel_attributes(f.HISTORY, f.FINAL) | {"gen_ai.operation.name": "chat"}
    )
    old = [
        record_of_event(name, {key: value for key, value in body.items() if isinstance(value, str)}, {"gen_ai.request.model": "m"}, n=2)
        for name, body in f.message_events(f.HISTORY, f.FINAL)
    ]
    cut = [record_of_event("gen_ai.user.message", {"content": "half of a call"}, {}, n=3)]
    found = decode(batch(logs(new, *old, *cut)), LIMITS)
    assert outcomes(found) == 1 + len(old) + len(cut)
    assert [json.loads(row["messages"]) for row in found.traces] == [f.HISTORY, f.HISTORY]
    assert [row["answer"] for row in found.traces] == [f.ANSWER, f.ANSWER]
    assert [(bad.position, bad.reason) for bad in found.bad] == [("line 1, record 7", "no_content")]


def test_a_jsonl_record_with_tools_and_a_reply_of_an_api() -> None:
    base = {"timestamp": T0, "consent": True, "messages": f.ASKED, "tools": [f.TOOL]}
    texts = ['{"city": "Paris"}', "The answer is 4.", "{not json"]
    lines = [
        base | {"id": "call", "response": f.CALLING},
        base | {"id": "text", "response": json.dumps(f.completion(f.CALLING, "tool_calls"))},
        base | {"id": "bad", "response": json.dumps({"choices": [{"index": 0}]})},
        *(base | {"id": text, "response": text} for text in texts),
    ]
    found = decode(batch(*lines, kind="jsonl"), LIMITS)
    rows = {row["id"]: row for row in found.traces}
    assert answer_message(rows["call"]["answer"]) == answer_message(rows["text"]["answer"]) == f.CALLING
    assert [rows[text]["answer"] for text in texts] == texts
    assert [bad.reason for bad in found.bad] == ["unknown_wrapper"]
    assert rows["text"]["finish_reason"] == "tool_calls"


@pytest.mark.slow
def test_a_batch_of_everything_adds_up_in_the_lake(tmp_path: Any) -> None:
    datasets = make_datasets(tmp_path)
    calling = span(1) | {
        "attributes": listed(f.otel_attributes(f.ASKED, f.CALLING) | {"gen_ai.operation.name": "chat", "metadata.consent": True})
    }
    one = batch(spans(calling, calling, GOOD, span(2, events=[]) | {"attributes": 5}, span(3, gen_ai__operation__name="embeddings")))
    report = datasets.ingest(one)
    assert report.traces.adds_up
    assert (report.traces.kept, report.traces.duplicate, report.traces.quarantined, report.traces.skipped) == (2, 1, 1, 1)
    stored = Lake(datasets.lake.root).scan("traces").sort("id").to_dicts()
    assert [row["tools"] is not None for row in stored] == [True, False]
    assert answer_message(stored[0]["answer"]) == f.CALLING
    assert datasets.ingest(one).traces == report.traces
