"""Tests of durations between moments: the wall clock counts only between machines and across reboots."""

from __future__ import annotations

import pytest

from ratchet.contracts.fakes import FakeClock
from ratchet.contracts.moment import Moment, moment_in, seconds_between

HOUR = 3600.0


@pytest.mark.parametrize("step", [HOUR, -HOUR, 0.0])
def test_a_step_of_the_wall_clock_changes_no_duration_within_a_boot(step: float) -> None:
    assert seconds_between(Moment(1000, "b", 50), Moment(1030 + step, "b", 80)) == 30
    clock = FakeClock()
    begun = clock.moment()
    clock.sleep(30)
    clock.set(step)
    assert seconds_between(begun, clock.moment()) == 30


@pytest.mark.parametrize(("earlier", "later"), [("a", "b"), ("", ""), ("a", "")])
def test_between_boots_only_the_wall_clocks_can_be_compared(earlier: str, later: str) -> None:
    assert seconds_between(Moment(1000, earlier, 900), Moment(1030, later, 5)) == 30
    assert seconds_between(Moment(1030, earlier, 5), Moment(1000, later, 900)) == 0, "no duration is negative"


@pytest.mark.parametrize(
    ("record", "moment"),
    [
        ({"at": 5.5, "boot": "b", "up": 3, "more": 1}, Moment(5.5, "b", 3)),
        ({"at": 5}, Moment(5)),
        ({"at": 5, "boot": "b", "up": float("nan")}, Moment(5)),
        ({"at": 5, "boot": 7, "up": 3}, Moment(5)),
        ({"at": True, "boot": "b", "up": 3}, None),
        ({"at": float("inf")}, None),
        ({}, None),
    ],
)
def test_a_stored_moment_is_read_as_far_as_it_is_valid(record: dict[str, object], moment: Moment | None) -> None:
    assert moment_in(record) == moment
