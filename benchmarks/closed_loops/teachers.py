"""Simulated teachers of a closed loop, which give the right answer with a probability, and otherwise the answer to another question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.closed_loops.reviewers import another
from benchmarks.recipe_worlds import Question
from ratchet.contracts.data.teaching import TeacherOutcome, TeacherReply
from ratchet.contracts.ids import hash_share

TEACHER = """
[teacher]
url = "http://127.0.0.1:9/v1"
model = "simulated"
region = "here"
regions = ["here"]
consent = "obtained"
input_price = 2.0
output_price = 8.0
max_requests = 100_000
max_cost = 1000
min_agreement = 0.6
measure = 50
[teacher.terms]
text = "none: the teacher is simulated"
accepted_by = "benchmark"
accepted_on = 2026-01-01
"""
"""The section of the loop file."""


SHARES = {"teacher-60": 0.6, "teacher-80": 0.8, "teacher-95": 0.95, "teacher-blind": 0.95}
"""Teacher -> probability of a right answer. The blind one is wrong in each answer to one kind of new questions."""


class SimulatedTeacher:
    """Implement the `Teacher` port. The same question always gets the same answer."""

    def __init__(self, accuracy: float, questions: Mapping[str, Question], seed: int, blind: str | None = None) -> None:
        """`questions` has the questions by prompt, and may grow. `blind` is the slice in which each answer is wrong."""
        self._accuracy, self._questions, self._seed, self._blind = accuracy, questions, seed, blind

    def ask(self, messages: Sequence[Mapping[str, Any]], requests: int) -> TeacherReply:  # noqa: ARG002 -- of the port
        """Answer a question."""
        asked = str(messages[-1]["content"])
        right = self._questions[asked].slice != self._blind and hash_share("teacher", str(self._seed), asked) < self._accuracy
        text = self._questions[asked].answer if right else another(asked, self._questions, self._seed)
        return TeacherReply(outcome=TeacherOutcome.ANSWERED, text=text, input_tokens=len(asked) // 4 + 8, output_tokens=len(text) // 4 + 1)
