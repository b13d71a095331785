"""Tests of the span exporter.

Each span reaches the receiver once as OTLP. Spans wait while the receiver is unreachable, and dropped spans are counted.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

import local.spans
from contracts.data.decoding import Decoded, Limits, Row
from local.spans import Exporter, attributes, chat_span, content_values, messages_json, new_ids
from materializer.dialects.admission import SIGNED
from materializer.dialects.decode import as_json
from materializer.dialects.otlp import OtlpDialect
from runtime.secrets.keyring import KeyFile, ensure_keyring
from runtime.secrets.span_signature import SPAN_KEYS, is_signed


def span(error: str | None = None):  # type: ignore[no-untyped-def]
    """Return a chat span, with an error status if `error` is given."""
    return chat_span(new_ids(), 1, {"gen_ai.request.model": "m", "none": None}, error)


def test_attributes_keep_their_types() -> None:
    found = {kv.key: kv.value for kv in attributes({"s": "x", "b": True, "i": 3, "f": 0.5, "l": ["a", "b"], "none": None})}
    assert set(found) == {"s", "b", "i", "f", "l"}
    assert (found["s"].string_value, found["b"].bool_value, found["i"].int_value, found["f"].double_value) == ("x", True, 3, 0.5)
    assert [value.string_value for value in found["l"].array_value.values] == ["a", "b"]
    assert found["b"].WhichOneof("value") == "bool_value"


def test_an_error_sets_the_status() -> None:
    assert (span("HTTP 500").status.code, span("HTTP 500").status.message) == (Status.STATUS_CODE_ERROR, "HTTP 500")
    assert span().status.code == Status.STATUS_CODE_UNSET
    assert span().end_time_unix_nano > span().start_time_unix_nano


def test_a_span_of_the_router_has_a_signature_that_ingest_verifies(exporter: Exporter, tmp_path: Path) -> None:
    """The values pass through protobuf and its JSON form; every type of value must be signed as ingest reads it."""
    ensure_keyring(tmp_path / SPAN_KEYS, datetime(2026, 11, 1, tzinfo=UTC))
    values = {"s": "é \ud800", "b": True, "i": 2**62, "f": 1.0, "l": ["a", "é"], "gen_ai.request.model": "m"}
    for error in (None, "HTTP 500"):
        exporter.add(chat_span(new_ids(), 1_790_000_000_000_000_001, values, error))
    (request,) = _drained(exporter, [])
    message = as_json(ExportTraceServiceRequest, request.content)
    keys = KeyFile(tmp_path / SPAN_KEYS).keys()
    for item in message["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        (row,) = decoded(item)
        assert is_signed(*row[SIGNED], keys)
        assert not is_signed(row[SIGNED][0] + b" ", row[SIGNED][1], keys)


def decoded(item: dict[str, Any]) -> list[Row]:
    """Return the rows that ingest decodes from a span."""
    into = Decoded()
    OtlpDialect().decode({"resourceSpans": [{"scopeSpans": [{"spans": [item]}]}]}, "line 1", Limits(now=2**52), into)
    return into.traces


def test_messages_have_roles_and_parts() -> None:
    assert json.loads(messages_json([{"role": "user", "content": "é"}, {"content": None}])) == [
        {"role": "user", "parts": [{"type": "text", "content": "é"}]},
        {"role": "user", "parts": [{"type": "text", "content": ""}]},
    ]


def _drained(exporter: Exporter, statuses: list[int], poison: bytes = b"nowhere", refusal: int = 413) -> list[httpx.Request]:
    """Drain the queue into a receiver with these statuses. Return the requests.

    Requests that contain `poison` get the status `refusal`.
    """
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(refusal if poison in request.content else statuses.pop(0) if statuses else 200)

    async def drain() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            await exporter._drain(client)

    asyncio.run(drain())
    return asked


@pytest.fixture
def exporter(tmp_path: Path) -> Exporter:
    """Return an exporter with the address of a receiver and a token."""
    (tmp_path / "receiver.json").write_text('{"port": 9}')
    (tmp_path / "token").write_text("secret\n")
    return Exporter(tmp_path / "receiver.json", tmp_path / "token")


def test_refused_spans_wait_and_are_sent_later(exporter: Exporter) -> None:
    for _ in range(300):
        exporter.add(span())
    assert len(_drained(exporter, [200, 503])) == 2  # one batch of 256 spans is sent, the other waits
    (later,) = _drained(exporter, [])
    assert later.headers["authorization"] == "Bearer secret"
    assert _drained(exporter, []) == []


def test_without_an_address_or_token_nothing_is_lost(exporter: Exporter, tmp_path: Path) -> None:
    exporter.add(span())
    for name in ("receiver.json", "token"):
        content = (tmp_path / name).read_text()
        (tmp_path / name).unlink()
        assert _drained(exporter, []) == []
        (tmp_path / name).write_text(content)
    assert len(_drained(exporter, [])) == 1


def test_spans_beyond_the_limit_of_the_queue_are_counted(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local.spans, "_QUEUE", 10)
    for _ in range(25):
        exporter.add(span())
    assert exporter.dropped == 15


@pytest.mark.parametrize("refusal", [400, 413])
def test_a_permanently_refused_span_does_not_block_the_others(exporter: Exporter, refusal: int) -> None:
    for n in range(300):
        exporter.add(span("poison" if n == 100 else None))
    asked = _drained(exporter, [], b"poison", refusal)
    assert exporter.dropped == 1
    sent = [request for request in asked if b"poison" not in request.content]
    assert sum(len(ExportTraceServiceRequest.FromString(r.content).resource_spans[0].scope_spans[0].spans) for r in sent) == 299
    assert _drained(exporter, []) == []


@pytest.mark.parametrize("status", [401, 429, 500, 503])
def test_a_failing_receiver_loses_no_span(exporter: Exporter, status: int) -> None:
    exporter.add(span())
    assert len(_drained(exporter, [status])) == 1
    assert exporter.dropped == 0
    assert len(_drained(exporter, [])) == 1


def test_batches_and_the_queue_are_limited_in_bytes(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(6):
        exporter.add(span("x" * 400_000))
    asked = _drained(exporter, [])
    assert [len(request.content) < 1_000_000 for request in asked] == [True] * 3
    monkeypatch.setattr(local.spans, "_QUEUE_BYTES", 1_000_000)
    for _ in range(5):
        exporter.add(span("x" * 400_000))
    assert exporter.dropped == 3
    _drained(exporter, [])
    exporter.add(span("x" * 400_000))  # draining the queue frees its space
    assert exporter.dropped == 3


def test_content_too_large_for_a_trace_is_omitted_and_marked() -> None:
    asked = [{"role": "user", "content": "x" * 300_000}]
    assert content_values(asked, None) == {"ratchet.content_omitted": "too_large"}
    kept = content_values(asked[:0], [{"role": "assistant", "content": "yes"}])
    assert "yes" in str(kept["gen_ai.output.messages"])
    assert "ratchet.content_omitted" not in kept
