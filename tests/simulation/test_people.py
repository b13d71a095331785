"""Simulated operator requests at difficult moments, and simulated failures.

Examples are a second rollback, a rollback during a long effect, a cancellation, and an unavailable registry.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from contracts.cycle import State
from contracts.errors import Rejected, Retryable
from flows.core.views import fold_line
from flows.engine.advance import UNFORESEEN_TRIES, advance
from flows.engine.house import LEASE_SECONDS, TURN_SECONDS, House, take
from flows.engine.ingest import ingest
from flows.engine.line import ask_cancel, ask_rollback, open_cycle
from flows.engine.reconcile import reconcile
from tests.simulation.town import Scenario, Town

LINE = "line/sim"


def promoted() -> Town:
    """Return a simulated line after its first promotion."""
    town = Town(Scenario(seed=1))
    town.live()
    assert town.view().state is State.PROMOTED
    return town


def go_back(town: Town) -> None:
    """Request a rollback of the line."""
    ask_rollback(town.ledger, "sim", "ada", "", town.clock.now())


def serving(town: Town) -> str:
    """Return the tag of the version that serves all requests."""
    return next(b.tag for b in town.router.read("sim").backends if b.weight == 100)


def until(town: Town, state: State) -> None:
    """Advance the cycle until it is in the given state; raises AssertionError after 60 turns."""
    for _ in range(60):
        if town.view().state is state:
            return
        town._people()
        advance(town.cycle_stream(), town.house)
    raise AssertionError(town.view().state)


def test_second_rollback_does_not_restore_the_bad_version() -> None:
    town = promoted()
    base = town.house.line_view().base.tag
    go_back(town)
    reconcile(town.house)
    assert serving(town) == base
    with pytest.raises(Rejected, match="nothing_to_roll_back"):
        go_back(town)
    assert town.house.line_view().champion.tag == base


def test_rollback_does_not_wait_for_the_lease_of_the_line() -> None:
    town = promoted()
    second = open_cycle(town.house, "next")
    lease = take(town.house, LINE)  # an evaluation that takes minutes
    person = replace(town.house, holder="an operator")
    go_back(town)
    said = reconcile(person)
    assert any("rolled back" in line for line in said)
    assert serving(town) == town.house.line_view().base.tag
    town.ledger.release(lease)
    advance(second, town.house)
    assert town.house.cycle_view(second).state is State.SUPERSEDED


def test_operator_command_waits_until_the_lease_expires() -> None:
    town = promoted()
    busy = replace(town.house, holder="the service")
    person = replace(town.house, holder="an operator")
    for act in (lambda wait: ingest(person, wait=wait), lambda wait: _mended(person, wait)):
        for name in ("ingest/sim", LINE):
            assert take(busy, name)  # held for LEASE_SECONDS of the simulated clock and never renewed or released
        with pytest.raises(Retryable, match="is leased by the service"):
            act(0)
        with pytest.raises(Retryable, match="is leased by the service"):
            act(LEASE_SECONDS / 2)
        act(TURN_SECONDS)


def _mended(house: House, wait: float) -> None:
    said = reconcile(house, wait)
    if said and said[-1].startswith("skipped"):
        raise Retryable(said[-1])


def test_unavailable_registry_blocks_neither_promotion_nor_rollback(monkeypatch: pytest.MonkeyPatch) -> None:
    town = Town(Scenario(seed=1))
    open_cycle(town.house, "simulated")
    until(town, State.ROLLING)

    def away(*_args) -> None:
        raise Retryable("the registry is unavailable")

    monkeypatch.setattr(town.house.registry, "alias", away)
    town.live()
    assert town.view().state is State.PROMOTED
    assert serving(town) == town.view().candidate.tag
    go_back(town)
    reconcile(town.house)
    assert serving(town) == town.house.line_view().base.tag


def test_rollback_requested_before_the_promotion_is_recorded_takes_effect() -> None:
    town = Town(Scenario(seed=1))
    open_cycle(town.house, "simulated")
    until(town, State.ROLLING)
    from contracts.ids import rollout_stream
    from flows.engine.rollout import tick

    while not town.house.rollout_view(rollout_stream(town.cycle_stream())).end:
        town.clock.sleep(20)
        tick(rollout_stream(town.cycle_stream()), town.house)
    advance(town.cycle_stream(), town.house)  # routes all requests to the candidate
    go_back(town)
    advance(town.cycle_stream(), town.house)
    reconcile(town.house)
    assert town.view().state is State.ROLLED_BACK
    assert serving(town) == town.house.line_view().base.tag
    assert town.house.line_view().rollback_asked is None


def test_cancelled_cycle_ends_and_the_champion_stays() -> None:
    town = promoted()
    champion = town.house.line_view().champion.tag
    second = open_cycle(town.house, "next")
    ask_cancel(town.ledger, "sim", "ada", "", town.clock.now())
    advance(second, town.house)
    assert town.house.cycle_view(second).state is State.CANCELLED
    assert fold_line("sim", town.ledger.read(LINE)).champion.tag == champion
    assert town.house.line_view().cancel_asked is None
    with pytest.raises(Rejected, match="no_open_cycle"):
        ask_cancel(town.ledger, "sim", "ada", "", town.clock.now())


def test_unexpected_error_is_retried_then_fails_the_cycle_without_user_data(monkeypatch: pytest.MonkeyPatch) -> None:
    town = Town(Scenario(seed=1))
    open_cycle(town.house, "simulated")
    until(town, State.PROBED)

    def broken(*_args) -> None:
        raise ValueError("the user said: my secret")

    monkeypatch.setattr(town.house.datasets, "assemble", broken)
    for _ in range(UNFORESEEN_TRIES - 1):
        with pytest.raises(Retryable, match="ValueError"):
            advance(town.cycle_stream(), town.house)
    advance(town.cycle_stream(), town.house)
    assert town.view().state is State.FAILED
    assert "ValueError at simulation/broken" in town.view().reason
    assert "secret" not in str([entry.data for rows in town.ledger.rows.values() for entry in rows])


def test_temporary_failure_is_recorded_once_despite_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    town = Town(Scenario(seed=1))
    open_cycle(town.house, "simulated")
    until(town, State.PROBED)
    real = town.house.datasets.assemble

    def away(*_args) -> None:
        raise Retryable("the lake is unavailable")

    monkeypatch.setattr(town.house.datasets, "assemble", away)
    for _ in range(5):
        with pytest.raises(Retryable):
            advance(town.cycle_stream(), town.house)
    assert [entry.data["error"] for entry in town.ledger.read(town.cycle_stream()) if entry.kind == "tried"] == ["the lake is unavailable"]
    monkeypatch.setattr(town.house.datasets, "assemble", real)
    town.live()
    assert town.view().state is State.PROMOTED
