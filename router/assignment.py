"""Assigns sessions to model versions: a pure function of line, session, salt and weights, so that a session stays with one version."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.contracts.ids import hash_share
from ratchet.contracts.serving import Backend


def position(line: str, session: str, salt: str = "") -> float:
    """Return the position of a session in [0, 100). Positions are uniformly distributed, and do not change during a rollout.

    `salt` is that of the rollout. Without the salt, nobody can compute which sessions the candidate gets.
    """
    return 100 * hash_share("session", salt, line, session)


def assign(backends: Sequence[Backend], at: float) -> Backend:
    """Return the backend for the position `at`. Raises ValueError if no backend has a weight above 0.

    The last backend (a candidate) has the lowest positions. A session that is assigned to it at a lower weight therefore stays with it
    at a higher weight. The sum of the weights need not be 100. A backend of weight 0 gets no sessions.
    """
    total = sum(backend.weight for backend in backends)
    if total <= 0:
        raise ValueError("a route needs a backend with a weight above 0")
    reached = 0.0
    for backend in reversed(backends):
        reached += backend.weight / total * 100
        if at < reached:
            return backend
    return next(backend for backend in backends if backend.weight > 0)
