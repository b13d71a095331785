"""Reads the prompt and the answer of a generation span, in any of several dialects.

Sources: OpenTelemetry semantic conventions for generative AI (current form, the indexed form of older instrumentations,
span events as of 1.36, `operation.details` events), and OpenInference. The first dialect that has content is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from contracts.errors import Rejected
from materializer.dialects.messages import answer_of, prompt_of, structured, system_of
from materializer.dialects.otlp_attributes import Attributes

GENERATIONS = frozenset({"chat", "text_completion", "generate_content", "completion"})
Event = tuple[str, Attributes]


@dataclass(frozen=True)
class Content:
    """Prompt messages, answer and finish reason of one generation."""

    messages: list[dict[str, str]]
    answer: str | None
    finish: str | None = None


def is_generation(attributes: Attributes) -> bool:
    """Return whether the span is one call of a language model, not of a tool, an agent, an embedding model or plain HTTP."""
    operation = attributes.get("gen_ai.operation.name")
    if operation is not None:
        return isinstance(operation, str) and operation in GENERATIONS
    kind = attributes.get("openinference.span.kind")
    if kind is not None:
        return bool(kind == "LLM")
    request = attributes.get("llm.request.type")
    if request is not None:
        return request in ("chat", "completion")
    return "gen_ai.request.model" in attributes


def read_content(attributes: Attributes, events: Sequence[Event]) -> Content:
    """Return the content of a generation.

    Raises Rejected: `no_content` if no dialect has content, or the reason why the content is not readable.
    """
    for dialect in (_current, _details, _indexed, _openinference, _span_events):
        content = dialect(attributes, events)
        if content is not None:
            return content
    raise Rejected("no_content", "the span has no prompt and no answer in a supported dialect")


def _current(attributes: Attributes, _: Sequence[Event]) -> Content | None:
    if "gen_ai.input.messages" not in attributes and "gen_ai.output.messages" not in attributes:
        return None
    answer, finish = answer_of(attributes.get("gen_ai.output.messages"))
    system = system_of(attributes.get("gen_ai.system_instructions"))
    return Content(system + prompt_of(attributes.get("gen_ai.input.messages")), answer, finish)


def _details(_: Attributes, events: Sequence[Event]) -> Content | None:
    details = (attributes for name, attributes in events if name == "gen_ai.client.inference.operation.details")
    found = next(details, None)
    return _current(found, ()) if found is not None else None


def _indexed(attributes: Attributes, _: Sequence[Event]) -> Content | None:
    prompt, output = attributes.indexed("gen_ai.prompt"), attributes.indexed("gen_ai.completion")
    if not prompt and not output:
        return None
    return Content(prompt_of(prompt), *answer_of(output))


def _openinference(attributes: Attributes, _: Sequence[Event]) -> Content | None:
    def messages(prefix: str) -> list[dict[str, Any]]:
        return [{key.removeprefix("message."): value for key, value in item.items()} for item in attributes.indexed(prefix)]

    prompt, output = messages("llm.input_messages"), messages("llm.output_messages")
    if not prompt and not output:
        return None
    return Content(prompt_of(prompt), answer_of(output)[0])


_ROLES = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}


def _span_events(_: Attributes, events: Sequence[Event]) -> Content | None:
    prompt = [{"role": _ROLES[name], "content": attributes.get("content")} for name, attributes in events if name in _ROLES]
    choices = [attributes for name, attributes in events if name == "gen_ai.choice"]
    if not prompt and not choices:
        return None
    if not choices:
        return Content(prompt_of(prompt), None)
    ended = choices[0].get("finish_reason")
    answer = answer_of(structured(choices[0].get("message", "content")))
    return Content(prompt_of(prompt), answer[0], ended if isinstance(ended, str) else None)
