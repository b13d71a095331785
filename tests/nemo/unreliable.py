"""A scorer that fails in a chosen way, as another distribution could provide it: one module, which the tests install.

It gives 1 to an answer that contains the word "yes", otherwise 0.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.contracts.data.records import Tier


class Unreliable:
    """Scores that come late, not at all, or only for some answers."""

    name = "unreliable"
    tier = Tier.VERIFIABLE
    needs = frozenset({"answer"})

    def __init__(self, way: str, after: int = 0, seconds: float = 0.0) -> None:
        """Take the way to fail, the batches before the first failure, and a duration in seconds.

        abstain: no score for answers of an even number of words. raise: an exception. sleep: each batch takes `seconds` longer.
        """
        self.way, self.after, self.seconds = way, after, seconds
        self.batches = 0

    def score(self, samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
        """Return one score per sample, None for an abstention."""
        self.batches += 1
        fails = self.batches > self.after
        if fails and self.way == "raise":
            raise RuntimeError("the scorer's database is gone")
        if fails and self.way == "sleep":
            time.sleep(self.seconds)
        return [self._score(str(sample["answer"]).split(), fails) for sample in samples]

    def _score(self, words: list[str], fails: bool) -> float | None:
        if fails and self.way == "abstain" and len(words) % 2 == 0:
            return None
        return float("yes" in words)
