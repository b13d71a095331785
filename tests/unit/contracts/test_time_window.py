"""Tests of daily windows: over midnight, in the zone of the loop file, and over a change of the clocks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.time_window import checked_window, opens_at, seconds_left


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("window", "zone", "now", "left"),
    [
        ("22:00-06:00", "UTC", "2026-05-04T21:59", 0),
        ("22:00-06:00", "UTC", "2026-05-04T22:00", 8 * 3600),
        ("22:00-06:00", "UTC", "2026-05-05T05:00", 3600),
        ("22:00-06:00", "UTC", "2026-05-05T06:00", 0),
        ("09:00-10:00", "UTC", "2026-05-05T09:30", 1800),
        ("22:00-06:00", "Europe/Berlin", "2026-05-04T20:00", 8 * 3600),
        ("22:00-06:00", "Europe/Berlin", "2026-10-24T20:00", 9 * 3600),
        ("22:00-06:00", "Europe/Berlin", "2026-03-28T21:00", 7 * 3600),
    ],
)
def test_seconds_left(window: str, zone: str, now: str, left: float) -> None:
    assert seconds_left(window, zone, at(now)) == left


def test_next_begin() -> None:
    assert opens_at("22:00-06:00", "UTC", at("2026-05-04T10:00")) == at("2026-05-04T22:00")
    assert opens_at("22:00-06:00", "UTC", at("2026-05-04T22:00")) == at("2026-05-05T22:00")
    assert opens_at("01:30-05:00", "Asia/Tokyo", at("2026-05-04T10:00")) == at("2026-05-04T16:30")


@given(
    st.tuples(st.integers(0, 1439), st.integers(0, 1439)).filter(lambda pair: pair[0] != pair[1]),
    st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Apia"]),
    st.integers(0, 1000 * 1440),
)
def test_a_window_is_open_when_it_opens(pair: tuple[int, int], zone: str, minute: int) -> None:
    now = at("2024-01-01T00:00") + timedelta(minutes=minute)
    window = "-".join(f"{minutes // 60:02d}:{minutes % 60:02d}" for minutes in pair)
    begin = opens_at(window, zone, now)
    assert now < begin <= now + timedelta(hours=73)
    assert seconds_left(window, zone, begin) > 0


@pytest.mark.parametrize("text", ["", "22-06", "24:00-06:00", "22:00-22:00", "22:00 - 06:00", "22:60-06:00"])
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HH:MM-HH:MM"):
        checked_window(text)
