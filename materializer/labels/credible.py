"""Which feedback counts: that of the trace's own user, or of a trusted sender, and per rater only that of one sender.

The credential of an application vouches for the user ids that it sends. It cannot rate the answers to other users, and it cannot replace
what another credential has sent for the same trace and rater.
"""

from __future__ import annotations

import polars as pl

from contracts.data.records import FeedbackKind


def credible(feedback: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int]]:
    """Return the feedback that counts, and reason -> number of the other records.

    `feedback` has the columns of records.FEEDBACK, the `id` of its trace and the `user` of that trace. Reviewers' references count for any
    trace, because the role of their sender was checked when they arrived. Of several senders, the first one counts. Records of releases
    without roles count as before.
    """
    own = pl.col("rater").eq_missing(pl.col("user"))
    allowed = own | pl.col("trusted").fill_null(True) | (pl.col("kind") == FeedbackKind.REFERENCE.value)
    users = feedback.filter(allowed)
    first = pl.col("sender").sort_by("ingested", "sender", nulls_last=True).first()
    kept = users.filter(pl.col("sender").eq_missing(first.over("source", "id", "rater", "kind")))
    counts = {"not_the_user": len(feedback) - len(users), "other_sender": len(users) - len(kept)}
    return kept, {reason: n for reason, n in counts.items() if n}
