"""Counts of the requests that the router sends to each version. A rollout compares them with the traces in the lake.

The router process keeps the counts in a document. The document also has the requests that are not answered yet. After a crash they have no
trace, and so they no longer count. The requests of the last second do not count either, although they may have traces: a crash must not
look like lost traces, because a rollout goes back for them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from ratchet.contracts.errors import RatchetError, Retryable
from ratchet.contracts.schema import stamped, unstamped
from ratchet.router.state import Document, RouterState

log = logging.getLogger("ratchet.router")
_EVERY_SECONDS = 1.0
_FINE_SECONDS = 1
"""Length of a new interval."""
_FINE_FOR = 900
"""Age in seconds after which counts are merged into coarse intervals, so that the document stays small."""
_COARSE_SECONDS = 600
_KEPT_FOR = 30 * 86_400
"""Age in seconds after which counts are deleted. It exceeds the duration of a rollout step."""
_KIND = "ForwardedCounts"

Interval = tuple[int, int, str]
Intervals = Counter[Interval]
"""(start in seconds since the epoch, length in seconds, version tag) -> number of requests."""
_UNCOUNTED = 0
"""Length of the interval of a request that no trace of the lake stands for, for example one for embeddings."""


class ForwardedCounts:
    """The counts of the router process, which are kept in `state`."""

    def __init__(self, state: RouterState) -> None:
        self._state = state
        self._open: Intervals = Counter()
        self._written = float("-inf")
        self._changed = True  # the first write creates the document, which states that this router counts
        self._counts: Intervals = Counter()
        try:
            kept = state.read(Document.FORWARDED)
            if kept is not None:
                content = unstamped(kept, _KIND)
                self._counts = _intervals(content["counts"])
                self._counts.subtract(_intervals(content.get("open", [])))
        except (RatchetError, ValueError, LookupError, TypeError, OSError) as error:
            log.error("the counts of requests are not readable (%s) and start again", type(error).__name__)
            self._counts = Counter()

    def begin(self, tag: str, at: float, is_evidence: bool = True) -> Interval:
        """Count a request that is sent to the version `tag` at the time `at`, in seconds since the epoch. Return its interval.

        Without `is_evidence`, the lake gets no trace of the request. It is then counted only while it is in flight.
        """
        interval = int(at) // _FINE_SECONDS * _FINE_SECONDS, _FINE_SECONDS if is_evidence else _UNCOUNTED, tag
        if is_evidence:
            self._counts[interval] += 1
        self._open[interval] += 1
        self._changed = True
        return interval

    def end(self, interval: Interval) -> None:
        """Note that a request of an interval is answered, and that its trace is stored."""
        self._open[interval] -= 1
        if not self._open[interval]:
            del self._open[interval]
        self._changed = True

    def in_flight(self) -> dict[str, int]:
        """Return version tag -> number of requests that are not answered yet."""
        found: Counter[str] = Counter()
        for (_, _, tag), n in self._open.items():
            found[tag] += n
        return dict(found)

    def write(self, now: float) -> None:
        """Write the counts if one has changed. `now` is in seconds since the epoch. Raises Retryable if it cannot be written."""
        for write in self._writes(now):
            write()

    def take(self, now: float) -> Sequence[Callable[[], None]]:
        """Return a function that writes the counts, if one has changed and the last write is a second ago; otherwise nothing.

        `now` is in seconds since the epoch. The function may be called in a thread. It raises Retryable if they cannot be written;
        a later call then returns another one.
        """
        return self._writes(now) if abs(now - self._written) >= _EVERY_SECONDS else ()

    def _writes(self, now: float) -> Sequence[Callable[[], None]]:
        if not self._changed:
            return ()
        self._changed, self._written = False, now
        self._counts = _merged(self._counts, now)
        counted = Counter({key: n for key, n in self._open.items() if key[1] != _UNCOUNTED})
        content = stamped({"counts": _rows(self._counts), "open": _rows(counted)})

        def write() -> None:
            try:
                self._state.write(Document.FORWARDED, content)
            except Retryable:
                self._changed = True
                raise

        return (write,)


def sent_between(document: bytes | None, since: datetime, until: datetime) -> Mapping[str, int]:
    """Return version tag -> number of requests in the intervals of the document that lie inside [since, until).

    Raises Retryable if there is no document, or if it is not readable.
    """
    if document is None:
        raise Retryable("the router's counts are missing, so the requests that it sent are unknown; restart the router")
    try:
        counts = _intervals(unstamped(document, _KIND)["counts"])
    except (ValueError, LookupError, TypeError) as error:
        why = f"are not readable ({type(error).__name__})"
        raise Retryable(f"the router's counts {why}, so the requests that it sent are unknown; restart the router") from error
    found: Counter[str] = Counter()
    for (start, length, tag), n in counts.items():
        if start >= since.timestamp() and start + length <= until.timestamp():
            found[tag] += n
    return dict(found)


def _rows(counts: Intervals) -> list[list[int | str]]:
    return [[*key, n] for key, n in sorted(counts.items()) if n > 0]


def _intervals(rows: Iterable[Sequence[Any]]) -> Intervals:
    counts: Intervals = Counter()
    for start, length, tag, n in rows:
        counts[int(start), int(length), str(tag)] += int(n)
    return counts


def _merged(counts: Intervals, now: float) -> Intervals:
    """Return the counts with old intervals merged, and without those that are older than _KEPT_FOR seconds."""
    merged: Intervals = Counter()
    for (start, length, tag), n in counts.items():
        if start < now - _FINE_FOR:
            start, length = start // _COARSE_SECONDS * _COARSE_SECONDS, _COARSE_SECONDS
        if start >= now - _KEPT_FOR:
            merged[start, length, tag] += n
    return merged
