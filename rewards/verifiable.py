"""Scorers that compare an answer with a reference.

They need no model, no network and no user feedback, so they can score new answers. Both abstain if there is no reference. Other packages
decide which reference belongs to a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from ratchet.contracts.data.records import Tier
from ratchet.contracts.model import Frozen
from ratchet.rewards.options import check_options


class ExactMatchOptions(Frozen):
    """Options of the scorer `ExactMatch`."""

    ignore_case: bool = False
    """Whether the comparison ignores upper and lower case."""


class ExactMatch:
    """Score 1 if answer and reference are equal after whitespace normalisation, otherwise 0."""

    name = "exact_match"
    tier = Tier.VERIFIABLE
    needs = frozenset({"answer", "reference"})

    def __init__(self, **options: Any) -> None:
        self.options = check_options(self.name, ExactMatchOptions, options)

    def score(self, samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
        """Compare each answer with its reference. Abstain if either is missing."""
        return [self._score(sample.get("answer"), sample.get("reference")) for sample in samples]

    def _score(self, answer: str | None, reference: str | None) -> float | None:
        if answer is None or reference is None:
            return None
        return float(self._normal(answer) == self._normal(reference))

    def _normal(self, text: str) -> str:
        text = " ".join(text.split())
        return text.casefold() if self.options.ignore_case else text


class FinalNumberOptions(Frozen):
    """Options of the scorer `FinalNumber`."""

    marker: str = Field(default="A:", min_length=1)
    """Text before the result. The result is the text after the last occurrence of the marker."""


class FinalNumber:
    """Score 1 if the text after the last marker in the answer equals the reference, ignoring thousands separators, otherwise 0.

    This is the format of GSM8K (Cobbe et al., arXiv:2110.14168). An answer without the marker scores 0. The reference may be the bare
    result or a complete answer with the marker (a correction). In the second case, the text after its last marker is used.
    """

    name = "final_number"
    tier = Tier.VERIFIABLE
    needs = frozenset({"answer", "reference"})

    def __init__(self, **options: Any) -> None:
        self.options = check_options(self.name, FinalNumberOptions, options)

    def score(self, samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
        """Compare the result of each answer with its reference. Abstain if either is missing."""
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
