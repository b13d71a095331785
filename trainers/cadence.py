"""How often a run should keep a checkpoint: pure arithmetic over what a save costs, what a step takes, and how often runs are interrupted.

Too often wastes the time of saving, too rarely the steps that an interruption throws away. The best interval is J. W. Young's (CACM 17,
1974) with J. T. Daly's correction (Future Generation Computer Systems 22, 2006). When to save never touches the weights, so runs
of any cadence end alike. This module refuses to know clocks and files.
"""

from __future__ import annotations

import math
from statistics import median

FIRST = 3
"""Steps before the first save of an incarnation, which shows what a save costs."""
COSTS = 3
"""Saves from which on their median says what one costs."""
MOST_SECONDS = 3600.0
"""However rare interruptions are said to be: no more work than this is risked."""
RECENT = 50
"""Steps and saves that count for what one takes now."""


def best_seconds(cost: float, between: float) -> float:
    """Seconds of work between two saves that lose least. `cost`: of a save; `between`: mean time between interruptions; both seconds."""
    if cost >= 2 * between:
        return between
    ratio = cost / (2 * between)
    return math.sqrt(2 * cost * between) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost


def time_between(declared: float, elapsed: float, interruptions: int) -> float:
    """Mean seconds between interruptions: the declared one counts as one interruption already seen, and what was observed adds to it.
    `elapsed`: seconds in which an interruption would have cost steps."""
    return (declared + elapsed) / (1 + interruptions)


class Cadence:
    """Decides after each step whether to save now."""

    def __init__(self, between: float) -> None:
        self.between = between
        self._took: list[float] = []
        self._cost: list[float] = []
        self._since = 0

    def due(self, seconds: float) -> bool:
        """Whether to save after this step, which took so long."""
        self._took = [*self._took, seconds][-RECENT:]
        self._since += 1
        return self._since >= self.steps

    def saved(self, cost: float) -> None:
        """A save is done, and took so long, seconds."""
        self._cost = [*self._cost, cost][-RECENT:]
        self._since = 0

    @property
    def steps(self) -> int:
        """Steps between two saves, as far as is known now; at least 1."""
        if not self._cost or not self._took:
            return FIRST
        cost = median(self._cost) if len(self._cost) >= COSTS else min(self._cost)  # the first save is a cold one
        seconds = min(best_seconds(cost, self.between), MOST_SECONDS)
        return max(1, round(seconds / max(median(self._took), 1e-6)))
