"""A finding of `ratchet check` or `ratchet doctor`."""

from __future__ import annotations

from typing import TypeAlias

Finding: TypeAlias = tuple[str, str, str]
"""Level (ok, note, warning or error), what it is about, and the text."""
