"""The state of a line's router: what it reads and keeps outside its process, as a port, and its implementation in a folder.

Routing, attribution and counting are the same code wherever the router runs. Only the place of its state differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from ratchet.contracts.serving import Route
from ratchet.router.traces.span_spool import SPOOL_BYTES, SpanSpool
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.watched_file import WatchedFile

ROUTE = "route.json"
"""Name of the route file in a folder of state."""
SPOOL = "spool"
"""Name of the folder with the spans that are not sent yet."""


class Document(StrEnum):
    """A document that the router writes and the service reads. The value is its file name in a folder of state."""

    FORWARDED = "forwarded.json"
    """Counts of the requests that were sent to each version."""
    REPORT = "state.json"
    """The route that the router follows, and its requests in flight."""


class SpanStore(Protocol):
    """Spans that the receiver does not have yet. They survive the death of the process. Each belongs to a segment."""

    dropped: Counter[str]
    """Reason -> number of spans that are lost."""

    @property
    def size(self) -> int:
        """Size of all spans in bytes."""
        ...

    def append(self, span: bytes) -> None:
        """Store a span, or count it as dropped. When this returns, the span survives the death of the process."""
        ...

    def drop(self, reason: str) -> None:
        """Count a lost span."""
        ...

    def oldest(self) -> Any:
        """Return the oldest segment, which gets no further spans. None if there are no spans."""
        ...

    def read(self, segment: Any) -> list[bytes]:
        """Return the spans of a segment. Damaged ones are left out and counted."""
        ...

    def remove(self, segment: Any) -> None:
        """Delete a segment, whose spans the receiver has on its disk."""
        ...

    def syncs(self) -> Sequence[Callable[[], None]]:
        """Return a function that makes the spans since the last call survive a power failure; nothing if there are none.

        The function may be called in a thread.
        """
        ...

    def close(self) -> None:
        """End the writing. The spans stay."""
        ...


class RouterState(Protocol):
    """The state of one line's router. One process at a time owns it."""

    spans: SpanStore

    def route(self) -> Route | None:
        """Return the route in force, None if none was ever set. One that is not readable leaves the last one in force."""
        ...

    def followed(self) -> list[int] | None:
        """Identify the route that `route` returned last, as a JSON value; None if it returned none."""
        ...

    def read(self, document: Document) -> bytes | None:
        """Return the content of a document; None if it was never written. Raises OSError if it cannot be read."""
        ...

    def write(self, document: Document, content: bytes) -> None:
        """Replace a document as a whole. May be called in a thread. Raises Retryable if that fails."""
        ...


class FolderState:
    """A `RouterState` in `folder`, whose route file the service writes. `spool_bytes` is the maximum size of the spans."""

    def __init__(self, folder: Path, spool_bytes: int = SPOOL_BYTES) -> None:
        self.folder = folder
        self.spans: SpanStore = SpanSpool(folder / SPOOL, spool_bytes)
        self._routes = WatchedFile(folder / ROUTE, Route, keep=True)

    def route(self) -> Route | None:
        """Return the route in force. The file is read again when it changes."""
        return self._routes.current()

    def followed(self) -> list[int] | None:
        """Return the stamp of the route file whose content `route` returned last."""
        return self._routes.in_force

    def read(self, document: Document) -> bytes | None:
        """Return the content of the document's file; None if it does not exist."""
        try:
            return (self.folder / document).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, document: Document, content: bytes) -> None:
        """Replace the document's file atomically. Raises Retryable if it cannot be written."""
        write_atomic(self.folder / document, content)
