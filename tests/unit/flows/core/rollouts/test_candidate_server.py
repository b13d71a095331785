"""Tests of what follows from times in which the candidate's server does not answer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from ratchet.contracts.serving import Outage
from ratchet.flows.core.rollouts.candidate_server import TIMES, away_too_often, is_away

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def outages(number: int) -> list[Outage]:
    return [Outage(since=NOW + timedelta(minutes=n), until=NOW + timedelta(minutes=n, seconds=9)) for n in range(number)]


def test_a_few_times_are_forgiven_and_the_next_one_ends_the_rollout() -> None:
    assert away_too_often(outages(TIMES - 1), False, "v-a") is None
    told = away_too_often(outages(TIMES - 1), True, "v-a")
    assert told is not None
    assert told.startswith(f"the server of v-a did not answer {TIMES} times")
    assert "`ratchet candidate add`" in told
    assert away_too_often(outages(TIMES), False, "v-a") == told


def test_the_reason_to_hold_names_the_version() -> None:
    assert is_away("v-a").startswith("the server of v-a does not answer")
