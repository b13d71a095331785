"""Scorers that compare an answer with a reference. They need no model, no network and no person, so they score unseen answers.

Both abstain where there is no reference. What counts as the reference of a prompt is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from contracts.model import Frozen
from contracts.records import Tier
from rewards.options import check_options


class ExactMatchOptions(Frozen):
    """Options of ExactMatch."""

    ignore_case: bool = False


class ExactMatch:
    """1 where answer and reference are the same text after runs of white space are made one blank, else 0."""

    name = "exact_match"
    tier = Tier.VERIFIABLE
    needs = frozenset({"answer", "reference"})

    def __init__(self, **options: Any) -> None:
        self.options = check_options(self.name, ExactMatchOptions, options)

    def score(self, samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
        return [self._score(sample.get("answer"), sample.get("reference")) for sample in samples]

    def _score(self, answer: str | None, reference: str | None) -> float | None:
        if answer is None or reference is None:
            return None
        return float(self._normal(answer) == self._normal(reference))

    def _normal(self, text: str) -> str:
        text = " ".join(text.split())
        return text.casefold() if self.options.ignore_case else text


class FinalNumberOptions(Frozen):
    """Options of FinalNumber."""

    marker: str = Field(default="A:", min_length=1)
    """The result is what follows its last occurrence."""


class FinalNumber:
    """1 where the text after the answer's last marker equals the reference, thousands commas removed, else 0.

    The form of GSM8K (Cobbe et al., arXiv:2110.14168). An answer without the marker never says its result: 0. A reference
    may be the bare result, or a worked answer with the marker (a correction): then its own result counts.
    """

    name = "final_number"
    tier = Tier.VERIFIABLE
    needs = frozenset({"answer", "reference"})

    def __init__(self, **options: Any) -> None:
        self.options = check_options(self.name, FinalNumberOptions, options)

    def score(self, samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
        return [self._score(sample.get("answer"), sample.get("reference")) for sample in samples]

    def _score(self, answer: str | None, reference: str | None) -> float | None:
        if answer is None or reference is None:
            return None
        found = self._result(answer)
        expected = self._result(reference)
        return float(found is not None and found == _plain(reference if expected is None else expected))

    def _result(self, text: str) -> str | None:
        _, marker, tail = text.rpartition(self.options.marker)
        return _plain(tail) if marker else None


def _plain(number: str) -> str:
    return number.replace(",", "").strip()
