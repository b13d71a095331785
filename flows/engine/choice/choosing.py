"""Selects the training method and its plan. The selected method is checked against the machines before approval is requested.

A method is rejected if its job cannot be built, if its estimate far exceeds its time or budget, if its recipe does not suit the model, or
if its job would leave out all rows. The next method is then checked.
An invalid recipe is an error that the user must correct.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import chain
from math import ceil
from typing import Any

from ratchet.contracts.data.datasets import Facts, HoldoutEdition, TrainingSet
from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.contracts.jobs.training import Attempt, BeforeTraining, Choice, Cost, JobSpec, Method, RuleResult, TrainingPlan
from ratchet.contracts.loop import Loop, TrainingSettings
from ratchet.contracts.model import ModelRef
from ratchet.contracts.ports.data import ProbedChampion
from ratchet.contracts.serving import ModelVersion
from ratchet.flows.core.asking.parquet_rows import rows_of
from ratchet.flows.core.data_notes import untaught_slices
from ratchet.flows.engine.choice.adapters import cannot_share, no_adapter
from ratchet.flows.engine.context import LineContext
from ratchet.flows.engine.line import trainings

SLACK = 50.0
"""A run is rejected if its estimate exceeds its timeout or its cap by more than this factor.

The factor is large because estimates count every row at its full length, while answers are often a tenth of that. Machines may also be
several times faster than assumed. Below this factor, `ratchet plan` only warns that the estimate exceeds the timeout.
"""

NOTHING_KNOWN = BeforeTraining(left_out=())

Draft = Callable[[Method, dict[str, Any]], TrainingPlan]
"""Builds the plan from a method and its complete recipe."""
Cautions = Callable[[JobSpec], tuple[str, ...]]
"""Returns what can spoil the result of a job, each with its remedy."""


def probed_champion(context: LineContext, champion: ModelVersion, start: ModelVersion) -> ProbedChampion:
    """Return what a probe has to know about the champion. Its server is started if it is not the start model."""
    plans = tuple(trainings(context, champion))
    trained_on = None if None in plans else tuple(plan.rows for plan in plans if plan is not None)
    return ProbedChampion(trained_on, None if champion.tag == start.tag else context.client(context.server.ensure(champion)))


def drafts(context: LineContext, loop: Loop, cycle: str, start: ModelRef, seed: int, dataset: TrainingSet) -> Draft:
    """Return a function that builds plans for training `start` on `dataset`. Its plans differ only in method and recipe."""
    measured = bool(dataset.development or dataset.cross_validation)

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
            scorers=context.rewards.for_jobs(),
            scorer_options={reward.name: reward.options for reward in loop.rewards},
            code=context.code,
            development=dataset.development,
            answer_tokens=loop.gate.max_tokens if measured else None,
            answer_temperature=(loop.gate.temperature or None) if measured else None,
            cross_validation=dataset.cross_validation,
        )

    return draft


def slice_cautions(context: LineContext, loop: Loop, dataset: TrainingSet, edition: HoldoutEdition) -> Cautions:
    """Return a function that warns of slices which the gate judges with `edition`, and of which a job has no row."""
    artifacts = {"pairs": dataset.pairs, "prompts": dataset.prompts, "demonstrations": dataset.demonstrations}

    def cautions(job: JobSpec) -> tuple[str, ...]:
        read = [name for name, key in artifacts.items() if key in job.inputs.values()]
        if not read or not all(name in dataset.slices for name in read):
            return ()
        sets = [context.artifacts.get(key) for key in (edition.prompts, edition.golden) if key is not None]
        asked = Counter(row["slice"] for found in sets for row in rows_of(found, ("slice",)) if row["slice"])
        taught = {name for one in read for name in dataset.slices[one]}
        warning = untaught_slices(asked, taught, loop.gate.min_slice)
        return (warning,) if warning else ()

    return cautions


def choose_plan(
    context: LineContext, facts: Facts, settings: TrainingSettings, draft: Draft, cautions: Cautions
) -> tuple[Choice, TrainingPlan | None]:
    """Choose the method and build its plan. `cautions` gives the choice its warnings about a job.

    Return the choice, which contains a row for each check against the machines, and the plan. The plan is None if nothing is to be trained.
    Raises ConfigError if the recipe of a chosen method has a wrong key or value.
    """
    unseen = bool(context.rewards.for_jobs())
    first = choice = context.choose(facts, settings, unseen)
    left, tried = settings, dict[Method, tuple[RuleResult, ...]]()
    plan: TrainingPlan | None = None
    known = NOTHING_KNOWN
    while plan is None and choice.method is not Method.NONE:
        context.trainers[choice.method].recipe(settings.recipe(choice.method))  # an invalid recipe must raise, not reject the method
        plan, tried[choice.method], known = _tried(context, facts, settings, choice.method, draft, cautions)
        if plan is None:
            left = left.model_copy(update={"methods": tuple(name for name in left.methods if name != choice.method.value)})
            choice = context.choose(facts, left, unseen)
    rows = (*first.rules, *chain.from_iterable(tried.values()))
    reason = _reason(choice, plan, tried)
    known = known if plan else NOTHING_KNOWN
    return Choice(method=choice.method, reason=reason, rules=rows, facts=facts, left_out=known.left_out, warnings=known.warnings), plan


def _reason(choice: Choice, plan: TrainingPlan | None, tried: Mapping[Method, tuple[RuleResult, ...]]) -> str:
    """Compose the reason of the choice. Methods that were rejected for the machines are appended with their evidence."""
    refused = [(method.value.upper(), row.evidence) for method, rows in tried.items() for row in rows if not row.holds]
    if not refused:
        return choice.reason
    if plan is None:
        return "do not train: " + "; ".join(f"{method}: {evidence}" for method, evidence in refused)
    return f"{choice.reason}; rejected: " + ", ".join(f"{method} ({evidence})" for method, evidence in refused)


def _tried(
    context: LineContext, facts: Facts, settings: TrainingSettings, method: Method, draft: Draft, cautions: Cautions
) -> tuple[TrainingPlan | None, tuple[RuleResult, ...], BeforeTraining]:
    """Check a method: its first attempt's job must build and keep a row, and its estimate must fit time and budget.

    Return the plan, or None if the method is rejected, the results of the checks, and what is known about the job. The job itself is
    discarded.
    """
    rule, machines = f"{method.value} fits the machines", f"{settings.nodes} x {settings.gpus} GPUs"
    try:
        plan = draft(method, context.trainers[method].recipe(settings.recipe(method), facts))
        job = context.trainers[method].job(plan, Attempt(number=1, timeout=settings.timeout, nodes=settings.nodes, gpus=settings.gpus))
        if context.fits:
            context.fits(job)
        _refuse_unshared(context, plan, settings)
    except ConfigError as error:
        _, _, remedy = str(error).partition("; ")
        change = remedy or f"different training.nodes or training.gpus, or changes to [training.{method.value}]"
        failed = RuleResult(rule=rule, holds=False, evidence=str(error), effect=f"no {method.value} on {machines}", change=change)
        return None, (failed,), NOTHING_KNOWN
    built = RuleResult(rule=rule, holds=True, evidence=f"its job can be built for {machines}", effect=f"{method.value} can run")
    cost = context.cost(plan) if context.cost else None
    checks: tuple[RuleResult, ...] = (built,) if cost is None else (built, _fits(method, cost, settings))
    if not all(check.holds for check in checks):
        return None, checks, NOTHING_KNOWN
    usable, known = _usable(context, method, job)
    of_trainer: Callable[[TrainingPlan], tuple[str, ...]] = getattr(context.trainers[method], "cautions", lambda _: ())
    warnings = (*_judge_cautions(context, plan), *of_trainer(plan), *cautions(job), *known.warnings)
    known = known.model_copy(update={"warnings": warnings})
    checks += usable
    return plan if all(check.holds for check in checks) else None, checks, known


def _judge_cautions(context: LineContext, plan: TrainingPlan) -> tuple[str, ...]:
    """Return what is to be known before a GRPO job asks judges."""
    asked = {belief.name for belief in context.rewards.beliefs()}
    judges = [version.name for version in context.rewards.for_jobs() if version.name in asked]
    if plan.method is not Method.GRPO or not judges:
        return ()
    names = ", ".join(judges)
    found = [f"the job asks {names} about the answers of each step that no stronger reward decides; their texts go to that server"]
    if not plan.recipe.get("beta", True):
        found.append(
            f"with beta = 0 nothing keeps the model close to its start, so it can learn answers that only {names} likes; set "
            "training.grpo.beta"
        )
    return tuple(found)


def _refuse_unshared(context: LineContext, plan: TrainingPlan, settings: TrainingSettings) -> None:
    """Raise ConfigError if the plan trains an adapter that is to be loaded into the champion's process, which cannot load it."""
    if no_adapter(settings, plan.method.value) or context.loop.serving.adapters != "shared":
        return
    if problem := cannot_share(context, plan.start, int(plan.recipe["lora"]["rank"])):
        raise ConfigError(problem)


def _usable(context: LineContext, method: Method, job: JobSpec) -> tuple[tuple[RuleResult, ...], BeforeTraining]:
    """Check that a job keeps a row. Return the check, none if nothing was counted, and what is known about the job."""
    rule, effect = f"{method.value} can use rows of its training set", f"{method.value} can run"
    if context.before_training is None:
        return (), NOTHING_KNOWN
    context.progress(f"counting the rows that {method.value} can use …", 0, 0)
    try:
        found = context.before_training(job)
    except Retryable as error:
        return (RuleResult(rule=rule, holds=True, evidence=f"not counted: {error}", effect=effect),), NOTHING_KNOWN
    except ConfigError as error:
        change = f"another recipe in [training.{method.value}], or another model, as the evidence says"
        rule, effect = f"{method.value} suits the model", f"{method.value} cannot run"
        return (RuleResult(rule=rule, holds=False, evidence=str(error), effect=effect, change=change),), NOTHING_KNOWN
    if found is None:
        return (), NOTHING_KNOWN
    holds = found.left_out[0].kept > 0
    result = RuleResult(
        rule=rule,
        holds=holds,
        evidence="; ".join(one.sentence for one in found.left_out),
        effect=effect if holds else f"{method.value} has nothing to train on",
        change="" if holds else "rows that the model's chat template accepts, or higher limits of tokens in the recipe",
    )
    return (result,), found


def _fits(method: Method, cost: Cost, settings: TrainingSettings) -> RuleResult:
    """Check that the estimate exceeds neither SLACK times the timeout nor SLACK times the cap."""
    late = cost.seconds > SLACK * settings.timeout
    dear = cost.price is not None and cost.cap is not None and cost.price > SLACK * cost.cap
    estimate = f"estimated at {cost.seconds:.0f} s ({cost.basis}), with training.timeout = {settings.timeout:g} s"
    if cost.price is not None and cost.cap is not None:
        estimate += f", and at a price of {cost.price:.2f}, with a cap of {cost.cap:g}"
    raised = [f"training.timeout = {ceil(cost.seconds / SLACK)} or more"] if late else []
    raised += [f"caps of {ceil((cost.price or 0.0) / SLACK)} or more in [cluster]"] if dear else []
    remedy = f"{' and '.join(raised)}, or less work in [training.{method.value}]: steps, rows, tokens"
    return RuleResult(
        rule=f"{method.value} fits its time and budget",
        holds=not raised,
        evidence=f"{estimate}; rejected only above {SLACK:g} times the limit",
        effect=f"{method.value} can finish" if not raised else f"{method.value} would be stopped long before its last step",
        change=remedy if raised else f"training.timeout below {cost.seconds / SLACK:.3g} s",
    )
