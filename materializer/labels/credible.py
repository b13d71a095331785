"""Which feedback counts: that of the trace's own user, or of a trusted sender; per rater only that of one sender; of new users, later.

The credential of an application vouches for the user ids that it sends. It cannot rate the answers to other users, and it cannot replace
what another credential has sent for the same trace and rater.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import polars as pl

from ratchet.contracts.data.records import FeedbackKind

_OF_NO_USER = [FeedbackKind.REFERENCE.value, FeedbackKind.TEACHER.value]
"""Kinds that count for any trace, and at once: they come from no user."""


def credible(feedback: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int]]:
    """Return the feedback that counts, and reason -> number of the other records.

    `feedback` has the columns of records.FEEDBACK, the `id` of its trace and the `user` of that trace. Reviewers' references count for any
    trace, because the role of their sender was checked when they arrived. Of several senders, the first one counts.
    """
    own = pl.col("rater").eq_missing(pl.col("user"))
    allowed = own | pl.col("trusted") | pl.col("kind").is_in(_OF_NO_USER)
    users = feedback.filter(allowed)
    first = pl.col("sender").sort_by("ingested", "sender", nulls_last=True).first()
    kept = users.filter(pl.col("sender").eq_missing(first.over("source", "id", "rater", "kind")))
    counts = {"not_the_user": len(feedback) - len(users), "other_sender": len(users) - len(kept)}
    return kept, {reason: n for reason, n in counts.items() if n}


def without_newcomers(feedback: pl.DataFrame, traces: pl.DataFrame, as_of: datetime, wait: timedelta) -> pl.DataFrame:
    """Return the feedback (records.FEEDBACK) without ratings and corrections of users whose first trace is younger than `wait` at `as_of`.

    Users who came within `wait` of the line's first trace do not wait: nobody else was there before them. The time of the ingest is this
    installation's own, so that nobody can date a user back. `traces` are all traces of the lake. A trusted sender, and the operator's
    files, vouch for their users, and reviewers' references do not belong to a user.
    """
    if traces.is_empty():
        return feedback
    first = traces.group_by("user").agg(pl.col("ingested").min().alias("first"))
    begin = first["first"].min()
    new = first.filter((pl.col("first") > as_of - wait) & (pl.col("first") > pl.lit(begin) + wait))["user"]
    waits = pl.col("rater").is_in(new.drop_nulls().to_list()).fill_null(False) | (pl.col("rater").is_null() & (new.null_count() > 0))
    exempt = pl.col("trusted") | pl.col("kind").is_in(_OF_NO_USER)
    return feedback.filter(exempt | ~waits)
