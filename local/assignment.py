"""Which version a session meets: a pure function of line, session and weights, so that a chat stays with one version."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from contracts.serving import Backend


def position(line: str, session: str) -> float:
    """Where a session stands between 0 and 100; evenly spread, for ever the same."""
    return int.from_bytes(hashlib.sha256(f"{line}\0{session}".encode()).digest()[:8], "big") / 2**64 * 100


def assign(backends: Sequence[Backend], at: float) -> Backend:
    """The backend of position `at`. The last backend (a candidate) owns the lowest positions, so that whoever met it at a
    lower weight still meets it at a higher one. Weights need not add up to 100; a weight of 0 meets nobody."""
    total = sum(backend.weight for backend in backends)
    if total <= 0:
        raise ValueError("a route needs a backend with a weight above 0")
    reached = 0.0
    for backend in reversed(backends):
        reached += backend.weight / total * 100
        if at < reached:
            return backend
    return next(backend for backend in backends if backend.weight > 0)
