"""Tests of the assignment of sessions to versions: it is stable, monotone in the candidate's weight, and follows the weights."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.serving import Backend
from ratchet.router.assignment import assign, position


def backends(*weights: float) -> tuple[Backend, ...]:
    """Return backends v0, v1, … with these weights."""
    return tuple(Backend(tag=f"v{i}", url="http://x", model="m", weight=weight) for i, weight in enumerate(weights))


@given(st.text(), st.text(), st.text())
def test_the_position_of_a_session_is_stable(line: str, session: str, salt: str) -> None:
    at = position(line, session, salt)
    assert 0 <= at < 100
    assert at == position(line, session, salt)


def test_sessions_of_the_candidate_cannot_be_found_without_the_salt() -> None:
    sessions = [f"s-{n}" for n in range(20_000)]
    unsalted = [session for session in sessions if position("line", session) < 5]
    assert len(unsalted) > 800
    for salt in ("one", "two"):
        assert abs(sum(position("line", session, salt) < 5 for session in unsalted) / len(unsalted) - 0.05) < 0.03


@given(st.text(max_size=20), st.text(max_size=5), st.floats(0, 100), st.floats(0, 100))
def test_a_session_of_the_candidate_stays_with_it_at_any_higher_weight(session: str, salt: str, one: float, two: float) -> None:
    low, high = sorted((one, two))
    at = position("line", session, salt)
    if assign(backends(100 - low, low), at).tag == "v1":
        assert assign(backends(100 - high, high), at).tag == "v1"


@given(st.lists(st.floats(0, 100), min_size=1, max_size=4).filter(lambda weights: sum(weights) > 1e-6), st.floats(0, 100))
def test_a_backend_of_weight_zero_gets_no_sessions(weights: list[float], at: float) -> None:
    assert assign(backends(*weights), at).weight > 0


@pytest.mark.slow
def test_the_shares_follow_the_weights() -> None:
    for weight in (1, 5, 25, 50, 95):
        route = backends(100 - weight, weight)
        met = sum(assign(route, position("line", f"session {i}")).tag == "v1" for i in range(20_000)) / 20_000
        assert abs(met - weight / 100) < 0.012


def test_positions_differ_between_lines() -> None:
    same = sum(abs(position("a", f"s{i}") - position("b", f"s{i}")) < 1 for i in range(2000))
    assert same < 80
