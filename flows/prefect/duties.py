"""What each flow asks of the engine, as plain calls that block: traces in, a cycle on, a rollout on, the copies mended.

No Prefect here, so that every duty is tested by calling it. What is waited for, and for how long, is decided here; what is
done next is the engine's word.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from contracts.cycle import Answer, State
from contracts.data import IngestReport
from contracts.errors import Rejected, Retryable
from contracts.ids import rollout_stream
from contracts.ports import Ledger
from flows.core.decide import Decision, End, Wait, decide
from flows.core.rollout import Finish, Hold
from flows.core.views import ApprovalView, CycleView, fold_approval
from flows.engine.advance import observe
from flows.engine.house import House
from flows.engine.ingest import ingest
from flows.engine.installation import Installation
from flows.engine.line import answer, open_if_due
from flows.engine.reconcile import reconcile
from flows.engine.rollout import tick
from flows.engine.work import pull_spool, turn

_TRAINS = (State.TRAINING_APPROVED, State.ATTEMPT)


@dataclass(frozen=True)
class Progress:
    """Where a line stands after a duty."""

    said: str
    """For people."""
    next: str | None = None
    """The flow that should go on now: retrain | rollout; None where nothing can be done before something outside changes."""
    cycle: str | None = None
    seq: int = 0
    """Of the cycle's newest row: a wake-up is named after it."""


def bring_in(shop: Installation, loop: Path) -> IngestReport:
    """All sources of a line, once."""
    return ingest(shop.house(loop))


def work_on(shop: Installation, loop: Path, scheduled: bool, patience: float, poll: float = 1.0) -> Progress:
    """Opens a cycle if one is due, and takes it as far as it goes; stays with a training job for `patience` seconds."""
    house = shop.house(loop)
    opened = house.line_view().open_cycle
    if opened is None:
        opened, why = open_if_due(house, scheduled)
        if opened is None:
            return Progress(f"no cycle: {why}")
    started = house.clock.now()
    while True:
        decision = _turn(shop, house.cycle_view(opened))
        cycle = house.cycle_view(opened)
        waited = (house.clock.now() - started).total_seconds()
        if cycle.state not in _TRAINS or waited > patience:
            return _standing(cycle, decision, "rollout" if cycle.state is State.ROLLING else None)
        house.clock.sleep(poll)


def _turn(shop: Installation, cycle: CycleView) -> Decision:
    try:
        return turn(shop, cycle)
    except Retryable as error:
        return Wait(str(error))


def _standing(cycle: CycleView, decision: Decision, following: str | None) -> Progress:
    what = f"{cycle.id} is at {cycle.state}"
    if isinstance(decision, End):
        return Progress(f"{cycle.id} ended {decision.state}: {decision.reason}", None, cycle.id, cycle.seq)
    if isinstance(decision, Wait):
        what += f", waits: {decision.reason}"
    return Progress(what, following, cycle.id, cycle.seq)


def roll_on(shop: Installation, loop: Path, seconds: float, poll: float = 5.0) -> Progress:
    """Ticks the open rollout for so many seconds, or until it ends: then the cycle goes on at once."""
    house = shop.house(loop)
    opened = house.line_view().open_cycle
    if opened is None or house.cycle_view(opened).state is not State.ROLLING:
        return Progress("no rollout is open")
    started, said = house.clock.now(), ""
    frozen = shop.house_of(house.cycle_view(opened))
    while True:
        said, ended = _tick(frozen, opened)
        if ended:
            return _standing(house.cycle_view(opened), _turn(shop, house.cycle_view(opened)), None)
        if (house.clock.now() - started).total_seconds() > seconds:
            return Progress(f"{rollout_stream(opened)}: {said}", None, opened, house.cycle_view(opened).seq)
        house.clock.sleep(poll)


def _tick(house: House, cycle: str) -> tuple[str, bool]:
    """(what was decided, whether the rollout has ended)."""
    try:
        pull_spool(house)
        decision = tick(rollout_stream(cycle), house)
    except Retryable as error:
        return f"waits: {error}", False
    match decision:
        case Finish(end, reason):
            return f"{end}: {reason}", True
        case Hold(reason):
            return f"holds: {reason}", False
        case moved:
            return f"{moved.weight:g} %", False


def mend(shop: Installation, loop: Path) -> tuple[list[str], Progress]:
    """Copies follow the ledger, the spool goes into the lake; and which flow the open cycle needs next."""
    house = shop.house(loop)
    mended = reconcile(house)
    pull_spool(house)
    opened = house.line_view().open_cycle
    return mended, _needs(shop, house.cycle_view(opened)) if opened else Progress("no cycle is open")


def _needs(shop: Installation, cycle: CycleView) -> Progress:
    """Asks the pure decision without carrying it out: a cycle that merely waits needs no process."""
    house = shop.house_of(cycle)
    decision = decide(cycle, observe(cycle, house), house.clock.now())
    if not isinstance(decision, Wait):
        return _standing(cycle, decision, "retrain")
    return _standing(cycle, decision, "rollout" if cycle.state is State.ROLLING else None)


def request_view(ledger: Ledger, request: str) -> ApprovalView:
    """A request for approval. Rejected where the ledger does not know it."""
    rows = ledger.read(request)
    if not rows:
        raise Rejected("no_request", f"there is no {request} in the ledger; `ratchet status` lists what waits")
    return fold_approval(rows)


def settled(view: ApprovalView, now: datetime | None = None) -> str | None:
    """How a request was settled, in words; None while it waits."""
    if view.answer is not None:
        return f"{view.answer.actor} {'approved' if view.answer.approve else 'rejected'} it, by {view.answer.via}"
    if view.expired or (now or datetime.now(UTC)) >= view.expires:
        return f"it is closed: nobody answered before {view.expires:%Y-%m-%d %H:%M} UTC, or its cycle ended first"
    return None


def record_answer(ledger: Ledger, request: str, given: Answer) -> str:
    """Into the ledger, where the first answer wins; returns how the request stands now, in words."""
    stands, ours = answer(ledger, request_view(ledger, request), given, datetime.now(UTC))
    if ours:
        return f"{given.actor} {'approved' if given.approve else 'rejected'} it, by {given.via}"
    return f"too late: {settled(request_view(ledger, request)) if stands else 'it has expired'}"
