"""Tests that a requested rollback ends only when every session is on the version to which it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ratchet.contracts.errors import Rejected
from ratchet.contracts.steps import State
from ratchet.flows.engine.context import LineContext
from ratchet.flows.engine.line import ask_rollback, freeze
from ratchet.flows.engine.reconcile import go_back
from ratchet.flows.engine.rollouts.going_back import Back, bring_back, target
from tests.simulation.simulated_line import Scenario, SimulatedLine

LINE = "sim"


class Rolling(Exception):
    """Stops a simulated line in the middle of its rollout."""


class RollingLine(SimulatedLine):
    """A line that stops when its rollout has set its first weight."""

    def _work(self) -> None:
        super()._work()
        route = self.router.read(LINE)
        if self.view().state is State.ROLLING and route is not None and len(route.backends) == 2:
            raise Rolling


def ask(context: LineContext) -> str:
    """Request a rollback, and return the version to which it returns."""
    begun = ask_rollback(context.ledger, LINE, "ada", "", context.clock.now())
    tag = target(begun, context.cycle_view(begun.open_cycle) if begun.open_cycle else None)
    assert tag is not None
    return tag


def served(sim: SimulatedLine) -> set[str]:
    """Return the versions that answer sessions now."""
    route = sim.router.read(LINE)
    assert route is not None
    return {backend.tag for backend in route.backends if backend.weight > 0}


@pytest.fixture
def promoted() -> SimulatedLine:
    sim = SimulatedLine(Scenario(seed=1))
    sim.live()
    return sim


@pytest.fixture
def rolling() -> SimulatedLine:
    sim = RollingLine(Scenario(seed=1))
    with pytest.raises(Rolling):
        sim.live()
    assert len(served(sim)) == 2
    return sim


def test_the_previous_version_serves_every_session_when_the_call_returns(promoted: SimulatedLine) -> None:
    view = promoted.context.line_view()
    assert view.previous is not None
    tag = ask(promoted.context)
    assert tag == view.previous.tag
    assert bring_back(promoted.context, tag, lambda _: promoted.context, 60, print) == Back(tag, True)
    assert served(promoted) == {tag}
    assert promoted.context.line_view().rollback_asked is None


def test_during_a_rollout_the_champion_serves_every_session_and_no_evidence_is_read(rolling: SimulatedLine) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("users must not wait for evidence that decides nothing")

    rolling.context.metrics.evidence = refuse  # type: ignore[method-assign, assignment]
    champion = rolling.context.line_view().champion
    assert champion is not None
    tag = ask(rolling.context)
    assert tag == champion.tag
    assert bring_back(rolling.context, tag, lambda _: rolling.context, 60, print) == Back(tag, True)
    assert served(rolling) == {tag}


def test_a_rollback_that_the_service_has_carried_out_meanwhile_is_done(promoted: SimulatedLine) -> None:
    tag = ask(promoted.context)
    go_back(promoted.context)
    rows = len(promoted.context.line_view().rows)
    assert bring_back(promoted.context, tag, lambda _: promoted.context, 60, print) == Back(tag, True)
    assert len(promoted.context.line_view().rows) == rows, "it does not go back one version further"


def test_while_another_process_carries_it_out_the_call_waits_and_says_for_what(promoted: SimulatedLine) -> None:
    context, told = promoted.context, list[str]()
    other = replace(context, holder="host/1/id/1")
    lease = context.ledger.acquire(f"back/{LINE}", "host/1/id/1/a rollback/0", 60, context.clock.now())
    assert lease is not None
    tag = ask(context)
    slept: list[float] = []
    sleep: Callable[[float], None] = context.clock.sleep

    def wait(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 20:
            context.ledger.release(lease)
            go_back(other)
        sleep(seconds)

    context.clock.sleep = wait  # type: ignore[method-assign]
    assert bring_back(context, tag, lambda _: context, 60, told.append) == Back(tag, True)
    assert len(slept) == 20
    assert len(told) == 1
    assert told[0].startswith("waiting: back/sim is leased by a rollback")


def test_after_the_given_time_the_call_returns_and_the_request_stays(promoted: SimulatedLine) -> None:
    context = promoted.context
    assert context.ledger.acquire(f"back/{LINE}", "host/1/id/1/a rollback/0", 60, context.clock.now()) is not None
    tag = ask(context)
    assert bring_back(context, tag, lambda _: context, 1, lambda _: None) == Back(tag, False)
    assert context.line_view().rollback_asked == "ada"


def before_the_next_append(context: LineContext, first: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another request be faster: `first` runs before the next row is appended to the ledger."""
    real = context.ledger.append

    def late(*arguments: Any) -> Any:
        monkeypatch.setattr(context.ledger, "append", real)
        first()
        return real(*arguments)

    monkeypatch.setattr(context.ledger, "append", late)


def test_of_two_rollbacks_at_once_the_second_one_does_not_go_back_further(promoted: SimulatedLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is asked for, carried out, and ended between the second one's look at the line and its request."""
    context = promoted.context
    before = context.line_view().champion

    def first() -> None:
        ask(context)
        go_back(context)

    before_the_next_append(context, first, monkeypatch)
    with pytest.raises(Rejected, match="by another request") as refused:
        ask_rollback(context.ledger, LINE, "grace", "", context.clock.now())
    now = context.line_view()
    assert now.champion is not None
    assert now.champion != before
    assert now.champion.tag in str(refused.value)
    assert [row.data["actor"] for row in now.rows if row.kind == "rollback_asked"] == ["ada"]


def test_a_row_that_changes_no_champion_does_not_stop_a_rollback(promoted: SimulatedLine, monkeypatch: pytest.MonkeyPatch) -> None:
    context = promoted.context
    before_the_next_append(context, lambda: freeze(context.ledger, LINE, "ada", "", context.clock.now()), monkeypatch)
    ask_rollback(context.ledger, LINE, "grace", "", context.clock.now())
    assert context.line_view().rollback_asked is not None
