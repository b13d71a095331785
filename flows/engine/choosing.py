"""Which method is taken, with which plan: the trainers' choice, tried against the machines before anybody is asked to approve it.

A method whose job could not be built, or could by far not end within its time and budget, is out, and the next one is taken; a recipe that
is wrong in itself is a person's to mend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from math import ceil
from typing import Any

from contracts.data import Facts, TrainingSet
from contracts.errors import ConfigError
from contracts.loop import Loop, TrainingSettings
from contracts.model import ModelRef
from contracts.training import Attempt, Choice, Cost, Method, RuleResult, TrainingPlan
from flows.engine.house import House

SLACK = 50.0
"""So many times its time, or its budget, must a run be estimated at to be refused: estimates count every row at its full length, and
answers are often a tenth of that; and machines may be some times as fast as taken. Between once and this, `ratchet plan` warns."""

Draft = Callable[[Method, dict[str, Any]], TrainingPlan]
"""(method, complete recipe) -> the plan."""


def drafts(house: House, loop: Loop, cycle: str, start: ModelRef, seed: int, dataset: TrainingSet) -> Draft:
    """Plans that train `start` on `dataset`, and differ in method and recipe only."""

    def draft(method: Method, recipe: dict[str, Any]) -> TrainingPlan:
        return TrainingPlan(
            line=loop.line.name,
            cycle=cycle,
            start=start,
            dataset=dataset.content,
            pairs=dataset.pairs,
            prompts=dataset.prompts,
            demonstrations=dataset.demonstrations,
            method=method,
            recipe=recipe,
            seed=seed,
            scorers=house.rewards.versions,
            scorer_options={reward.name: reward.options for reward in loop.rewards},
            code=house.code,
        )

    return draft


def choose_plan(house: House, facts: Facts, settings: TrainingSettings, draft: Draft) -> tuple[Choice, TrainingPlan | None]:
    """The choice with a row for each method that was tried on the machines, and the plan; none where nothing is to be trained.

    ConfigError where the recipe of a chosen method has a wrong key or value.
    """
    unseen = house.rewards.unseen()
    first = choice = house.choose(facts, settings, unseen)
    left, tried = settings, dict[Method, tuple[RuleResult, ...]]()
    plan: TrainingPlan | None = None
    while plan is None and choice.method is not Method.NONE:
        house.trainers[choice.method].recipe(settings.recipe(choice.method))  # what is wrong in itself is not tried on
        plan, tried[choice.method] = _tried(house, facts, settings, choice.method, draft)
        if plan is None:
            left = left.model_copy(update={"methods": tuple(name for name in left.methods if name != choice.method.value)})
            choice = house.choose(facts, left, unseen)
    rows = (*first.rules, *chain.from_iterable(tried.values()))
    return Choice(method=choice.method, reason=_reason(choice, plan, tried), rules=rows, facts=facts), plan


def _reason(choice: Choice, plan: TrainingPlan | None, tried: Mapping[Method, tuple[RuleResult, ...]]) -> str:
    """What is taken and why; a method that the rules would have taken, and the machines would not, is an aside to that."""
    refused = [(method.value.upper(), row.evidence) for method, rows in tried.items() for row in rows if not row.holds]
    if not refused:
        return choice.reason
    if plan is None:
        return "do not train: " + "; ".join(f"{method}: {evidence}" for method, evidence in refused)
    return f"{choice.reason}; not tried: " + ", ".join(f"{method} ({evidence})" for method, evidence in refused)


def _tried(
    house: House, facts: Facts, settings: TrainingSettings, method: Method, draft: Draft
) -> tuple[TrainingPlan | None, tuple[RuleResult, ...]]:
    """Builds the job of a first attempt, and throws it away: whether it can be built is what is to be known, and whether it could end."""
    rule, machines = f"{method.value} fits the machines", f"{settings.nodes} x {settings.gpus} GPUs"
    try:
        plan = draft(method, house.trainers[method].recipe(settings.recipe(method), facts))
        house.trainers[method].job(plan, Attempt(number=1, timeout=settings.timeout, nodes=settings.nodes, gpus=settings.gpus))
    except ConfigError as error:
        _, _, remedy = str(error).partition("; ")
        change = remedy or f"other training.nodes, training.gpus, or changes to [training.{method.value}]"
        return None, (RuleResult(rule=rule, holds=False, evidence=str(error), effect=f"no {method.value} on {machines}", change=change),)
    built = RuleResult(rule=rule, holds=True, evidence=f"its job can be built for {machines}", effect=f"{method.value} can run")
    if house.cost is None:
        return plan, (built,)
    fits = _fits(method, house.cost(plan), settings)
    return plan if fits.holds else None, (built, fits)


def _fits(method: Method, cost: Cost, settings: TrainingSettings) -> RuleResult:
    """Whether a run could end within its time and its budget, if all went far better than estimated."""
    late = cost.seconds > SLACK * settings.timeout
    dear = cost.price is not None and cost.cap is not None and cost.price > SLACK * cost.cap
    said = f"estimated at {cost.seconds:.0f} s ({cost.basis}) of training.timeout = {settings.timeout:g} s"
    if cost.price is not None and cost.cap is not None:
        said += f", and at a price of {cost.price:.2f} of {cost.cap:g}"
    raised = [f"training.timeout = {ceil(cost.seconds / SLACK)} or more"] if late else []
    raised += [f"caps of {ceil((cost.price or 0.0) / SLACK)} or more in [cluster]"] if dear else []
    remedy = f"{' and '.join(raised)}, or less to do in [training.{method.value}]: steps, rows, tokens"
    return RuleResult(
        rule=f"{method.value} fits its time and budget",
        holds=not raised,
        evidence=f"{said}; refused beyond {SLACK:g} times",
        effect=f"{method.value} could end" if not raised else f"{method.value} would be cut short long before its last step",
        change=remedy if raised else f"training.timeout below {cost.seconds / SLACK:.3g} s",
    )
