"""The state of a line's router in memory, for tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ratchet.contracts.serving import Route
from ratchet.router.state import Document, SpanStore


class MemorySpans:
    """A `SpanStore` in memory. Each segment has one span."""

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        self._spans: dict[int, bytes] = {}
        self._next = 0

    @property
    def size(self) -> int:
        """Size of all spans in bytes."""
        return sum(map(len, self._spans.values()))

    def append(self, span: bytes) -> None:
        """Store a span."""
        self._spans[self._next] = span
        self._next += 1

    def drop(self, reason: str) -> None:
        """Count a lost span."""
        self.dropped[reason] += 1

    def oldest(self) -> int | None:
        """Return the number of the oldest span; None if there is none."""
        return next(iter(self._spans), None)

    def read(self, segment: int) -> list[bytes]:
        """Return the span."""
        return [self._spans[segment]]

    def remove(self, segment: int) -> None:
        """Delete the span."""
        self._spans.pop(segment, None)

    def syncs(self) -> Sequence[Callable[[], None]]:
        """Return nothing, because memory does not survive a power failure."""
        return ()

    def close(self) -> None:
        """Do nothing."""


class MemoryState:
    """A `RouterState` in memory. `set` puts a route in force."""

    def __init__(self) -> None:
        self.spans: SpanStore = MemorySpans()
        self._routes: list[Route] = []
        self._documents: dict[Document, bytes] = {}

    def set(self, route: Route) -> None:
        """Put a route in force."""
        self._routes.append(route)

    def route(self) -> Route | None:
        """Return the newest route."""
        return self._routes[-1] if self._routes else None

    def followed(self) -> list[int] | None:
        """Return the number of routes that were set."""
        return [len(self._routes)] if self._routes else None

    def read(self, document: Document) -> bytes | None:
        """Return what was written last."""
        return self._documents.get(document)

    def write(self, document: Document, content: bytes) -> None:
        """Keep the content."""
        self._documents[document] = content
