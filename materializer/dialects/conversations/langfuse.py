"""Langfuse's own form: `input` and `output` of an observation, in a record of its API and exports, or as attributes of its SDK."""

from __future__ import annotations

from typing import Any

from ratchet.contracts.conversation import Conversation
from ratchet.materializer.dialects.canonical.exchange import Record, conversation
from ratchet.materializer.dialects.canonical.tools import tools_of
from ratchet.materializer.dialects.conversations.bodies import reply_of, request_of, tools_beside

_INPUT, _OUTPUT = "langfuse.observation.input", "langfuse.observation.output"


def read(record: Record) -> Conversation | None:
    """Read the input and output of an observation. They are bodies of any dialect."""
    asked, answered = _bodies(record)
    if asked is None and answered is None:
        return None
    request, reply = request_of(asked), reply_of(answered)
    named = (request.tools if request else []) or (reply.tools if reply else [])
    return conversation(request, reply, [] if named else tools_beside(record) or tools_of(record.attributes.get("langfuse.tools")))


def _bodies(record: Record) -> tuple[Any, Any]:
    if record.input is not None or record.output is not None:
        return record.input, record.output
    return record.attributes.get(_INPUT), record.attributes.get(_OUTPUT)
