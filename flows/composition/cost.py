"""Estimates time and price of a training attempt, with the price table of the cluster if the line has one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ratchet.contracts.jobs.training import Cost, Method, TrainingPlan
from ratchet.contracts.loop import Loop
from ratchet.contracts.model import count_parameters
from ratchet.contracts.ports import Artifacts


def estimate_cost(
    loop: Loop, folder: Path, method: str, recipe: Mapping[str, Any], parameters: int, cross_validated: int = 0, taught: int = 0
) -> dict[str, Any]:
    """Estimate the maximum cost of one attempt for a model with `parameters` weights.

    `cross_validated` is the number of clusters that a cross-validation can measure (`TrainingSet.cross_validated_prompts`), and `taught`
    the number of demonstrations by teachers.
    Return the estimate as JSON values. On a cluster it also contains `price` in the price table's currency, or None for unknown machines.
    """
    from ratchet.trainers.cross_validation import most_folds_of_run
    from ratchet.trainers.estimate import estimate
    from ratchet.trainers.recipes.completion import KINDS, complete
    from ratchet.trainers.sifting import is_worth

    full, nodes, gpus = complete(KINDS[Method(method)], recipe), loop.training.nodes, loop.training.gpus
    folds = most_folds_of_run(full, nodes, gpus, cross_validated)
    compares = folds > 0 and method == Method.SFT and is_worth(taught)  # by one run more
    found = estimate(full, parameters, nodes, gpus, folds + compares).model_dump(mode="json") | {"folds": folds, "compares": compares}
    if loop.cluster is not None:
        found["price"] = price_of_time(loop, folder, found["seconds"])
    return found


def price_of_time(loop: Loop, folder: Path, seconds: float) -> float | None:
    """Return the highest price of the line's nodes for `seconds`, in the price table's currency.

    None without a cluster, or if the table does not contain its machines.
    Raises ConfigError if the cluster's profile is missing or invalid.
    """
    if loop.cluster is None:
        return None
    from ratchet.k8s.gangs.meter import at_most
    from ratchet.k8s.profiles.profile import load_profile

    return at_most(load_profile(loop.cluster.profile, folder), loop.cluster.pool.capacity, loop.training.nodes, seconds)


def estimate_plan_cost(plan: TrainingPlan, loop: Loop, folder: Path, artifacts: Artifacts, scratch: Path) -> Cost | None:
    """Estimate the maximum time and price of one attempt at the plan, with the lower one of the cluster's caps.

    Return None for a trainer of another package, whose recipe is unknown here.
    """
    if not loop.training.built_in(plan.method):
        return None
    model = artifacts.fetch(plan.start.files, scratch / "models" / plan.start.files)
    sizes = _clusters_to_measure(plan, artifacts), _taught(plan, artifacts)
    found = estimate_cost(loop, folder, plan.method, plan.recipe, count_parameters(model), *sizes)
    caps = [cap for cap in (loop.cluster.cap_run, loop.cluster.cap_month) if cap is not None] if loop.cluster else []
    return Cost(seconds=found["seconds"], price=found.get("price"), cap=min(caps, default=None), basis=found["basis"])


def _clusters_to_measure(plan: TrainingPlan, artifacts: Artifacts) -> int:
    """Return the number of clusters of near-duplicates that a cross-validation of the plan can measure at least; 0 without one."""
    if plan.cross_validation is None:
        return 0
    from ratchet.materializer.lake.schemas import read_parquet
    from ratchet.materializer.training_sets.development import clusters_to_measure

    return clusters_to_measure(read_parquet(artifacts.get(plan.cross_validation)))


def _taught(plan: TrainingPlan, artifacts: Artifacts) -> int:
    """Return the number of demonstrations by teachers that a run with a cross-validation compares."""
    if plan.cross_validation is None:
        return 0
    from ratchet.contracts.data.records import Tier
    from ratchet.materializer.lake.schemas import read_parquet

    return int((read_parquet(artifacts.get(plan.demonstrations))["source"] == Tier.TEACHER.value).sum())


def estimate_memory(
    loop: Loop, folder: Path, method: str, recipe: Mapping[str, Any], parameters: int, config: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Estimate the memory of one GPU for a training, as JSON values.

    It contains the uses of memory in each phase in GiB, the memory of the profile's GPU if that is known, the phases that do not fit, and
    how many answers are generated at once. None without GPUs, or if `config` does not state the sizes of the model.
    """
    from ratchet.k8s.profiles.profile import load_profile
    from ratchet.trainers.memory import PHASES, memory, model_sizes
    from ratchet.trainers.recipes.completion import KINDS, complete

    sizes = model_sizes(config, parameters)
    training, kind = loop.training, KINDS[Method(method)]
    found = memory(complete(kind, recipe), sizes, training.nodes, training.gpus, training.on_nemo(method)) if sizes else None
    if found is None:
        return None
    room = load_profile(loop.cluster.profile, folder).gpu_memory if loop.cluster else None
    phases: dict[str, Any] = {phase: {one.name: round(one.gib, 2) for one in getattr(found, phase)} for phase in PHASES}
    fits = {"gpu": room, "too_large": found.too_large(room), "answers_at_once": found.answers_at_once(room)} if room else {"gpu": None}
    return {**phases, **fits}
