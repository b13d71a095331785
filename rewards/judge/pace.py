"""How many requests run at the same time, depending on the server's answers. Pure: the time is an argument."""

from __future__ import annotations

import email.utils
from datetime import UTC, datetime


class Pace:
    """Limit of the requests at the same time.

    When the server refuses a request because it is busy, the limit falls to the number of the others, which it has not refused. With each
    success, the limit rises by one up to the last such number, and then by one per round. If nothing else is running when a request is
    refused, the server refuses everything: no request starts until the time that it named, and then first a single one.
    """

    def __init__(self, most: int) -> None:
        self._most = float(most)
        self._known = float(most)
        self._paused = 0.0
        self.limit = float(most)
        self.running = 0

    def may_start(self, now: float) -> bool:
        """Return whether another request may start at `now` (seconds)."""
        return self.running < int(self.limit) and now >= self._paused

    def paused(self, now: float) -> float:
        """Return the seconds for which no request may start."""
        return max(0.0, self._paused - now)

    def started(self) -> None:
        """Count a request that starts."""
        self.running += 1

    def succeeded(self) -> None:
        """Count a request that the server has answered."""
        self.running -= 1
        self.limit = min(self._most, self.limit + (1.0 if self.limit < self._known else 1 / self.limit))

    def refused(self, now: float, wait: float) -> None:
        """Count a request that the server has refused for `wait` seconds because it is busy."""
        self.running -= 1
        if self.running:
            self.limit = self._known = min(self.limit, float(self.running))
        else:
            self.limit, self._paused = 1.0, max(self._paused, now + wait)

    def failed(self) -> None:
        """Count a request that ended in another way, which says nothing about the load."""
        self.running -= 1


def retry_after(header: str | None, now: datetime, default: float) -> float:
    """Return the seconds that a header `Retry-After` names, as a number or as a date, at most an hour; `default` without a valid one."""
    if header is None:
        return default
    try:
        seconds = float(header)
    except ValueError:
        try:
            then = email.utils.parsedate_to_datetime(header)
            seconds = ((then if then.tzinfo else then.replace(tzinfo=UTC)) - now).total_seconds()
        except (ValueError, OverflowError, TypeError):  # a year or an offset that no date has
            return default
    return min(max(0.0, seconds), 3600.0) if seconds == seconds else default
