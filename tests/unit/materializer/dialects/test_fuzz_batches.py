"""Mutated records of every dialect in whole batches: counts add up, no record stops another, and what is kept of a bad one is safe.

`test_fuzz_conversations.py` mutates the conversations alone. Here, bytes, times, ids, consent and every type of attribute are mutated too.
"""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.contracts.data.records import FEEDBACK, TRACES
from ratchet.contracts.loop import PrivacySettings, QuarantineSettings
from ratchet.materializer.dialects.decode import decode
from ratchet.materializer.dialects.exports.langfuse_export import SCORE, USER_FEEDBACK, observation_of, score_of
from ratchet.materializer.dialects.otlp import REFUSAL
from ratchet.materializer.lake.schemas import arrow_table
from ratchet.materializer.privacy.masking import Masker
from ratchet.materializer.quarantine.writing import Keeping, write_entries
from ratchet.runtime.secrets.keyring import Key
from ratchet.runtime.secrets.pseudonyms import pseudonym
from tests.soak_results import record
from tests.unit.materializer.dialects.conversations import forms as f
from tests.unit.materializer.dialects.conversations.test_fuzz_conversations import mutate
from tests.unit.materializer.dialects.counting import records_in
from tests.unit.materializer.dialects.exports.test_plain_spans import COLUMNS, MLFLOW, NESTED
from tests.unit.materializer.records import T0, attribute, evaluation, logs, raw, span, spans

LIMITS = Limits(now=T0 // 1000 + 10**12, assume_consent=True)
USER = "ada-lovelace-1815"
PEOPLE: dict[str, Any] = {"user.id": USER, "session.id": "s", "metadata.consent": True}


def _listed(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [attribute(key, value) for key, value in values.items() if isinstance(value, str | bool | int | float)]


def _span(values: dict[str, Any]) -> dict[str, Any]:
    rating = evaluation("user_feedback", 1)
    return span(1, events=[rating]) | {"attributes": _listed(values | PEOPLE)}


def _log(name: str, values: dict[str, Any]) -> dict[str, Any]:
    ids = {"traceId": f"{1:032x}", "spanId": f"{1:016x}", "timeUnixNano": str(T0)}
    return ids | {"eventName": name, "body": None, "attributes": _listed(values | PEOPLE)}


def _line(**changes: Any) -> dict[str, Any]:
    same = {"id": "a", "timestamp": T0, "user_id": USER, "session_id": "s", "consent": True, "model": "m", "feedback": 1}
    return same | changes


def _observation(**changes: Any) -> dict[str, Any]:
    same = {"id": "o", "traceId": "t", "type": "GENERATION", "name": "chat", "startTime": "2026-09-01T00:00:00Z", "userId": USER}
    return same | {"metadata": {"consent": True}, "input": f.HISTORY, "output": f.FINAL} | changes


def _row(**changes: Any) -> dict[str, Any]:
    """A row of an observation as Langfuse's export writes it."""
    same = {"id": "o", "trace_id": "t", "type": "GENERATION", "name": "chat", "start_time": "2026-09-01 00:00:00.000", "level": "DEFAULT"}
    texts = {"input": json.dumps(f.HISTORY), "output": json.dumps(f.FINAL), "metadata": json.dumps(_TOLD), "model_parameters": "{}"}
    return same | texts | changes


def _payload(**changes: Any) -> dict[str, Any]:
    """A call as LiteLLM logs it."""
    same = {"id": "a", "trace_id": "s", "litellm_call_id": "c", "call_type": "acompletion", "status": "success", "response_cost": 0.1}
    told = {"user_api_key_end_user_id": USER, "requester_metadata": {"consent": True}, "spend_logs_metadata": {"region": "eu"}}
    return same | {"startTime": T0 / 1e9, "model": "m", "end_user": USER, "metadata": told, "model_parameters": {}} | changes


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    """A span that is not in OTLP, with the texts and the user of the other forms."""
    text = json.dumps(record).replace("When do you open?", f.QUESTION).replace("At nine.", f.ANSWER).replace("u-1", USER)
    made: dict[str, Any] = json.loads(text)
    return made


_SCORE = {"id": "s", "timestamp": "2026-09-01 00:30:00.000", "trace_id": "t", "name": "user-feedback", "value": 1, "data_type": "NUMERIC"}
_SCORE |= {"author_user_id": USER, "string_value": None, "comment": "call me at home"}
_CHAT = {"gen_ai.operation.name": "chat"}
_DETAILS = "gen_ai.client.inference.operation.details"
_TOLD: dict[str, Any] = {
    "consent": True,
    "user_id": USER,
    "requester_metadata": json.dumps({"session_id": "s"}),
    "attributes": {"ai.telemetry.metadata.userId": USER, "langfuse.trace.metadata": json.dumps({"consent": True})},
}
_FLAT = {"langfuse.trace.metadata": json.dumps(_TOLD), "metadata": repr(_TOLD), "traceloop.association.properties.consent": True}
_PARTS = f.otel_attributes(f.HISTORY, f.FINAL)
_STRANDS = [{"name": _DETAILS, "attributes": _listed({key: value})} for key, value in _PARTS.items()]
RECORDS: dict[str, tuple[str, Any]] = {
    "otel": ("otlp-json", spans(_span(f.otel_attributes(f.HISTORY, f.FINAL) | _CHAT))),
    "otel, log records": ("otlp-json", logs(_log(_DETAILS, f.otel_attributes(f.HISTORY, f.FINAL) | _CHAT))),
    "openllmetry": ("otlp-json", spans(_span(f.openllmetry(f.ASKED, f.CALLING) | {"llm.request.type": "chat"}))),
    "openinference": ("otlp-json", spans(_span(f.openinference(f.ASKED, f.CALLING)))),
    "vercel": ("otlp-json", spans(_span(f.vercel(f.ASKED, f.CALLING)))),
    "jsonl": ("jsonl", _line(messages=f.HISTORY, tools=[f.TOOL], response=f.ANSWER, correction="c", reference="r")),
    "openai": ("jsonl", _line(messages=f.CHAT_REQUEST, response=f.completion(f.CALLING))),
    "responses": ("jsonl", _line(messages=f.response_items(f.HISTORY), response=f.response(f.FINAL))),
    "anthropic": ("jsonl", _line(messages=f.anthropic_request(f.HISTORY), response=f.anthropic_reply(f.FINAL))),
    "gemini": ("jsonl", _line(messages=f.gemini_request(f.HISTORY), response=f.gemini_reply(f.FINAL))),
    "langchain": ("jsonl", _line(messages=[f.langchain(one) for one in f.HISTORY], response=f.generations(f.FINAL))),
    "langfuse": ("jsonl", _observation()),
    "langfuse, metadata": (
        "jsonl",
        _observation(metadata=_TOLD, traceMetadata=json.dumps(_TOLD), output=json.dumps(f.completion(f.FINAL))),
    ),
    "jsonl, metadata": ("jsonl", _line(messages=f.HISTORY, response=json.dumps(f.response(f.FINAL)), metadata=_TOLD, status="success")),
    "strands": ("otlp-json", spans(_span(_CHAT | _FLAT) | {"events": _STRANDS, "droppedEventsCount": 0})),
    "two halves": (
        "otlp-json",
        spans(_span(_CHAT | {"gen_ai.response.id": "r"}))
        | logs(*[_log(name, {"content": f.QUESTION, "message": json.dumps(f.FINAL)}) for name in ("gen_ai.user.message", "gen_ai.choice")]),
    ),
    "langfuse, export": ("langfuse", observation_of(_row(), {"userId": USER, "metadata": json.dumps({"consent": True})})),
    "langfuse, score": ("langfuse", {SCORE: score_of(_SCORE, USER_FEEDBACK) | {"observationId": "o"}}),
    "litellm": ("litellm", _payload(messages=f.CHAT_REQUEST["messages"], response=f.completion(f.FINAL))),
    "litellm, responses": ("litellm", _payload(call_type="aresponses", messages=f.QUESTION, response=f.response(f.FINAL))),
    "plain spans, columns": ("jsonl", _plain(COLUMNS)),
    "plain spans, nested": ("jsonl", _plain(NESTED)),
    "plain spans, mlflow": ("jsonl", _plain(MLFLOW)),
}
"""Dialect -> (format of the batch, a record)."""
_DEEP: Any = {"stringValue": "x"}
for _ in range(80):
    _DEEP = {"arrayValue": {"values": [_DEEP]}}
ANY: list[Any] = [
    {"stringValue": "x"}, {"stringValue": "a\x00b"}, {"stringValue": "9999-12-31T23:59:59Z"}, {"stringValue": ""}, {"boolValue": True},
    {"boolValue": "yes"}, {"intValue": "7"}, {"intValue": 7}, {"intValue": "9" * 24}, {"doubleValue": 0.5}, {"doubleValue": "Infinity"},
    {"doubleValue": "NaN"}, {"bytesValue": "AAEC"}, {"bytesValue": 7}, {"arrayValue": {"values": [{"stringValue": "x"}, {}]}},
    {"arrayValue": []}, {"kvlistValue": {"values": [{"key": "role", "value": {"stringValue": "user"}}, 7]}}, {"kvlistValue": None}, {},
    {"colour": "red"}, None, 7, "x", [1], _DEEP,
]  # fmt: skip
"""Values of every type of an AnyValue, and what is none."""
TIMES: list[Any] = ["253402300799000000000", "9999-12-31T23:59:59Z", "0", -1, 1e300, None, "", "yesterday", "9" * 40, True, [T0]]
BYTES = [
    b"\x00",
    b"\xff\xfe",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"\\ud800",
    b"\\u0000",
    b'"',
    b"}",
    b"[" * 2000,
    b"\xef\xbb\xbf",
    b"NaN",
    b"\r",
]


def _holders(value: Any) -> list[dict[str, Any]]:
    """Return all objects with a key that is an attribute or a time."""
    found = [value] if isinstance(value, dict) else []
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        found += _holders(item)
    return found


def mutated(record: Any, draw: random.Random) -> bytes:
    """Return a mutation of the record as one line."""
    values = copy.deepcopy(record)
    kind = draw.randrange(5)
    if kind == 0:
        attributes = [one for one in _holders(values) if "key" in one and "value" in one]
        for one in draw.sample(attributes, min(len(attributes), 2)):
            one["value"] = copy.deepcopy(draw.choice(ANY))
    if kind == 1:
        times = [(one, key) for one in _holders(values) for key in one if "time" in key.lower()]
        for one, key in draw.sample(times, min(len(times), 2)):
            one[key] = copy.deepcopy(draw.choice(TIMES))
    if kind in (2, 3):
        values = mutate({"record": values}, draw).get("record")
    try:
        data = json.dumps(values, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        data = b"[" * 300
    if kind == 4:
        for _ in range(draw.choice([1, 1, 3])):
            at = draw.randrange(len(data) + 1)
            data = data[:at] + draw.choice(BYTES) + data[at + draw.choice([0, 1, 40]) :]
        if draw.random() < 0.1:
            data = data.decode("utf-8", "replace").encode(draw.choice(["utf-16", "latin-1"]), "replace")
    return data.replace(b"\n", b" ")


def _good(form: str) -> tuple[bytes, str]:
    if form == "langfuse":
        return json.dumps(_observation(id="good")).encode(), "good"
    if form == "litellm":
        return json.dumps(_payload(id="good", messages="q", response="a")).encode(), "good"
    if form == "jsonl":
        return json.dumps(_line(id="good", messages="q", response="a")).encode(), "good"
    return json.dumps(spans(span(99, "good", "fine"))).encode(), f"{99:032x}:{99:016x}"


MASKER = Masker(PrivacySettings())
KEY = Key(id=1, secret="5e" * 32, created=datetime(2026, 11, 1, tzinfo=UTC))


def derived_refusals(found: Decoded) -> int:
    """Return the number of statements that spans make about their whole traces. The spans are counted by themselves."""
    return sum(f", {REFUSAL}" in one for one in [*(row["position"] for row in found.consents), *(bad.position for bad in found.bad)])


def check_counts(form: str, lines: list[bytes], found: Decoded) -> dict[str, int]:
    """Assert that each record of the lines has one outcome: stored, skipped or quarantined. Return the counts."""
    kept_lines = {row["position"].partition(",")[0] for row in found.traces}
    records = sum(records_in(form, line, f"line {number}" in kept_lines) for number, line in enumerate(lines, 1))
    refusals = derived_refusals(found)
    counts = {
        "stored": len(found.traces) + len(found.feedback) + len(found.consents) - refusals,
        "skipped": sum(counts.total() for counts in found.skipped.values()),
        "quarantined": sum(bad.count for bad in found.bad),
    }
    assert records == sum(counts.values()), (form, lines)
    return {"read": records} | counts


def check(form: str, lines: list[bytes]) -> dict[str, int]:
    """Read a batch of these lines and good ones between them. Assert the laws, and return the numbers of outcomes."""
    good, identity = _good(form)
    batch = raw(b"\n".join(part for line in lines for part in (line, good)) + b"\n", kind=form)
    found = decode(batch, LIMITS)
    assert sum(row["id"] == identity for row in found.traces) == len(lines), "a record has stopped another one"
    for rows, columns in ((found.traces, TRACES), (found.feedback, FEEDBACK)):
        arrow_table([{"source": "s", "batch": "b", "ingested": 0, "sender": None, "trusted": True} | row for row in rows], columns)
    for row in [*found.traces, *found.feedback, *found.consents]:
        assert "\x00" not in "".join(value for value in row.values() if isinstance(value, str))
    for bad in found.bad:
        assert bad.reason != "dialect_failed", bad
        assert bad.reason
        assert len(bad.detail) <= 200
        assert bad.place is not None
    counts = check_counts(form, batch.open().read().split(b"\n"), found)
    keeping = Keeping(QuarantineSettings(keep_unreadable=True), MASKER.masked_value, lambda masked: b"sealed" if masked else b"")
    made = write_entries(found.bad, batch, LIMITS, keeping, lambda subject, text: pseudonym(subject, text, KEY))
    assert len(made.rows) == len(found.bad)
    assert sum(row["parts"] for row in made.rows) == sum(bad.count for bad in found.bad)
    data = batch.open().read()
    for row in made.rows:
        piece = data[row["offset"] : row["offset"] + row["length"]]
        assert piece in [line.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r") for line in lines] + lines
    return counts | {
        "rows": len(found.traces) - len(lines),
        "feedback": len(found.feedback),
        "bad": len(found.bad),
        "kept": len(made.kept),
        "leaked": sum(USER.encode() in b.content for b in made.kept.values()),
    }


def attack(name: str, count: int, seed: int) -> Counter[str]:
    draw = random.Random(f"{name}/{seed}")
    form, record = RECORDS[name]
    total: Counter[str] = Counter()
    for begin in range(0, count, 50):
        total.update(check(form, [mutated(record, draw) for _ in range(min(50, count - begin))]))
    return total


@pytest.mark.parametrize("name", RECORDS)
def test_the_record_itself_is_read(name: str) -> None:
    form, record = RECORDS[name]
    found = decode(raw(json.dumps(record).encode(), kind=form), LIMITS)
    assert (len(found.traces) + (len(found.feedback) if "score" in name else 0), found.bad) == (1, [])


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDS)
def test_three_hundred_mutated_records_in_batches(name: str) -> None:
    total = attack(name, 300, seed=0)
    assert total["feedback" if "score" in name else "rows"] > 0
    assert total["bad"] > 0
    assert total["kept"] > 0
    assert total["leaked"] == 0


@pytest.mark.soak
@pytest.mark.parametrize("name", RECORDS)
def test_ten_thousand_mutated_records_in_batches(name: str) -> None:
    total = attack(name, 10_000, seed=1)
    record("fuzz_batches", {"form": name, "records": 10_000, **total})


def _filled(value: Any, text: str) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item, text) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, text) for item in value]
    return value.replace(f.QUESTION, text).replace(f.ANSWER, text) if isinstance(value, str) else value


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RECORDS if "score" not in name])
def test_contents_of_ten_megabytes_cost_only_their_record(name: str) -> None:
    form, record = RECORDS[name]
    total = check(form, [json.dumps(_filled(record, "x" * 10_000_000)).encode()])
    assert (total["rows"], total["bad"], total["kept"]) == (0, 1, 0)
