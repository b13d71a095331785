"""Port to a teacher, another model that is asked for right answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ratchet.contracts.data.teaching import TeacherReply


class Teacher(Protocol):
    """A model that answers a conversation. Each call sends at least one request, unless nothing can be sent; nothing is remembered."""

    def ask(self, messages: Sequence[Mapping[str, Any]], requests: int) -> TeacherReply:
        """Return what became of one question, for which at most `requests` requests are sent. A failure is an outcome, never raised."""
        ...
