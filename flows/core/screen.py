"""What `ratchet status --watch` shows about a line: its cycle, its rollout, its traffic, what comes next, and who must act. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from ratchet.contracts.cycle import ApprovalKind
from ratchet.contracts.model import Frozen
from ratchet.contracts.rows import Adopted, Judged, content_of
from ratchet.contracts.serving import SequentialTest
from ratchet.contracts.steps import STEPS, State, Step
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.core.folds.line import LineView
from ratchet.flows.core.folds.rollout import RolloutView
from ratchet.flows.core.problem import Problem
from ratchet.flows.core.requests import ApprovalView
from ratchet.flows.core.steps import next_step, step_of
from ratchet.flows.core.waiting import answer_text


class Serving(Frozen):
    """The latest requests to one version."""

    tag: str
    requests: int
    errors: int
    refused: int
    """Requests that the model server rejected as invalid."""
    p50_ms: float | None = None
    p95_ms: float | None = None


class Traffic(Frozen):
    """The latest traffic of a line, as its router reports it."""

    minutes: int
    """Length of the time that the figures cover."""
    since: datetime | None = None
    """Begin of the router process, if it is younger than that."""
    versions: tuple[Serving, ...] = ()
    turned_away: int = 0
    """Requests that the router refused itself."""
    in_flight: int = 0
    lost: Mapping[str, int] = {}
    """Reason -> number of traces that were lost since the router began."""
    unsent_bytes: int = 0
    """Size of the traces that the receiver does not have yet."""


class Waiting(Frozen):
    """Requests with traces that wait for their ingest."""

    requests: int
    oldest: datetime


class Training(Frozen):
    """How far a training job is."""

    step: int
    total: int
    since: datetime
    """Time of its first reported step."""
    first: int
    """That step."""
    at: datetime
    """Time of the newest reported step."""


@dataclass(frozen=True)
class Seen:
    """What was read about a line."""

    line: LineView
    problems: Sequence[Problem] = ()
    cycle: CycleView | None = None
    """The open cycle, or else the newest one."""
    rollout: RolloutView | None = None
    requests: Mapping[ApprovalKind, ApprovalView] = field(default_factory=dict)
    training: Training | None = None
    busy: str | None = None
    """What a process does with the line now."""
    due: str | None = None
    """What the next cycle waits for; None if it is unknown."""
    traffic: Traffic | None = None
    """None: the router reports nothing that can be read here."""
    waiting: Waiting | None = None
    ingested: datetime | None = None
    """Time of the newest commit to the lake; None if there is none or it is unknown."""


class ShownStep(Frozen):
    """One step of the cycle."""

    step: Step
    title: str
    state: Literal["done", "running", "waiting", "ended", "not yet"]
    """waiting: for a person. ended: the cycle ended here."""


class Limit(Frozen):
    """One figure of the evidence and its limits."""

    name: str
    value: str
    limit: str
    shown: float | None = None
    """Share of the evidence that is needed to exclude a loss, from 0 to 1; None if the figure needs none."""
    harm: float | None = None
    """Share of the evidence at which the rollout goes back, from 0 to 1."""


class ShownRollout(Frozen):
    """The step of the rollout."""

    number: int
    """Number of the step, starting at 1."""
    steps: tuple[float, ...]
    weight: float
    since: datetime
    earliest: datetime
    """When the minimum duration of the step ends."""
    latest: datetime
    """When a step that is undecided is rolled back."""
    judged: datetime | None = None
    """When the figures were recorded. They are recorded again when the requests or the mirrored pairs have grown by a tenth."""
    evidence: tuple[Limit, ...] = ()
    reasons: tuple[str, ...] = ()


class Screen(Frozen):
    """What is shown about a line at a moment."""

    line: str
    at: datetime
    problems: tuple[Problem, ...]
    champion: str | None
    previous: str | None
    cycle: str | None
    state: str
    """State of the cycle; idle without one."""
    open: bool
    """Whether the cycle is open."""
    since: datetime | None
    """When the cycle was opened, or has ended."""
    reason: str
    """Why it ended."""
    steps: tuple[ShownStep, ...]
    rollout: ShownRollout | None
    training: Training | None
    traffic: Traffic | None
    waiting: Waiting | None
    ingested: datetime | None
    busy: str | None
    next: str
    """What will happen next."""
    next_at: datetime | None
    """When, if that is known."""
    detail: str
    """How far the wait for it is."""
    who: Literal["nobody", "a person"]
    """Who must act."""
    commands: tuple[str, ...]
    """What that person types. If nobody must act: what one could type."""

    def facts(self) -> list[Any]:
        """Return what makes two screens different for a program: everything except times, durations and figures that move all the time."""
        rollout = self.rollout
        return [
            [(one.level, one.about) for one in self.problems],
            [self.champion, self.previous, self.cycle, self.state, self.open, self.reason],
            [(one.step, one.state) for one in self.steps],
            [rollout.number, rollout.weight, rollout.judged] if rollout else None,
            self.training.step * 10 // max(1, self.training.total) if self.training else None,
            sorted(self.traffic.lost.items()) if self.traffic else None,
            [self.next, self.who, self.commands],
        ]


def screen(seen: Seen, now: datetime) -> Screen:
    """Return what to show at the time `now`."""
    line, cycle = seen.line, seen.cycle
    is_open = cycle is not None and not cycle.ended
    rollout = _rollout(seen.rollout) if is_open and seen.rollout is not None and seen.rollout.steps and seen.rollout.end is None else None
    problems = (*seen.problems, *_line_problems(line))
    training = seen.training if is_open and cycle is not None and cycle.state is State.ATTEMPT else None
    following = _next(seen, problems, rollout, training, now)
    return Screen(
        line=line.line,
        at=now,
        problems=problems,
        champion=line.champion.tag if line.champion else None,
        previous=line.previous.tag if line.previous else None,
        cycle=cycle.id if cycle else None,
        state=str(cycle.state) if cycle else "idle",
        open=is_open,
        since=(cycle.opened_at if is_open else cycle.ended_at) if cycle else None,
        reason=cycle.reason if cycle else "",
        steps=tuple(_steps(seen)),
        rollout=rollout,
        training=training,
        traffic=seen.traffic,
        waiting=seen.waiting,
        ingested=seen.ingested,
        busy=seen.busy,
        next=following.text,
        next_at=following.at,
        detail=following.detail,
        who=following.who,
        commands=following.commands,
    )


def _line_problems(line: LineView) -> Iterator[Problem]:
    if line.champion is not None and (reason := line.recalled.get(line.champion.tag)):
        yield Problem(level="note", about="line", text=f"{line.champion.tag} is recalled and still serves: {reason}")
    if line.frozen is not None:
        yield Problem(level="note", about="line", text=f"no cycle opens: {line.line} is {line.frozen}")
    if line.alarm is not None:
        yield Problem(level="note", about="line", text=f"alarm of the quarantine: {line.alarm.text}; see `ratchet quarantine list`")


def _steps(seen: Seen) -> Iterator[ShownStep]:
    cycle = seen.cycle
    order = cycle.steps if cycle else tuple(Step)
    current = _current(cycle, seen.rollout) if cycle else None
    for number, step in enumerate(order):
        state: Literal["done", "running", "waiting", "ended", "not yet"] = "done"
        if cycle is None or (current is not None and number > order.index(current)):
            state = "not yet"
        elif step is current:
            approval = STEPS[step].approval
            pending = approval in cycle.asked and approval not in cycle.answers if approval else False
            state = "ended" if cycle.ended else "waiting" if pending else "running"
        yield ShownStep(step=step, title=STEPS[step].title, state=state)


def _current(cycle: CycleView, rollout: RolloutView | None) -> Step | None:
    """Return the step that a cycle is at, or at which it has ended; None after a promotion."""
    return next_step(cycle, rollout is not None and rollout.end == "promoted") if cycle.ended else step_of(cycle, rollout)


_NAMES = {"ratings": "ratings", "mirrored": "mirrored prompts", "errors": "errors", "refused": "refused", "slow": "slow answers"}


def _rollout(view: RolloutView) -> ShownRollout:
    settings, step = view.opened.settings, view.steps[-1]
    rows = [(one, content_of(Judged, one).judgement) for one in view.judgements if one.key == str(step.index)]
    row, judgement = next(((one, it) for one, it in reversed(rows) if not it.unavailable), (None, None))  # with the newest figures
    evidence = []
    if judgement is not None:
        if judgement.requests or not settings.mirror:  # without attribution, requests are not counted, and mirrored prompts decide alone
            enough = min(1.0, judgement.candidate_requests / settings.min_requests)
            evidence.append(
                Limit(name="requests", value=f"{judgement.candidate_requests:,}", limit=f"≥ {settings.min_requests:,}", shown=enough)
            )
        evidence += [_limit(name, judgement.tests[name]) for name in _NAMES if name in judgement.tests]
    return ShownRollout(
        number=step.index + 1,
        steps=settings.steps,
        weight=step.weight,
        since=step.since,
        earliest=step.since + timedelta(seconds=settings.min_seconds),
        latest=step.since + timedelta(seconds=settings.max_seconds),
        judged=row.at if row is not None else None,
        evidence=tuple(evidence),
        reasons=rows[-1][1].reasons if rows else (),
    )


def _limit(name: str, test: SequentialTest) -> Limit:
    sign = "−" if name in ("ratings", "mirrored") else "+"  # what counts as a loss
    return Limit(
        name=_NAMES[name],
        value=f"{test.estimate:+.3f} ± {test.error:.3f}",
        limit=f"{sign}{test.margin:g}",
        shown=_share(test.equal, test.equal_at),
        harm=_share(test.harm, test.harm_at),
    )


def _share(value: float, limit: float) -> float:
    return min(1.0, max(0.0, value / limit)) if limit > 0 else 0.0


@dataclass(frozen=True)
class _Next:
    text: str
    who: Literal["nobody", "a person"] = "nobody"
    commands: tuple[str, ...] = ()
    at: datetime | None = None
    detail: str = ""


def _next(seen: Seen, problems: Sequence[Problem], rollout: ShownRollout | None, training: Training | None, now: datetime) -> _Next:
    """Return what comes next. What keeps the service from working comes before everything else."""
    line, cycle = seen.line, seen.cycle
    broken = next((one for one in problems if one.level == "error" and one.about in ("service", "disk", "ledger")), None)
    stopped = any(one.about == "service" and one.level == "note" for one in problems)
    if broken is not None or stopped:
        text = "nothing until the service works" if broken is not None else "nothing until the service is started"
        restart = (f"ratchet serve {_file(seen)}",) if stopped or (broken is not None and broken.about == "service") else ()
        return _Next(text, "a person", (*restart, *(("ratchet doctor",) if broken is not None else ())))
    if cycle is None or cycle.ended:
        return _idle(line, cycle, seen.due)
    if line.rollback_asked or line.cancel_asked or line.recall_asked:
        return _Next(f"the cycle ends: {line.recall_asked or f'requested by {line.rollback_asked or line.cancel_asked}'}")
    if rollout is not None:
        return _of_rollout(line.line, rollout, now)
    step = step_of(cycle, seen.rollout) or cycle.steps[-1]
    approval = STEPS[step].approval
    if approval is not None and approval in cycle.asked and approval not in cycle.answers:
        return _of_request(cycle, approval, seen.requests.get(approval), now)
    failed = [errors for key, errors in cycle.tries.items() if key.split("/")[0] == step and key not in cycle.done]
    if failed:
        times = f"{len(failed[-1])} times" if len(failed[-1]) > 1 else "once"
        return _Next(f"{STEPS[step].doing} is tried again", detail=f"failed {times}: {failed[-1][-1]}", commands=_look(cycle))
    if training is not None:
        left = _left(training)
        at = training.at + left if left is not None else None
        return _Next("the candidate is accepted after the training", at=at, commands=_look(cycle))
    return _Next(f"{STEPS[step].doing}, then {_after(cycle, step)}", commands=_look(cycle))


def _after(cycle: CycleView, step: Step) -> str:
    order = cycle.steps
    place = order.index(step) + 1
    return STEPS[order[place]].doing if place < len(order) else "the end of the cycle"


def _look(cycle: CycleView) -> tuple[str, ...]:
    return (f"ratchet logs {cycle.id.removeprefix('cycle/')} --follow",)


def _idle(line: LineView, cycle: CycleView | None, due: str | None) -> _Next:
    if line.champion is None:
        return _Next("nothing until a model is adopted", "a person", ("ratchet adopt LOOP.toml MODEL_FOLDER",))
    if line.frozen is not None:
        return _Next("no cycle opens while the line is frozen", "a person", (f"ratchet unfreeze {line.line} --why TEXT",))
    detail = due if due is not None else "unknown; `ratchet check` reads the loop file"
    if cycle is not None and cycle.state is State.FAILED:
        name = cycle.id.removeprefix("cycle/")
        return _Next("a new cycle when one is due", "a person", (f"ratchet explain {name}", f"ratchet retry {name}"), detail=detail)
    explain = (f"ratchet explain {cycle.id.removeprefix('cycle/')}",) if cycle is not None else ()
    return _Next("a new cycle when one is due", commands=explain, detail=detail)


def _of_request(cycle: CycleView, kind: ApprovalKind, request: ApprovalView | None, now: datetime) -> _Next:
    name = f"{cycle.id.removeprefix('cycle/')}/{kind}"
    if request is not None and request.answer is not None:
        return _Next(f"{answer_text(request)}; {'the cycle continues' if request.answer.approve else 'the cycle ends'}")
    if (request is not None and request.expired) or now >= cycle.asked[kind]:
        return _Next(f"the request to approve the {kind} has expired; the cycle ends")
    commands = (f"ratchet approve {name}", f"ratchet reject {name}", f"ratchet explain {cycle.id.removeprefix('cycle/')}")
    return _Next("it expires without an answer", "a person", commands, at=cycle.asked[kind])


def _of_rollout(line: str, rollout: ShownRollout, now: datetime) -> _Next:
    stop = (f"ratchet rollback {line}",)
    following = f"{rollout.steps[rollout.number]:g} %" if rollout.number < len(rollout.steps) else "the promotion"
    detail = "; ".join(rollout.reasons) or "no evidence yet"
    if now < rollout.earliest:
        return _Next(f"{following}, if the evidence suffices", commands=stop, at=rollout.earliest, detail=detail)
    return _Next(f"{following} on evidence; back if undecided", commands=stop, at=rollout.latest, detail=detail)


def _left(training: Training) -> timedelta | None:
    """Return how long the training still takes, measured from its newest step; None if that cannot be said yet."""
    steps = training.step - training.first
    if steps <= 0 or training.total <= training.step:
        return None
    return (training.at - training.since) / steps * (training.total - training.step)


def _file(seen: Seen) -> str:
    """Return the loop file of the line as far as the ledger knows it."""
    known = [(seen.cycle.opened.folder, seen.cycle.opened.file)] if seen.cycle is not None else []
    known += [(one.folder, one.file) for row in seen.line.rows if row.kind == "adopted" for one in [content_of(Adopted, row)]]
    return next((f"{folder.rstrip('/')}/{file}" for folder, file in known if file), "LOOP.toml")
