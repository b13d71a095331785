"""A simulated teacher of a closed loop: it is right with a given probability, and otherwise gives the answer to another question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
measure = 50
[teacher.terms]
text = "none: the teacher is simulated"
accepted_by = "benchmark"
accepted_on = 2026-01-01
"""
"""The section of the loop file."""


class SimulatedTeacher:
    """Implement the `Teacher` port. The same question always gets the same answer."""

    def __init__(self, accuracy: float, answers: Mapping[str, str], seed: int) -> None:
        """`answers` has the right answers by question, and may grow."""
        self._accuracy, self._answers, self._seed = accuracy, answers, seed

    def ask(self, messages: Sequence[Mapping[str, Any]], requests: int) -> TeacherReply:  # noqa: ARG002 -- of the port
        """Answer a question."""
        asked = str(messages[-1]["content"])
        right = hash_share("teacher", str(self._seed), asked) < self._accuracy
        text = self._answers[asked] if right else self._other(asked)
        return TeacherReply(outcome=TeacherOutcome.ANSWERED, text=text, input_tokens=len(asked) // 4 + 8, output_tokens=len(text) // 4 + 1)

    def _other(self, asked: str) -> str:
        """Return the answer to another question that is not the right one."""
        others = sorted({answer for answer in self._answers.values() if answer != self._answers[asked]})
        return others[int(hash_share("other", str(self._seed), asked) * len(others))]
