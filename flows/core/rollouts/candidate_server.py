"""What follows from times in which the candidate's server did not answer, where the server can say so. Pure.

Its machine may have been lost, which says nothing about the candidate. Meanwhile the champion answers the candidate's users, and each
failed try would count as an error of the candidate. So the rollout holds, and the time counts for neither version: the step ends before it
and begins again afterwards. A candidate may be the cause all the same, for example if it ends its server, so this may not happen any
number of times.
"""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.contracts.serving import Outage

TIMES = 3
"""Times within a rollout in which the candidate's server does not answer that end it."""


def away_too_often(outages: Sequence[Outage], is_away: bool, candidate: str) -> str | None:
    """Return the reason to roll back if the server of the version `candidate`, a tag, has failed to answer too often, or None."""
    times = len(outages) + is_away
    if times < TIMES:
        return None
    return (
        f"the server of {candidate} did not answer {times} times during the rollout. If its machines were the cause, and not the model, "
        "give the model again: `ratchet model fetch`, then `ratchet candidate add`"
    )


def is_away(candidate: str) -> str:
    """Return the reason for which a rollout holds while the candidate's server does not answer."""
    return f"the server of {candidate} does not answer, so the champion answers its users; the step begins again when it does"
