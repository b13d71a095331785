"""Decodes answers of reviewers and of teachers to questions, each about a trace of the line.

A record is {trace, answer, reviewer, time} with a right answer, or {trace, answer, teacher, time} with one that has to prove itself;
`teacher` is the version of the teacher. `trace` is the id of the trace in the source of the batch.
"""

from __future__ import annotations

from typing import Any

from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.contracts.data.records import FeedbackKind
from ratchet.contracts.errors import Rejected
from ratchet.contracts.ports import Dialect
from ratchet.materializer.dialects.values import name, person, short_text, start_time


class ReviewDialect(Dialect):
    """Answers of reviewers and teachers. Only batches in the format `review` have them, which the service makes itself."""

    name = "review"

    def decode(self, record: Any, position: str, limits: Limits, into: Decoded) -> None:
        """Decode one answer into `into`, as a reference or as an answer of a teacher."""
        try:
            if not isinstance(record, dict):
                raise Rejected("wrong_type", f"an answer must be an object, not {type(record).__name__}")
            trace, text = name(record.get("trace")), short_text(record.get("answer"))
            if trace is None:
                raise Rejected("missing_id", "the answer names no trace")
            if text is None:
                raise Rejected("bad_value", "the answer is empty")
            time, teacher = start_time(record.get("time"), limits.now), name(record.get("teacher"))
        except Rejected as error:
            into.reject("feedback", position, error)
            return
        into.feedback.append(
            {
                "trace_id": trace,
                "response_id": None,
                "rater": person(record.get("reviewer")) if teacher is None else None,
                "kind": FeedbackKind.REFERENCE.value if teacher is None else FeedbackKind.TEACHER.value,
                "time": time,
                "value": None,
                "text": text,
                "signal": teacher,
                "position": position,
            }
        )
