"""Tests of scorers that are unavailable: they are asked again, and an unscored answer never counts as a bad one."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.contracts.errors import Retryable
from ratchet.rewards.scorer_set import Label
from ratchet.trainers.job import online_rewards


@pytest.mark.parametrize(("away", "expected"), [(0, [0.5, None]), (2, [0.5, None])])
def test_scorers_that_recover_score_the_answers(away: int, expected: list[float | None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online_rewards, "PAUSES", (0.0, 0.0))
    calls: list[Any] = []

    def score(samples: Any) -> list[float | None]:
        calls.append(samples)
        return [None, None] if len(calls) <= away else expected

    assert online_rewards.scored(score, [{}, {}]) == expected
    assert len(calls) == away + 1


def test_a_step_without_any_reward_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online_rewards, "PAUSES", (0.0, 0.0))
    with pytest.raises(Retryable, match="every scorer abstained"):
        online_rewards.scored(lambda samples: [None for _ in samples], [{}, {}])


def label(reward: float | None, **parts: float | None) -> Label:
    """Return a label with this reward and the scores of its scorers."""
    return Label(reward, None, parts, 0, frozenset(name for name, score in parts.items() if score is not None))


def test_partly_scored_answers_are_not_compared_with_fully_scored_answers() -> None:
    both = [label(0.5, a=1.0, b=0.0), label(0.75, a=1.0, b=0.5)]
    assert online_rewards.comparable("pppp", [*both, label(0.0, a=None, b=0.0), label(None, a=None, b=None)]) == [0.5, 0.75, None, None]
    assert online_rewards.comparable("pq", [both[0], label(0.0, a=None, b=0.0)]) == [0.5, 0.0], "each group is comparable within itself"
    assert online_rewards.comparable("pp", [label(0.0, a=None, b=0.0), both[0]]) == [None, 0.5], (
        "of equally frequent sets of scorers, the larger one counts"
    )
