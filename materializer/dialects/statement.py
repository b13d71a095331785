"""What a record states about consent. The receiver imports the dialects, so this module does not load polars."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

STATED = "stated"
"""Key of a decoded trace row with its `Statement`, or None if the record does not mention consent."""


class Statement(NamedTuple):
    """A consent or refusal, and its time in microseconds since the epoch."""

    given: bool
    time: int


def newest(statements: Iterable[Statement | None]) -> Statement | None:
    """Return the statement that counts: the newest, and of two with the same time the refusal. None if there is none."""
    found = [one for one in statements if one is not None]
    return max(found, key=lambda one: (one.time, not one.given), default=None)
