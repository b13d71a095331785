"""Scores logged answers by the engine of the port `Compute`.

Only scorers that need nothing but a sample run there. Judges ask a model over the network, at a pace and with records that the service
keeps, and are measured on all answers at once: with a judge, the answers of a line are scored by the service.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import polars as pl
from pydantic import TypeAdapter

from ratchet.contracts.loop import RewardSettings
from ratchet.contracts.ports import Compute
from ratchet.contracts.ports.compute import Item
from ratchet.materializer.labels.scores import AnswerPart, labelled
from ratchet.rewards.scorer_set import ScorerSet, build_scorer_set

AT_ONCE = 2_000
"""Answers of a part. Fewer answers than this are scored by the service."""
_SETTINGS = TypeAdapter(tuple[RewardSettings, ...])


@dataclass(frozen=True)
class LabelPart:
    """The function of workers: answers with their feedback -> records.SAMPLES."""

    rewards: bytes
    """JSON of the loop file's rewards."""
    salt: str
    nameless: str | None

    def __call__(self, part: AnswerPart) -> pl.DataFrame:
        """Score the answers."""
        return labelled(part, _scorers(self.rewards), self.salt, self.nameless)


@dataclass(frozen=True)
class Labeller:
    """Scores the parts of a line's answers where the engine computes, with the scorers of the loop file."""

    compute: Compute
    rewards: Sequence[RewardSettings]

    def each(self, parts: Iterable[AnswerPart], salt: str, nameless: str | None) -> Iterator[pl.DataFrame]:
        """Yield the samples of each part, in order. Raises what `Compute.map` raises."""
        function = LabelPart(_SETTINGS.dump_json(tuple(self.rewards)), salt, nameless)
        return self.compute.map(function, (Item(f"answers {number * AT_ONCE + 1:,} and on", part) for number, part in enumerate(parts)))


@lru_cache(maxsize=8)
def _scorers(rewards: bytes) -> ScorerSet:
    return build_scorer_set(_SETTINGS.validate_json(rewards))
