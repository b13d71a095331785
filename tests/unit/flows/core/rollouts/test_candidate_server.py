"""Tests of what follows from times in which no server of the candidate could be reached."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from ratchet.contracts.serving import Outage
from ratchet.flows.core.rollouts.candidate_server import MOST, TIMES, away_too_often, is_away

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def outages(number: int, minutes: int) -> list[Outage]:
    """Return outages of nine seconds that begin so many minutes after another."""
    begun = [NOW + timedelta(minutes=minutes * n) for n in range(number)]
    return [Outage(since=one, until=one + timedelta(seconds=9)) for one in begun]


def test_a_few_times_are_forgiven_and_the_next_one_ends_the_rollout() -> None:
    known = outages(TIMES - 1, minutes=10)
    assert away_too_often(known, None, "v-a") is None
    told = away_too_often(known, NOW + timedelta(minutes=40), "v-a")
    assert told is not None
    assert told.startswith(f"no server of v-a could be reached {TIMES} times")
    assert "`ratchet candidate add`" in told
    assert away_too_often(outages(TIMES, minutes=10), None, "v-a") == told


def test_times_that_follow_each_other_closely_count_as_one_up_to_a_number() -> None:
    assert away_too_often(outages(MOST - 1, minutes=2), None, "v-a") is None
    assert away_too_often(outages(MOST - 1, minutes=2), NOW + timedelta(minutes=9), "v-a") is not None
    assert away_too_often(outages(MOST, minutes=2), None, "v-a") is not None


def test_the_reason_to_hold_names_the_version() -> None:
    assert is_away("v-a").startswith("no server of v-a can be reached")
