"""Gives traces the right answers that came after them.

If the application exports a record again with a right answer, the lake has it as feedback of the kind `logged`. For everything that reads
traces, it is the column `reference` of its trace, as if it had come with the first record. The newest one counts.
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
        late = feedback.filter(_LATE).select("source", pl.col("trace_id").alias("id"), "time", pl.col("text").alias("late"))
        newest = late.sort("time", "late").with_columns(pl.len().over(_TRACE).alias("given"))
        self._newest = newest.unique(_TRACE, keep="last", maintain_order=True).drop("time")
        self._placeholder = placeholder
        self.count = len(late)
        self._older = self._found = 0

    def given_to(self, traces: pl.DataFrame, texts: Texts) -> pl.DataFrame:
        """Return the traces with the newest right answer of each.

        `traces` are some traces with one row for each, with the columns of `with_facts` and keys of `texts`. A trace without content gets
        none.
        """
        if self._newest.is_empty():
            return traces
        joined = traces.join(self._newest, on=_TRACE, how="left", maintain_order="left")
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
        found = Counter(newer_one_counts=self._older, unknown_answer=self.count - self._found)
        return {reason: n for reason, n in found.items() if n}

    def _masked(self, found: pl.DataFrame, texts: Texts) -> pl.DataFrame:
        """Return `late_is_masked` of the traces whose late right answer has placeholders: whether their question lacks one of them."""
        suspected = found.filter(pl.col("late").str.contains(self._placeholder))
        filled = texts.filled(suspected) if len(suspected) else suspected
        return suspected.select(*_TRACE, has_unknown(suspected["late"], filled, self._placeholder).alias("late_is_masked"))
