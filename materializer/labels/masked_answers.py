"""Leaves out right answers with a masked value that their question does not have."""

from __future__ import annotations

import polars as pl

from ratchet.contracts.data.records import FeedbackKind
from ratchet.materializer.governance import Governed
from ratchet.materializer.privacy.masked_values import has_unknown
from ratchet.materializer.texts import PLACE, InMemory, Texts

_RIGHT_ANSWERS = (FeedbackKind.CORRECTION.value, FeedbackKind.REFERENCE.value, FeedbackKind.TEACHER.value)


def without_masked(feedback: pl.DataFrame, governed: Governed, placeholder: str, texts: Texts | None = None) -> pl.DataFrame:
    """Return the feedback without right answers that have a placeholder which their question does not have.

    Args:
        feedback: The result of `scores.attach` or `scores.counting`.
        governed: The traces to which the feedback refers.
        placeholder: The result of `placeholder_pattern`.
        texts: Where the texts of `governed` are. None: in its frames.
    """
    told = feedback.filter(pl.col("text").str.contains(placeholder).fill_null(False) & pl.col("kind").is_in(_RIGHT_ANSWERS))
    if not len(told):
        return feedback
    columns = [name for name in ("source", "id", "messages", "tools", PLACE) if name in governed.used.columns]
    asked = pl.concat([rows.select(columns) for rows in (governed.used, governed.questions)])
    filled = (texts or InMemory()).filled(told.join(asked, on=["source", "id"], how="inner", maintain_order="left"))
    taught = pl.col("kind") == FeedbackKind.TEACHER.value  # a teacher sees the masked question, so it writes the question's placeholders
    parts = [(filled.filter(taught), False), (filled.filter(~taught), True)]
    unknown = pl.concat([rows.filter(has_unknown(rows["text"], rows, placeholder, apart=apart)) for rows, apart in parts])
    return feedback.join(unknown.select(feedback.columns), on=feedback.columns, how="anti", nulls_equal=True, maintain_order="left")
