"""Tests of the scorer `latency`, and of scorers that count only beside another one."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.contracts.data.records import FeedbackKind, Tier
from ratchet.contracts.errors import ConfigError
from ratchet.contracts.loop import RewardSettings
from ratchet.rewards.latency import Latency
from ratchet.rewards.scorer_set import build_scorer_set

OPTIONS = {"good_ms": 500, "bad_ms": 1500}


def _sample(latency: float | None, rating: float | None = None) -> dict[str, Any]:
    given = {"kind": FeedbackKind.RATING, "value": rating, "text": None, "rater": "u", "time": None}
    feedback = [given] if rating is not None else []
    return {"prompt": [], "answer": "x", "reference": None, "feedback": feedback, "trace": {"latency_ms": latency}}


def test_the_score_falls_from_good_to_bad() -> None:
    assert Latency(**OPTIONS).score([_sample(ms) for ms in (100, 500, 1000, 1500, 9000, None)]) == [1, 1, 0.5, 0, 0, None]


def test_a_fast_answer_is_not_a_right_one() -> None:
    scorers = build_scorer_set([RewardSettings(name="user_feedback"), RewardSettings(name="latency", tier=Tier.FEEDBACK, options=OPTIONS)])
    labels = scorers.label([_sample(100), _sample(1500, rating=1.0)])
    assert [(label.reward, label.tier) for label in labels] == [(None, None), (0.5, Tier.FEEDBACK)]
    assert labels[0].parts == {"user_feedback": None, "latency": 1.0}


def test_bad_is_above_good() -> None:
    with pytest.raises(ConfigError, match="greater than good_ms"):
        Latency(good_ms=5, bad_ms=5)
