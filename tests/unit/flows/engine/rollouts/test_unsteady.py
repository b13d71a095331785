"""Tests of a rollout whose surroundings fail for a moment: its rollback is interrupted, its evidence cannot be read, a server loads."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.contracts.cycle import Append, Row
from ratchet.contracts.errors import Retryable
from ratchet.contracts.fakes import FakeDatasets, FakeScalingServer
from ratchet.contracts.mirror import MirrorPrompt
from ratchet.contracts.rows import Judged, content_of
from ratchet.contracts.serving import Route, StepJudgement, StepResult
from ratchet.flows.core.rollouts.rollout import Finish, Hold
from ratchet.flows.engine.context import append_to_rollout, leased
from ratchet.flows.engine.reconcile import reconcile
from ratchet.flows.engine.rollouts.mirror import ask_batch
from tests.unit.flows.engine.rollouts.rollout_line import RolloutLine

LINE = "sim"


class Crash(Exception):
    """Ends the process."""


@pytest.fixture
def line() -> RolloutLine[FakeScalingServer]:
    """A line in the first step of a rollout, on servers that scale."""
    return RolloutLine(FakeScalingServer)


def judge(line: RolloutLine[FakeScalingServer], result: StepResult) -> None:
    """Let all evidence lead to this result."""
    line.sim.context.judge.judge = lambda *_: StepJudgement(result=result, reasons=(f"says {result}",))  # type: ignore[method-assign]


def served(line: RolloutLine[FakeScalingServer]) -> set[str]:
    """Return the versions that answer sessions now."""
    route = line.sim.router.read(LINE)
    assert route is not None
    return {backend.tag for backend in route.backends if backend.weight > 0}


def crash(line: RolloutLine[FakeScalingServer], at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a tick crash when it is about to set the route, or to append the row `at` about the rollback."""
    ledger, router = line.sim.context.ledger, line.sim.router
    append, change = ledger.append, router.set

    def appended(appends: list[Append], *rest: Any) -> object:
        if any(row.kind == at and (row.kind == "ended" or row.key == "back") for one in appends for row in one.rows):
            raise Crash
        return append(appends, *rest)

    def routed(route: Route) -> None:
        if at == "route":
            raise Crash
        change(route)

    with monkeypatch.context() as broken:
        broken.setattr(ledger, "append", appended)
        broken.setattr(router, "set", routed)
        with pytest.raises(Crash):
            line.tick()


@pytest.mark.parametrize("at", ["intended", "route", "done", "ended"])
def test_a_rollback_that_was_interrupted_goes_on_whatever_the_evidence_says_then(
    line: RolloutLine[FakeScalingServer], at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge(line, StepResult.ROLL_BACK)
    champion = line.view.champion.tag
    crash(line, at, monkeypatch)
    judge(line, StepResult.WAIT)
    if at == "intended":  # nothing has happened yet
        assert isinstance(line.tick(), Hold)
        return
    reconcile(line.sim.context)
    assert served(line) == {champion}, "the candidate gets no session again"
    assert line.tick() == Finish("rolled_back", line.view.reason)
    assert (line.view.end, served(line)) == ("rolled_back", {champion})
    assert line.view.reason.endswith("says roll_back")
    assert [row.kind for row in line.sim.context.ledger.read(line.id) if row.key == "back"] == ["intended", "done"]


def test_a_rollback_sets_the_route_again_that_something_has_changed_since(
    line: RolloutLine[FakeScalingServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    judge(line, StepResult.ROLL_BACK)
    champion, split = line.view.champion.tag, line.sim.router.read(LINE)
    crash(line, "ended", monkeypatch)
    assert split is not None
    line.sim.router.set(split)
    line.tick()
    assert (line.view.end, served(line)) == ("rolled_back", {champion})


def test_a_rollback_that_a_former_release_has_begun_goes_on(line: RolloutLine[FakeScalingServer]) -> None:
    context, view = line.sim.context, line.view
    with leased(context, "a former release") as lease:
        append_to_rollout(view, context, lease, Row(kind="intended", key="back"))
    judge(line, StepResult.ADVANCE)
    assert line.tick() == Finish("rolled_back", "a rollback that had begun goes on")
    assert served(line) == {view.champion.tag}


def test_evidence_that_cannot_be_read_once_is_no_reason_to_go_back(line: RolloutLine[FakeScalingServer]) -> None:
    judge(line, StepResult.WAIT)
    dark = line.view.opened.settings.dark
    line.tick(dark + 20)
    read = line.sim.context.metrics.evidence

    def fails(*_: object) -> None:
        raise Retryable("S3: SlowDown")

    for _ in range(3):
        line.sim.context.metrics.evidence = fails  # type: ignore[method-assign, assignment]
        assert line.tick(dark + 20) == Hold("metrics unavailable: S3: SlowDown")
        line.sim.context.metrics.evidence = read  # type: ignore[method-assign]
        assert line.tick(20) == Hold("says wait")
    told = [content_of(Judged, row).judgement.unavailable for row in line.view.judgements]
    assert told == [False, True, False, True, False, True, False], "each failure is recorded, and its end"
    line.sim.context.metrics.evidence = fails  # type: ignore[method-assign, assignment]
    assert isinstance(line.tick(), Hold)
    assert isinstance(line.tick(dark - 10), Hold)
    assert line.tick(20) == Finish("rolled_back", "at 5 %: metrics unavailable: S3: SlowDown")


def test_nothing_waits_for_a_candidate_whose_server_loads(line: RolloutLine[FakeScalingServer], monkeypatch: pytest.MonkeyPatch) -> None:
    candidate, champion = line.view.candidate, line.view.champion
    before = line.sim.router.read(LINE)
    line.server.stop(candidate.tag)
    ensure = line.server.ensure

    def waits(version: object) -> object:
        assert version == champion, "a tick could not roll back for half an hour"
        return ensure(version)  # type: ignore[arg-type]

    monkeypatch.setattr(line.server, "ensure", waits)
    assert f"began to start the server of {candidate.tag}" in reconcile(line.sim.context)
    assert f"waits for the server of {candidate.tag}" in reconcile(line.sim.context)
    assert line.sim.router.read(LINE) == before
    line.sim.router.routes.clear()
    reconcile(line.sim.context)
    assert served(line) == {champion.tag}, "without a route, no session would be answered"
    judge(line, StepResult.ROLL_BACK)
    line.tick()
    assert (line.view.end, served(line)) == ("rolled_back", {champion.tag})


def test_a_server_that_cannot_start_is_told_with_the_reason(line: RolloutLine[FakeScalingServer], monkeypatch: pytest.MonkeyPatch) -> None:
    candidate = line.view.candidate
    line.server.stop(candidate.tag)

    def stuck(*_: object, **__: object) -> bool:
        raise Retryable("no node has 8 GPUs")

    monkeypatch.setattr(line.server, "scale", stuck)
    told = reconcile(line.sim.context)
    assert told[0] == f"could not start the server of {candidate.tag}: no node has 8 GPUs"


def test_mirrored_prompts_do_not_wait_for_a_server_that_loads(line: RolloutLine[FakeScalingServer]) -> None:
    datasets: FakeDatasets = line.sim.context.datasets  # type: ignore[assignment]
    datasets.mirrored = [MirrorPrompt(key="k", person="p", messages=({"role": "user", "content": "text"},))]
    line.server.stop(line.view.candidate.tag)
    settings = line.view.opened.settings.model_copy(update={"mirror": 8})
    with leased(line.sim.context, "a test") as lease:
        ask_batch(line.view, settings, StepJudgement(result=StepResult.WAIT, reasons=()), line.sim.context, lease)
    assert line.view.candidate.tag not in line.server.up
    assert [row.kind for row in line.view.mirrored] == ["mirror_intended"], "the next tick asks this batch"
