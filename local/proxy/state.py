"""State of a line in the router process: a file with the requests in flight, which the service reads before it stops a model server.

Callers cannot see it, because it names versions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ratchet.contracts.errors import Retryable
from ratchet.contracts.schema import stamped, unstamped
from ratchet.contracts.serving import Route
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.watched_file import WatchedFile, stamp_of

STATE = "state.json"
"""Name of the file, which lies beside the route file."""
_KIND = "RouterState"


class StateFile:
    """The file `path` of a line. `figures` returns the content that changes: the requests in flight, and figures of the traces."""

    def __init__(self, path: Path, routes: WatchedFile[Route], figures: Callable[[], Mapping[str, Any]]) -> None:
        self._path = path
        self._routes = routes
        self._figures = figures
        self._written: dict[str, Any] | None = None

    def take(self) -> Sequence[Callable[[], None]]:
        """Return a function that writes the file, if the state has changed; otherwise nothing. It may be called in a thread.

        Every request that comes later follows the route that the file identifies, or a newer one. The function raises Retryable if the
        file cannot be written; a later call then returns another function.
        """
        self._routes.current()
        state = {"route": self._routes.in_force, **self._figures()}
        if state == self._written:
            return ()
        self._written = state

        def write() -> None:
            try:
                write_atomic(self._path, stamped({"pid": os.getpid(), **state}))
            except Retryable:
                self._written = None
                raise

        return (write,)


def read_in_flight(path: Path, pid: int, route: Path) -> dict[str, int]:
    """Return version tag -> number of requests in flight, as the process `pid` reports them for the route in the file `route`.

    Raises Retryable if the process has not yet reported since the route was set, or if it does not report.
    """
    try:
        content = unstamped(path.read_bytes(), _KIND)
        if content["pid"] == pid and content["route"] == stamp_of(route):
            return {str(tag): int(n) for tag, n in content["in_flight"].items()}
    except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
        raise Retryable(f"{path} is not readable ({type(error).__name__}), so the requests in flight are unknown") from error
    raise Retryable("the router has not yet reported its requests in flight since the route was set; look again")
