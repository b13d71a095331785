"""What follows from deaths of the process that champion and candidate of a rollout share. Pure.

While the process is down, neither version answers, so failures say nothing about the difference between them. They count for neither:
the step ends before the death and begins again when both versions answer. A candidate may be the cause all the same, for example by a
lack of memory, so the process may not die any number of times while a candidate is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from ratchet.contracts.cycle import Entry
from ratchet.contracts.serving import Outage

DEATHS = 3
"""Deaths of the shared process within a rollout that end it."""
IN_FLIGHT = timedelta(seconds=60)
"""Time before a death whose requests count for neither version, because those that were not answered yet have failed with the process."""


def died_too_often(outages: Sequence[Outage], champion: str, candidate: str) -> str | None:
    """Return the reason to roll back if the shared process has died too often, or None. The versions are named by their tags."""
    if len(outages) < DEATHS:
        return None
    return (
        f"shared process: the process of {champion} has died {len(outages)} times while {candidate} was loaded into it. This does not "
        'say that the answers of the candidate are worse; judge it with serving.adapters = "own server"'
    )


def is_down(champion: str, candidate: str) -> str:
    """Return the reason for which a rollout holds while the shared process is down."""
    return f"the process that {champion} and {candidate} share has died; the step begins again when both answer"


def outside(rows: Sequence[Entry], outages: Sequence[Outage]) -> list[Entry]:
    """Return the rows of the batches of mirrored prompts during which the shared process did not die."""
    begun = {row.key: row.at for row in rows if row.kind == "mirror_intended"}
    ended = {row.key: row.at for row in rows if row.kind == "mirrored"}
    hit = {
        key
        for key, at in begun.items()
        for one in outages
        if (key not in ended or ended[key] >= one.since) and (one.until is None or at <= one.until)
    }
    return [row for row in rows if row.key not in hit]
