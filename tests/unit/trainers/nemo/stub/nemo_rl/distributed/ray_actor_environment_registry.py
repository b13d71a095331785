"""Stand-in for which actor runs in which Python environment."""

from __future__ import annotations

ACTOR_ENVIRONMENT_REGISTRY: dict[str, str] = {}
