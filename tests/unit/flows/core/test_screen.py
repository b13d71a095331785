"""Tests of the model of `ratchet status --watch`: the steps, what comes next, and who must act, in the states of a line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from ratchet.contracts.cycle import Answer, ApprovalKind, Identity
from ratchet.contracts.ids import line_stream, rollout_stream
from ratchet.contracts.loop import RolloutSettings
from ratchet.contracts.rows import Judged, RolloutOpened, WeightSet, row_of
from ratchet.contracts.serving import SequentialTest, StepJudgement, StepResult
from ratchet.contracts.steps import State, Step
from ratchet.flows.core.folds.line import Alarm, Freeze, LineView, fold_line
from ratchet.flows.core.folds.rollout import RolloutView, fold_rollout
from ratchet.flows.core.problem import Problem
from ratchet.flows.core.requests import ApprovalView
from ratchet.flows.core.screen import Screen, Seen, Traffic, Training, screen
from ratchet.flows.engine.line import open_cycle
from tests.simulation.simulated_line import Scenario, SimulatedLine
from tests.unit.flows.cycles import NOON, cycle, entry

LINE = LineView(line="sim", seq=1, champion=cycle(State.OPENED).champion, cycles=1)
DEAD = Problem(level="error", about="service", text="the service is not running")
LATER = NOON + timedelta(minutes=10)


def steps(shown: Screen) -> dict[str, list[str]]:
    """Return the state of each step -> the steps in it."""
    found: dict[str, list[str]] = {}
    for one in shown.steps:
        found.setdefault(one.state, []).append(str(one.step))
    return found


def rollout(judgement: StepJudgement | None = None, mirror: int = 0) -> RolloutView:
    """Return a rollout at its second step, whose evidence was judged once."""
    version = cycle(State.OPENED).champion
    settings = RolloutSettings(steps=(5, 50, 100), min_seconds=600, max_seconds=86_400, min_requests=100, mirror=mirror)
    opened = RolloutOpened(
        cycle="cycle/sim/0001",
        champion=version,
        candidate=version.model_copy(update={"number": 1, "tag": "v1"}),
        settings=settings,
        metrics=(),
        salt="",
    )
    ratings = SequentialTest(estimate=-0.01, error=0.02, margin=0.05, equal=1.5, equal_at=3.0, harm=-1.0, harm_at=4.0, n=100, people=30)
    errors = ratings.model_copy(update={"equal": 5.0, "harm": 1.0, "margin": 0.02, "people": None})
    judgement = judgement or StepJudgement(
        result=StepResult.WAIT,
        reasons=("70 of 100 requests seen",),
        requests=150,
        candidate_requests=70,
        tests={"ratings": ratings, "errors": errors},
    )
    rows = [
        row_of("opened", opened),
        row_of("done", WeightSet(index=0, weight=5), "weight/0"),
        row_of("done", WeightSet(index=1, weight=50), "weight/1"),
        row_of("judged", Judged(index=1, weight=50, judgement=judgement), "1"),
    ]
    return fold_rollout([entry(row, number, "rollout/sim/0001") for number, row in enumerate(rows, 1)])


def test_an_idle_line_waits_for_traces_and_nobody_must_act() -> None:
    shown = screen(Seen(LINE, due="12 new traces of 500 needed"), NOON)
    assert (shown.state, shown.open, shown.cycle, shown.who) == ("idle", False, None, "nobody")
    assert set(steps(shown)) == {"not yet"}
    assert (shown.next, shown.detail) == ("a new cycle when one is due", "12 new traces of 500 needed")
    assert "unknown" in screen(Seen(LINE), NOON).detail
    assert screen(Seen(LineView("sim", 0)), NOON).commands == ("ratchet adopt LOOP.toml MODEL_FOLDER",)


def test_a_training_says_how_far_it_is_and_when_it_ends() -> None:
    training = Training(step=60, total=100, since=NOON, first=10, at=NOON + timedelta(seconds=100))
    shown = screen(Seen(LINE, cycle=cycle(State.ATTEMPT), training=training), LATER)
    assert steps(shown)["running"] == ["train"]
    assert steps(shown)["not yet"][0] == "accept"
    assert shown.next_at == training.at + timedelta(seconds=80)
    assert shown.who == "nobody"
    begun = training.model_copy(update={"step": 10})
    assert screen(Seen(LINE, cycle=cycle(State.ATTEMPT), training=begun), LATER).next_at is None, "one step tells no speed"
    planned = screen(Seen(LINE, cycle=cycle(State.TRAINING_APPROVED)), LATER)
    assert planned.next.startswith("starting the training, then ")


ASKED = cycle(State.REGISTERED, asked={ApprovalKind.ROLLOUT: NOON + timedelta(hours=1)})


def request(answer: Answer | None = None) -> ApprovalView:
    name = "approval/sim/0001/rollout"
    kind, expires = ApprovalKind.ROLLOUT, NOON + timedelta(hours=1)
    return ApprovalView(name, 1, ASKED.id, kind, subject="", evidence="", expires=expires, answer=answer, answered_at=NOON)


def test_a_person_must_answer_a_request_with_a_command() -> None:
    shown = screen(Seen(LINE, cycle=ASKED, requests={ApprovalKind.ROLLOUT: request()}), NOON)
    assert steps(shown)["waiting"] == ["approve_rollout"]
    assert (shown.who, shown.commands[0]) == ("a person", "ratchet approve sim/0001/rollout")
    assert shown.next_at == NOON + timedelta(hours=1)
    given = Answer(approve=True, actor="hana", identity=Identity.CLAIMED, via="cli")
    shown = screen(Seen(LINE, cycle=ASKED, requests={ApprovalKind.ROLLOUT: request(given)}), NOON)
    assert (shown.who, shown.next) == ("nobody", "approved by hana 12:00 UTC; the cycle continues")
    shown = screen(Seen(LINE, cycle=ASKED), NOON + timedelta(hours=2))
    assert (shown.who, shown.next) == ("nobody", "the request to approve the rollout has expired; the cycle ends")


def test_a_rollout_shows_its_step_its_evidence_and_its_limits() -> None:
    shown = screen(Seen(LINE, cycle=cycle(State.ROLLING), rollout=rollout()), NOON + timedelta(minutes=4))
    assert steps(shown)["running"] == ["roll_out"]
    found = shown.rollout
    assert found is not None
    assert (found.number, found.weight, found.steps) == (2, 50, (5, 50, 100))
    assert {one.name: (one.limit, one.shown, one.harm) for one in found.evidence} == {
        "requests": ("≥ 100", 0.7, None),
        "ratings": ("−0.05", 0.5, 0.0),
        "errors": ("+0.02", 1.0, 0.25),
    }
    assert (shown.next, shown.next_at) == ("100 %, if the evidence suffices", NOON + timedelta(minutes=10))
    assert shown.detail == "70 of 100 requests seen"
    assert (shown.who, shown.commands) == ("nobody", ("ratchet rollback sim",))
    late = screen(Seen(LINE, cycle=cycle(State.ROLLING), rollout=rollout()), LATER)
    assert late.next_at == NOON + timedelta(days=1), "a step that is undecided then goes back"
    asked = replace(LINE, rollback_asked="ada")
    assert "requested by ada" in screen(Seen(asked, cycle=cycle(State.ROLLING), rollout=rollout()), LATER).next


def test_a_rollout_by_mirrored_prompts_alone_shows_no_requests() -> None:
    pairs = SequentialTest(estimate=0.0, error=0.05, margin=0.1, equal=1.5, equal_at=3.0, harm=-1.5, harm_at=4.6, n=24, people=12)
    judgement = StepJudgement(result=StepResult.WAIT, reasons=("24 of at least 50 mirrored pairs",), tests={"mirrored": pairs})
    found = screen(Seen(LINE, cycle=cycle(State.ROLLING), rollout=rollout(judgement, mirror=400)), NOON).rollout
    assert found is not None
    assert [one.name for one in found.evidence] == ["mirrored prompts"]


@pytest.mark.parametrize(
    ("state", "who", "command"),
    [
        (State.HELD, "nobody", "ratchet explain sim/0001"),
        (State.REJECTED, "nobody", "ratchet explain sim/0001"),
        (State.ROLLED_BACK, "nobody", "ratchet explain sim/0001"),
        (State.FAILED, "a person", "ratchet explain sim/0001"),
    ],
)
def test_an_ended_cycle_says_how_it_ended(state: State, who: str, command: str) -> None:
    ended = cycle(state, reason="the figures", ended_at=NOON)
    shown = screen(Seen(LINE, cycle=ended, due="1 new traces of 5 needed"), LATER)
    assert (shown.state, shown.open, shown.reason, shown.since) == (str(state), False, "the figures", NOON)
    assert (shown.who, shown.commands[0]) == (who, command)
    assert shown.rollout is None
    assert len(steps(shown)["ended"]) == 1


def test_nothing_goes_on_while_the_service_is_dead_or_stopped() -> None:
    seen = Seen(LINE, problems=[DEAD], cycle=ASKED, requests={ApprovalKind.ROLLOUT: request()})
    shown = screen(seen, NOON)
    assert (shown.who, shown.next) == ("a person", "nothing until the service works")
    assert shown.commands == ("ratchet serve LOOP.toml", "ratchet doctor")
    stopped = screen(replace(seen, problems=[DEAD.model_copy(update={"level": "note"})]), NOON)
    assert stopped.commands == ("ratchet serve LOOP.toml",)
    away = DEAD.model_copy(update={"about": "prefect"})
    assert screen(replace(seen, problems=[away]), NOON).commands[0] == "ratchet approve sim/0001/rollout", "an answer is possible"


def test_what_is_wrong_with_a_line_is_a_note() -> None:
    frozen = replace(LINE, frozen=Freeze("hana", "wrong labels", NOON), alarm=Alarm("many", NOON), recalled={"v0": "erased"})
    shown = screen(Seen(frozen), NOON)
    assert [one.level for one in shown.problems] == ["note"] * 3
    assert (shown.who, shown.commands) == ("a person", ("ratchet unfreeze sim --why TEXT",))


def test_a_step_that_is_tried_again_names_the_last_error() -> None:
    failing = cycle(State.ACCEPTED, tries={"evaluate": ("the server is away", "the disk is full")})
    shown = screen(Seen(LINE, cycle=failing), NOON)
    assert (shown.who, shown.detail) == ("nobody", "failed 2 times: the disk is full")


def test_time_and_moving_figures_are_no_change_for_a_program() -> None:
    seen = Seen(LINE, cycle=cycle(State.ROLLING), rollout=rollout(), traffic=Traffic(minutes=5))
    facts = screen(seen, NOON).facts()
    same = replace(seen, traffic=Traffic(minutes=5, in_flight=3, turned_away=1), due="x", busy="y", ingested=NOON)
    assert screen(same, NOON + timedelta(minutes=4)).facts() == facts
    changes: list[Callable[[Seen], Seen]] = [
        lambda one: replace(one, problems=[DEAD]),
        lambda one: replace(one, traffic=Traffic(minutes=5, lost={"full": 1})),
        lambda one: replace(one, rollout=replace(rollout(), judgements=())),
        lambda one: replace(one, line=replace(LINE, rollback_asked="ada")),
    ]
    for change in changes:
        assert screen(change(seen), NOON).facts() != facts


def test_every_state_of_a_simulated_line_has_a_screen() -> None:
    sim = SimulatedLine(Scenario(seed=1))
    stream = open_cycle(sim.context, "a test")
    seen: set[str] = set()
    for sim.turn in range(300):
        rows = sim.ledger.read(rollout_stream(stream))
        view = sim.context.cycle_view(stream)
        line = fold_line("sim", sim.ledger.read(line_stream("sim")))
        shown = screen(Seen(line, cycle=view, rollout=fold_rollout(rows) if rows else None), sim.clock.now())
        seen.add(shown.state)
        assert len(shown.steps) == len(Step)
        assert sum(one.state in ("running", "waiting") for one in shown.steps) == (0 if view.ended else 1)
        if view.ended:
            break
        sim.clock.sleep(7)
        sim._people()
        sim._work()
    assert shown.state == "promoted"
    assert {one.state for one in shown.steps} == {"done"}
    assert {"rolling", "attempt"} <= seen


def test_evidence_that_cannot_be_read_keeps_the_figures_of_the_last_that_could() -> None:
    view = rollout()
    away = StepJudgement(result=StepResult.WAIT, unavailable=True, reasons=("metrics unavailable: S3: SlowDown",))
    row = entry(row_of("judged", Judged(index=1, weight=50, judgement=away), "1"), 5, view.id)
    before = screen(Seen(LINE, cycle=cycle(State.ROLLING), rollout=view), NOON).rollout
    found = screen(Seen(LINE, cycle=cycle(State.ROLLING), rollout=replace(view, judgements=(*view.judgements, row))), NOON).rollout
    assert before is not None
    assert found == before.model_copy(update={"reasons": away.reasons})
