"""Decides whether a line's next cycle is due, pure.

Only the lake's cursor decides how many traces are new. Schedules and events only cause the check.
"""

from __future__ import annotations

import math
from datetime import datetime

from contracts.data.datasets import Cursor
from contracts.loop import Loop, TriggerSettings
from flows.core.folds import LineView


def cycle_is_due(line: LineView, cursor: Cursor, settings: TriggerSettings, scheduled: bool, now: datetime) -> tuple[bool, str]:
    """Return whether a cycle is due, and the reason. With `scheduled` (a cron tick), one new trace is enough.

    After a cycle that must plan again, the next one is due without new traces and without the minimum interval. While the line is frozen,
    none is due.
    """
    if line.champion is None:
        return False, "no model is adopted yet: run `ratchet adopt`"
    if line.open_cycle is not None:
        return False, f"{line.open_cycle} is still open"
    if line.frozen is not None:
        return False, str(line.frozen)
    if line.plan_again:
        return True, "the plan of the last cycle was made by another release"
    # A last cycle in the future was opened before the clock was set back.
    if line.last_opened is not None and 0 <= (now - line.last_opened).total_seconds() < settings.min_interval:
        return False, f"the last cycle was opened less than {settings.min_interval:g} s ago"
    new = cursor.traces - line.last_traces
    needed = 1 if scheduled else settings.new_traces
    if new < needed:
        return False, f"{new} new traces of {needed} needed"
    return True, f"{new} new traces" + (", by schedule" if scheduled else "")


def edition_number(evaluations: int, rotate_after: int) -> int:
    """Return the number of the current holdout edition, starting at 1.

    A new edition starts after every `rotate_after` evaluations, because these together use up the edition's error budget.
    """
    return 1 + evaluations // rotate_after


def evaluation_level(loop: Loop) -> float:
    """Return the confidence level of one evaluation's two-sided intervals.

    The error of a whole edition, 1 - gate.level, is spent evenly on its evaluations (holdout.rotate_after) with Šidák's correction, which
    holds for independent and for positively dependent tests; the evaluations of an edition share its prompts and often their champion.
    Each end of an interval has the error of one evaluation, because a candidate passes by the lower end alone.
    """
    return 2 * math.pow(loop.gate.level, 1 / loop.holdout.rotate_after) - 1
