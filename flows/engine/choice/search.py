"""Builds the search of a plan, and reads the figures of its trials."""

from __future__ import annotations

import contextlib
import math

from ratchet.contracts.data.datasets import TrainingSet
from ratchet.contracts.errors import ConfigError, Permanent, RatchetError
from ratchet.contracts.ids import checkpoint_name, cycle_stream
from ratchet.contracts.jobs.search import Trial, TrialEnd, trial_plan
from ratchet.contracts.jobs.training import Attempt, Checkpoint, Method, Search, TrainingPlan, Variant
from ratchet.contracts.loop import TrainingSettings
from ratchet.contracts.rows import TrialBegun
from ratchet.contracts.schema import parse
from ratchet.flows.core.folds.cycle import CycleView, Incarnation
from ratchet.flows.core.searches.search import LEAST_PROMPTS, OWN
from ratchet.flows.engine.choice.choosing import Draft
from ratchet.flows.engine.choice.training_curves import read_event_logs
from ratchet.flows.engine.context import LineContext

SCALES = (3.0, 1 / 3)
"""Factors on the learning rate that a search tries, in this order."""
FAMILIES = ((Method.SFT, Method.DPO), (Method.GRPO,))
"""Methods that are compared with each other. A step of GRPO takes many times as long as one of SFT or DPO, so that their short trials would
not be alike."""
PAST_CYCLES = 50
"""Number of past cycles in which the recipe that won last is looked for."""


def with_search(
    context: LineContext, plan: TrainingPlan, dataset: TrainingSet, settings: TrainingSettings, draft: Draft, won: str | None
) -> TrainingPlan:
    """Return the plan with a search over recipes, within `settings.search.budget`.

    The space is every suitable method of the plan's family, each with its learning rate as planned, three times it and a third of it.
    `won` is the name of the variant that won on this line before; it comes first. The plan is returned unchanged if it cannot be searched:
    if it names its number of steps, if another package trains it, or with too few development prompts.
    """
    if dataset.development is None or (dataset.development_prompts or 0) < LEAST_PROMPTS or not _is_searched(plan, settings):
        return plan
    family = next(methods for methods in FAMILIES if plan.method in methods)
    methods = [plan.method, *(method for method in family if method is not plan.method)]
    made = [_variant(context, dataset, settings, draft, method, scale) for scale in (1.0, *SCALES) for method in methods]
    variants = [variant for variant in made if variant is not None]
    if len(variants) < 2:
        return plan
    first = OWN
    if won is not None and any(variant.name == won for variant in variants):
        variants.sort(key=lambda variant: variant.name != won)
        first = "it won the last search of the line"
    search = Search(variants=tuple(variants), budget=settings.search.budget, first=first)
    chosen = {"method": variants[0].method, "recipe": variants[0].recipe, "search": search}
    return plan.model_copy(update={**chosen, "cross_validation": None})  # trials are compared by their scores on the development prompts


def _is_searched(plan: TrainingPlan, settings: TrainingSettings) -> bool:
    trained = any(plan.method in methods for methods in FAMILIES)
    return trained and settings.built_in(plan.method) and plan.recipe.get("steps") == "auto"


def _variant(
    context: LineContext, dataset: TrainingSet, settings: TrainingSettings, draft: Draft, method: Method, scale: float
) -> Variant | None:
    """Return a recipe of the space; None if the loop file or the data rule the method out, or if no job can be built for the machines."""
    if method.value not in settings.methods or not settings.built_in(method):
        return None
    only = settings.model_copy(update={"methods": (method.value,)})
    if context.choose(dataset.facts, only, bool(context.rewards.for_jobs())).method is not method:
        return None
    changes = settings.recipe(method)
    scaled = {**changes, "rate_scale": changes.get("rate_scale", 1.0) * scale} if scale != 1.0 else changes
    try:
        plan = draft(method, context.trainers[method].recipe(scaled, dataset.facts))
        context.trainers[method].job(plan, Attempt(number=1, timeout=settings.timeout, nodes=settings.nodes, gpus=settings.gpus))
    except ConfigError:
        return None
    if not _is_searched(plan, settings):
        return None
    name = method.value.upper() + ("" if scale == 1.0 else f", rate × {scale:.2g}")
    return Variant(name=name, method=method, recipe=plan.recipe)


def last_winner(context: LineContext, line: str, before: int) -> str | None:
    """Return the name of the variant that the newest search of the line before cycle `before` chose; None if there was none."""
    for number in range(before - 1, max(0, before - 1 - PAST_CYCLES), -1):
        with contextlib.suppress(RatchetError):
            if (chosen := context.cycle_view(cycle_stream(line, number)).chosen) is not None:
                return chosen.variant
    return None


def begun(cycle: CycleView, trial: Trial) -> TrialBegun:
    """Return the content of the `trial_intended` row."""
    if cycle.plan is None or cycle.plan.search is None:
        raise Permanent(f"{cycle.id} has no search")
    name = cycle.plan.search.variants[trial.variant].name
    return TrialBegun(trial=trial, variant=name, plan=trial_plan(cycle.plan, trial).id)


def trial_end(context: LineContext, cycle: CycleView, failed: str) -> TrialEnd:
    """Return how the running trial ended, with the figures of the model that its job published.

    `failed` is the reason why it published none; empty if its job reports success.
    """
    trial = cycle.trials[-1].trial
    own = [one for one in cycle.incarnations if one.attempt >= trial.attempt]
    seconds = math.fsum(_seconds(cycle, own))
    plan, last = cycle.plan_of(trial.attempt), own[-1] if own else None
    if failed or plan is None or last is None:
        return TrialEnd(succeeded=False, reason=failed or "it was not trained", seconds=seconds)
    bound = context.artifacts.resolve(checkpoint_name(plan.id, last.attempt, last.number))
    if bound is None:
        return TrialEnd(succeeded=False, reason="its job reports success but published no checkpoint", seconds=seconds)
    checkpoint = parse(Checkpoint, context.artifacts.get(bound))
    events = read_event_logs(cycle, context.artifacts).get(last.attempt, ())
    published = checkpoint.metrics.get("published_step")
    measured = [
        event.data.get("scores") for event in events if event.kind == "measured" and event.step == published and "fold" not in event.data
    ]
    return TrialEnd(
        succeeded=True,
        reason="",
        seconds=seconds,
        step=checkpoint.step,
        scores=_scores(measured[-1] if measured else None),
        metrics=checkpoint.metrics,
    )


MOST_SCORES = 10_000
"""Maximum number of scores that are read from an event of a job."""
LEAST_SCORE, MOST_SCORE = -1e4, 1.0
"""Limits of a score: in [0, 1], or a log-probability per token in nats. A job may claim any number, and sums of huge ones overflow."""


def _scores(value: object) -> tuple[float | None, ...]:
    """Return the scores of a `measured` event, which a job wrote: empty unless all are numbers that a score can be, or absent."""
    if not isinstance(value, list) or len(value) > MOST_SCORES:
        return ()
    numbers = [one for one in value if one is not None]
    sound = all(isinstance(one, int | float) and not isinstance(one, bool) and LEAST_SCORE <= one <= MOST_SCORE for one in numbers)
    return tuple(None if one is None else float(one) for one in value) if sound else ()


def _seconds(cycle: CycleView, own: list[Incarnation]) -> list[float]:
    """Return the job time of each attempt: that of its machines if they were metered, otherwise that of its rows."""
    found = []
    for attempt in sorted({one.attempt for one in own}):
        runs = [one for one in own if one.attempt == attempt]
        usage = runs[-1].usage
        if usage is not None and usage.nodes:
            found.append(usage.nodes / cycle.loop.training.nodes)
        else:
            found += [(one.ended - one.began).total_seconds() for one in runs if one.began and one.ended]
    return found
