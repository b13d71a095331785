"""Counts the records of a line without the decoder's counting, so that the decoder's own counts can be compared with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from ratchet.materializer.dialects.exports.plain_spans import is_plain_spans
from ratchet.materializer.dialects.langfuse import is_observation

EVALUATION = "gen_ai.evaluation.result"
_BESIDE = ("feedback", "correction")


def records_in(form: str, line: bytes, is_kept: bool) -> int:
    """Return how many outcomes the records of a line must have: kept, skipped, quarantined or duplicate.

    `form` is the format of the batch. `is_kept` says whether the line's trace has become a row; ratings and signals in a quarantined line
    of JSON Lines are part of the quarantined record.
    """
    if not line.strip():
        return 0
    try:
        record = orjson.loads(line.rstrip(b"\r\n"))
    except orjson.JSONDecodeError:
        return 1
    if form in ("langfuse", "litellm"):
        return 1
    if form == "otlp-json":
        return sum(_of_request(record))
    if not isinstance(record, dict):
        return 1
    if not is_observation(record) and (spans := _plain_spans(record)) > 0:
        return spans
    return 1 + (_stated_beside(record) if is_kept else 0)


def _stated_beside(record: dict[str, Any]) -> int:
    """Return the number of ratings, corrections and signals that a line of JSON Lines states about its call."""
    if record.get("consent_for") is not None or is_observation(record):
        return 0
    signals = record.get("signals")
    count = len(signals) if isinstance(signals, list) else int(signals is not None)
    return count + sum(record.get(key) is not None for key in _BESIDE)


def _of_request(request: Any) -> Iterator[int]:
    """Yield the number of records of each part of an OTLP request. A part that has no list where one must be is one bad record."""
    if not isinstance(request, dict) or (request and "resourceSpans" not in request and "resourceLogs" not in request):
        yield 1
        return
    yield from _below(request, ["resourceSpans", "scopeSpans", "spans"])
    yield from _below(request, ["resourceLogs", "scopeLogs", "logRecords"])


def _below(holder: Any, keys: list[str]) -> Iterator[int]:
    if not keys:
        yield 1 + (_evaluations(holder) if isinstance(holder, dict) and "logRecords" not in keys else 0)
        return
    if not isinstance(holder, dict):
        yield 1
        return
    items = holder.get(keys[0])
    if items is None:
        return
    if not isinstance(items, list):
        yield 1
        return
    for item in items:
        yield from _below(item, keys[1:])


def _evaluations(span: dict[str, Any]) -> int:
    """Return the number of evaluations in the events of a span. A log record has no events."""
    events = span.get("events")
    return sum(isinstance(one, dict) and one.get("name") == EVALUATION for one in events) if isinstance(events, list) else 0


def _plain_spans(record: dict[str, Any]) -> int:
    """Return the number of spans of a record that has spans in another form than OTLP; 0 for other records."""
    if not is_plain_spans(record):
        return 0
    data = record.get("data")
    listed = data.get("spans") if isinstance(record.get("info"), dict) and isinstance(data, dict) else None
    return len(listed) if isinstance(listed, list) and listed and not {"attributes", "context"} & record.keys() else 1
