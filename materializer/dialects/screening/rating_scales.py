"""Refuses the ratings of a batch whose source has a scale of its own, for example from 1 to 5.

A rating above 1 is refused by itself. The 1 of such a scale would count as the best rating, and the worst answers would be trained on.
"""

from __future__ import annotations

from ratchet.contracts.data.decoding import PLACE, SCALED, Bad, Decoded, Row
from ratchet.contracts.data.records import FeedbackKind
from ratchet.materializer.dialects.values import ABOVE_ONE, NAME_THE_SCALE

_LEAST, _LEAST_SHARE = 3, 0.1
"""Number and share of the ratings of a batch above 1 from which all are refused. Fewer are mistakes of single records."""


def refuse_unclear(decoded: Decoded) -> None:
    """Move the ratings of a decoded batch to its bad records, if at least three of them, and a tenth, are above 1."""
    above = sum(bad.count for bad in decoded.bad if bad.reason == ABOVE_ONE)
    if above >= _LEAST and above >= _LEAST_SHARE * (above + sum(map(_is_unclear, decoded.feedback))):
        refuse_ratings(decoded)


def refuse_ratings(decoded: Decoded) -> None:
    """Move all ratings of a decoded batch to its bad records, but for those that have a scale of their own."""
    kept = []
    for row in decoded.feedback:
        if _is_unclear(row):
            detail = f"other ratings of the source are above 1, so that this one may be of another scale; {NAME_THE_SCALE}"
            decoded.bad.append(Bad("feedback", row["position"], ABOVE_ONE, detail, place=row.get(PLACE)))
        else:
            kept.append(row)
    decoded.feedback = kept


def _is_unclear(row: Row) -> bool:
    return row["kind"] == FeedbackKind.RATING and not row.get(SCALED)
