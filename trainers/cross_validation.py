"""Decides how long a run trains by cross-validation over its own training prompts, where development prompts are too few.

The prompts are divided into folds; near-duplicates are in one fold. For each fold, a model is trained on the other prompts from the start
model, and measured on the fold's prompts at the steps of trainers/length.py, at a constant rate. The scores of all folds at a step are one
measurement with a score per prompt, and the rule of trainers/length.py chooses among the steps. The final run trains on all prompts for
the chosen number of steps, then the rate falls to 0.
Folds are trained until ENOUGH prompts are measured. With many prompts, one fold is enough. It is then a holdout.
The standard error treats the prompts as independent. Models of two folds share most of their training prompts, so it is somewhat too small
(Bengio and Grandvalet 2004).
The module is pure.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ratchet.contracts.data.datasets import CROSS_VALIDATED_LEAST
from ratchet.contracts.ids import hash_share
from ratchet.trainers.length import Measurement, best, cooldown_steps, difference, mean
from ratchet.trainers.recipes.recipe import Recipe

READABLE = 0.8
"""Share of the clusters of which an estimate assumes that the model can read them. Prompts that are too long are not measured."""
MOST = 300
"""Maximum number of prompts that are measured in a fold, and so over all folds."""
ENOUGH = 100
"""Number of measured prompts after which no further fold is trained: `benchmarks/development.py` shows what a choice by them loses."""


def may_have_folds(recipe: Recipe, nodes: int, gpus: int) -> bool:
    """Whether a run finds its number of steps by cross-validation if its training set has the prompts for it.

    `gpus` is the number of GPUs per node. A run of several processes has no folds.
    """
    return recipe.steps == "auto" and int(getattr(recipe, "folds", 0)) > 1 and max(1, gpus) * nodes == 1


def most_folds_of_run(recipe: Recipe, nodes: int, gpus: int, clusters: int) -> int:
    """Return the largest number of folds that a run trains before its training proper.

    `gpus` is the number of GPUs per node. `clusters` is the number of clusters of near-duplicates that can be measured
    (`TrainingSet.cross_validated_prompts`). It may be more folds than for all of them, because the job counts the READABLE ones.
    """
    if not may_have_folds(recipe, nodes, gpus):
        return 0
    folds = int(getattr(recipe, "folds", 0))
    return max(number_of_folds(folds, clusters), number_of_folds(folds, int(READABLE * clusters)))


def number_of_folds(folds: int, clusters: int) -> int:
    """Return how many of `folds` folds are trained for `clusters` clusters that can be scored; 0 if these are too few."""
    if folds < 2 or clusters < max(CROSS_VALIDATED_LEAST, folds):
        return 0
    return min(folds, math.ceil(ENOUGH / min(MOST, clusters // folds)))


class Fold(NamedTuple):
    """A part of the training prompts, by their ids."""

    held: frozenset[str]
    """Prompts that the fold's model is not trained on."""
    measured: tuple[str, ...]
    """Prompts of `held` that the fold's model is measured on: one of each cluster, because near-duplicates tell the same."""


class Chosen(NamedTuple):
    """Result of a cross-validation."""

    constant: int
    """Steps at a constant rate, as the folds measured them."""
    measured: tuple[Measurement, ...]
    """Measurements of all folds together, at the steps that all of them reached."""
    folds: int
    """Number of folds."""

    @property
    def steps(self) -> int:
        """Steps of the final run, with its cooldown."""
        return self.constant + self.cooldown

    @property
    def cooldown(self) -> int:
        """Steps over which the rate of the final run falls to 0."""
        return cooldown_steps(self.constant)

    @property
    def gain(self) -> tuple[float, float]:
        """Mean difference of the chosen step to the start model over all prompts, and its standard error."""
        return difference(next(one for one in self.measured if one.step == self.constant), self.measured[0])

    @property
    def prompts(self) -> int:
        """Number of prompts."""
        return len(self.measured[0].scores)

    @property
    def reason(self) -> str:
        """The result as text."""
        gain, error = self.gain
        shown = f"{gain:+.2f} ± {error:.2f} against the start model" if math.isfinite(error) else "too few scores to compare"
        return f"{self.constant} steps, chosen by cross-validation over {self.prompts} prompts: {shown}"

    def score_of(self, step: int) -> float | None:
        """Return the mean score over all folds after `step`; None if it was not measured."""
        return next((mean(one) for one in self.measured if one.step == step), None)


def folds_of(clusters: Mapping[str, str], scorable: Collection[str], folds: int, salt: str) -> tuple[Fold, ...]:
    """Return the folds that are trained; empty if there are fewer than CROSS_VALIDATED_LEAST clusters that can be scored.

    `clusters` maps the ids of all training prompts to clusters of near-duplicates. `scorable` are the prompts that can be measured. The
    clusters are dealt to `folds` folds in the order of their hashes, so the sizes of folds differ by one cluster at most. With another
    `salt`, other clusters are measured: chance in the same few prompts must not decide in every cycle. Clusters without a scorable prompt,
    those of folds that are not trained, and those above MOST, are trained on in every fold.
    """
    members: dict[str, list[str]] = {}
    for prompt in sorted(clusters, key=lambda prompt: (hash_share("fold prompt", prompt), prompt)):
        members.setdefault(clusters[prompt], []).append(prompt)
    able = set(scorable)
    first = {name: next((prompt for prompt in prompts if prompt in able), None) for name, prompts in members.items()}
    dealt = sorted((name for name, prompt in first.items() if prompt), key=lambda name: (hash_share("fold", salt, name), name))
    parts = [dealt[number::folds][:MOST] for number in range(number_of_folds(folds, len(dealt)))]
    return tuple(
        Fold(
            held=frozenset(prompt for name in part for prompt in members[name]),
            measured=tuple(str(first[name]) for name in part),
        )
        for part in parts
    )


def pooled(folds: Sequence[Sequence[Measurement]]) -> tuple[Measurement, ...]:
    """Return one measurement for each step that all folds measured, with the scores of all folds in their order."""
    if not folds:
        return ()
    by_step = [{one.step: one for one in fold} for fold in folds]
    return tuple(
        Measurement(step, _joined(fold[step].scores for fold in by_step), agreement=_joined(fold[step].agreement for fold in by_step))
        for step in sorted(set.intersection(*(set(fold) for fold in by_step)))
    )


def choose(folds: Sequence[Sequence[Measurement]], slices: Sequence[str | None]) -> Chosen | None:
    """Return the number of steps; None if no step after the start was measured in all folds, or if nothing has a score.

    `folds` are the measurements of each fold, the first one at step 0. `slices` are the slices of all prompts in the order of the folds.
    """
    measured = pooled(folds)
    if len(measured) < 2 or measured[0].step != 0 or all(math.isinf(difference(one, measured[0])[1]) for one in measured[1:]):
        return None
    kept, _ = best(measured[0], measured[1:], slices)
    return Chosen(kept.step, measured, len(folds))


def _joined(parts: Iterable[Sequence[float | None]]) -> tuple[float | None, ...]:
    return tuple(score for part in parts for score in part)
