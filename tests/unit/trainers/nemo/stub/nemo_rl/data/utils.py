"""Stand-in for the processor of preferences, which no run may use."""

from __future__ import annotations

from typing import Any


def preference_preprocessor(*_: Any, **__: Any) -> Any:
    raise AssertionError("the release's own rendering must not be used")
