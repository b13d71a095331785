"""A daily window of time, for example `22:00-06:00`, in which something may begin."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

_FORM = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


def checked_window(text: str | None) -> str | None:
    """Return a window as it was given. Raises ValueError if it is not HH:MM-HH:MM, or begins and ends at the same time."""
    if text is not None and (not _FORM.fullmatch(text) or text[:5] == text[6:]):
        raise ValueError(f"window {text!r}: HH:MM-HH:MM is required, with two different times, for example 22:00-06:00")
    return text


def seconds_left(window: str, zone: str, now: datetime) -> float:
    """Return the seconds until the end of the window at the time `now`; 0 outside it.

    A window that ends before it begins lasts until the next day. `zone` is the IANA time zone of its times.
    """
    return max(((end - now).total_seconds() for begin, end in _around(window, zone, now) if begin <= now < end), default=0.0)


def length(window: str) -> float:
    """Return the seconds for which the window is open on a day without a change of the clocks."""
    begin, end = (60 * int(text[:2]) + int(text[3:]) for text in window.split("-"))
    return 60.0 * ((end - begin) % 1440)


def opens_at(window: str, zone: str, now: datetime) -> datetime:
    """Return the next begin of the window after `now`, in UTC. A window that lies in an hour that the clocks skip does not open."""
    return min(begin for begin, end in _around(window, zone, now) if now < begin < end)


def _around(window: str, zone: str, now: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Yield (begin, end) in UTC of the windows that begin from the day before `now` to two days after it."""
    first, last = (time(int(text[:2]), int(text[3:])) for text in window.split("-"))
    local = ZoneInfo(zone)
    today = now.astimezone(local).date()
    for days in range(-1, 3):
        day = today + timedelta(days=days)
        end = day + timedelta(days=last <= first)
        yield tuple(datetime.combine(at, clock, local).astimezone(UTC) for at, clock in ((day, first), (end, last)))  # type: ignore[misc]
