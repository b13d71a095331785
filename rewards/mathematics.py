"""Scorer that compares the mathematical value of an answer with a reference, with the library math-verify."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from ratchet.contracts.data.records import Tier
from ratchet.contracts.errors import ConfigError
from ratchet.contracts.model import Frozen
from ratchet.rewards.bounded.worker import bounded_score
from ratchet.rewards.options import check_options


class MathOptions(Frozen):
    """Options of the scorer `Math`."""

    timeout: float = Field(default=5.0, gt=0, le=60)
    """Maximum CPU time per answer in seconds. An answer that exceeds it gets no score."""


class Math:
    """Score 1 if the last mathematical expression of the answer equals the reference, otherwise 0.

    Expressions are numbers, fractions, percentages, formulas, sets, intervals and matrices, in LaTeX or as plain text. A formula needs
    dollar signs or `\\boxed{}` around it. Abstain without a reference, if the reference contains no expression, or if the comparison takes
    too long. Needs the package math-verify, which the extra `math` installs.
    """

    name = "math"
    tier = Tier.VERIFIABLE
    needs = frozenset({"answer", "reference"})

    def __init__(self, **options: Any) -> None:
        self.options = check_options(self.name, MathOptions, options)
        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError("reward 'math' needs the package math-verify; install ratchet[math]")

    def score(self, samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
        """Compare each answer with its reference."""
        return [self._score(sample.get("answer"), sample.get("reference")) for sample in samples]

    def _score(self, answer: str | None, reference: str | None) -> float | None:
        if answer is None or reference is None:
            return None
        return bounded_score(self.name, self.options.timeout, reference=reference, answer=answer)
