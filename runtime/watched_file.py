"""A JSON document that another process may replace, and that is read again when it changes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel

from ratchet.contracts.errors import NewerRelease
from ratchet.contracts.schema import parse

log = logging.getLogger("ratchet.files")
Model = TypeVar("Model", bound=BaseModel)


def stamp_of(path: Path) -> list[int]:
    """Return what identifies a version of a file: time of its last change, inode and size. Raises FileNotFoundError."""
    stat = path.stat()
    return [stat.st_mtime_ns, stat.st_ino, stat.st_size]


class WatchedFile(Generic[Model]):
    """The document of type `kind` in the file `path`. A damaged file leaves the last valid content in force.

    `keep` says whether a missing file does so, too. Otherwise the content of a missing file is None.
    """

    def __init__(self, path: Path, kind: type[Model], keep: bool = False) -> None:
        self._path = path
        self._kind = kind
        self._keep = keep
        self._seen: list[int] | None = None
        self._content: Model | None = None
        self.in_force: list[int] | None = None
        """Identity of the file that `current` returned the content of (see `stamp_of`)."""

    def current(self) -> Model | None:
        """Return the content in force; None if there is none."""
        try:
            stamp = stamp_of(self._path)
            if stamp != self._seen:
                content = self._path.read_bytes()
                self._seen = stamp
                self._content = parse(self._kind, content)
                self.in_force = stamp
        except FileNotFoundError:
            self._seen = None
            if not self._keep:
                self._content = self.in_force = None
        except (OSError, ValueError, NewerRelease) as error:
            log.error("%s is not readable (%s); its last valid content stays in force", self._path, type(error).__name__)
        return self._content
