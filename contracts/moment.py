"""Points in time from which durations are measured, so that a wall clock that is set does not change them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, TypeGuard


class Moment(NamedTuple):
    """A point in time on one machine. It can be stored, and read by another process."""

    at: float
    """Wall clock, in seconds since the epoch."""
    boot: str = ""
    """Id of the boot of the machine; empty if it is not known."""
    up: float = 0.0
    """Seconds since this boot, including those in which the machine was suspended."""


def seconds_between(earlier: Moment, later: Moment) -> float:
    """Return the seconds between two moments, at least 0.

    Within one boot of a machine they do not depend on the wall clock. Between machines, and across a reboot, only the wall clocks can be
    compared.
    """
    if earlier.boot and earlier.boot == later.boot:
        return max(0.0, later.up - earlier.up)
    return max(0.0, later.at - earlier.at)


def moment_in(record: Mapping[str, object]) -> Moment | None:
    """Return the moment in a stored object with the fields of `Moment`. None if it has no valid time.

    Without a valid boot, which older records lack, only the time counts.
    """
    at, boot, up = record.get("at"), record.get("boot"), record.get("up")
    if not _is_time(at):
        return None
    return Moment(at, boot, up) if isinstance(boot, str) and _is_time(up) else Moment(at)


def _is_time(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
