"""Tests of the paired comparison: which answers count as one observation."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.loop import GateSettings
from gates.evaluate import PairedEvaluator
from gates.questions import Question


def _conversation(first: str, turns: int) -> list[tuple[Question, float, float]]:
    """Every turn of one conversation, as in the holdout: each prompt contains all earlier messages."""
    said: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    rows = []
    for turn in range(turns):
        said = [*said, {"role": "user", "content": first if turn == 0 else f"turn {turn}"}]
        rows.append((Question("holdout", tuple(said), "r", None), 0.0, 1.0 if turn % 3 else 0.0))
        said = [*said, {"role": "assistant", "content": "a"}]
    return rows


@pytest.fixture
def evaluator() -> PairedEvaluator:
    return PairedEvaluator(None, None, GateSettings())  # type: ignore[arg-type]


def test_all_turns_of_a_conversation_are_one_observation(evaluator: PairedEvaluator) -> None:
    assert evaluator._compare("overall", _conversation("hello", 60)) is None
    both = evaluator._compare("overall", _conversation("hello", 60) + _conversation("good day", 3))
    assert both is not None
    assert (both.n, both.difference.n) == (2, 2)


def test_different_spellings_of_a_question_are_one_observation(evaluator: PairedEvaluator) -> None:
    rows = _conversation("What is it?", 1) + _conversation(" what IS\n it?", 1) + _conversation("who is it?", 1)
    compared = evaluator._compare("overall", rows)
    assert compared is not None
    assert compared.n == 2
