"""A rollout's next decision, pure: set the next weight, hold, promote or roll back. The judge interprets the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ratchet.contracts.loop import RolloutSettings
from ratchet.contracts.rows import Judged, content_of
from ratchet.contracts.serving import Backend, Endpoint, Evidence, StepJudgement, StepResult
from ratchet.flows.core.folds.rollout import RolloutStep, RolloutView


@dataclass(frozen=True)
class SetWeight:
    """Route `weight` percent of sessions to the candidate. `index` is the step's position in `rollout.steps`."""

    index: int
    weight: float


@dataclass(frozen=True)
class Hold:
    """Stay at the current weight until the next tick."""

    reason: str


@dataclass(frozen=True)
class Finish:
    """End the rollout with a promotion or a rollback."""

    end: str
    """promoted | rolled_back"""
    reason: str


RolloutDecision = SetWeight | Hold | Finish


def decide_rollout(
    view: RolloutView, settings: RolloutSettings, judgement: StepJudgement | None, stop: str | None, now: datetime, down: str | None = None
) -> RolloutDecision:
    """Return the next decision of a rollout that has not ended.

    `judgement` applies to the current step. It is None if no step is running, or if nothing can be judged yet.
    `stop` is an outside reason to roll back, or None. `down` is the reason to hold while the process is down that both versions share, or
    while the candidate's server does not answer. A step that is undecided after `settings.max_seconds` is rolled back.
    """
    if stop:
        return Finish("rolled_back", stop)
    if not view.steps:
        if down:
            return Hold(down)
        return SetWeight(0, settings.steps[0])
    step = view.steps[-1]
    seconds = (now - step.since).total_seconds()
    if judgement is not None and judgement.result is StepResult.ROLL_BACK:
        return Finish("rolled_back", f"at {step.weight:g} %: {'; '.join(judgement.reasons)}")
    if judgement is not None and judgement.result is StepResult.ADVANCE:
        if step.index + 1 < len(settings.steps):
            return SetWeight(step.index + 1, settings.steps[step.index + 1])
        return Finish("promoted", _all_reasons(view, judgement))
    if seconds > settings.max_seconds:
        told = f"; {down}" if down else ""
        return Finish("rolled_back", f"undecided after {seconds:.0f} s at {step.weight:g} %; an inconclusive step is rolled back{told}")
    if down:
        return Hold(down)
    return Hold("; ".join(judgement.reasons) if judgement else "no evidence yet")


def unavailable_since(view: RolloutView) -> datetime | None:
    """Return since when the evidence of the current step cannot be read; None if the last read succeeded, or if there was none."""
    since, step = None, view.steps[-1]
    for row in reversed(view.judgements):
        if row.key != str(step.index) or row.at < step.since or not content_of(Judged, row).judgement.unavailable:
            break
        since = row.at
    return since


def _all_reasons(view: RolloutView, last: StepJudgement) -> str:
    """Summarise the evidence at each weight: the reasons of each step's last judgement. Weights with equal reasons share them."""
    judged = (content_of(Judged, row) for row in view.judgements)
    reasons_by_step = {one.index: (one.weight, one.judgement.reasons) for one in judged}
    reasons_by_step[view.steps[-1].index] = (view.steps[-1].weight, last.reasons)
    weights_by_reasons: dict[str, list[str]] = {}
    for _, (weight, reasons) in sorted(reasons_by_step.items()):
        weights_by_reasons.setdefault(", ".join(reasons), []).append(f"{weight:g} %")
    return "; ".join(f"at {', '.join(weights)}: {reasons}" for reasons, weights in weights_by_reasons.items())


def is_largest_concurrent(settings: RolloutSettings, index: int) -> bool:
    """Whether this step has the largest weight below 100, where quality is decided. Without such a step, it is the last one."""
    return index == largest_concurrent(settings)


def largest_concurrent(settings: RolloutSettings) -> int:
    """Return the position of the step with the largest weight below 100; without such a step, of the last one."""
    below = [i for i, weight in enumerate(settings.steps) if weight < 100]
    return below[-1] if below else len(settings.steps) - 1


def windows(steps: Sequence[RolloutStep], now: datetime) -> list[tuple[float, datetime, datetime]]:
    """Return (weight, begin, end) of the evidence of each step; the last one ends now.

    An earlier step ends before any later one begins. It is left out if it would end before its begin, because the clock was set back.
    """
    found = []
    for number, step in enumerate(steps[:-1]):
        ends = [later.since for later in steps[number + 1 :]] + [step.until or step.since]
        if min(ends) > step.since:
            found.append((step.weight, step.since, min(ends)))
    return [*found, (steps[-1].weight, steps[-1].since, now)]


def mismatch(evidence: Evidence, champion: str, candidate: str, since: datetime, until: datetime) -> str | None:
    """Return how the evidence differs from what was asked for, or None. `champion` and `candidate` are version tags."""
    if (evidence.champion.tag, evidence.candidate.tag) != (champion, candidate):
        found = f"{evidence.champion.tag} as champion and {evidence.candidate.tag} as candidate"
        return f"they describe {found} instead of {champion} and {candidate}"
    if (evidence.since, evidence.until) != (since, until):
        return f"they cover {evidence.since} to {evidence.until} instead of {since} to {until}"
    return None


@dataclass(frozen=True)
class Delivery:
    """Requests of one version that the router sent, and traces of such requests in the lake.

    Traces arrive later than their requests. The sent requests are therefore those that are older than `rollout.dark` seconds. The traces
    include the newest ones.
    """

    tag: str
    sent: int
    """Requests since the begin of the step."""
    traced: int
    """Traces since the begin of the step."""
    sent_lately: int
    """Requests in the last `rollout.dark` seconds before the newest sent request that is considered."""
    traced_lately: int
    """Traces since the begin of that time."""


_DARK = 3
"""Number of requests without a trace that make a version dark. A single lost trace does not."""
_LOST = 0.1
"""Largest share of requests without a trace with which a step may advance."""


def dark(deliveries: Sequence[Delivery], seconds: float) -> str | None:
    """Return a reason to roll back if requests of a version reach its server but none of them is in the lake, or None.

    `seconds` is `rollout.dark`. A version without requests is not dark.
    """
    for one in deliveries:
        sent = next(
            (sent for sent, traced in ((one.sent_lately, one.traced_lately), (one.sent, one.traced)) if sent >= _DARK and not traced), 0
        )
        if sent:
            return (
                f"{one.tag} is dark: none of {sent} requests is in the lake after {seconds:g} s; a version without evidence must not serve"
            )
    return None


def incomplete(deliveries: Sequence[Delivery]) -> str | None:
    """Return why the lake lacks too many traces to advance, or None. The lost ones may be those of failed requests."""
    for one in deliveries:
        lost = one.sent - one.traced
        if lost >= _DARK and lost > _LOST * one.sent:
            return f"{lost} of {one.sent} requests of {one.tag} are not in the lake"
    return None


def candidate_share(weight: float, settings: RolloutSettings) -> float:
    """Return the percentage of sessions that the route gives to the candidate at a step weight in percent.

    At weight 100, `settings.holdback` percent stay with the champion, so that both arms remain comparable.
    """
    return min(weight, 100 - settings.holdback)


def weights(weight: float, settings: RolloutSettings, champion: Endpoint, candidate: Endpoint) -> tuple[Backend, Backend]:
    """Return the champion's and the candidate's backend for a step weight in percent (see `candidate_share`)."""
    share = candidate_share(weight, settings)
    return (
        Backend(tag=champion.tag, url=champion.url, model=champion.model, weight=100 - share),
        Backend(tag=candidate.tag, url=candidate.url, model=candidate.model, weight=share),
    )
