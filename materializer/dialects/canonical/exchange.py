"""The two sides of a model call, as the dialects read them, and the conversation that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

from ratchet.contracts.conversation import Conversation, Message, text_of
from ratchet.contracts.errors import Rejected
from ratchet.contracts.ids import INSTRUCTIONS
from ratchet.materializer.dialects.canonical.reasoning import without_reasoning
from ratchet.materializer.dialects.canonical.turns import messages_of, opened, paired
from ratchet.materializer.dialects.otlp_attributes import Attributes
from ratchet.materializer.dialects.values import name

Event: TypeAlias = tuple[str, Attributes]
"""Name and attributes of a span event or a log record."""


@dataclass(frozen=True)
class Record:
    """What a record of any source says about one model call. The dialects read it and change nothing."""

    attributes: Attributes = field(default_factory=lambda: Attributes(None))
    events: Sequence[Event] = ()
    input: Any = None
    """Body of the request where the source has it beside the attributes: text, or any JSON value."""
    output: Any = None
    """Body of the reply."""


@dataclass(frozen=True)
class Request:
    """The messages and tools that the model got."""

    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Reply:
    """What the model wrote."""

    message: Message | None
    finish: str | None = None
    tools: list[dict[str, Any]] = field(default_factory=list)
    """Tools that the reply repeats from its request."""
    instructions: Any = None
    """System instructions that the reply repeats from its request."""


_CUT = frozenset(
    (
        *("length", "max_tokens", "max_output_tokens", "max_completion_tokens", "max_length", "model_length", "token_limit"),
        *("model_context_window_exceeded", "context_window_exceeded", "pause_turn", "incomplete"),
    )
)
_STOPPED = frozenset(
    (
        *("error", "failed", "failure", "timeout", "abort", "aborted", "cancelled", "canceled", "user_cancel", "refusal"),
        *("content_filter", "content_filtered", "safety", "recitation", "blocklist", "prohibited_content", "spii", "language"),
        *("image_safety", "image_prohibited_content", "image_recitation", "image_other", "no_image", "guardrail_intervened"),
        *("malformed_function_call", "malformed_model_output", "malformed_tool_use", "malformed_response", "unexpected_tool_call"),
        *("error_toxic", "error_limit", "error_tool_call", "network_error", "model_armor", "too_many_tool_calls"),
    )
)


def finish_of(*values: Any) -> str | None:
    """Return the first finish reason that is text. All names for a cut answer become `length`."""
    found = next((value for value in values if isinstance(value, str) and value), None)
    return "length" if found is not None and _plain_reason(found) in _CUT else found


def is_stopped(finish: str | None) -> bool:
    """Return whether a finish reason says that the answer was broken off: by an error, or by a filter or guardrail of the provider."""
    return finish is not None and _plain_reason(finish) in _STOPPED


def has_stopped(content: Conversation | None) -> bool:
    """Return whether the answer of a call was broken off, by its own finish reason."""
    return content is not None and is_stopped(content.finish)


def finish_reason(told: Any, content: Conversation | None) -> str | None:
    """Return why an answer ended: what its record tells, or its reply. If one of them says that it was cut, it was cut."""
    own, found = finish_of(name(told)), name(content.finish) if content else None
    return "length" if "length" in (own, found) else own or found


@lru_cache(maxsize=1024)
def _plain_reason(finish: str) -> str:
    """Return a finish reason as all libraries could write it: `FinishReason.MAX_TOKENS` and `max-tokens` become `max_tokens`."""
    return finish.strip().rpartition(".")[2].lower().replace("-", "_").removeprefix("finish_reason_")


def answer_of(items: Sequence[Any], separator: str = "\n") -> Message | None:
    """Return the one assistant message that the items make; None if they say nothing.

    Raises Rejected `not_one_answer` if another role is among them, because then the record is no single model call.
    """
    found = [message for item in items for message in _own(opened(item), separator)]
    if not found:
        return None
    if any(message["role"] != "assistant" for message in found):
        raise Rejected("not_one_answer", "the output has messages that no model writes")
    contents = [message["content"] for message in found if message["content"]]
    calls = [call for message in found for call in message.get("tool_calls", [])]
    content: Any = separator.join(contents) if all(isinstance(one, str) for one in contents) else _parts(contents)
    return {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}


def _own(item: dict[str, Any], separator: str) -> list[Message]:
    try:
        return messages_of(item, separator, answers=True)
    except Rejected as error:
        if error.reason == "empty_message":
            return []
        raise


def _parts(contents: list[Any]) -> list[dict[str, Any]]:
    return [part for one in contents for part in (one if isinstance(one, list) else [{"type": "text", "text": one}])]


def conversation(request: Request | None, reply: Reply | None, tools: Sequence[dict[str, Any]] = ()) -> Conversation | None:
    """Return the conversation of the two sides; None if there is neither. `tools` are used if neither side names any."""
    if request is None and reply is None:
        return None
    messages = [shown for message in (request.messages if request else ()) for shown in without_reasoning(message)]
    answer = reply.message if reply else None
    if answer is not None:
        answer = next(iter(without_reasoning(answer)), {**answer, "content": ""})
    whole = paired([*messages, answer] if answer is not None else messages)
    named = (request.tools if request else []) or (reply.tools if reply else []) or list(tools)
    return Conversation(
        messages=whole[: len(messages)],
        answer=whole[-1] if answer is not None else None,
        tools=named,
        finish=reply.finish if reply else None,
    )


def with_instructions(messages: list[Message], given: Any) -> list[Message]:
    """Return the messages with system instructions that a record names elsewhere, if they are not among its messages."""
    found = system_message(given) if isinstance(given, str | list) else []
    known = {text_of(message).strip() for message in messages if message["role"] in INSTRUCTIONS}
    return [*found, *messages] if found and text_of(found[0]).strip() not in known else messages


def system_message(value: Any) -> list[Message]:
    """Return system instructions as one message; an empty list if there are none. `value` is text, parts, or a content with parts."""
    if value in (None, "", [], {}):
        return []
    if isinstance(value, dict) and "parts" in value:
        value = value["parts"]
    found = messages_of({"role": "system", "content": value})
    return found if text_of(found[0]) else []
