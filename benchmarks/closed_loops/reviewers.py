"""Simulated reviewers of a closed loop, who answer the questions that the product chooses for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.recipe_worlds import Question
from ratchet.contracts.ids import hash_share
from ratchet.flows.core.asking.review import ReviewAnswer, ReviewQuestion

COUNT = 100
"""Answers per cycle."""
RIGHT = 0.97
"""Probability that a reviewer is right."""


def reviewed(questions: Sequence[ReviewQuestion], known: Mapping[str, Question], seed: int, time: str) -> list[ReviewAnswer]:
    """Return the answers of two reviewers, who share the questions. A wrong answer is the right one to another question.

    `known` has the questions by prompt. `time` is when they are given, ISO 8601.
    """
    return [
        ReviewAnswer(one.prompt_id, one.trace, _answer(str(one.messages[-1]["content"]), known, seed), f"reviewer-{i % 2}", time)
        for i, one in enumerate(questions)
    ]


def _answer(asked: str, known: Mapping[str, Question], seed: int) -> str:
    right = hash_share("reviewer", str(seed), asked) < RIGHT
    return known[asked].answer if right else another(asked, known, seed)


def another(asked: str, known: Mapping[str, Question], seed: int) -> str:
    """Return the answer to another known question that is not the right one."""
    others = sorted({one.answer for one in known.values() if one.answer != known[asked].answer})
    return others[int(hash_share("other", str(seed), asked) * len(others))]
