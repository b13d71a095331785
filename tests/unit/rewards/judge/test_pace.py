"""Tests of the number of requests at the same time, and of the header `Retry-After`."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ratchet.rewards.judge.pace import Pace, retry_after

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def _start(pace: Pace, count: int) -> None:
    for _ in range(count):
        assert pace.may_start(0.0)
        pace.started()


def test_the_limit_falls_to_what_the_server_takes() -> None:
    pace = Pace(64)
    _start(pace, 64)
    assert not pace.may_start(0.0)
    for _ in range(24):
        pace.refused(0.0, 1.0)
    assert pace.running == 40
    assert not pace.may_start(0.0)
    pace.succeeded()
    assert pace.may_start(0.0)
    assert pace.limit == pytest.approx(40, abs=0.1)


def test_the_limit_rises_by_one_per_round_of_successes() -> None:
    pace = Pace(64)
    _start(pace, 41)
    pace.refused(0.0, 1.0)
    for _ in range(40):
        pace.succeeded()
        pace.started()
    assert 40.5 < pace.limit < 41.5
    assert Pace(8).limit == 8


def test_nothing_starts_while_the_server_refuses_everything() -> None:
    pace = Pace(8)
    _start(pace, 2)
    pace.refused(10.0, 3.0)
    pace.refused(10.0, 3.0)
    assert not pace.may_start(12.9)
    assert pace.paused(12.0) == 1.0
    assert pace.may_start(13.0)
    pace.started()
    assert not pace.may_start(13.0)
    pace.succeeded()
    assert pace.limit == 1.0 + 1.0 / 1.0


def test_the_limit_stays_within_its_bounds() -> None:
    pace = Pace(2)
    for _ in range(100):
        pace.started()
        pace.succeeded()
    assert pace.limit == 2
    for _ in range(100):
        pace.started()
        pace.refused(0.0, 0.0)
    assert pace.limit == 1


def test_another_failure_leaves_the_limit() -> None:
    pace = Pace(4)
    pace.started()
    pace.failed()
    assert (pace.limit, pace.running) == (4, 0)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 7.0),
        ("2", 2.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("99999", 3600.0),
        ("nan", 7.0),
        ("soon", 7.0),
        ("Mon, 01 Jan 99999999999 00:00:00 GMT", 7.0),
        ("Thu, 01 Jan 2026 00:00:00 +9999999999999", 7.0),
        ("Thu, 01 Jan 2026 12:00:30 GMT", 30.0),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0.0),
    ],
)
def test_retry_after(header: str | None, seconds: float) -> None:
    assert retry_after(header, NOW, 7.0) == seconds
