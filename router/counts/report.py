"""The router's report on a line: the route that it follows, and its requests in flight.

The service reads it before it stops a model server. Callers cannot see it, because it names versions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ratchet.contracts.errors import Retryable
from ratchet.contracts.schema import stamped, unstamped
from ratchet.router.state import Document, RouterState

_KIND = "RouterState"


class Report:
    """Writes the report of a line. `figures` returns the content that changes: requests in flight, outcomes, figures of the traces."""

    def __init__(self, state: RouterState, figures: Callable[[], Mapping[str, Any]]) -> None:
        self._state = state
        self._figures = figures
        self._written: dict[str, Any] | None = None

    def take(self) -> Sequence[Callable[[], None]]:
        """Return a function that writes the report, if it has changed; otherwise nothing. It may be called in a thread.

        Every request that comes later follows the route that the report identifies, or a newer one. The function raises Retryable if the
        report cannot be written; a later call then returns another function.
        """
        self._state.route()
        report = {"route": self._state.followed(), **self._figures()}
        if report == self._written:
            return ()
        self._written = report

        def write() -> None:
            try:
                self._state.write(Document.REPORT, stamped({"pid": os.getpid(), **report}))
            except Retryable:
                self._written = None
                raise

        return (write,)


def figures(report: bytes) -> Mapping[str, Any]:
    """Return the content of a report. Raises ValueError, or NewerRelease if a newer release wrote it."""
    return unstamped(report, _KIND)


def in_flight(report: bytes | None, pid: int, route: list[int]) -> dict[str, int]:
    """Return version tag -> number of requests in flight, as the process `pid` reports them for the route that `route` identifies.

    Raises Retryable if the process has not yet reported since the route was set, or if the report is not readable.
    """
    try:
        content = unstamped(report or b"", _KIND)
        if content["pid"] == pid and content["route"] == route:
            return {str(tag): int(n) for tag, n in content["in_flight"].items()}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Retryable(f"the router's report is not readable ({type(error).__name__}), so the requests in flight are unknown") from error
    raise Retryable("the router has not yet reported its requests in flight since the route was set; look again")
