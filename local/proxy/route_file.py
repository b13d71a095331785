"""The route in force: a file that `LocalRouter` replaces atomically."""

from __future__ import annotations

import logging
from pathlib import Path

from contracts.errors import RatchetError
from contracts.schema import parse
from contracts.serving import Route

log = logging.getLogger("ratchet.router")


class RouteFile:
    """The route file on disk, which is read again when it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._route: Route | None = None

    def current(self) -> Route | None:
        """Return the newest valid route that the file has contained; None if there was none yet.

        A missing or damaged file does not stop the router. The service finds the damage and writes the file again.
        """
        try:
            stat = self._path.stat()
            if (stat.st_mtime_ns, stat.st_ino) != self._stamp:
                self._stamp = (stat.st_mtime_ns, stat.st_ino)
                self._route = parse(Route, self._path.read_bytes())
        except FileNotFoundError:
            self._stamp = None
        except (RatchetError, ValueError, OSError) as error:
            log.error("%s is not a valid route (%s); the last valid route stays in force", self._path, type(error).__name__)
        return self._route
