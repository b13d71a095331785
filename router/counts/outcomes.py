"""What became of the requests of the last minutes, per version: a part of the router's report, for a person who watches the line.

The figures live in the memory of the process and begin anew with it. Decisions use the traces in the lake instead.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from ratchet.contracts.serving import latency_bucket

_MINUTE = 60
KEPT_MINUTES = 15
"""Minutes for which the figures are kept."""


class Outcomes:
    """The figures of a line. `clock` returns seconds since the epoch."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._since = clock()
        self._counts: dict[tuple[int, str], Counter[str]] = {}
        self._latencies: dict[tuple[int, str], Counter[int]] = {}
        self._turned_away: Counter[int] = Counter()

    def add(self, tag: str, span: Span) -> None:
        """Count a request to the version `tag` that has ended with this span."""
        key = self._minute(), tag
        counts = self._counts.setdefault(key, Counter())
        counts["requests"] += 1
        if span.status.code == Status.STATUS_CODE_ERROR:
            counts["errors"] += 1
        elif any(one.key == "ratchet.refused" for one in span.attributes):
            counts["refused"] += 1
        else:
            ms = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6
            self._latencies.setdefault(key, Counter())[latency_bucket(ms)] += 1

    def turn_away(self) -> None:
        """Count a request that the router refuses itself: it is not valid, its caller has too many, or there is no route."""
        self._turned_away[self._minute()] += 1

    def _minute(self) -> int:
        return int(self._clock()) // _MINUTE

    def figures(self) -> dict[str, Any]:
        """Return the content of the report: rows (minute since the epoch, version, requests, errors, refused, latencies by bucket)."""
        oldest = self._minute() - KEPT_MINUTES
        self._counts = {key: counts for key, counts in self._counts.items() if key[0] > oldest}
        self._latencies = {key: counts for key, counts in self._latencies.items() if key[0] > oldest}
        self._turned_away = Counter({minute: n for minute, n in self._turned_away.items() if minute > oldest})
        rows = [
            [*key, counts["requests"], counts["errors"], counts["refused"], sorted(self._latencies.get(key, Counter()).items())]
            for key, counts in sorted(self._counts.items())
        ]
        return {"since": int(self._since), "minutes": rows, "turned_away": sorted(self._turned_away.items())}


def window(figures: Mapping[str, Any], now: float, minutes: int) -> tuple[dict[str, dict[str, Any]], int]:
    """Return the figures of the last `minutes` per version, and the number of requests that the router refused itself.

    `figures` are those of the report, `now` is in seconds since the epoch. The keys are `requests`, `errors`, `refused` and `latencies`
    (bucket -> number of answers). Raises LookupError, TypeError or ValueError if the figures are damaged.
    """
    oldest = int(now) // _MINUTE - minutes
    found: dict[str, dict[str, Any]] = {}
    for minute, tag, requests, errors, refused, latencies in figures["minutes"]:
        if minute > oldest:
            one = found.setdefault(str(tag), {"requests": 0, "errors": 0, "refused": 0, "latencies": Counter()})
            for name, n in (("requests", requests), ("errors", errors), ("refused", refused)):
                one[name] += int(n)
            one["latencies"].update({int(bucket): int(n) for bucket, n in latencies})
    return found, sum(int(n) for minute, n in figures["turned_away"] if minute > oldest)
