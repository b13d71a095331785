"""Fuzz test of decoding with about ten thousand mutated inputs.

For any bytes, decoding returns rows that fit the tables and a reason for each rejected record.
"""

from __future__ import annotations

import json
import random

import pytest

from ratchet.contracts.data.decoding import MAX_BAD, Limits
from ratchet.contracts.data.records import FEEDBACK, TRACES
from ratchet.materializer.dialects.decode import decode
from ratchet.materializer.lake.schemas import arrow_table
from tests.unit.materializer.records import T0, evaluation, log, logs, raw, request_of, span, spans

pytestmark = pytest.mark.slow  # hundreds of generated inputs

LIMITS = Limits(now=T0 // 1000 + 10**12, assume_consent=True)
_JSON = (
    json.dumps(spans(span(1, events=[evaluation("user_feedback", 1)])))
    + "\n"
    + json.dumps(logs(log(1, evaluation("user_correction", text="x"))))
)
_PROTO = request_of(2).SerializeToString()
_RECORD = {
    "id": "a",
    "timestamp": 1790000000,
    "messages": [{"role": "user", "content": "q"}],
    "response": "r",
    "consent": True,
    "feedback": 1,
}
SEEDS = {
    "otlp-json": _JSON.encode(),
    "otlp-proto": b"T" + len(_PROTO).to_bytes(4, "big") + _PROTO,
    "jsonl": json.dumps(_RECORD | {"latency_ms": 1.5, "input_tokens": 3, "reference": "r", "correction": "c"}).encode(),
}
_PIECES = [
    b"null",
    b"[]",
    b"{}",
    b"-1",
    b"1e999",
    b'"\\ud800"',
    b"\xff",
    b"\x00",
    b'""',
    b"true",
    b"9" * 30,
    b"[" * 40,
    b"NaN",
    b'"NaN"',
    b"\n",
]


def _mutate(data: bytes, draw: random.Random) -> bytes:
    mutated = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at, size = draw.randrange(len(mutated) + 1), draw.choice([0, 1, 1, 2, 8, 40])
        piece = draw.choice([*_PIECES, bytes([draw.randrange(256)]), b"", bytes(mutated[at : at + 20])])
        mutated[at : at + size] = piece
    return bytes(mutated)


def _replace_value(data: bytes, draw: random.Random) -> bytes:
    """Replace one value, so that the result is still well-formed JSON and passes the parser."""
    lines = [json.loads(line) for line in data.decode().splitlines()]
    holder = lines[draw.randrange(len(lines))]
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if not keys:
            break
        key = draw.choice(keys)
        if isinstance(holder[key], dict | list) and draw.random() < 0.85:
            holder = holder[key]
            continue
        holder[key] = draw.choice(
            [None, True, -1, 1e300, 10**40, "", "x", [], {}, [[]], {"stringValue": []}, "9" * 400, [None], {"a": 1}, "\x00", 0.5]
        )
        break
    return "\n".join(json.dumps(line) for line in lines).encode()


@pytest.mark.parametrize("kind", list(SEEDS))
def test_every_input_gives_valid_rows_or_a_reason(kind: str) -> None:
    draw = random.Random(20261101)
    for index in range(3400):
        structured = kind != "otlp-proto" and index % 2
        data = _replace_value(SEEDS[kind], draw) if structured else _mutate(SEEDS[kind], draw)
        decoded = decode(raw(data, kind=kind), LIMITS)
        known = {"source": "s", "batch": "b", "ingested": LIMITS.now, "sender": None, "trusted": True}
        arrow_table([row | known for row in decoded.traces], TRACES)
        arrow_table([row | known for row in decoded.feedback], FEEDBACK)
        assert all(bad.reason and len(bad.detail) <= 200 for bad in decoded.bad)


_READ = (
    "gen_ai.operation.name", "openinference.span.kind", "llm.request.type", "gen_ai.request.model", "gen_ai.response.model",
    "llm.model_name", "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions", "gen_ai.response.finish_reasons",
    "gen_ai.response.id", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "user.id", "enduser.id", "gen_ai.conversation.id",
    "session.id", "metadata", "metadata.consent", "metadata.region", "metadata.reference", "metadata.slice", "ratchet.origin",
    "ratchet.refused", "ratchet.model_version", "ratchet.content_omitted", "gen_ai.evaluation.name", "gen_ai.evaluation.score.value",
    "gen_ai.evaluation.score.label", "gen_ai.evaluation.explanation", "event.name", "gen_ai.prompt.0.content", "gen_ai.completion.0.role",
    "llm.input_messages.0.message.role", "content", "message", "finish_reason", "error.type", "ai.telemetry.metadata.consent",
    "langfuse.trace.metadata", "langfuse.user.id", "traceloop.association.properties", "mlflow.trace.user", "llm.prompts",
    "llm.invocation_parameters", "consent", "session_id",
)  # fmt: skip
"""The attributes that the decoder reads."""

_DEEP: dict[str, object] = {"stringValue": "x"}
for _ in range(80):
    _DEEP = {"arrayValue": {"values": [_DEEP]}}
ANY_VALUES: dict[str, object] = {
    "string": {"stringValue": "x"},
    "long string": {"stringValue": "x" * 200_000},
    "bool": {"boolValue": True},
    "int": {"intValue": "7"},
    "huge int": {"intValue": "9" * 24},
    "double": {"doubleValue": 0.5},
    "infinity": {"doubleValue": "Infinity"},
    "bytes": {"bytesValue": "AAAA"},
    "array": {"arrayValue": {"values": [{"stringValue": "x"}, {"intValue": 1}]}},
    "empty array": {"arrayValue": {}},
    "object": {"kvlistValue": {"values": [{"key": "a", "value": {"stringValue": "x"}}]}},
    "empty object": {"kvlistValue": {}},
    "deep": _DEEP,
    "empty": {},
    "null": None,
}
"""Every type of an OTLP AnyValue, and its extremes."""


@pytest.mark.parametrize("kind", list(ANY_VALUES))
def test_every_type_in_every_attribute_leaves_the_other_records_whole(kind: str) -> None:
    good, rating = span(999), log(999, evaluation("user_feedback", 1))
    for key in _READ:
        odd = {"key": key, "value": ANY_VALUES[kind]}
        bad = span(1, events=[evaluation("user_feedback", 1), {"name": "gen_ai.choice", "attributes": [odd]}])
        bad["attributes"].append(odd)
        bad["events"][0]["attributes"].append(odd)
        record = log(1, evaluation("user_feedback", 1))
        record["attributes"].append(odd)
        lines = [spans(bad, good), logs(record, rating)]
        decoded = decode(raw("\n".join(json.dumps(line) for line in lines).encode(), kind="otlp-json"), LIMITS)
        assert good["traceId"] in {row["id"].partition(":")[0] for row in decoded.traces}, key
        assert good["traceId"] in {(row["trace_id"] or "").partition(":")[0] for row in decoded.feedback}, key
        assert "dialect_failed" not in {bad.reason for bad in decoded.bad}, (key, decoded.bad)
        skipped = sum(counts.total() for counts in decoded.skipped.values())
        assert len(decoded.traces) + len(decoded.feedback) + skipped + sum(bad.count for bad in decoded.bad) in (4, 5), key
        known = {"source": "s", "batch": "b", "ingested": LIMITS.now, "sender": None, "trusted": True}
        arrow_table([row | known for row in decoded.traces], TRACES)
        arrow_table([row | known for row in decoded.feedback], FEEDBACK)


@pytest.mark.parametrize("value", [[], {}, ["traffic"], {"a": 1}, 1, True])
def test_every_type_of_an_origin_in_json_lines_costs_only_its_record(value: object) -> None:
    lines = [_RECORD | {"origin": value}, _RECORD | {"id": "b"}]
    decoded = decode(raw("\n".join(json.dumps(line) for line in lines).encode(), kind="jsonl"), LIMITS)
    assert [row["id"] for row in decoded.traces] == ["b"]
    assert [bad.reason for bad in decoded.bad] == ["bad_origin"]


def test_many_bad_spans_of_one_request_take_few_quarantine_rows_and_all_count() -> None:
    decoded = decode(raw(json.dumps(spans(*[0] * 50_000, span(1))).encode(), kind="otlp-json"), LIMITS)
    assert len(decoded.traces) == 1
    assert len(decoded.bad) == MAX_BAD + 1
    assert sum(bad.count for bad in decoded.bad) == 50_000
    assert len({bad.position for bad in decoded.bad}) == MAX_BAD + 1


def test_a_decoder_that_fails_costs_only_its_span(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr("ratchet.materializer.dialects.otlp._origin", lambda value: fails(value) if value == "probe" else "traffic")
    decoded = decode(raw(json.dumps(spans(span(1, ratchet__origin="probe"), span(2))).encode(), kind="otlp-json"), LIMITS)
    assert [(bad.reason, bad.detail) for bad in decoded.bad] == [("dialect_failed", "dialect 'otlp' raised ZeroDivisionError")]
    assert len(decoded.traces) == 1
