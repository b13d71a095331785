"""Types for a search over recipes: its trials and their results. Each trial is an ordinary training job with a plan of its own."""

from __future__ import annotations

from pydantic import Field

from ratchet.contracts.ids import Digest
from ratchet.contracts.jobs.training import TrainingPlan
from ratchet.contracts.model import Frozen


class Trial(Frozen):
    """One training of a search, as its `trial_intended` row records it."""

    number: int
    """Number within the search, counted from 1."""
    variant: int
    """Position of its recipe in `Search.variants`."""
    attempt: int
    """Number of its first attempt. The attempts of a cycle are counted over all trials."""
    timeout: float
    """Maximum duration of an attempt in seconds."""
    most_steps: int | None = None
    """Maximum number of steps, for a trial that only shows whether its recipe deserves a full one. None: that of the recipe."""
    reason: str
    """Why it is the next one."""


class TrialEnd(Frozen):
    """How a trial ended, as its `trial_ended` row records it."""

    succeeded: bool
    """Whether it published a model."""
    reason: str
    """Why it failed; empty if it did not."""
    seconds: float
    """Job time of all its incarnations."""
    step: int = 0
    """Optimiser steps that it trained."""
    scores: tuple[float | None, ...] = ()
    """Score of the published model on each development prompt, in the same order for all trials. Empty: not measured."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Figures of the checkpoint, for example `published_step` and `development_score`."""


def trial_plan(plan: TrainingPlan, trial: Trial) -> TrainingPlan:
    """Return the plan of a trial: that of the cycle with the recipe of its variant. Raises ValueError if the plan has no search."""
    if plan.search is None:
        raise ValueError("the plan has no search, so it has no trials")
    variant = plan.search.variants[trial.variant]
    recipe = variant.recipe if trial.most_steps is None else {**variant.recipe, "most_steps": trial.most_steps}
    return plan.model_copy(update={"method": variant.method, "recipe": recipe, "search": None})


class Chosen(Frozen):
    """Result of a search, as its `chosen` row records it."""

    trial: int
    """Number of the trial whose model is the candidate."""
    variant: str
    """Name of its recipe."""
    plan: Digest
    """Id of its plan, which is the digest of its recipe and of everything else that it was trained with."""
    reason: str
    """Why it was chosen."""
