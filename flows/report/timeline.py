"""Tells a cycle as a list of moments: each ledger row, and each event of its training job, as one sentence with its time. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ratchet.contracts.cycle import Answer, Entry, Identity
from ratchet.contracts.jobs.search import Chosen, TrialEnd
from ratchet.contracts.jobs.training import JobEvent
from ratchet.contracts.rows import (
    Asked,
    Away,
    CycleOpened,
    Died,
    FailedTry,
    JobEnd,
    Judged,
    Reason,
    RolloutOpened,
    TrialBegun,
    WeightSet,
    content_of,
)
from ratchet.contracts.schema import upgraded
from ratchet.contracts.steps import STEPS, Step
from ratchet.flows.core.folds.cycle import Done


@dataclass(frozen=True)
class Moment:
    """One sentence about a cycle."""

    at: datetime
    source: str
    """Name of the ledger stream, or `job/ATTEMPT` for an event of the training job."""
    number: int
    """Position within the source. Source and number identify the moment."""
    kind: str
    """Kind of the row or of the event."""
    text: str


def timeline(streams: Sequence[Sequence[Entry]], events: Mapping[int, Sequence[JobEvent]]) -> list[Moment]:
    """Return the moments of a cycle in the order of time.

    `streams` are the rows of the cycle, of its rollout and of its approval requests. `events` maps an attempt number to the events of its
    job. Of the job's progress, about one event per ten percent becomes a moment.
    """
    moments = [
        Moment(row.at, row.stream, row.seq, row.kind, text)
        for rows in streams
        for row in upgraded(rows)
        if (text := _row_text(row)) is not None
    ]
    for attempt, found in events.items():
        moments += _job_moments(attempt, found)
    return sorted(moments, key=lambda one: (one.at, one.source, one.number))


def _job_moments(attempt: int, events: Sequence[JobEvent]) -> Iterator[Moment]:
    shown: tuple[int, int] | None = None
    for number, event in enumerate(events, 1):
        if event.kind == "progress":
            tenth = (event.incarnation, event.step * 10 // event.total if event.total else event.step)
            if tenth == shown:
                continue
            shown = tenth
        if event.kind not in ("layout", "loading", "measuring", "fold"):
            text = f"training, attempt {attempt}: {_event_text(event)}"
            yield Moment(datetime.fromtimestamp(event.at, UTC), f"job/{attempt}", number, event.kind, text)


def _event_text(event: JobEvent) -> str:
    step = f"step {event.step}" + (f" of {event.total}" if event.total else "")
    match event.kind:
        case "progress":
            figures = [f"{name} {event.data[name]:.4g}" for name in ("loss", "reward") if isinstance(event.data.get(name), int | float)]
            return ", ".join([step, *figures])
        case "checkpoint":
            return f"checkpoint at {step}"
        case "started":
            return f"incarnation {event.incarnation} started" + (f" at {step}" if event.step else "")
        case "measured" if "fold" in event.data:
            fold = f"fold {event.data['fold']} of {event.data.get('folds')}"
            score = _number(event.data.get("score"))
            return f"{fold} measured at step {event.data.get('fold_step')}: score {score} on {event.data.get('prompts')} of its prompts"
        case "cross_validated":
            return f"cross-validation: {event.data.get('reason', '')}"
        case "sifted":
            return f"comparison: {event.data.get('reason', '')}"
        case "measured":
            reason = f"; {event.data['reason']}" if event.data.get("reason") else ""
            return f"measured at {step}: development score {_number(event.data.get('score'))}{reason}"
        case "warning" | "stopped":
            return f"{event.kind} at {step}" + (f": {event.data['reason']}" if event.data.get("reason") else "")
        case kind:
            return f"{kind}" + (f", {step}" if event.step else "")


def _number(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, int | float) else "unknown"


def _row_text(row: Entry) -> str | None:
    """Return the sentence of a row, or None if another row says the same."""
    kind = row.stream.split("/")[0]
    texts = {"cycle": _CYCLE, "rollout": _ROLLOUT, "approval": _APPROVAL}.get(kind, {})
    if row.kind in texts:
        return texts[row.kind](row)
    return f"{row.kind} {row.key}".strip()


def _opened(row: Entry) -> str:
    opened = content_of(CycleOpened, row)
    actor = f", requested by {opened.actor}" if opened.actor else ""
    return f"{row.stream} opened ({opened.reason}{actor}); the champion is {opened.champion.tag}"


def _intended(row: Entry) -> str:
    step, _, place = row.key.partition("/")
    attempt, _, incarnation = place.partition("/")
    return (STEPS[Step(step)].doing if step in STEPS else row.key) + (f", attempt {attempt}, incarnation {incarnation}" if place else "")


def _done(row: Entry) -> str:
    return Done(row).result.sentence


def _trial_ended(row: Entry) -> str:
    end = content_of(TrialEnd, row)
    score = end.metrics.get("development_score")
    shown = f"trained {end.step} steps" + (f", development score {score:.3f}" if score is not None else "")
    return f"trial {row.key} ended after {end.seconds:.0f} s: " + (shown if end.succeeded else end.reason)


def _job_ended(row: Entry) -> str:
    end = content_of(JobEnd, row)
    where = f"attempt {end.attempt}, incarnation {end.incarnation}"
    return f"the training job ended {end.outcome} ({where})" + (f": {end.reason}" if end.reason else "")


def _answered(row: Entry) -> str:
    given = content_of(Answer, row)
    if row.stream.startswith("cycle/") and given.identity is not Identity.AUTO:
        return f"continues after the answer to the {row.key}"
    verb, note = "approved" if given.approve else "rejected", f": {given.note}" if given.note else ""
    return f"{given.actor} {verb} the {row.key} via {given.via}{note}"


def _weight(row: Entry) -> str:
    if row.key == "back":
        return "all traffic is back on the champion"
    return f"the candidate gets {content_of(WeightSet, row).weight:g} % of the sessions"


def _judged(row: Entry) -> str:
    found = content_of(Judged, row)
    return f"evidence at {found.weight:g} %: {found.judgement.result}: {'; '.join(found.judgement.reasons)}"


def _trial_intended(row: Entry) -> str:
    begun = content_of(TrialBegun, row)
    return f"trial {row.key} of the search: {begun.variant} ({begun.trial.reason})"


def _chosen(row: Entry) -> str:
    chosen = content_of(Chosen, row)
    return f"the search chose trial {row.key} ({chosen.variant}): {chosen.reason}"


def _reason(row: Entry) -> str:
    return content_of(Reason, row).reason


def _none(_row: Entry) -> None:
    return None


_Sentence = Callable[[Entry], str | None]
_CYCLE: dict[str, _Sentence] = {
    "opened": _opened,
    "intended": _intended,
    "done": _done,
    "tried": lambda row: f"{row.key} failed and is tried again: {content_of(FailedTry, row).error}",
    "step_accepted": lambda row: f"accepted the checkpoint of step {row.key} for resuming",
    "job_ended": _job_ended,
    "trial_intended": _trial_intended,
    "trial_ended": _trial_ended,
    "chosen": _chosen,
    "asked": lambda row: f"asked for the approval of the {row.key}, until {content_of(Asked, row).expires:%Y-%m-%d %H:%M} UTC",
    "answered": _answered,
    "ended": lambda row: f"ended {row.key.replace('_', ' ')}: {_reason(row)}",
}
_APPROVAL: dict[str, _Sentence] = {
    "asked": _none,
    "answered": _answered,
    "expired": lambda row: f"the request {row.stream.removeprefix('approval/')} was not answered: {_reason(row)}",
}
_ROLLOUT: dict[str, _Sentence] = {
    "opened": lambda row: f"the rollout of {content_of(RolloutOpened, row).candidate.tag} begins",
    "intended": _none,
    "done": _weight,
    "judged": _judged,
    "away": lambda row: f"no server of the candidate can be reached since {content_of(Away, row).since:%H:%M:%S} UTC; the rollout holds",
    "died": lambda row: (
        f"no server of the candidate, or of both versions, answered from {content_of(Died, row).since:%H:%M:%S} UTC on; the step "
        "begins again"
    ),
    "mirror_intended": _none,
    "mirrored": _none,
    "ended": lambda row: f"the rollout ended {row.key.replace('_', ' ')}: {_reason(row)}",
}
