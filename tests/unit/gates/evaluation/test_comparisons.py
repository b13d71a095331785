"""Tests of the paired comparison: which answers count as one observation."""

from __future__ import annotations

from typing import Any

from ratchet.gates.evaluation.comparisons import compare
from ratchet.gates.evaluation.questions import Question


def _conversation(first: str, turns: int) -> list[tuple[Question, float, float]]:
    """Every turn of one conversation, as in the holdout: each prompt contains all earlier messages."""
    said: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    rows = []
    for turn in range(turns):
        said = [*said, {"role": "user", "content": first if turn == 0 else f"turn {turn}"}]
        rows.append((Question("holdout", tuple(said), "r", None), 0.0, 1.0 if turn % 3 else 0.0))
        said = [*said, {"role": "assistant", "content": "a"}]
    return rows


def test_all_turns_of_a_conversation_are_one_observation() -> None:
    assert compare("overall", _conversation("hello", 60), 0.95) is None
    both = compare("overall", _conversation("hello", 60) + _conversation("good day", 3), 0.95)
    assert both is not None
    assert (both.n, both.difference.n) == (2, 2)


def test_different_spellings_of_a_question_are_one_observation() -> None:
    rows = _conversation("What is it?", 1) + _conversation(" what IS\n it?", 1) + _conversation("who is it?", 1)
    compared = compare("overall", rows, 0.95)
    assert compared is not None
    assert compared.n == 2
