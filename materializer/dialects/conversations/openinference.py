"""OpenInference (Arize): indexed attributes `llm.input_messages.N.*`, and the bodies in `input.value` and `output.value`."""

from __future__ import annotations

from typing import Any

from ratchet.contracts.conversation import Conversation, Message, text_of
from ratchet.contracts.errors import Rejected
from ratchet.contracts.ids import INSTRUCTIONS
from ratchet.materializer.dialects.canonical.exchange import Record, Reply, Request, answer_of, conversation
from ratchet.materializer.dialects.canonical.printed import printed_messages
from ratchet.materializer.dialects.canonical.turns import messages_of, paired, with_split_calls
from ratchet.materializer.dialects.conversations.bodies import reply_of, request_of, tools_beside
from ratchet.materializer.dialects.conversations.plain_text import unwrapped_text
from ratchet.materializer.dialects.otlp_attributes import Attributes

_INPUT, _OUTPUT = "llm.input_messages", "llm.output_messages"
_OF_LLAMA_INDEX = "ChatMessage(role=<MessageRole."


def is_around_call(attributes: Attributes) -> bool:
    """Return whether a span prepares a call or contains the span of it. LlamaIndex marks these spans as calls, too.

    They have the arguments of a function as input, with printed messages, and no indexed messages.
    """
    asked = attributes.get("input.value")
    if not isinstance(asked, str) or _OF_LLAMA_INDEX not in asked or f"{_INPUT}.0.message.role" in attributes:
        return False
    try:
        given = unwrapped_text(asked)
    except Rejected:
        return False
    listed = [given.get(key) for key in ("messages", "chat_history")] if isinstance(given, dict) else []
    printed = [item for one in listed if isinstance(one, list) for item in one]
    return bool(printed) and all(isinstance(item, str) and item.startswith(_OF_LLAMA_INDEX) for item in printed)


def read(record: Record) -> Conversation | None:
    """Read the attributes of a span. The indexed messages have priority over the bodies."""
    attributes = record.attributes
    asked, answered = attributes.indexed(_INPUT), attributes.indexed(_OUTPUT)
    values = attributes.get("input.value"), attributes.get("output.value")
    if not asked and not answered and values == (None, None):
        return None
    request = _request(attributes, values[0]) if asked else _completion(attributes) or request_of(values[0])
    return conversation(request, _reply(attributes, values[1]), tools_beside(record))


def _request(attributes: Attributes, body: Any) -> Request:
    """Return the indexed messages.

    If the body has another number of messages, the exporter has lost some. Then the body counts, if the indexed messages agree with it.
    """
    fields = attributes.indexed(_INPUT)
    count = _count(body)
    try:
        listed = attributes.listed(_INPUT)
        if count not in (None, len(listed)):
            raise Rejected("lost_messages", f"{_INPUT} has {len(listed)} messages, the body has {count}")
        messages = [message for item in listed if not _is_reasoning(item) for message in messages_of(_item(item))]
        messages = messages if count is not None else with_split_calls(messages)
        if any(message["role"] == "tool" and not message["tool_call_id"] for message in messages):
            paired(messages)
        return _with_items(Request(messages), body, fields)
    except Rejected:
        complete = printed_messages(unwrapped_text(body))
        if complete is not None and _agree(complete, fields, attributes):
            return Request(complete)
        whole = _of_body(body, fields)
        if whole is None:
            raise
        return whole


def _with_items(request: Request, body: Any, fields: list[dict[str, Any]]) -> Request:
    """Return the request of a Responses body if it has all indexed messages, because the exporter leaves images and other items out.

    Raises Rejected if such a body cannot be read whole: it may have what the indexed messages lack.
    """
    try:
        value = unwrapped_text(body)
    except Rejected:
        return request
    keys = ("input", "contents", "messages")
    items = next((value[key] for key in keys if value.get(key)), None) if isinstance(value, dict) else value
    if not isinstance(items, list) or not any(isinstance(item, dict) and ("type" in item or _has_parts(item)) for item in items):
        return request
    if any(isinstance(item, dict) and ("lc" in item or item.get("type") in ("human", "ai", "system", "constructor")) for item in items):
        return request
    is_chat = isinstance(value, dict) and items is not value.get("input")
    try:
        whole = request_of(value)
    except Rejected as error:
        if is_chat and error.reason != "unknown_part":
            return request
        raise
    found = _of_body(value, fields)
    if found is None and _results(whole) > _results(request):
        raise Rejected("lost_messages", "the indexed messages lack results of tools that the body has")
    return found or request


def _results(request: Request | None) -> int:
    return sum(message["role"] == "tool" for message in request.messages) if request else 0


def _has_parts(item: dict[str, Any]) -> bool:
    return isinstance(item.get("content"), list) or isinstance(item.get("parts"), list)


def _of_body(body: Any, fields: list[dict[str, Any]]) -> Request | None:
    """Return the request of the body if the indexed messages are some of its messages, in their order; None otherwise.

    The exporter leaves out items that are no messages, such as reasoning, and counts instructions that a request does not have. The body
    of an agent lacks the instructions, which are the first indexed message.
    """
    try:
        found = request_of(body)
    except Rejected:
        return None
    if found is None:
        return None
    given = _shown_messages(fields)
    first = given[0] if given else None
    if first is not None and first[0] in INSTRUCTIONS and all(_shown_message(one) != first for one in found.messages):
        found = Request([{"role": first[0], "content": first[1]}, *found.messages], found.tools)
    at = 0
    for one in given:
        while at < len(found.messages) and not _is_shown(found.messages, at, one):
            at += 1
        if at == len(found.messages):
            return None
        at += 1
    return found


def _is_shown(messages: list[Message], at: int, one: tuple[str, str]) -> bool:
    """Return whether an indexed message is the message at a place. Gemini's results of tools are indexed as one message of the user."""
    if _shown_message(messages[at]) == one:
        return True
    if messages[at]["role"] != "tool" or one[0] not in ("user", "tool"):
        return False
    text, given = "", "".join(one[1].split())
    for message in messages[at:]:
        if message["role"] != "tool":
            return False
        text += "".join(_shown_message(message)[1].split())
        if text == given:
            return True
    return False


def _is_reasoning(fields: dict[str, Any]) -> bool:
    """Whether an indexed message is an item of reasoning."""
    types = [value for key, value in fields.items() if key.startswith("message.contents.") and key.endswith(".message_content.type")]
    rest = [key for key in fields if key != "message.role" and not key.startswith("message.contents.")]
    return bool(types) and not rest and all(kind == "reasoning" for kind in types)


def _shown_messages(fields: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the indexed messages as far as they can be read, for a comparison with those of the body."""
    made: list[Message] = []
    for item in fields:
        if _is_reasoning(item):
            continue
        try:
            read = messages_of(_item(item, gaps=True))
        except Rejected:
            read = []
        made += read if len(read) == 1 else [{"role": "", "content": ""}]
    return [_shown_message(message) for message in with_split_calls(made)]


def _shown(fields: dict[str, Any]) -> tuple[str, str]:
    try:
        made = messages_of(_item(fields, gaps=True))
    except Rejected:
        return "", ""
    return _shown_message(made[0]) if len(made) == 1 else ("", "")


def _shown_message(message: Message) -> tuple[str, str]:
    content = message["content"]
    parts = [part.get("text", "") for part in content if part["type"] == "text"] if isinstance(content, list) else [content]
    calls = [call["function"]["name"] for call in message.get("tool_calls") or ()]
    return message["role"], "".join((*parts, *calls))


def _count(body: Any) -> int | None:
    """Return the number of messages of a chat body; None for any other body."""
    try:
        value = unwrapped_text(body)
    except Rejected:
        return None
    listed = value.get("messages") if isinstance(value, dict) else None
    if not isinstance(listed, list) or not listed or isinstance(listed[0], list) or (isinstance(value, dict) and value.get("system")):
        return None
    results = any(isinstance(item, dict) and isinstance(item.get("content"), list) for item in listed)
    return None if results else len(listed)


def _agree(complete: list[Message], fields: list[dict[str, Any]], attributes: Attributes) -> bool:
    """Return whether each indexed message is the one with its index in the body."""
    places = sorted({int(key.split(".")[2]) for key in attributes if key.startswith(f"{_INPUT}.") and key.split(".")[2].isdecimal()})
    for place, given in zip(places, fields, strict=True):
        if place >= len(complete) or given.get("message.role") != complete[place]["role"]:
            return False
        if given.get("message.content") is not None and given["message.content"] != text_of(complete[place]):
            return False
    return bool(places)


def _item(fields: dict[str, Any], gaps: bool = False) -> dict[str, Any]:
    """Return an indexed message as a message of the chat API. Raises Rejected if a part is missing, unless `gaps` may be among them."""
    flat = Attributes.of_values({key.removeprefix("message."): value for key, value in fields.items()})
    calls = [_call(call) for call in flat.listed("tool_calls")]
    name = flat.get("function_call_name")
    if name is not None:
        calls = [{"name": name, "arguments": flat.get("function_call_arguments_json")}]
    parts = [_part(part) for part in (flat.indexed("contents") if gaps else flat.listed("contents"))]
    item = {key: flat.get(key) for key in ("role", "tool_call_id", "name") if flat.get(key) is not None}
    if item.get("role") == "user" and "tool_call_id" in item:  # Bedrock's results of tools
        item["role"] = "tool"
    content = flat.get("content")
    if parts and content is not None and not isinstance(content, str):
        raise Rejected("unknown_part", "a message has content of two kinds")
    if content is None and not parts and not calls:
        return item
    return item | {"content": parts or content, "tool_calls": calls}


def _call(fields: dict[str, Any]) -> dict[str, Any]:
    call = {key.removeprefix("tool_call."): value for key, value in fields.items()}
    return {"id": call.get("id"), "name": call.get("function.name"), "arguments": call.get("function.arguments")}


def _part(fields: dict[str, Any]) -> dict[str, Any]:
    part = {key.removeprefix("message_content."): value for key, value in fields.items()}
    kind = part.get("type")
    if kind == "image" or "image.image.url" in part:
        return {"type": "image_url", "image_url": {"url": part.get("image.image.url", part.get("image.url"))}}
    if kind == "tool_use" and any(key.startswith("tool_call.") for key in part):
        call = _call(part)
        return {"type": kind, "id": call["id"], "name": call["name"], "input": call["arguments"]}
    if kind == "tool_use":
        return {"type": kind, **{key: part.get(key) for key in ("id", "name", "input")}}
    return {"type": kind, "text": part.get("text")}


def _completion(attributes: Attributes) -> Request | None:
    """Return the one prompt of a text completion."""
    texts = [item.get("prompt.text") for item in attributes.listed("llm.prompts") if "prompt.text" in item]
    listed = unwrapped_text(attributes.get("llm.prompts"))
    if not texts and isinstance(listed, list) and all(isinstance(text, str) for text in listed):
        texts = listed
    return request_of(texts[0]) if len(texts) == 1 else None


def _reply(attributes: Attributes, body: Any) -> Reply | None:
    """Return the answer: of the indexed messages if there is one, otherwise of the body, which tells choices from items."""
    try:
        listed = attributes.listed(_OUTPUT)
    except Rejected:  # the exporter counts items that are no messages, such as reasoning
        found = reply_of(body, own_json=False)
        shown = [_shown(item)[1] for item in attributes.indexed(_OUTPUT)]
        if found is None or found.message is None or not all(text and text in _shown_message(found.message)[1] for text in shown):
            raise
        return found
    if len(listed) != 1:
        found = reply_of(body, own_json=attributes.get("output.mime_type") != "application/json")
        texts = [text for item in listed if (text := _shown(item)[1])]
        is_one = len(texts) > 1 and found is not None and found.message is not None and _shown_message(found.message)[1] == texts[-1]
        if not listed or (found is not None and not is_one):
            return found
        raise Rejected("not_one_answer", f"the output has {len(listed)} messages, so it is no single answer")
    finish = None
    try:
        told = reply_of(body)
        finish = told.finish if told else None
    except Rejected:  # the body repeats the answer in a form that is not known
        told = None
    try:
        answer = answer_of([_without_reasoning(_item(listed[0]), body)])
    except Rejected:  # the exporter leaves parts out, such as reasoning
        text = _shown(listed[0])[1]
        whole = _shown_message(told.message)[1] if told is not None and told.message is not None else ""
        if told is None or not text or text not in whole:
            raise
        if whole == f"{listed[0].get('message.role')}: {text}":  # the printed form of LlamaIndex
            return Reply(answer_of([_item(listed[0], gaps=True)]), told.finish)
        return told
    if told is not None and told.message is not None and told.message.get("tool_calls") and not (answer or {}).get("tool_calls"):
        return told  # some exporters lose the calls of the indexed message
    return Reply(answer, finish, told.tools if told else [], told.instructions if told else None)


def _without_reasoning(item: dict[str, Any], body: Any) -> dict[str, Any]:
    """Return a message of the answer with the one text that the body has: smolagents writes reasoning as another text."""
    try:
        stated = unwrapped_text(body)
    except Rejected:
        return item
    text = stated.get("content") if isinstance(stated, dict) and stated.get("role") == item.get("role") else None
    parts = item.get("content")
    if not isinstance(text, str) or not isinstance(parts, list) or len(parts) < 2 or {"type": "text", "text": text} not in parts:
        return item
    if any(not isinstance(part, dict) or part.get("type") != "text" for part in parts):
        return item
    return item | {"content": text}
