"""Shows a search over recipes: its space before the training, and its trials, gain and cost afterwards. Pure texts, tables and bars.

The approval forms, `ratchet explain` and the report show the same rows and sentences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ratchet.contracts.jobs.search import Chosen
from ratchet.contracts.jobs.training import Search, TrainingPlan
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.core.searches.search import OWN, Tried, difference, measured, spent

SPACE_COLUMNS = ("recipe", "learning rate", "steps, at most")
"""Columns of `space`."""
COLUMNS = ("trial", "steps", "score", "against trial 1", "seconds", "result")
"""Columns of `results`."""
FORM_COLUMNS = 4
"""Number of leading columns that fit into the approval form."""
BAR = 16
"""Length of the longest bar of `picture`, in characters."""
OPTIMISTIC = (
    "It was measured on the development prompts that chose the trial, so it is an optimistic estimate; the gate compares the candidate on "
    "other prompts."
)
"""What a reader must know about the gain: the highest of several measured scores is on average too high (Cawley and Talbot 2010, "On
over-fitting in model selection and subsequent selection bias in performance evaluation", Journal of Machine Learning Research 11)."""


def space(search: Search) -> list[tuple[str, ...]]:
    """Return one row of texts per recipe that the search may try, in order, with the columns of SPACE_COLUMNS."""
    rows: list[tuple[str, ...]] = []
    for variant in search.variants:
        rate, scale = variant.recipe.get("learning_rate", "–"), variant.recipe.get("rate_scale", 1.0)
        shown = f"{rate:g}" if isinstance(rate, float) else str(rate)
        rows.append((variant.name, shown if scale == 1.0 else f"{shown} × {scale:.2g}", str(variant.recipe.get("most_steps", "–"))))
    return rows


def order_text(search: Search) -> str:
    """Return a sentence on why the first recipe of the search is the first."""
    return f"The first one is {OWN}." if search.first == OWN else f"The first one is first because {search.first}."


def results(plan: TrainingPlan, tried: Sequence[Tried], chosen: Chosen | None) -> list[tuple[str, ...]]:
    """Return one row of texts per trial, with the columns of COLUMNS. Raises ValueError if the plan has no search."""
    rows: list[tuple[str, ...]] = []
    for one in tried:
        rows.append((_name(plan, one), _steps(one), *_score(one, tried[0]), *_result(one, chosen)))
    return rows


def _name(plan: TrainingPlan, one: Tried) -> str:
    if plan.search is None:
        raise ValueError("the plan has no search")
    return f"{one.trial.number}: {plan.search.variants[one.trial.variant].name}"


def _score(one: Tried, first: Tried) -> tuple[str, str]:
    """Return the score of a trial, and its difference from that of the first one with the standard error."""
    if not measured([one]):
        return "–", "–"
    gain, error = difference(one, first)
    compared = one.trial.number != first.trial.number and measured([first]) and math.isfinite(error)
    return f"{one.score:.3f}", f"{gain:+.3f} ± {error:.3f}" if compared else "–"


def _steps(one: Tried) -> str:
    """Return the number of steps, and for a short trial its limit."""
    if one.end is None or not one.end.succeeded:
        return "–"
    return f"{one.end.step}" + (f" of {one.trial.most_steps}" if one.trial.most_steps else "")


def _result(one: Tried, chosen: Chosen | None) -> tuple[str, str]:
    """Return the job time of a trial in seconds, and how it ended."""
    end = one.end
    if end is None:
        return "–", "running"
    word = "chosen" if chosen and chosen.trial == one.trial.number else "trained"
    return f"{end.seconds:.0f}", word if end.succeeded else f"failed: {end.reason}"


def picture(plan: TrainingPlan, tried: Sequence[Tried], chosen: Chosen | None) -> tuple[str, ...]:
    """Return one line of text with a bar per trial, and a line that explains the bars. Empty with fewer than two measured trials.

    The lowest score has one character and the highest one BAR of them, so that negative scores (log-probabilities) and close ones can be
    compared. Raises ValueError if the plan has no search.
    """
    known = [one.score for one in measured(tried)]
    if len(known) < 2:
        return ()
    low, high = min(known), max(known)
    names = [_name(plan, one) for one in tried]
    wide = max(map(len, names))
    lines = []
    for name, one in zip(names, tried, strict=True):
        if not measured([one]):
            lines.append(f"{name:<{wide}}  {'running' if one.end is None else 'no score' if one.succeeded else 'failed'}")
            continue
        bar = "#" * (BAR if low == high else 1 + round((one.score - low) / (high - low) * (BAR - 1)))
        mark = "  chosen" if chosen and chosen.trial == one.trial.number else ""
        lines.append(f"{name:<{wide}}  {bar:<{BAR}}  {one.score:6.3f}{mark}")
    scale = (
        "All scores are equal." if low == high else f"One # is a score of {low:.3f}, {BAR} # are {high:.3f}; the bars do not begin at 0."
    )
    return (*lines, scale)


def sentences(cycle: CycleView) -> list[str]:
    """Return what the search has gained over no search, once it has ended, and what it has cost so far; none without a search."""
    if cycle.plan is None or cycle.plan.search is None:
        return []
    gained = [gain_text(cycle.plan.search, cycle.trials, cycle.chosen)] if cycle.chosen else []
    return [*gained, *([_cost(cycle, cycle.plan.search)] if cycle.trials else [])]


def gain_of_search(tried: Sequence[Tried], chosen: Chosen) -> tuple[float, float]:
    """Return by how much the chosen model scores higher than that of trial 1, and the standard error.

    The scores are those that chose the model, so the gain is an optimistic estimate. If trial 1 has no score, the result is (0, infinity).
    """
    return difference(next(one for one in tried if one.trial.number == chosen.trial), tried[0])


def gain_text(search: Search, tried: Sequence[Tried], chosen: Chosen) -> str:
    """Return a text with the gain of the search over no search, its standard error, and how it was measured."""
    alike = "a cycle without a search" if search.first == OWN else f"trial 1 alone ({search.first})"
    gain, error = gain_of_search(tried, chosen)
    if chosen.trial == tried[0].trial.number:
        return f"The search kept trial 1, so it gained nothing over {alike}."
    if not math.isfinite(error):
        return "Trial 1 has no score, so the gain of the search is not known."
    return f"Gain over {alike}: {gain:+.3f} with a standard error of {error:.3f}. {OPTIMISTIC}"


def _cost(cycle: CycleView, search: Search) -> str:
    """Return the job time of the search, and GPU time and money as far as the machines were metered."""
    first = cycle.trials[0].end
    text = f"Trial 1 took {first.seconds:.0f} s; " if first else "Trial 1 is running; "
    text += f"the trials after it took {spent(cycle.trials):.0f} s of the budget of {search.budget:,.0f} s."
    usages = {one.attempt: one.usage for one in cycle.incarnations if one.usage is not None}.values()
    gpus, cost = (math.fsum(one.used + one.idle + one.lost for one in usages) / 3600, math.fsum(one.cost for one in usages))
    metered = [f"used {gpus:.2f} GPU hours"] * bool(gpus) + [f"cost {cost:.2f} by the price table"] * bool(cost)
    return text + (f" All trials together {' and '.join(metered)}." if metered else "")
