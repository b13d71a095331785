"""Scorer set: the scorers of a loop file with their tiers and weights.

It selects the tier that determines the reward of a sample and computes the weighted mean within this tier. It does not depend on the
origin of the samples or on the use of the rewards.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.data.datasets import Label, ScorerVersion
from contracts.data.records import FeedbackKind, Tier
from contracts.errors import Permanent, RatchetError
from contracts.jobs.training import TrainingPlan
from contracts.loop import RewardSettings
from contracts.ports import RewardFunction
from rewards.feedback import ratings
from rewards.verifiable import ExactMatch
from runtime.extensions import ExtensionKind, load

UNSEEN = frozenset({"prompt", "answer", "reference"})
"""Sample keys that are available for a new answer, before any user has seen it."""

CORRECTION = "correction"
"""Name of the label part for a score that results from a user's correction of the answer."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scorer:
    """A scorer with its identity, tier and weight."""

    function: RewardFunction
    version: ScorerVersion

    @property
    def alone(self) -> bool:
        """Whether its score counts without a score of another scorer in its tier."""
        return getattr(self.function, "alone", True)


class ScorerSet:
    """Implementation of the `Rewards` port.

    The tiers are, strongest first: verifiable, feedback, judge. The strongest tier in which at least one scorer gives a score determines
    the reward: the weighted mean of the scores in this tier.
    """

    def __init__(self, scorers: Sequence[Scorer]) -> None:
        self.scorers = tuple(scorers)
        self.versions = tuple(scorer.version for scorer in self.scorers)

    def unseen(self) -> bool:
        """Return whether some scorer needs at most prompt, answer and reference."""
        return any(_for_unseen(scorer) for scorer in self.scorers)

    def without_reference(self) -> bool:
        """Return whether some scorer of new answers needs no reference."""
        return any(_for_unseen(scorer) and "reference" not in scorer.function.needs for scorer in self.scorers)

    def label_unseen(self, samples: Sequence[Mapping[str, Any]]) -> list[Label]:
        """Label new answers, for which only prompt, answer and reference are known."""
        return self._label(samples, [scorer for scorer in self.scorers if _for_unseen(scorer)])

    def label(self, samples: Sequence[Mapping[str, Any]]) -> list[Label]:
        """Label logged answers.

        A sample has the keys prompt, answer, reference (or None) and feedback (the latest item per rater and kind).
        """
        return [_with_correction(sample, label) for sample, label in zip(samples, self._label(samples, self.scorers), strict=True)]

    def _label(self, samples: Sequence[Mapping[str, Any]], scorers: Sequence[Scorer]) -> list[Label]:
        columns = [_scores(scorer, samples) for scorer in scorers]
        labels = []
        for sample, row in zip(samples, zip(*columns, strict=True) if columns else [()] * len(samples), strict=True):
            reward, tier = _decide(list(zip(scorers, row, strict=True)))
            parts = {scorer.version.name: score for scorer, score in zip(scorers, row, strict=True)}
            deciding = frozenset(
                scorer.version.name for scorer in scorers if scorer.version.tier == tier and parts[scorer.version.name] is not None
            )
            labels.append(Label(reward, tier, parts, len(ratings(sample.get("feedback") or ())), deciding))
        return labels


def _for_unseen(scorer: Scorer) -> bool:
    return frozenset(scorer.function.needs) <= UNSEEN


def _scores(scorer: Scorer, samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """Return the scores of all samples by one scorer. If the scorer raises an unexpected error, it abstains on all samples."""
    try:
        scores = scorer.function.score(samples)
    except RatchetError:
        raise
    except Exception:  # third-party code: its failure must not count as a bad answer
        log.warning("reward %s failed; it abstains on %d samples", scorer.version.name, len(samples), exc_info=True)
        return [None] * len(samples)
    if len(scores) != len(samples):
        raise Permanent(f"reward {scorer.version.name!r} returned {len(scores)} scores for {len(samples)} samples; correct its code")
    for score in scores:
        if score is not None and not (math.isfinite(score) and 0 <= score <= 1):
            raise Permanent(f"reward {scorer.version.name!r} returned {score}, outside [0, 1]; correct its code")
    return [None if score is None else float(score) for score in scores]


def _decide(scored: Sequence[tuple[Scorer, float | None]]) -> tuple[float | None, Tier | None]:
    for tier in Tier:
        speaking = [(scorer, score) for scorer, score in scored if scorer.version.tier == tier and score is not None]
        if any(scorer.alone for scorer, _ in speaking):
            total = sum(scorer.version.weight for scorer, _ in speaking)
            return sum(scorer.version.weight * score for scorer, score in speaking) / total, tier
    return None, None


def _with_correction(sample: Mapping[str, Any], label: Label) -> Label:
    """Use a user's correction of this answer as verifiable evidence if no verifiable scorer gave a score.

    An answer equal to the corrected text gets reward 1, any other answer gets 0.
    """
    texts = [item["text"] for item in sample.get("feedback") or () if item["kind"] == FeedbackKind.CORRECTION and item["text"]]
    if not texts or label.tier == Tier.VERIFIABLE:
        return label
    scores = ExactMatch().score([{"answer": sample["answer"], "reference": text} for text in texts])
    reward = max(score for score in scores if score is not None)
    return Label(reward, Tier.VERIFIABLE, {**label.parts, CORRECTION: reward}, label.votes)


def build_scorer_set(rewards: Sequence[RewardSettings]) -> ScorerSet:
    """Build the scorer set of a loop file. Raises `ConfigError` for an unknown reward or option."""
    return ScorerSet([_build(entry.name, entry.options, entry.tier, entry.weight) for entry in rewards])


def _build(name: str, options: Mapping[str, Any], tier: Tier | None, weight: float) -> Scorer:
    extension = load(ExtensionKind.REWARD, name)
    function: RewardFunction = extension.create(options=options, where=f"rewards.{name}.options")
    identity = extension.identity().model_dump()
    return Scorer(function, ScorerVersion(**identity, tier=tier or Tier(function.tier), weight=weight))


def planned_scorer_set(plan: TrainingPlan) -> ScorerSet:
    """Build the scorer set that a training job uses: the plan's scorers for new answers.

    Raises `Permanent` if the installed code of a scorer differs from the code in the plan, because rewards must not change between
    planning and training. Also raises `Permanent` if the plan has no scorer for new answers.
    """
    scorers = []
    for planned in plan.scorers:
        scorer = _build(planned.name, plan.scorer_options.get(planned.name, {}), planned.tier, planned.weight)
        if not _for_unseen(scorer):
            continue
        if _pin(scorer.version) != _pin(planned):
            raise Permanent(
                f"reward {planned.name!r} has different code here ({_code(scorer.version)}) than in the plan ({_code(planned)}); "
                "install the planned version, or plan again"
            )
        scorers.append(scorer)
    if not scorers:
        raise Permanent("the plan contains no reward that can score new answers; add one to the loop file and plan again")
    return ScorerSet(scorers)


def _pin(version: ScorerVersion) -> tuple[str, str, str]:
    return version.distribution, version.version, version.code


def _code(version: ScorerVersion) -> str:
    return f"{version.distribution} {version.version}, {version.code[:12]}"
