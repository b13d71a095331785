"""Gives traces the right answers that came after them.

If the application exports a record again with a right answer, the lake has it as feedback of the kind `logged`. For everything that reads
traces, it is the column `reference` of its trace, as if it had come with the first record. The newest one counts. It must come from the
sender of the trace, or from one that vouches for others: nobody may describe somebody else's call.
"""

from __future__ import annotations

from collections import Counter

import polars as pl

from ratchet.contracts.data.records import FeedbackKind
from ratchet.materializer.privacy.masked_values import has_unknown
from ratchet.materializer.texts import Texts

_LATE = pl.col("kind") == FeedbackKind.LOGGED.value
_TRACE = ["source", "id"]


class LateReferences:
    """The late right answers of some feedback, by their traces."""

    def __init__(self, feedback: pl.DataFrame, placeholder: str) -> None:
        """`feedback` has the columns of records.FEEDBACK. `placeholder` is the result of `placeholder_pattern`."""
        self.others = feedback.filter(~_LATE)
        """The feedback without them."""
        own = "source", pl.col("trace_id").alias("id"), "time", pl.col("text").alias("late"), pl.col("sender").alias("by"), "trusted"
        self._late = feedback.filter(_LATE).select(*own)
        self._placeholder = placeholder
        self.count = len(self._late)
        self._older = self._found = self._foreign = 0

    def given_to(self, traces: pl.DataFrame, texts: Texts) -> pl.DataFrame:
        """Return the traces with the newest right answer of each.

        `traces` are some traces with one row for each, with the columns of `with_facts` and keys of `texts`. A trace without content gets
        none.
        """
        if self._late.is_empty():
            return traces
        about = self._late.join(traces.select(*_TRACE, "sender"), on=_TRACE, how="inner")
        own = about.filter(pl.col("trusted").fill_null(False) | pl.col("by").eq_missing(pl.col("sender")))
        self._foreign += len(about) - len(own)
        newest = own.sort("time", "late").with_columns(pl.len().over(_TRACE).alias("given"))
        newest = newest.unique(_TRACE, keep="last", maintain_order=True).select(*_TRACE, "late", "given")
        joined = traces.join(newest, on=_TRACE, how="left", maintain_order="left")
        joined = joined.with_columns(pl.when(pl.col("messages").is_not_null()).then("late"))
        found = joined.filter(pl.col("late").is_not_null())
        self._found += int(found["given"].sum())
        self._older += int(found["given"].sum()) - len(found) + int(found["reference"].is_not_null().sum())
        is_masked = pl.coalesce("late_is_masked", pl.col("late").is_null() & pl.col("masked_reference"))
        with_masks = joined.join(self._masked(found, texts), on=_TRACE, how="left", maintain_order="left")
        given = with_masks.with_columns(pl.coalesce("late", "reference").alias("reference"), is_masked.alias("masked_reference"))
        return given.select(traces.columns)

    def replaced(self) -> dict[str, int]:
        """Return what became of the right answers that no trace has now: reason -> number. All traces were given theirs before."""
        unknown = self.count - self._found - self._foreign
        found = Counter(newer_one_counts=self._older, other_sender=self._foreign, unknown_answer=unknown)
        return {reason: n for reason, n in found.items() if n}

    def _masked(self, found: pl.DataFrame, texts: Texts) -> pl.DataFrame:
        """Return the column `late_is_masked` for the traces whose late right answer contains placeholders.

        It is true if the question of the trace does not contain all of these placeholders.
        """
        suspected = found.filter(pl.col("late").str.contains(self._placeholder))
        filled = texts.filled(suspected) if len(suspected) else suspected
        return suspected.select(*_TRACE, has_unknown(suspected["late"], filled, self._placeholder).alias("late_is_masked"))
