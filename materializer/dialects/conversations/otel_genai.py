"""OpenTelemetry conventions for generative AI: attributes, `operation.details` events, and the messages events of older versions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import orjson

from ratchet.contracts.conversation import Conversation, Message
from ratchet.contracts.errors import Rejected
from ratchet.contracts.ids import INSTRUCTIONS
from ratchet.materializer.dialects.canonical.exchange import (
    Event,
    Record,
    Reply,
    Request,
    answer_of,
    conversation,
    finish_of,
    system_message,
)
from ratchet.materializer.dialects.canonical.reasoning import may_reason
from ratchet.materializer.dialects.canonical.tools import named, unwrapped
from ratchet.materializer.dialects.canonical.turns import messages_of, with_split_calls
from ratchet.materializer.dialects.conversations.bodies import reply_of, request_of, tools_beside
from ratchet.materializer.dialects.conversations.plain_text import unwrapped_text
from ratchet.materializer.dialects.otlp_attributes import Attributes
from ratchet.materializer.dialects.people.told import as_object
from ratchet.materializer.dialects.screening.capture import is_bare
from ratchet.materializer.dialects.values import parse_json

DETAILS = "gen_ai.client.inference.operation.details"
ROLES = {
    "gen_ai.system.message": "system",
    "gen_ai.developer.message": "developer",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
"""Event of a message -> its role."""
CHOICE = "gen_ai.choice"
_EVENTS = (*ROLES, CHOICE, DETAILS, "gen_ai.content.prompt", "gen_ai.content.completion", "gen_ai.evaluation.result")
_JSON = re.compile(r'\s*(?:\{\s*["}]|\[\s*[{\["\]])')
_OF_BEDROCK = frozenset({"text", "toolUse", "toolResult", "reasoningContent", "image", "document"})
"""The one key of a part of Bedrock's API."""
_PRINTED = (
    *("media_resolution=", "video_metadata=", "inline_data=", "file_data=", "executable_code=", "code_execution_result=", "thought="),
    *("code='", 'code="', "outcome="),
)
"""Beginnings of the printed forms of the parts of Gemini's library."""
_BEGINNINGS = ('{"', "{'", *_PRINTED)
"""Beginnings of texts that are blocks: as JSON, as Python prints them, or in a printed form."""
_BLOCKS_OF_BEDROCK = ("reasoningContent", "cachePoint", "image", "document", "video", "searchResult", "citationsContent")
_BLOCKS_OF_ANTHROPIC = ("document", "search_result", "image", "container_upload")
_STATE = "completed"
"""State of an item of the Responses API, which exporters write as the finish reason of a message."""
_INPUT, _OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"


def read(record: Record) -> Conversation | None:
    """Read a call of the conventions, in the newest form that the record has."""
    if (plain := _plain(record)) is not None:
        return plain
    details = [attributes for name, attributes in record.events if name == DETAILS]
    if _INPUT in record.attributes or _OUTPUT in record.attributes or details:
        return _current(_joined(record.attributes, details), record)
    events = [*record.events, *_listed_events(record.attributes)]
    if any(name in ROLES or name == CHOICE for name, _ in events):
        return _of_events(events, record)
    return _contents(record)


def _plain(record: Record) -> Conversation | None:
    """Read a call whose messages have one text each and nothing else; None for any other call. `_current` reads it in the same way."""
    attributes = record.attributes
    if record.events or not _has_plain_keys(tuple(attributes)):
        return None
    asked, answered = attributes.get(_INPUT), attributes.get(_OUTPUT)
    if not isinstance(asked, str) or not isinstance(answered, str) or attributes.get("gen_ai.provider.name") == "strands-agents":
        return None
    try:
        given, replies = orjson.loads(asked), orjson.loads(answered)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(given, list) or not given or not isinstance(replies, list) or len(replies) != 1 or not isinstance(replies[0], dict):
        return None
    messages = [_plain_message(item) for item in given]
    finish = replies[0].pop("finish_reason", None)
    answer = _plain_message(replies[0])
    if (
        answer is None
        or answer["role"] != "assistant"
        or not (finish is None or isinstance(finish, str))
        or any(one is None for one in messages)
    ):
        return None
    return Conversation([one for one in messages if one is not None], answer, finish=finish_of(finish))


@lru_cache(maxsize=4096)
def _has_plain_keys(keys: tuple[str, ...]) -> bool:
    """Return whether a call has its messages in the current form, and no attribute that may add something to them."""
    return _INPUT in keys and _OUTPUT in keys and not any(key.startswith(_MORE) or key in _MORE_KEYS for key in keys)


_MORE = ("llm.", "ai.", "mlflow.", "langfuse.", "traceloop.", "openinference.", "input.", "output.", "gcp.")
_MORE_KEYS = frozenset(
    {
        *("gen_ai.system_instructions", "gen_ai.tool.definitions", "gen_ai.request.tools", "gen_ai.system", "events"),
        *("model_request_parameters", "all_messages_events"),
    }
)
_PLAIN_ROLES = frozenset({"system", "developer", "user", "assistant"})


def _plain_message(item: Any) -> Message | None:
    """Return a message with one text in the canonical form; None for any other."""
    if not isinstance(item, dict) or item.keys() != {"role", "parts"} or not isinstance(item["role"], str):
        return None
    role, parts = item["role"], item["parts"]
    part = parts[0] if isinstance(parts, list) and len(parts) == 1 else None
    if role not in _PLAIN_ROLES or not isinstance(part, dict) or part.keys() != {"type", "content"} or part["type"] != "text":
        return None
    text = part["content"]
    if not isinstance(text, str) or "\x00" in text or _may_be_block(text):
        return None
    if role == "assistant" and (not text.strip() or text[0] == "{" or text[0].isspace() or may_reason(text)):
        return None
    return {"role": role, "content": text}


def _joined(attributes: Attributes, details: Sequence[Attributes]) -> Attributes:
    """Return the content of a call whose parts are in the attributes of its span and of several events, as Strands writes them."""
    found: dict[str, Any] = {}
    for holder in (attributes, *details):
        for key in (_INPUT, _OUTPUT, "gen_ai.system_instructions", "gen_ai.tool.definitions"):
            value = holder.get(key)
            if value is None:
                continue
            if key in found and unwrapped_text(found[key]) != unwrapped_text(value):
                raise Rejected("not_one_answer", f"the events of the call have different values of {key}")
            found[key] = value
    return Attributes.of_values(found)


def _current(attributes: Attributes, record: Record) -> Conversation | None:
    asked, answered = attributes.get(_INPUT), attributes.get(_OUTPUT)
    if is_bare(asked) and (answered is None or is_bare(answered)):
        raise Rejected("no_content", "the exporter has left out the texts of the messages")
    strands = record.attributes.get("gen_ai.provider.name", "gen_ai.system") == "strands-agents"
    request = request_of(_with_results(_without_items(_structured(asked))) if strands else _without_items(_structured(asked)))
    if request is not None:
        request = Request(with_split_calls(request.messages), request.tools)
    system = system_message(unwrapped_text(attributes.get("gen_ai.system_instructions")))
    if system and asked is not None:  # instructions without the messages that followed are only a part
        given = request.messages if request else []
        is_repeated = bool(given) and given[0] == system[0]
        request = Request(given if is_repeated else [*system, *given], request.tools if request else [])
    reply = _answered(_structured(answered), unwrapped_text(record.attributes.get("gen_ai.response.finish_reasons")))
    return conversation(request, reply, tools_beside(Record(attributes)) or tools_beside(record))


def _without_items(messages: Any) -> Any:
    """Return messages without texts that are items or blocks of an API, which exporters write as texts if they have no part for them.

    Calls that their message has, reasoning and cache points are left out; the text of guarded content, and blocks of other kinds, are the
    parts that they are. So a document is not taken for a text. A call that its message does not have stays. A message with nothing else
    is left out, too.
    """
    if not isinstance(messages, list):
        return messages
    opened = [item | {"parts": _opened(item["parts"], item.get("role") == "assistant")} if _has_parts(item) else item for item in messages]
    return [item for item, given in zip(opened, messages, strict=True) if item is given or item["parts"] or not given["parts"]]


def _opened(parts: list[Any], of_model: bool) -> list[Any]:
    if not any(isinstance(part, dict) and _may_be_block(part.get("content")) for part in parts):
        return parts
    calls = {one.get("id") for one in parts if isinstance(one, dict) and one.get("type") == "tool_call"}
    return [made for part in parts for made in _of_block(part, calls, of_model)]


def _may_be_block(text: Any) -> bool:
    return isinstance(text, str) and text.startswith(_BEGINNINGS)


def _of_block(part: Any, calls: set[Any], of_model: bool) -> list[Any]:
    """Return the parts that a part stands for: itself, unless it is a text that is an item or a block of an API.

    `calls` are the ids of the calls of its message, and `of_model` says whether the model has written the message.
    """
    text = part.get("content") if isinstance(part, dict) and part.get("type") == "text" else None
    item = as_object(text) if _may_be_block(text) else {}
    if text is not None and text.startswith(_PRINTED) and ("=None " in text or "=<" in text):
        raise Rejected("repr", "a text is the printed form of a part, which is not read")
    kind = item.get("type")
    if kind is None and len(item) == 1:
        [(key, value)] = item.items()
        if key == "guardContent" and isinstance(value, dict) and isinstance(value.get("text"), dict):
            return [{"type": "text", "content": value["text"].get("text")}]
        if not isinstance(value, dict) or key not in _BLOCKS_OF_BEDROCK:
            return [part]
        return [] if key in ("reasoningContent", "cachePoint") else [item]
    if kind == "output_text" and of_model:
        return [{"type": "text", "content": item["text"]}] if isinstance(item.get("text"), str) and "annotations" in item else [part]
    if kind == "function_call":
        return [] if item.get("call_id") in calls else [part]
    if kind == "reasoning":
        return [] if isinstance(item.get("summary"), list) and str(item.get("id")).startswith("rs_") else [part]
    if kind == "redacted_thinking":
        return [] if isinstance(item.get("data"), str) else [part]
    if kind == "thinking":
        return [] if isinstance(item.get("signature"), str) else [part]
    return [item] if kind in _BLOCKS_OF_ANTHROPIC and _is_file(item) else [part]


def _is_file(item: dict[str, Any]) -> bool:
    source = item.get("source")
    kinds = ("base64", "text", "url", "content", "file")
    return isinstance(source, str) or (isinstance(source, dict) and (source.get("type") in kinds or "file_id" in source))


def _with_results(messages: Any) -> Any:
    """Return messages of Strands, which writes the result of a tool as the content that Bedrock's API has, with that content as parts."""
    if not isinstance(messages, list):
        return messages
    return [item | {"parts": [_result(part) for part in item["parts"]]} if _has_parts(item) else item for item in messages]


def _result(part: Any) -> Any:
    if not isinstance(part, dict) or part.get("type") != "tool_call_response" or not isinstance(part.get("response"), list):
        return part
    return {"toolResult": {"toolUseId": part.get("id"), "content": part["response"]}}


def _has_parts(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("parts"), list)


def _structured(value: Any) -> Any:
    """Return a value; text that begins like a list or object must be one."""
    return parse_json(value) if isinstance(value, str) and _JSON.match(value) else value


def _answered(written: Any, reasons: Any) -> Reply | None:
    """Return the answer. `reasons` are the finish reasons of the call.

    Several messages are choices, of which the first counts, or the items of one answer of the Responses API, which are put together. Items
    have no finish reason, or their state as one, and something that no choice has: their state, reasoning, or calls without a text.

    Raises Rejected `not_one_answer` if it is unclear, and calls would be lost.
    """
    written, output = unwrapped_text(written), unwrapped_text(_without_items(unwrapped_text(written)))
    listed = isinstance(output, list) and all(isinstance(item, dict) and "parts" in item and "role" in item for item in output)
    if not listed or len(written) < 2 or not output:
        return reply_of(output, own_json=False)
    if any(item["role"] != "assistant" for item in output):
        raise Rejected("not_one_answer", "the output has messages that no model writes")
    reasons = [one for one in reasons if one != _STATE] if isinstance(reasons, list) else []
    of_items = all(item.get("finish_reason") in (None, "", _STATE) and _has_parts(item) for item in output)
    marked = len(output) < len(written) or any(item.get("finish_reason") == _STATE or _only_calls(item) for item in output)
    if (of_items and marked and len(reasons) not in (len(written), len(output))) or (of_items and len(output) == 1):
        return reply_of([output[-1] | {"parts": [part for item in output for part in item["parts"]]}])
    each = len(reasons) == len(output) or all(item.get("finish_reason") for item in output)
    if not each and not _calls(output[0]) and any(map(_calls, output)):
        raise Rejected("not_one_answer", "the output has several messages, and it is not known whether they are one answer")
    return reply_of(output[:1])


def _only_calls(item: dict[str, Any]) -> bool:
    return _calls(item) and all(isinstance(part, dict) and part.get("type") == "tool_call" for part in item["parts"])


def _calls(item: dict[str, Any]) -> bool:
    return _has_parts(item) and any(isinstance(part, dict) and part.get("type") == "tool_call" for part in item["parts"])


def _listed_events(attributes: Attributes) -> list[Event]:
    """Return the events that Logfire and Pydantic AI write as one attribute."""
    listed = unwrapped(attributes.get("events"))
    if not isinstance(listed, list):
        return []
    events = [item for item in listed if isinstance(item, dict) and isinstance(item.get("event.name"), str)]
    known = [item for item in events if item["event.name"] in _EVENTS]
    if known and len(known) < len(listed):
        raise Rejected("unknown_part", "an event of the attribute `events` is unknown")
    return [(item["event.name"], Attributes.of_values(item)) for item in events]


def _of_events(events: Sequence[Event], record: Record) -> Conversation | None:
    other = next((name for name, _ in events if name.startswith("gen_ai.") and name not in _EVENTS), None)
    if other is not None:
        raise Rejected("unknown_part", f"the event {named(other)} is unknown")
    asked = [message for name, attributes in events if name in ROLES for message in _event_messages(name, attributes)]
    choices = [attributes for name, attributes in events if name == CHOICE]
    if asked and all(message["role"] in INSTRUCTIONS for message in asked):
        raise Rejected("lost_messages", "the events of the call have no message but its instructions")
    request = Request(asked) if asked else None
    return conversation(request, _choice(_first_choice(choices)) if choices else None, tools_beside(record))


def _first_choice(choices: Sequence[Attributes]) -> Attributes:
    """Return the first of several choices. Raises Rejected `not_one_answer` if another one has the same index and another content."""
    first = _body(choices[0])
    for other in map(_body, choices[1:]):
        if str(other.get("index", 0)) == str(first.get("index", 0)) and other != first:
            raise Rejected("not_one_answer", "two choices of the call have the same index")
    return choices[0]


def _event_messages(name: str, attributes: Attributes) -> list[Message]:
    body = _body(attributes)
    is_result = name == "gen_ai.tool.message"  # OpenTelemetry's library for Vertex AI names the user here
    role = body.get("role") if isinstance(body.get("role"), str) and not is_result else ROLES[name]
    calls = unwrapped(body.get("tool_calls"))
    identity = body.get("id") if role == "tool" else None
    answers = {"tool_call_id": identity} if isinstance(identity, str) else {}
    content = {"content": unwrapped_parts(body["content"])} if "content" in body else {}
    item = {**content, **answers, **{key: body[key] for key in ("tool_call_id", "name") if isinstance(body.get(key), str)}}
    return messages_of({**item, "role": role, "tool_calls": calls})


def unwrapped_parts(content: Any) -> Any:
    """Return a content, parsed if it is a list of typed parts as text, which is how flat attributes carry one."""
    if isinstance(content, str) and content.lstrip().startswith("[{"):
        found = unwrapped_text(content)
        if isinstance(found, list) and all(isinstance(part, dict) and _is_part(part) for part in found):
            return found
    return content


def _is_part(part: dict[str, Any]) -> bool:
    return isinstance(part.get("type"), str) or (len(part) == 1 and bool(_OF_BEDROCK & part.keys()))


def _body(attributes: Attributes) -> dict[str, Any]:
    """Return what an event says: in its attributes, in `gen_ai.event.content` (Azure) or in the body of a log record."""
    for key in ("gen_ai.event.content", "body"):
        found = unwrapped(attributes.get(key))
        if isinstance(found, dict):
            return found
    return attributes.plain()


def _choice(attributes: Attributes) -> Reply:
    body = _body(attributes)
    inner = unwrapped_text(body.get("message", body.get("content")))
    message = inner if isinstance(inner, dict) else {"content": unwrapped_parts(inner)}
    calls = message.get("tool_calls") or unwrapped(body.get("tool_calls"))
    item = {**message, "role": "assistant", "tool_calls": calls, "content": message.get("content")}
    return Reply(answer_of([item]), finish_of(body.get("finish_reason")))


def _contents(record: Record) -> Conversation | None:
    """Read prompts and completions that are one attribute each, of the span or of its `gen_ai.content.*` events."""
    holders = [record.attributes, *(attributes for name, attributes in record.events if name.startswith("gen_ai.content."))]
    asked = next((value for holder in holders if (value := holder.get("gen_ai.prompt", "gen_ai.input")) is not None), None)
    answered = next((value for holder in holders if (value := holder.get("gen_ai.completion", "gen_ai.output")) is not None), None)
    if asked is None and answered is None:
        return None
    return conversation(request_of(asked), reply_of(answered), tools_beside(record))
