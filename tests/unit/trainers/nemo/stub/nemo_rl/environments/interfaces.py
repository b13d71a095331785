"""Stand-in for what an environment is and returns."""

from __future__ import annotations

from typing import Any, NamedTuple


class EnvironmentReturn(NamedTuple):
    observations: list[dict[str, str]]
    metadata: list[Any]
    next_stop_strings: list[Any]
    rewards: Any
    terminateds: Any
    answers: list[str | None] | None


class EnvironmentInterface:
    """Nothing is inherited."""
