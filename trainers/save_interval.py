"""Checkpoint interval, computed from the cost of a save, the time of a step, and the mean time between interruptions.

Saving too often wastes time on saves. Saving too rarely loses more steps at each interruption. The optimal interval follows
J. W. Young (CACM 17, 1974) with the higher-order correction by J. T. Daly (Future Generation Computer Systems 22, 2006).
The interval does not influence the weights, so a run has the same result with any interval.
The module is pure: it reads no clock and no file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

FIRST = 3
"""Steps before the first save of an incarnation. That save gives the first measurement of the cost."""
COSTS = 3
"""Number of saves from which their median is the estimated cost. With fewer saves, the smallest cost is used."""
MOST_SECONDS = 3600.0
"""Upper limit of the interval in seconds of work, even if interruptions are declared to be very rare."""
FIXED_FIRST = 10
"""Steps between saves of a first incarnation, for a trainer whose interval cannot change during an incarnation."""
RECENT = 50
"""Number of recent steps and saves that the estimates are based on."""


def best_seconds(cost: float, between: float) -> float:
    """Return the interval between two saves, in seconds of work, that minimises the expected loss of time (Daly 2006).

    `cost` is the time of one save and `between` the mean time between interruptions, both in seconds.
    """
    if cost >= 2 * between:
        return between
    ratio = cost / (2 * between)
    return math.sqrt(2 * cost * between) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost


def time_between(declared: float, elapsed: float, interruptions: int) -> float:
    """Return the estimated mean time between interruptions, in seconds.

    The declared mean counts as one interruption that was already observed; the observed interruptions are added to it.
    `elapsed` is the observed time, in seconds, during which an interruption would have lost steps.
    """
    return (declared + elapsed) / (1 + interruptions)


def fixed_interval(steps: Sequence[float], costs: Sequence[float], between: float, multiple: int = 1) -> int:
    """Return the number of steps between two saves of an incarnation whose interval cannot change.

    `steps` and `costs` are the times of steps and of saves in seconds that earlier incarnations measured; without them, the number is
    FIXED_FIRST. `between` is the mean time between interruptions in seconds. The result is a multiple of `multiple`, rounded up.
    """
    number = FIXED_FIRST
    if steps and costs:
        seconds = min(best_seconds(median(costs[-RECENT:]), between), MOST_SECONDS)
        number = max(1, round(seconds / max(median(steps[-RECENT:]), 1e-6)))
    return -(-number // multiple) * multiple


def grace_shortfall(step: float, save: float, grace: float) -> str | None:
    """Return a warning if a step and a save, measured in seconds, do not fit into the grace period of `grace` seconds; otherwise None.

    After SIGTERM, the current step is finished and saved. Otherwise the run is killed and loses the steps since its last checkpoint.
    """
    if step + save <= grace:
        return None
    return (
        f"a step took {step:.0f} s and a checkpoint {save:.0f} s, more than the grace period of {grace:.0f} s: a preemption will kill the "
        "run and lose the steps since its last checkpoint; lower save_every or the work of a step, or raise grace_seconds"
    )


class Cadence:
    """Decides after each step whether to save a checkpoint."""

    def __init__(self, between: float) -> None:
        self.between = between
        self._took: list[float] = []
        self._cost: list[float] = []
        self._since = 0

    def due(self, seconds: float) -> bool:
        """Record a step that took `seconds` and return whether to save after it."""
        self._took = [*self._took, seconds][-RECENT:]
        self._since += 1
        return self._since >= self.steps

    def saved(self, cost: float) -> None:
        """Record a finished save that took `cost` seconds."""
        self._cost = [*self._cost, cost][-RECENT:]
        self._since = 0

    @property
    def steps(self) -> int:
        """Number of steps between two saves, from the measurements so far; at least 1."""
        if not self._cost or not self._took:
            return FIRST
        cost = median(self._cost) if len(self._cost) >= COSTS else min(self._cost)  # the first save runs with cold caches
        seconds = min(best_seconds(cost, self.between), MOST_SECONDS)
        return max(1, round(seconds / max(median(self._took), 1e-6)))
