"""Tests of what follows from deaths of the process that both versions of a rollout share."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ratchet.contracts.cycle import Entry
from ratchet.contracts.fakes import fake_model
from ratchet.contracts.loop import RolloutSettings
from ratchet.contracts.rows import Died, RolloutOpened, row_of
from ratchet.contracts.schema import SCHEMA_VERSION
from ratchet.contracts.serving import ModelVersion, Outage
from ratchet.flows.core.folds.rollout import RolloutView, fold_rollout
from ratchet.flows.core.rollouts.rollout import Finish, Hold, decide_rollout, windows
from ratchet.flows.core.rollouts.shared_process import DEATHS, died_too_often, is_down, outside

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def version(tag: str) -> ModelVersion:
    return ModelVersion(line="l", number=0, tag=tag, model=fake_model(tag), cycle=None)


def rollout(*rows: tuple[float, str, str, dict[str, Any]]) -> RolloutView:
    opened = RolloutOpened(cycle="c", champion=version("v-a"), candidate=version("v-b"), settings=RolloutSettings(), metrics=(), salt="s")
    first = row_of("opened", opened)
    entries = [(0.0, first.kind, first.key, first.data), *rows]
    return fold_rollout(
        [
            Entry(
                stream="rollout/l/0001",
                seq=number,
                kind=kind,
                key=key,
                data=data,
                at=at(seconds),
                epoch=0,
                previous="0" * 64,
                hash="0" * 64,
                schema_version=SCHEMA_VERSION,
            )
            for number, (seconds, kind, key, data) in enumerate(entries, 1)
        ]
    )


def weight(seconds: float, index: int, percent: float) -> tuple[float, str, str, dict[str, Any]]:
    return seconds, "done", f"weight/{index}", {"index": index, "weight": percent}


def died(since: float, until: float, number: int = 1) -> tuple[float, str, str, dict[str, Any]]:
    return until, "died", str(number), row_of("died", Died(since=at(since), until=at(until))).data


def test_a_step_ends_before_the_death_and_begins_again_when_both_answer() -> None:
    view = rollout(weight(10, 0, 25.0), died(500, 560), weight(900, 1, 50.0))
    assert [(step.index, step.weight) for step in view.steps] == [(0, 25.0), (0, 25.0), (1, 50.0)]
    assert windows(view.steps, at(1000)) == [
        (25.0, at(10), at(440)),  # without the minute in which requests were in flight
        (25.0, at(560), at(900)),
        (50.0, at(900), at(1000)),
    ]
    assert view.outages == (Outage(since=at(500), until=at(560)),)


def test_a_death_soon_after_the_begin_leaves_no_evidence_before_it() -> None:
    assert windows(rollout(weight(10, 0, 25.0), died(40, 70)).steps, at(100)) == [(25.0, at(70), at(100))]


def test_what_follows_a_death_between_a_decision_and_its_route_counts() -> None:
    decided = (600.0, "intended", "weight/1", dict[str, Any]())
    view = rollout(weight(10, 0, 25.0), decided, died(650, 700), weight(900, 1, 50.0))
    assert windows(view.steps, at(1000)) == [(25.0, at(10), at(590)), (25.0, at(700), at(900)), (50.0, at(900), at(1000))]


def test_a_death_before_the_first_weight_changes_no_step() -> None:
    assert [step.since for step in rollout(died(5, 8), weight(10, 0, 25.0)).steps] == [at(10)]


def test_two_deaths_do_not_stop_a_candidate_and_the_third_does() -> None:
    outages = [Outage(since=at(n), until=at(n + 1)) for n in range(DEATHS)]
    assert died_too_often(outages[:-1], "v-a", "v-b") is None
    told = died_too_often(outages, "v-a", "v-b")
    assert told is not None
    assert told.startswith("shared process: the process of v-a has died 3 times while v-b was loaded")


@pytest.mark.parametrize(("rows", "seconds"), [((), 0.0), ((weight(10, 0, 25.0),), 0.0)])
def test_while_it_is_down_the_rollout_holds(rows: tuple[Any, ...], seconds: float) -> None:
    settings, down = RolloutSettings(max_seconds=1000), is_down("v-a", "v-b")
    assert decide_rollout(rollout(*rows), settings, None, None, at(20 + seconds), down) == Hold(down)


def test_a_process_that_does_not_come_back_ends_the_rollout_as_undecided() -> None:
    settings, down = RolloutSettings(max_seconds=1000), is_down("v-a", "v-b")
    decision = decide_rollout(rollout(weight(10, 0, 25.0)), settings, None, None, at(2000), down)
    assert isinstance(decision, Finish)
    assert "undecided" in decision.reason
    assert down in decision.reason


def test_mirrored_prompts_that_were_asked_during_a_death_do_not_count() -> None:
    rows = [
        (seconds, kind, key, dict[str, Any]())
        for key, begun, ended in (("0", 100, 120), ("1", 200, 230), ("2", 300, 310))
        for seconds, kind in ((begun, "mirror_intended"), (ended, "mirrored"))
    ]
    entries = rollout(*rows).mirrored
    left = outside(entries, [Outage(since=at(210), until=at(250))])
    assert [row.key for row in left] == ["0", "0", "2", "2"]
    assert outside(entries, []) == list(entries)
