"""Builders of small OTLP and JSONL records for the materializer tests."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from ratchet.contracts.data.datasets import RawBatch
from ratchet.contracts.ids import digest

T0 = 1_790_000_000_000_000_000  # nanoseconds since 1970: September 2026


def attribute(key: str, value: Any) -> dict[str, Any]:
    kinds = {bool: "boolValue", int: "intValue", float: "doubleValue", str: "stringValue"}
    return {"key": key, "value": {kinds[type(value)]: value}}


def evaluation(name: str, value: Any = None, *, at: int = T0 + 10, text: str | None = None, **more: str) -> dict[str, Any]:
    attributes = [attribute("gen_ai.evaluation.name", name)]
    if value is not None:
        attributes.append(attribute("gen_ai.evaluation.score.value", float(value)))
    if text is not None:
        attributes.append(attribute("gen_ai.evaluation.explanation", text))
    attributes += [attribute(key.replace("__", "."), item) for key, item in more.items()]
    return {"name": "gen_ai.evaluation.result", "timeUnixNano": str(at), "attributes": attributes}


def span(n: int, prompt: str = "1 + 1?", answer: str = "A: 2", events: Iterable[Any] = (), *, at: int = T0, **more: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.response.id": f"r-{n}",
        "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": prompt}]}]),
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": answer}]}]),
        "metadata.consent": True,
        "user.id": f"user-{n}",
    } | {key.replace("__", "."): value for key, value in more.items()}
    return {
        "traceId": f"{n:032x}",
        "spanId": f"{n:016x}",
        "startTimeUnixNano": str(at),
        "endTimeUnixNano": str(at + 5_000_000),
        "attributes": [attribute(key, value) for key, value in values.items() if value is not None],
        "events": list(events),
        "status": {},
    }


def spans(*items: Any) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(items)}]}]}


def logs(*items: Any) -> dict[str, Any]:
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": list(items)}]}]}


def log(n: int, event: dict[str, Any]) -> dict[str, Any]:
    """An evaluation as a log record that refers to span `n`."""
    return event | {"eventName": event["name"], "traceId": f"{n:032x}", "spanId": f"{n:016x}"}


def batch(*requests: Any, source: str = "gateway", kind: str = "otlp-json") -> RawBatch:
    """A batch with one line per request. Requests given as bytes are used unchanged."""
    lines = [item if isinstance(item, bytes) else json.dumps(item).encode() for item in requests]
    return raw(b"\n".join(lines) + b"\n", source, kind)


def raw(data: bytes, source: str = "gateway", kind: str = "otlp-json") -> RawBatch:
    return RawBatch(source, kind, digest(data), "test", lambda: io.BytesIO(data))


def request_of(n: int = 1) -> ExportTraceServiceRequest:
    """Return an OTLP export request with `n` spans of one chat turn."""
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    values = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": "1 + 1?"}]}]),
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "A: 2"}]}]),
        "metadata.consent": "true",
        "ratchet.model_version": "v-1",
    }
    for index in range(1, n + 1):
        span = spans.add(trace_id=index.to_bytes(16, "big"), span_id=index.to_bytes(8, "big"))
        span.start_time_unix_nano = int(datetime(2026, 10, 5, tzinfo=UTC).timestamp() * 1e9) + index
        span.end_time_unix_nano = span.start_time_unix_nano + 5_000_000
        span.attributes.extend(KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in values.items())
    return request
