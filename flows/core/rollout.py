"""A rollout's next decision, pure: which weight, for how long, forward or back. What the evidence means is the judge's word."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from contracts.loop import RolloutSettings
from contracts.serving import Backend, Endpoint, StepJudgement, StepResult
from flows.core.views import RolloutView


@dataclass(frozen=True)
class SetWeight:
    """Route `weight` percent of sessions to the candidate."""

    index: int
    weight: float


@dataclass(frozen=True)
class Hold:
    """Stay at this weight."""

    reason: str


@dataclass(frozen=True)
class Finish:
    """promoted | rolled_back"""

    end: str
    reason: str


RolloutDecision = SetWeight | Hold | Finish


def decide_rollout(
    view: RolloutView, settings: RolloutSettings, judgement: StepJudgement | None, stop: str | None, now: datetime
) -> RolloutDecision:
    """`judgement` is of the current step, None where none is running or its evidence could not be had. `stop`: a reason from
    outside to go back."""
    if stop:
        return Finish("rolled_back", stop)
    if not view.steps:
        return SetWeight(0, settings.steps[0])
    step = view.steps[-1]
    seconds = (now - step.since).total_seconds()
    if judgement is not None and judgement.result is StepResult.ROLL_BACK:
        return Finish("rolled_back", f"at {step.weight:g} %: {'; '.join(judgement.reasons)}")
    if judgement is not None and judgement.result is StepResult.ADVANCE:
        if step.index + 1 < len(settings.steps):
            return SetWeight(step.index + 1, settings.steps[step.index + 1])
        return Finish("promoted", _told(view, judgement))
    if seconds > settings.max_seconds:
        return Finish("rolled_back", f"undecided after {seconds:.0f} s at {step.weight:g} %; inconclusive does not move forward")
    return Hold("; ".join(judgement.reasons) if judgement else "no evidence yet")


def _told(view: RolloutView, last: StepJudgement) -> str:
    """What was shown at each weight: the last word on every step."""
    words = {row.data["index"]: (row.data["weight"], row.data["judgement"]["reasons"]) for row in view.judgements}
    words[view.steps[-1].index] = (view.steps[-1].weight, list(last.reasons))
    return "; ".join(f"at {weight:g} %: {', '.join(reasons)}" for _, (weight, reasons) in sorted(words.items()))


def is_largest_concurrent(settings: RolloutSettings, index: int) -> bool:
    """Whether this step has the largest weight below 100 (or is the only step): quality is decided there."""
    below = [i for i, weight in enumerate(settings.steps) if weight < 100]
    return index == (below[-1] if below else len(settings.steps) - 1)


def weights(weight: float, settings: RolloutSettings, champion: Endpoint, candidate: Endpoint) -> tuple[Backend, Backend]:
    """Both backends at a step's weight. At 100 the holdback stays with the champion, so that the arms stay comparable."""
    share = min(weight, 100 - settings.holdback)
    return (
        Backend(tag=champion.tag, url=champion.url, model=champion.model, weight=100 - share),
        Backend(tag=candidate.tag, url=candidate.url, model=candidate.model, weight=share),
    )
