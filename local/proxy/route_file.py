"""The route in force: a file that `LocalRouter` replaces atomically."""

from __future__ import annotations

import logging
from pathlib import Path

from contracts.errors import RatchetError
from contracts.schema import parse
from contracts.serving import Route

log = logging.getLogger("ratchet.router")


def stamp_of(path: Path) -> list[int]:
    """Return what identifies a version of a file: time of its last change, and inode. Raises FileNotFoundError."""
    stat = path.stat()
    return [stat.st_mtime_ns, stat.st_ino]


class RouteFile:
    """The route file on disk, which is read again when it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: list[int] | None = None
        self._route: Route | None = None
        self.in_force: list[int] | None = None
        """Identity of the file that has set the route in force (see `stamp_of`)."""

    def current(self) -> Route | None:
        """Return the newest valid route that the file has contained; None if there was none yet.

        A missing or damaged file does not stop the router. The service finds the damage and writes the file again.
        """
        try:
            stamp = stamp_of(self._path)
            if stamp != self._seen:
                self._seen = stamp
                self._route = parse(Route, self._path.read_bytes())
                self.in_force = stamp
        except FileNotFoundError:
            self._seen = None
        except (RatchetError, ValueError, OSError) as error:
            log.error("%s is not a valid route (%s); the last valid route stays in force", self._path, type(error).__name__)
        return self._route
