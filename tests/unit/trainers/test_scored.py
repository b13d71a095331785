"""Scorers that are away: asked again, and never taken for bad answers."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.errors import Retryable
from trainers.inside import scored


@pytest.mark.parametrize(("away", "expected"), [(0, [0.5, None]), (2, [0.5, None])])
def test_scorers_that_come_back_score(away: int, expected: list[float | None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scored, "PAUSES", (0.0, 0.0))
    calls: list[Any] = []

    def score(samples: Any) -> list[float | None]:
        calls.append(samples)
        return [None, None] if len(calls) <= away else expected

    assert scored.scored(score, [{}, {}]) == expected
    assert len(calls) == away + 1


def test_a_step_without_any_reward_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scored, "PAUSES", (0.0, 0.0))
    with pytest.raises(Retryable, match="every scorer abstained"):
        scored.scored(lambda samples: [None for _ in samples], [{}, {}])
