"""Decides whether a line's next cycle is due, pure.

Only the lake's cursor decides how many traces are new. Schedules and events only cause the check.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from ratchet.flows.core.folds.line import LineView

if TYPE_CHECKING:
    from ratchet.contracts.data.datasets import Cursor
    from ratchet.contracts.loop import Loop, TriggerSettings


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


def edition_history(line: LineView, rotate_after: int) -> tuple[bool, ...]:
    """Return for each ended evaluation of the current holdout edition, oldest first, whether its candidate was promoted."""
    return line.evaluated[len(line.evaluated) - line.evaluations % rotate_after :]


def evaluation_level(loop: Loop, history: Sequence[bool] = ()) -> float:
    """Return the confidence level of the two-sided intervals of an edition's next evaluation.

    `history` has for each earlier evaluation of the edition whether its candidate was promoted. Each end of an interval has the error of
    the evaluation, because a candidate passes by the lower end alone.

    The error of the edition, 1 - gate.level, has a share for each of its evaluations (holdout.rotate_after). Up to the first promotion, the
    evaluations share champion and prompts, so their tests are positively dependent, and a share has Šidák's correction. Later evaluations
    have another champion. They share evenly what the evaluations before the first promotion left, by Bonferroni's inequality. A promotion
    spends no error, because its hypothesis was rejected: its share passes on to the next evaluation, so that one after n promotions in a
    row has n + 1 shares. Sources: Wiens: A fixed sequence Bonferroni procedure for testing multiple endpoints, Pharmaceutical Statistics 2
    (2003); Tian, Ramdas: Online control of the familywise error rate, Statistical Methods in Medical Research 30 (2021).
    """
    whole, rotate_after = loop.gate.level, loop.holdout.rotate_after
    share = 1 - math.pow(whole, 1 / rotate_after)
    if not any(history):
        return 1 - 2 * share
    before = list(history).index(True)
    left = math.pow(1 - share, before) - whole
    in_a_row = next((n for n, promoted in enumerate(reversed(history)) if not promoted), len(history))
    return 1 - 2 * (1 + in_a_row) * left / (rotate_after - before)
