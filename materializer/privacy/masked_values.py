"""Finds texts with placeholders of masked values that their questions do not have.

Nobody can learn to write such a text: the value that the placeholder stands for is known to nobody any more, and a model that is trained on
the text writes the placeholder.
"""

from __future__ import annotations

import re
from collections import Counter

import polars as pl

from ratchet.contracts.loop import PrivacySettings
from ratchet.materializer.privacy.masking import known_kinds


def placeholder_pattern(settings: PrivacySettings) -> str:
    """Return a regular expression for the placeholders of `known_kinds`. Texts of people have other words in such brackets, too."""
    return rf"\[(?:{'|'.join(kind.upper() for kind in known_kinds(settings))})_\d{{1,6}}\]"


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


def _kind(placeholder: str) -> str:
    return placeholder.rpartition("_")[0]
