"""Reads one model call with the first dialect that has it whole, and tells model calls from other spans and observations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ratchet.contracts.conversation import Conversation, Message, is_answer, text_of
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.canonical.exchange import Record
from ratchet.materializer.dialects.conversations import gemini, langfuse, mlflow, openinference, openllmetry, otel_genai, vercel
from ratchet.materializer.dialects.otlp_attributes import Attributes
from ratchet.materializer.dialects.screening.placeholders import check_redacted
from ratchet.materializer.dialects.values import dump, fits

Reader = Callable[[Record], Conversation | None]

_OF_ATTRIBUTES: tuple[Reader, ...] = (
    *(otel_genai.read, openllmetry.read, vercel.read, gemini.read, openinference.read, mlflow.read, langfuse.read),
)
_OF_BODIES: tuple[Reader, ...] = (langfuse.read, *_OF_ATTRIBUTES[:-1])

_MOST_OF_PLACEHOLDER = 200
_OPERATIONS = frozenset({"chat", "text_completion", "generate_content", "completion", "responses", "call_llm"})
_AI_SDK_CALLS = (".doGenerate", ".doStream")


def is_generation(attributes: Attributes) -> bool:
    """Return whether a span is one call of a language model.

    Calls of tools, agents, chains, embedding models and plain HTTP are not, and neither are the outer spans of the Vercel AI SDK, which
    contain one or several calls.
    """
    if attributes.is_call is None:
        attributes.is_call = _is_call(attributes)
    return attributes.is_call


def _is_call(attributes: Attributes) -> bool:
    operation = attributes.get("ai.operationId")
    if isinstance(operation, str):
        return operation.endswith(_AI_SDK_CALLS)
    kind = attributes.get("openinference.span.kind")
    if isinstance(kind, str):
        return kind.upper() == "LLM" and not openinference.is_around_call(attributes)
    observed = attributes.get("langfuse.observation.type")
    if isinstance(observed, str):
        return observed.lower() == "generation"
    of_mlflow = mlflow.is_call(attributes)
    if of_mlflow is not None:
        return of_mlflow
    given = attributes.get("gen_ai.operation.name")
    if given is not None:
        return isinstance(given, str) and given in _OPERATIONS
    if attributes.get("traceloop.span.kind") is not None:
        return False
    requested = attributes.get("llm.request.type")
    if requested is not None:
        return requested in ("chat", "completion")
    return any(name in attributes for name in ("gen_ai.request.model", "gcp.vertex.agent.llm_request"))


def read_conversation(record: Record) -> Conversation:
    """Return the conversation of a model call, from the first dialect that has a prompt and an answer.

    The result lacks one of them if no dialect has both. Raises Rejected: `no_content` if no dialect has anything, or the first reason why
    the content cannot be read completely.
    """
    rejected: Rejected | None = None
    part: Conversation | None = None
    for read in _OF_BODIES if record.input is not None or record.output is not None else _OF_ATTRIBUTES:
        try:
            found = read(record)
        except Rejected as error:
            rejected = rejected or error
            continue
        except RecursionError:
            rejected = rejected or Rejected("too_deep", "the content nests too deeply")
            continue
        if found is not None and found.messages and found.answer is not None:
            if _has_lost_calls(found, record):
                rejected = rejected or Rejected("lost_calls", "the answer ended with tool calls, which the record does not have")
                continue
            return found
        part = part or found
    if rejected is not None:
        raise rejected
    if part is None:
        raise Rejected("no_content", "the record has no prompt and no answer in a supported dialect")
    return part


_CALLED = ("tool_calls", "tool-calls", "tool_use", "tool_call", "function_call")


def _has_lost_calls(found: Conversation, record: Record) -> bool:
    """Return whether the model ended its answer by calling tools, but the answer has no calls."""
    if found.answer is None or found.answer.get("tool_calls"):
        return False
    reasons, of_sdk = record.attributes.get("gen_ai.response.finish_reasons"), record.attributes.get("ai.response.finishReason")
    told = [found.finish, of_sdk, mlflow.stream_finish(record), *(reasons if isinstance(reasons, list) else [reasons])]
    return any(isinstance(reason, str) and reason.strip('[]"').lower() in _CALLED for reason in told)


def checked(conversation: Conversation, answered: bool, placeholders: Sequence[str] = ()) -> Conversation:
    """Return the conversation if it has a prompt, an answer if `answered`, no text that a tool has redacted, and a size that is stored.

    `placeholders` are texts of the operator's tools in place of content. Raises Rejected `empty_prompt`, `empty_response`,
    `redacted_content` or `too_large`.
    """
    if answered and not (conversation.answer and is_answer(conversation.answer)):
        raise Rejected("empty_response", "the answer has no text and calls no tool")
    if not any(text_of(message).strip() for message in conversation.messages):
        raise Rejected("empty_prompt", "the prompt has no text")
    answer = [conversation.answer] if conversation.answer else []
    calls = [dump(message["tool_calls"]) for message in (*conversation.messages, *answer) if message.get("tool_calls")]
    check_redacted([text for message in (*answer, *conversation.messages) for text in _texts(message)], placeholders)
    fits(
        *(text_of(message) for message in (*answer, *conversation.messages)),
        *calls,
        dump(conversation.tools) if conversation.tools else None,
    )
    return conversation


def _texts(message: Message) -> list[str]:
    """Return the texts of a message one by one: its content or the texts and addresses of its parts, and the arguments of its calls."""
    content = message["content"]
    parts = [part.get("text", _address(part)) for part in content if isinstance(part, dict)] if isinstance(content, list) else [content]
    arguments = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
    return [text for text in (*parts, *arguments) if isinstance(text, str)]


def _address(part: dict[str, Any]) -> str | None:
    """Return the address or the data of an image, without the type in front of its data; None if it is too long for a placeholder."""
    held = part.get("image_url")
    address = held.get("url") if isinstance(held, dict) else None
    if not isinstance(address, str) or len(address) >= _MOST_OF_PLACEHOLDER or address.startswith("@@@langfuse"):
        return None
    return address.rpartition(",")[2]
