"""What follows from times in which no server of the candidate could be reached, where the server can say so. Pure.

Its machine may have been lost, which says nothing about the candidate. Meanwhile the champion answers the candidate's users, and each
failed try would count as an error of the candidate. So the rollout holds, and the time counts for neither version: the step ends before it
and begins again afterwards. A candidate may be the cause all the same, so this may not happen any number of times.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from ratchet.contracts.serving import Outage

TIMES, MOST = 3, 6
"""Numbers of outages at which a rollout ends: of outages that are SEPARATE, and of all outages."""
SEPARATE = timedelta(minutes=3)
"""Outages that follow each other within this time count as one: after the loss of a node, names and pods may change several times."""


def away_too_often(outages: Sequence[Outage], away: datetime | None, candidate: str) -> str | None:
    """Return the reason to roll back if the version `candidate`, a tag, was away too often, or None.

    `away` is the time since when it is away now; None if it is not.
    """
    known = sorted([*((one.since, one.until or one.since) for one in outages), *([(away, away)] if away is not None else [])])
    times = sum(number == 0 or since - known[number - 1][1] > SEPARATE for number, (since, _) in enumerate(known))
    if times < TIMES and len(known) < MOST:
        return None
    return (
        f"no server of {candidate} could be reached {len(known)} times during the rollout. If its machines were the cause, and not the "
        "model, give the model again: `ratchet model fetch`, then `ratchet candidate add`"
    )


def is_away(candidate: str) -> str:
    """Return the reason for which a rollout holds while the candidate is away."""
    return f"no server of {candidate} can be reached, so the champion answers its users; the step begins again when one can"
