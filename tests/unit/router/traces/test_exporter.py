"""Tests of the exporter: each span in the spool reaches the receiver as OTLP, also after a restart, and lost spans are counted."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ratchet.contracts.data.decoding import Decoded, Limits, Row
from ratchet.materializer.dialects.admission import SIGNED
from ratchet.materializer.dialects.decode import as_json
from ratchet.materializer.dialects.otlp import OtlpDialect
from ratchet.router.traces.exporter import Exporter
from ratchet.router.traces.span_spool import SpanSpool
from ratchet.router.traces.spans import call_span, new_ids
from ratchet.runtime.secrets.keyring import KeyFile, ensure_keyring
from ratchet.runtime.secrets.span_signature import SPAN_KEYS, is_signed


def span(error: str | None = None):  # type: ignore[no-untyped-def]
    """Return a chat span, with an error status if `error` is given."""
    return call_span(new_ids(), 1, 2, {"gen_ai.request.model": "m", "none": None}, error)


def restarted(folder: Path) -> Exporter:
    """Return an exporter of a new process."""
    return Exporter(SpanSpool(folder / "spool"), folder / "receiver.json", folder / "token")


def sent(request: httpx.Request) -> int:
    """Return the number of spans in a request."""
    return len(ExportTraceServiceRequest.FromString(request.content).resource_spans[0].scope_spans[0].spans)


def _drained(exporter: Exporter, statuses: list[int], poison: bytes = b"nowhere", refusal: int = 413) -> list[httpx.Request]:
    """Drain the spool into a receiver with these statuses. Return the requests.

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
    return restarted(tmp_path)


def test_a_span_of_the_router_has_a_signature_that_ingest_verifies(exporter: Exporter, tmp_path: Path) -> None:
    """The values pass through protobuf and its JSON form; every type of value must be signed as ingest reads it."""
    ensure_keyring(tmp_path / SPAN_KEYS, datetime(2026, 11, 1, tzinfo=UTC))
    values = {"s": "é \ud800", "b": True, "i": 2**62, "f": 1.0, "l": ["a", "é"], "gen_ai.request.model": "m"}
    for error in (None, "HTTP 500"):
        exporter.add(call_span(new_ids(), 1_790_000_000_000_000_001, 2, values, error))
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


@pytest.mark.parametrize("refusal", [400, 413])
def test_a_permanently_refused_span_does_not_block_the_others(exporter: Exporter, refusal: int) -> None:
    for n in range(300):
        exporter.add(span("poison" if n == 100 else None))
    asked = _drained(exporter, [], b"poison", refusal)
    assert exporter.spool.dropped == {"rejected": 1}
    assert sum(sent(request) for request in asked if b"poison" not in request.content) == 299
    assert _drained(exporter, []) == []


@pytest.mark.parametrize("status", [401, 429, 500, 503])
def test_a_failing_receiver_loses_no_span(exporter: Exporter, status: int) -> None:
    exporter.add(span())
    assert len(_drained(exporter, [status])) == 1
    assert not exporter.spool.dropped
    assert len(_drained(exporter, [])) == 1


def test_batches_are_limited_in_bytes(exporter: Exporter) -> None:
    for _ in range(6):
        exporter.add(span("x" * 400_000))
    asked = _drained(exporter, [])
    assert len(asked) >= 3
    assert all(len(request.content) < 1_000_000 for request in asked)


def test_a_restarted_router_sends_what_waits_and_nothing_that_was_sent(exporter: Exporter, tmp_path: Path) -> None:
    for _ in range(3):
        exporter.add(span())
    assert len(_drained(exporter, [503])) == 1
    exporter.add(span())
    again = restarted(tmp_path)
    assert sum(sent(request) for request in _drained(again, [])) == 4
    assert _drained(restarted(tmp_path), []) == []


def test_a_lost_response_makes_one_segment_arrive_again(exporter: Exporter, tmp_path: Path) -> None:
    for _ in range(300):
        exporter.add(span())
    assert [sent(request) for request in _drained(exporter, [200, 503])] == [256, 44]
    assert [sent(request) for request in _drained(exporter, [503])] == [44], "the process knows what it has sent"
    assert [sent(request) for request in _drained(restarted(tmp_path), [])] == [256, 44]
