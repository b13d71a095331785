"""SFT and DPO on NVIDIA NeMo RL: turns a plan into a JobSpec.

The job runs in the container image of the NeMo RL release, on the head of a Ray cluster that the executor sets up. It trains on the rows,
the tokens and the order of the TRL job. An inconsistent recipe is rejected before any machine is requested.
The module is pure and does not load ray or torch. The trainers have not been run on GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from ratchet.contracts.data.datasets import Facts
from ratchet.contracts.jobs.training import Attempt, JobSpec, TrainingPlan
from ratchet.runtime.jobs.job_protocol import BACKEND, TrainerBackend
from ratchet.trainers.backends.job_spec import check_plan, job_spec
from ratchet.trainers.backends.nemo.arithmetic import ClusterShape
from ratchet.trainers.backends.nemo.keys import PINNED, refuse_unknown, shipped
from ratchet.trainers.backends.nemo.offline_checks import Offline, check_shares, refuse_unsupported
from ratchet.trainers.backends.nemo.offline_config import OfflinePlaces, render_offline
from ratchet.trainers.recipes.completion import complete
from ratchet.trainers.recipes.derived import adjusted, measured
from ratchet.trainers.recipes.dpo import DPORecipe
from ratchet.trainers.recipes.sft import SFTRecipe

ANYWHERE = OfflinePlaces(base="/base", model="/m", train="/t", checkpoints="/c", logs="/l")
"""Placeholder paths to check the keys of a configuration at planning time."""


class _OnNemo:
    """Common base class of the trainers on given answers."""

    method: ClassVar[str]
    """Name of the method."""
    kind: ClassVar[type[Offline]]
    """Class of its recipe."""
    reads: ClassVar[Literal["pairs", "demonstrations"]]
    """File of the training set that it reads."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Settings with another default than on TRL."""

    def recipe(self, changes: Mapping[str, Any], facts: Facts | None = None) -> dict[str, Any]:
        """Return the complete recipe as JSON data.

        Raises ConfigError for an unknown key, an invalid value, or a setting that the release cannot honour; the message names the remedy.
        """
        recipe = measured(complete(self.kind, {**self.defaults, **changes}), facts)
        refuse_unsupported(recipe, facts)
        return recipe.model_dump(mode="json")

    def job(self, plan: TrainingPlan, attempt: Attempt) -> JobSpec:
        """Return the job of the plan. The same input gives the same specification.

        Raises ConfigError if the recipe does not fit the release or the cluster; the message names the remedy. Raises Permanent if the plan
        is for another method or its start model is an adapter.
        """
        check_plan(plan, self.method)
        recipe = complete(self.kind, plan.recipe)
        refuse_unsupported(recipe)
        cluster, as_run = ClusterShape(attempt.nodes, attempt.gpus), adjusted(recipe, attempt.adjustment)
        check_shares(as_run, cluster)
        config = render_offline(as_run, cluster, ANYWHERE, plan.seed)
        refuse_unknown(config, shipped(PINNED, self.method), f"NeMo RL {PINNED}", self.method)
        return job_spec(plan, attempt, recipe, (self.reads,), BACKEND.to_env(TrainerBackend.NEMO_RL))  # Ray passes it on to its workers


class NemoSFT(_OnNemo):
    """SFT trainer on NeMo RL for one or several GPU nodes, on demonstrations, that is, correct answers."""

    method = "sft"
    kind = SFTRecipe
    reads = "demonstrations"


class NemoDPO(_OnNemo):
    """DPO trainer on NeMo RL for one or several GPU nodes, on preference pairs. It rehearses no demonstrations."""

    method = "dpo"
    kind = DPORecipe
    reads = "pairs"
    defaults: ClassVar[Mapping[str, Any]] = {"rehearsal": 0.0}

    def cautions(self, plan: TrainingPlan) -> tuple[str, ...]:
        """Return in what a plan differs from the same settings on TRL, for the people who approve it."""
        recipe = complete(DPORecipe, plan.recipe)
        if not recipe.losses.get("sft"):
            return ()
        return ("on NeMo RL, the term sft weighs each chosen answer alike (on TRL each token), and no demonstrations are rehearsed",)
