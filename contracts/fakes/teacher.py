"""Fake of the port `Teacher`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ratchet.contracts.data.teaching import TeacherOutcome, TeacherReply


class FakeTeacher:
    """`Teacher` whose replies a function gives: a text, or the outcome of a question without an answer."""

    def __init__(self, reply: Callable[[Sequence[Mapping[str, Any]]], str | TeacherOutcome]) -> None:
        self.reply = reply
        self.asked: list[Sequence[Mapping[str, Any]]] = []

    def ask(self, messages: Sequence[Mapping[str, Any]], requests: int) -> TeacherReply:  # noqa: ARG002 -- of the port
        """Return the configured reply, and remember the question. It takes one request."""
        self.asked.append(messages)
        found = self.reply(messages)
        if isinstance(found, TeacherOutcome):
            return TeacherReply(outcome=found, detail=f"the teacher is {found}")
        return TeacherReply(outcome=TeacherOutcome.ANSWERED, text=found, input_tokens=100, output_tokens=10)
