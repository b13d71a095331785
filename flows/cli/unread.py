"""Puts into words which files a source has found and does not read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratchet.contracts.data.datasets import Unread
    from ratchet.contracts.ports import TraceSource

SHOWN = 5
"""Files that a sentence names."""


def unread_text(files: Sequence[Unread]) -> str:
    """Return a sentence that counts the files that are not read, and names the first ones."""
    shown = ", ".join(f"{file.name} ({file.why})" for file in files[:SHOWN])
    more = f", and {len(files) - SHOWN} more" if len(files) > SHOWN else ""
    return f"{len(files)} {'file is' if len(files) == 1 else 'files are'} not read: {shown}{more}"


def unread_json(sources: Sequence[TraceSource]) -> list[dict[str, str]]:
    """Return the files that the sources have found and do not read, as JSON data."""
    return [{"source": one.name, "file": file.name, "why": file.why} for one in sources for file in getattr(one, "unread", ())]
