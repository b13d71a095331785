"""A dialect for the records of a support chat: {"tool": "support-chat", "id", "at", "question", "reply", …}."""

from __future__ import annotations

from typing import Any

from ratchet.extend import Decoded, FeedbackKind, Limits, Rejected


class SupportChat:
    """Records with `"tool": "support-chat"`. Their stars, 1 to 5, become ratings."""

    name = "support-chat"

    def recognises(self, record: Any) -> bool:
        """Return whether the record names the tool."""
        return isinstance(record, dict) and record.get("tool") == "support-chat"

    def decode(self, record: Any, position: str, limits: Limits, into: Decoded) -> None:  # noqa: ARG002 -- the port has these arguments
        """Append the trace of a reply, and a rating if the customer gave stars. Automatic greetings are skipped."""
        if record.get("automatic"):
            into.skip("traces", "automatic_reply")
            return
        if "question" not in record:
            raise Rejected("no_question", "the record has no question")
        trace = {
            "id": record.get("id"),
            "time": record.get("at"),
            "user": record.get("customer"),
            "messages": [{"role": "user", "content": record["question"]}],
            "answer": record.get("reply"),
            "consent": record.get("agreed") is True,
            "reference": record.get("expected"),
        }
        into.traces.append(trace)
        if record.get("stars") is not None:
            rating = {"kind": FeedbackKind.RATING.value, "value": (record["stars"] - 1) / 4, "rater": record.get("customer")}
            into.feedback.append({"trace_id": trace["id"], "time": trace["time"], **rating})
