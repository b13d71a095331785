"""Tests of the router's counts: windows, restarts, damaged files, and old counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ratchet.contracts.errors import Retryable
from ratchet.router.counts.forwarded import ForwardedCounts, sent_between
from ratchet.router.memory_state import MemoryState
from ratchet.router.state import Document

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
START = NOON.timestamp()


def read_counts(state: MemoryState, since: datetime, until: datetime) -> Any:
    return sent_between(state.read(Document.FORWARDED), since, until)


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def test_requests_are_counted_per_version_in_the_window() -> None:
    state = MemoryState()
    counts = ForwardedCounts(state)
    for second in range(10):
        counts.begin("old", START + second + 0.5)
    counts.begin("new", START + 3.2)
    counts.write(START + 10)
    assert read_counts(state, NOON, after(10)) == {"old": 10, "new": 1}
    assert read_counts(state, after(2), after(5)) == {"old": 3, "new": 1}
    assert read_counts(state, after(4), after(5.5)) == {"old": 1}, "an interval counts only if it is in the window"
    assert read_counts(state, after(50), after(60)) == {}


def test_counts_survive_a_restart() -> None:
    state = MemoryState()
    for _ in range(2):
        counts = ForwardedCounts(state)
        counts.end(counts.begin("old", START))
        counts.write(START + 1)
    assert read_counts(state, NOON, after(1)) == {"old": 2}


def test_a_request_that_a_killed_router_did_not_answer_no_longer_counts() -> None:
    state = MemoryState()
    counts = ForwardedCounts(state)
    answered, _open = counts.begin("old", START), counts.begin("old", START)
    counts.end(answered)
    counts.begin("new", START)
    counts.write(START + 1)
    assert counts.in_flight() == {"old": 1, "new": 1}
    assert read_counts(state, NOON, after(1)) == {"old": 2, "new": 1}, "a version that does not answer has requests without traces"
    ForwardedCounts(state).write(START + 2)
    assert read_counts(state, NOON, after(1)) == {"old": 1}
    ForwardedCounts(state).write(START + 3)
    assert read_counts(state, NOON, after(1)) == {"old": 1}


def test_a_router_without_requests_states_that_it_counts() -> None:
    state = MemoryState()
    ForwardedCounts(state).write(START)
    assert read_counts(state, NOON, after(60)) == {}


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"counts": [[1, 2]]}', b'{"counts": 3}'])
def test_missing_or_damaged_counts_are_unknown_and_a_router_starts_them_again(content: bytes | None) -> None:
    state = MemoryState()
    if content is not None:
        state.write(Document.FORWARDED, content)
    with pytest.raises(Retryable, match="the requests that it sent are unknown"):
        read_counts(state, NOON, after(60))
    counts = ForwardedCounts(state)
    counts.begin("old", START)
    counts.write(START + 1)
    assert read_counts(state, NOON, after(60)) == {"old": 1}


def test_old_counts_are_merged_and_finally_deleted() -> None:
    state, week = MemoryState(), 7 * 86_400
    counts = ForwardedCounts(state)
    for second in range(0, week, 60):
        counts.end(counts.begin("old", START + second))
    counts.write(START + week)
    assert read_counts(state, NOON, after(week)) == {"old": week // 60}
    assert len(state.read(Document.FORWARDED) or b"") < 100_000
    counts.end(counts.begin("old", START + 10 * week))
    counts.write(START + 10 * week)
    assert read_counts(state, NOON, after(10 * week + 60)) == {"old": 1}
