"""Live metrics from the access log of a gateway."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from statistics import quantiles
from typing import Any

from ratchet.extend import Arm, Evidence, Retryable, latency_buckets


class AccessLog:
    """Reads the file `file`: one JSON object {time, version, status, ms, session, user, rating} per line; `rating` may be null."""

    def __init__(self, _lake: Path, *, file: str) -> None:
        self._file = Path(file)

    def evidence(self, champion: str, candidate: str, since: datetime, until: datetime) -> Evidence:
        """Return the evidence of both versions. Raises Retryable if the log is missing."""
        try:
            lines = [json.loads(line) for line in self._file.read_text().splitlines()]
        except FileNotFoundError as error:
            raise Retryable(f"{self._file} does not exist yet; start the gateway") from error
        seen = [line for line in lines if since <= datetime.fromisoformat(line["time"]) < until]
        return Evidence(since=since, until=until, champion=_arm(champion, seen), candidate=_arm(candidate, seen))


def _arm(tag: str, lines: Iterable[dict[str, Any]]) -> Arm:
    own = [line for line in lines if line["version"] == tag]
    refused = sum(line["status"] in (400, 413, 415, 422) for line in own)
    latencies = [line["ms"] for line in own if line["status"] == 200]
    cuts = quantiles(latencies, n=20, method="inclusive") if len(latencies) > 1 else None
    rated: dict[str, list[float]] = {}
    for line in own:
        if line["rating"] is not None:
            rated.setdefault(line["user"], []).append(line["rating"])
    return Arm(
        tag=tag,
        requests=len(own),
        errors=len(own) - len(latencies) - refused,
        refused=refused,
        sessions=len({line["session"] for line in own}),
        users=len({line["user"] for line in own}),
        latency_p50_ms=cuts[9] if cuts else None,
        latency_p95_ms=cuts[18] if cuts else None,
        rated=tuple((len(values), sum(values)) for values in rated.values()),
        raters=tuple(hashlib.sha256(user.encode()).hexdigest()[:16] for user in rated),
        latencies=latency_buckets(latencies),
    )
