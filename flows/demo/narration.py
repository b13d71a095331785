"""What happened in a cycle of the demo, in plain sentences with the one figure that matters. Pure.

The sentences leave out intervals and limits; `ratchet explain` has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ratchet.contracts.evaluation import Result
from ratchet.contracts.jobs.training import Method
from ratchet.contracts.rows import Judged, content_of
from ratchet.contracts.serving import StepResult
from ratchet.contracts.steps import AcceptResult, FreezeResult, State, Step
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.core.folds.rollout import RolloutView

_METHODS = {
    Method.SFT: "SFT: the model imitates right answers",
    Method.DPO: "DPO: the model prefers the better one of two answers",
    Method.GRPO: "GRPO: the model answers, and its answers are scored",
}
"""A training method -> its name, and what the model learns from."""
_RATINGS = "ratings"
"""Name of the test of a rollout that compares the ratings of both versions."""


@dataclass(frozen=True)
class Sentence:
    """One thing that happened."""

    topic: str
    """One word that names the part of the loop."""
    text: str


@dataclass(frozen=True)
class Summary:
    """A cycle in one row of a table."""

    method: str
    before: str
    """Share of the unseen questions that the serving model answers right."""
    after: str
    """The same for the candidate."""
    result: str
    reason: str


def narrate(cycle: CycleView, rollout: RolloutView | None) -> list[Sentence]:
    """Return what has happened in the cycle so far, in the order of time. A longer cycle only adds sentences."""
    told = [*_training(cycle), *_gate(cycle)]
    if rollout is not None:
        told += _rollout(rollout)
    if cycle.ended:
        told.append(Sentence("Result", _end(cycle, rollout)))
    return told


def summarize(cycle: CycleView) -> Summary:
    """Return the row of an ended cycle. A dash stands for what the cycle has not reached."""
    overall = cycle.report.comparison("overall") if cycle.report else None
    before, after = (_percent(overall.champion), _percent(overall.candidate)) if overall else ("–", "–")
    method = cycle.method.upper() if cycle.method else "–"
    return Summary(method, before, after, _words(cycle.state), _REASONS.get(cycle.state, "`ratchet explain` says why"))


_REASONS = {
    State.PROMOTED: "better on unseen questions, and no harm to users",
    State.REJECTED: "not better on unseen questions; no user saw it",
    State.HELD: "not enough evidence for a decision; no user saw it",
    State.ROLLED_BACK: "the traffic of the users showed harm, or too little evidence",
    State.NOT_TRAINED: "no training method had enough evidence",
}
"""End of a cycle -> the reason in a few words."""


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _words(state: State) -> str:
    return str(state).replace("_", " ")


def _training(cycle: CycleView) -> Iterator[Sentence]:
    if frozen := cycle.get(FreezeResult):
        counts = frozen.snapshot.counts
        used = f"{counts.get('used', 0):,} of {counts.get('considered', 0):,} recorded conversations are used for training"
        yield Sentence("Data", f"{used}; the others lack consent or are held out")
    if cycle.choice is not None:
        chosen = _METHODS.get(cycle.choice.method, "none: there is not enough evidence")
        yield Sentence("Method", f"chosen by rules over the data: {chosen}")
    if (accepted := cycle.get(AcceptResult)) and accepted.checkpoint:
        yield Sentence("Training", f"the job has ended at step {accepted.checkpoint.step}; its best model is the candidate")


def _gate(cycle: CycleView) -> Iterator[Sentence]:
    report, verdict = cycle.report, cycle.verdict
    overall = report.comparison("overall") if report else None
    if report is None or overall is None or verdict is None:
        return
    early = f" (stopped early, of {report.looks.prompts})" if report.looks and report.looks.stopped else ""
    serving = f"the serving model {_percent(overall.champion)}"
    asked = f"on {report.answered_by_both} unseen questions{early}"
    yield Sentence("Gate", f"{asked}, the candidate answers {_percent(overall.candidate)} right, {serving}")
    if verdict.result is Result.PASS:
        yield Sentence("Gate", "passed: chance alone hardly explains this difference")


def _rollout(rollout: RolloutView) -> Iterator[Sentence]:
    for step in rollout.steps:
        yield Sentence("Rollout", f"{step.weight:g} % of the sessions go to the candidate")
    judged = [content_of(Judged, row).judgement for row in rollout.judgements]
    ratings = judged[-1].tests.get(_RATINGS) if judged and rollout.end else None
    if ratings is not None and judged[-1].result is StepResult.ADVANCE:
        change = f"the mean rating (0 to 1) changes by {ratings.estimate:+.2f}"
        yield Sentence("Rollout", f"{ratings.n} ratings compare both models and show no harm: {change}")


def _end(cycle: CycleView, rollout: RolloutView | None) -> str:
    match cycle.state:
        case State.PROMOTED:
            return "promoted: the candidate now serves all users, and the former model can return within seconds"
        case State.REJECTED if not cycle.has(Step.REGISTER):
            return "rejected by the gate: nobody was asked for approval, no user saw it, and the former model keeps serving"
        case State.ROLLED_BACK if rollout is not None:
            return "rolled back: the former model serves all users again"
    return f"{_words(cycle.state)}: the former model keeps serving"
