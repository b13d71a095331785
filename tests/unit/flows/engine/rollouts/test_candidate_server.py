"""Tests of a rollout whose candidate's server does not answer for a time."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from ratchet.contracts.errors import Retryable
from ratchet.contracts.fakes import FakeProbedServer
from ratchet.contracts.serving import Outage
from ratchet.flows.core.rollouts.rollout import Finish, Hold
from ratchet.flows.engine.line import ask_rollback
from tests.unit.flows.engine.rollouts.rollout_line import RolloutLine


class Line(RolloutLine[FakeProbedServer]):
    """A line in the first step of a rollout, whose server can say whether a version answers."""

    def __init__(self) -> None:
        super().__init__(FakeProbedServer)

    def silence(self) -> None:
        self.server.away[self.view.candidate.tag] = Outage(since=self.sim.clock.now())

    def answer(self) -> None:
        """Let the server answer again."""
        since = self.server.away[self.view.candidate.tag].since
        self.server.away[self.view.candidate.tag] = Outage(since=since, until=self.sim.clock.now())

    def kinds(self) -> list[str]:
        return [row.kind for row in self.sim.context.ledger.read(self.id) if row.kind in ("away", "died")]


def refuse(*_: object) -> None:
    raise AssertionError("failed tries of a server that does not answer are no evidence")


def test_the_rollout_holds_and_the_step_begins_again_when_the_server_answers() -> None:
    line = Line()
    first = line.view.steps[-1]
    line.sim.clock.sleep(120)
    line.silence()
    read, line.sim.context.metrics.evidence = line.sim.context.metrics.evidence, refuse  # type: ignore[method-assign, assignment]
    for _ in range(3):
        decision = line.tick()
        assert isinstance(decision, Hold)
        assert "can be reached, so the champion answers its users" in decision.reason
    assert (line.kinds(), line.view.away is not None, line.view.outages) == (["away"], True, ())
    line.sim.context.metrics.evidence = read  # type: ignore[method-assign]
    line.answer()
    line.tick()
    assert (line.kinds(), line.view.away, len(line.view.outages)) == (["away", "died"], None, 1)
    before, again = line.view.steps
    assert (again.index, again.weight) == (first.index, first.weight)
    assert before.until is not None
    assert again.since - before.until > timedelta(seconds=60 + 10)
    assert line.view.end is None


def test_another_process_that_takes_over_meanwhile_knows_the_beginning() -> None:
    line = Line()
    line.sim.clock.sleep(120)
    line.silence()
    line.tick()
    begun = line.view.away
    line.sim.context = replace(line.sim.context)  # nothing is in memory
    line.answer()
    line.tick()
    assert [one.since for one in line.view.outages] == [begun]


def test_an_outage_between_two_ticks_counts_for_neither_version() -> None:
    line = Line()
    line.sim.clock.sleep(120)
    line.silence()
    line.sim.clock.sleep(20)
    line.answer()
    line.tick()
    assert (line.kinds(), len(line.view.steps)) == (["died"], 2)
    line.tick()
    assert line.kinds() == ["died"], "it is recorded once"


def test_a_rollout_goes_on_while_nothing_is_known_about_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line()

    def away(*_: object) -> None:
        raise Retryable("the API server is away")

    monkeypatch.setattr(line.server, "newest_outage", away)
    line.tick()
    assert (line.kinds(), line.view.end) == ([], None)


def test_the_third_time_ends_the_rollout() -> None:
    line = Line()
    for _ in range(2):
        line.silence()
        line.tick()
        line.answer()
        line.tick()
        assert line.view.end is None
        line.sim.clock.sleep(300)
    line.silence()
    decision = line.tick()
    assert isinstance(decision, Finish)
    assert "could be reached 3 times during the rollout" in decision.reason
    assert line.view.end == "rolled_back"


def test_nothing_is_known_where_the_champion_cannot_be_reached_either() -> None:
    line = Line()
    line.silence()
    line.server.away[line.view.champion.tag] = Outage(since=line.sim.clock.now())
    line.tick()
    assert (line.kinds(), line.view.end) == ([], None)


def test_failed_tries_are_evidence_where_no_router_lets_the_champion_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line()
    monkeypatch.setattr(line.sim.context.router, "attribution", False)
    monkeypatch.setattr("ratchet.flows.engine.rollouts.rollout._judge", lambda *_: None)
    line.silence()
    line.tick()
    assert line.kinds() == []


def test_an_asked_rollback_does_not_wait_for_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line()
    monkeypatch.setattr(line.server, "newest_outage", refuse)
    ask_rollback(line.sim.context.ledger, line.sim.context.line, "ada", "a test", line.sim.clock.now())
    assert isinstance(line.tick(), Finish)


def test_a_server_that_stays_away_ends_the_rollout_when_the_step_is_over() -> None:
    line = Line()
    line.silence()
    line.tick()
    decision = line.tick(line.view.opened.settings.max_seconds + 10)
    assert isinstance(decision, Finish)
    assert "undecided after" in decision.reason
    assert "can be reached" in decision.reason


def test_nothing_is_excused_of_a_server_that_hung_until_it_was_ended() -> None:
    line = Line()
    line.sim.clock.sleep(120)
    line.silence()
    line.tick(15)
    begun = line.view.away
    del line.server.away[line.view.candidate.tag]  # its container has ended: the version is at fault
    line.server.stop(line.view.candidate.tag)
    line.tick(120)
    assert line.kinds() == ["away", "died"]
    assert [(one.since, one.until) for one in line.view.outages] == [(begun, begun)]
    assert line.view.steps[1].since == begun, "the time in which it hung is evidence"
