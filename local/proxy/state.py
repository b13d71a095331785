"""State of the router process for the service: a file with the requests in flight, which the service reads before it stops a server.

Callers cannot see it, because it names versions.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from contracts.errors import Retryable
from contracts.schema import stamped, unstamped
from contracts.serving import Route
from runtime.artifacts import write_atomic
from runtime.watched_file import WatchedFile, stamp_of

STATE = "state.json"
"""Name of the file, which lies beside the route file."""
_KIND = "RouterState"
_EVERY_SECONDS = 0.5
log = logging.getLogger("ratchet.router")


class StateFile:
    """The file `path` of this process. `figures` returns the content that changes: the requests in flight, and figures of the traces."""

    def __init__(self, path: Path, routes: WatchedFile[Route], figures: Callable[[], Mapping[str, Any]]) -> None:
        self._path = path
        self._routes = routes
        self._figures = figures

    def content(self) -> bytes:
        """Return the state now. Every later request follows the route that `route` identifies, or a newer one."""
        self._routes.current()
        return stamped({"pid": os.getpid(), "route": self._routes.in_force, **self._figures()})

    async def run(self) -> None:
        """Write the file whenever its content has changed, until cancelled."""
        written = b""
        while True:
            content = self.content()
            if content != written:
                try:
                    await asyncio.to_thread(write_atomic, self._path, content)
                    written = content
                except Retryable as error:
                    log.error("%s", error)
            await asyncio.sleep(_EVERY_SECONDS)


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
