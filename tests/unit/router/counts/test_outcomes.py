"""Tests of what the router counts for a person who watches the line."""

from __future__ import annotations

import json

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from ratchet.contracts.serving import LATENCY_BASE
from ratchet.router.counts.outcomes import KEPT_MINUTES, Outcomes, window
from ratchet.router.traces.spans import attributes


def span(ms: float, failed: bool = False, refused: bool = False) -> Span:
    """Return the span of a request that took `ms` milliseconds."""
    code = Status.STATUS_CODE_ERROR if failed else Status.STATUS_CODE_UNSET
    values = {"ratchet.refused": True} if refused else {}
    return Span(start_time_unix_nano=0, end_time_unix_nano=round(ms * 1e6), status=Status(code=code), attributes=attributes(values))


def test_outcomes_are_counted_by_version_and_minute() -> None:
    now = [6_000.0]
    outcomes = Outcomes(lambda: now[0])
    outcomes.add("v-1", span(100))
    now[0] += 240
    outcomes.add("v-1", span(100))
    outcomes.add("v-1", span(3000, failed=True))
    outcomes.add("v-2", span(1, refused=True))
    outcomes.turn_away()
    stored = json.loads(json.dumps(outcomes.figures()))
    recent, turned_away = window(stored, now[0], 2)
    assert turned_away == 1
    assert (recent["v-1"]["requests"], recent["v-1"]["errors"], recent["v-1"]["refused"]) == (2, 1, 0)
    [(bucket, n)] = recent["v-1"]["latencies"].items()
    assert (n, round(LATENCY_BASE**bucket, -1)) == (1, pytest.approx(100, abs=10))
    assert (recent["v-2"]["refused"], dict(recent["v-2"]["latencies"])) == (1, {})
    assert window(stored, now[0], 10)[0]["v-1"]["requests"] == 3
    assert stored["since"] == 6_000


def test_old_minutes_are_forgotten() -> None:
    now = [0.0]
    outcomes = Outcomes(lambda: now[0])
    outcomes.add("v-1", span(1))
    outcomes.turn_away()
    now[0] = 60.0 * (KEPT_MINUTES + 1)
    assert outcomes.figures() == {"since": 0, "minutes": [], "turned_away": []}
