"""Decides whether the quarantine of a line raises an alarm: too large a share of the records of the last hours could not be stored."""

from __future__ import annotations

from ratchet.contracts.data.quarantine import QuarantineCounts
from ratchet.contracts.loop import QuarantineSettings

_CALM = 0.8
"""Part of the share for the alarm at which a raised alarm ends, so that it does not begin and end with each batch."""


def is_alarm(counts: QuarantineCounts, settings: QuarantineSettings, raised: bool) -> bool:
    """Return whether there is an alarm. `raised` is whether there was one before."""
    least = settings.alarm_share * (_CALM if raised else 1.0)
    return counts.read >= settings.alarm_min_records and counts.share > least


def alarm_text(counts: QuarantineCounts) -> str:
    """Return the counts for people, with the most frequent reasons."""
    reasons = sorted(counts.reasons.items(), key=lambda item: (-item[1], item[0]))[:3]
    named = ", ".join(f"{reason} {n:,}" for reason, n in reasons)
    return f"{counts.quarantined:,} of {counts.read:,} records were quarantined ({counts.share:.1%}" + (f"; {named})" if named else ")")
