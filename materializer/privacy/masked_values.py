"""Finds texts with placeholders of masked values that their prompts do not have.

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


def whole_prompts(rows: pl.DataFrame, messages: str = "messages") -> pl.Series:
    """Return the prompts of some rows: the texts in the column `messages` together with the definitions of the tools."""
    return rows.select(pl.concat_str(messages, "tools", ignore_nulls=True)).to_series()


def has_unknown(texts: pl.Series, prompts: pl.Series, pattern: str, apart: bool = False) -> pl.Series:
    """Return for each text whether it has a placeholder that is not in its prompt. False for null.

    Args:
        texts: Answers, references or corrections.
        prompts: The prompt of each text, as JSON (`whole_prompts`).
        pattern: The result of `placeholder_pattern`.
        apart: The texts were masked apart from their prompts, so that their numbers begin with 1. A placeholder then stands for a value of
            the prompt only if the prompt has no second one of its kind.
    """
    suspected = texts.str.contains(pattern).fill_null(False)
    if not suspected.any():
        return suspected.rename("unknown")
    placeholder = re.compile(pattern)
    found = [False] * len(texts)
    for i in suspected.arg_true():
        given = set(placeholder.findall(prompts[i] or ""))
        kinds = Counter(_kind(one) for one in given)
        found[i] = any(one not in given or (apart and kinds[_kind(one)] > 1) for one in placeholder.findall(texts[i]))
    return pl.Series("unknown", found)


def without_unknown(
    feedback: pl.DataFrame, used: pl.DataFrame, questions: pl.DataFrame, pattern: str, texts: Texts | None = None
) -> pl.DataFrame:
    """Return the feedback without right answers that have a placeholder which the question does not have.

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
    given, prompts = filled["text"], whole_prompts(filled)
    taught = filled["kind"] == FeedbackKind.TEACHER.value  # a teacher sees the masked prompt, so its placeholders are those of the prompt
    bad = has_unknown(given, prompts, pattern) | (has_unknown(given, prompts, pattern, apart=True) & ~taught)
    unknown = filled.filter(bad).select(feedback.columns)
    return feedback.join(unknown, on=feedback.columns, how="anti", nulls_equal=True, maintain_order="left")


def _kind(placeholder: str) -> str:
    return placeholder.rpartition("_")[0]
