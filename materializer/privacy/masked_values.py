"""Finds texts with placeholders of masked values that their questions do not have.

Nobody can learn to write such a text: the value that the placeholder stands for is known to nobody any more, and a model that is trained on
the text writes the placeholder.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import get_args

import polars as pl

from ratchet.contracts.data.records import FeedbackKind
from ratchet.contracts.loop import NameSettings, PersonalData, PrivacySettings
from ratchet.materializer.privacy.masking import kinds_of
from ratchet.materializer.texts import PLACE, Texts

_QUESTION = ("messages", "tools")
_RIGHT_ANSWERS = (FeedbackKind.CORRECTION.value, FeedbackKind.REFERENCE.value, FeedbackKind.TEACHER.value)


def placeholder_pattern(settings: PrivacySettings) -> str:
    """Return a regular expression for the placeholders of all kinds that a line can mask, and of those that the line defines itself."""
    kinds = {*get_args(PersonalData), *NameSettings.model_fields["entities"].default, *kinds_of(settings)}
    return rf"\[(?:{'|'.join(sorted(re.escape(kind.upper()) for kind in kinds))})_\d{{1,6}}\]"


def has_unknown(texts: pl.Series, questions: pl.DataFrame, pattern: str, messages: str = "messages", apart: bool = False) -> pl.Series:
    """Return for each text whether it has a placeholder that is not in its question. False for null.

    Args:
        texts: Answers, references or corrections.
        questions: The question of each text, as JSON: its messages, and the definitions of its tools in the column `tools`.
        pattern: The result of `placeholder_pattern`.
        messages: Name of the column with the messages.
        apart: The texts were masked apart from their questions, so that their numbers begin with 1. A placeholder then stands for a value
            of the question only if the question has no second one of its kind.
    """
    suspected = texts.str.contains(pattern).fill_null(False).alias("unknown")
    if not suspected.any():
        return suspected
    placeholder = re.compile(pattern)

    def is_unknown(text: str, question: str | None) -> bool:
        given = set(placeholder.findall(question or ""))
        kinds = Counter(_kind(one) for one in given)
        return any(one not in given or (apart and kinds[_kind(one)] > 1) for one in placeholder.findall(text))

    asked = questions.filter(suspected).select(pl.concat_str(messages, "tools", ignore_nulls=True)).to_series()
    found = [is_unknown(*pair) for pair in zip(texts.filter(suspected), asked, strict=True)]
    return suspected.scatter(suspected.arg_true(), found)


def without_unknown(
    feedback: pl.DataFrame, used: pl.DataFrame, questions: pl.DataFrame, pattern: str, texts: Texts | None = None
) -> pl.DataFrame:
    """Return the feedback without right answers that have a placeholder which their question does not have.

    `feedback` is the result of `labels.scores.attach`, `used` and `questions` are those of `Governed`. Without `texts`, the texts of these
    are in them.
    """
    told = feedback.filter(pl.col("text").str.contains(pattern).fill_null(False) & pl.col("kind").is_in(_RIGHT_ANSWERS))
    if not len(told):
        return feedback
    places = [] if texts is None else [PLACE]
    asked = pl.concat([rows.select("source", "id", *_QUESTION, *places) for rows in (used, questions)])
    placed = told.join(asked, on=["source", "id"], how="inner", maintain_order="left")
    filled = placed if texts is None else texts.filled(placed)
    taught = pl.col("kind") == FeedbackKind.TEACHER.value  # a teacher sees the masked question, so it writes the question's placeholders
    parts = [(filled.filter(taught), False), (filled.filter(~taught), True)]
    unknown = pl.concat([rows.filter(has_unknown(rows["text"], rows, pattern, apart=apart)) for rows, apart in parts])
    return feedback.join(unknown.select(feedback.columns), on=feedback.columns, how="anti", nulls_equal=True, maintain_order="left")


def _kind(placeholder: str) -> str:
    return placeholder.rpartition("_")[0]
