"""Reads the parts of a message, in the forms of all dialects. Each part is recognised by its type or by its one key.

A part of an unknown type rejects the record: a conversation is never kept without one of its parts. Only the reasoning of a model is left
out, because it is no part of the answer that a caller gets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from ratchet.contracts.conversation import Message
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.canonical.tools import call_of, made_call, named
from ratchet.materializer.dialects.values import clean, dump


@dataclass(frozen=True)
class Call:
    """A tool call among the parts of a message, in the canonical form."""

    call: dict[str, Any]


@dataclass(frozen=True)
class Result:
    """The result of a tool among the parts of a message."""

    message: Message
    """A message with the role tool. `tool_call_id` is None if the part has none."""


Piece: TypeAlias = dict[str, Any] | Call | Result
"""A canonical part (text or image), a tool call or the result of one."""


def pieces_of(value: Any) -> list[Piece]:
    """Return what a content says, in order. `value` is text, a part or a list of parts. Raises Rejected for an unknown part."""
    if value is None:
        return []
    if isinstance(value, str):
        return [_text(value)]
    return [piece for part in (value if isinstance(value, list) else [value]) for piece in _pieces(part)]


def _text(text: Any) -> dict[str, Any]:
    if not isinstance(text, str):
        raise Rejected("unknown_part", f"the text of a part must be a string, not {type(text).__name__}")
    return {"type": "text", "text": clean(text)}


def _pieces(part: Any) -> list[Piece]:
    if isinstance(part, str):
        return [_text(part)]
    if not isinstance(part, dict):
        raise Rejected("wrong_type", f"a part of a message must be an object or text, not {type(part).__name__}")
    kind = part.get("type")
    if kind is None:
        return _by_key(part)
    reader = _BY_TYPE.get(kind) if isinstance(kind, str) else None
    if reader is None and isinstance(kind, str) and kind.endswith("ReasoningContent"):  # Microsoft.Extensions.AI
        return []
    if reader is None:
        raise Rejected("unknown_part", f"the part type {named(kind)} is unknown")
    return reader(part)


def _by_key(part: dict[str, Any]) -> list[Piece]:
    """Read a part without a type: Gemini, Bedrock and Anthropic name it by the one key that it has."""
    if part.get("thought") is True or "reasoningContent" in part:
        return []
    present = [(key, reader) for key, reader in _BY_KEY.items() if part.get(key) is not None]
    if len(present) != 1 or any(part.get(key) for key in _OF_PROVIDERS):
        raise Rejected("unknown_part", "a part has no type and no known content")
    key, reader = present[0]
    return reader(part[key])


def _of_text(part: dict[str, Any]) -> list[Piece]:
    if part.get("thought") is True:
        return []
    return [_text(part["content"] if isinstance(part.get("content"), str) and part.get("text") is None else part.get("text"))]


def _refusal(part: dict[str, Any]) -> list[Piece]:
    return [_text(part.get("refusal"))]


def _nothing(_: Any) -> list[Piece]:
    return []


def _call(part: dict[str, Any]) -> list[Piece]:
    if part.get("providerExecuted") is True:
        raise Rejected("unknown_part", "a tool call that the provider executes is no function call")
    return [Call(call_of(part))]


def _result(part: dict[str, Any]) -> list[Piece]:
    return [Result(result_of(part))]


def result_of(part: dict[str, Any]) -> Message:
    """Return the result of a tool as a message with the role tool. Raises Rejected if it has no readable content."""
    keys = ("tool_call_id", "tool_use_id", "toolCallId", "toolUseId", "call_id", "id")
    identity = next((part[key] for key in keys if isinstance(part.get(key), str) and part[key]), None)
    name = next((part[key] for key in ("name", "toolName", "tool_name") if isinstance(part.get(key), str) and part[key]), None)
    given = [key for key in ("content", "output", "result", "response") if key in part]
    if not given:
        raise Rejected("empty_message", "the result of a tool has no content")
    value = next((part[key] for key in given if part[key] is not None), None)
    return tool_message(result_text(value), identity, name)


def tool_message(content: Any, identity: str | None, name: str | None) -> Message:
    """Return a message with the role tool. Its id is None if the record has none."""
    message: Message = {"role": "tool", "content": content, "tool_call_id": (clean(identity) if identity else None) or None}
    return message | ({"name": clean(name)} if name else {})


_VALUES = {"text": "value", "json": "value", "error-text": "value", "error-json": "value", "content": "value"}
"""Type of a result of the Vercel AI SDK -> the key of its value."""


def result_text(value: Any) -> str | list[dict[str, Any]]:
    """Return the content of a tool's result: text, or parts if it has images. A JSON value is written as compact JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return clean(value)
    if (
        isinstance(value, dict)
        and isinstance(value.get("type"), str)
        and value["type"] in _VALUES
        and set(value) <= {"type", "value", "providerOptions", "reason"}
    ):
        inner = value.get("value")
        return result_text(inner) if value["type"] != "json" or isinstance(inner, str) else dump(inner)
    if _are_parts(value):
        pieces = pieces_of(value)
        if all(isinstance(piece, dict) for piece in pieces):
            return content_of(pieces)
    return dump(value)


def _are_parts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(part, dict) and part.get("type") in _CONTENT_TYPES for part in value)


def content_of(pieces: list[Piece], separator: str = "\n") -> str | list[dict[str, Any]]:
    """Return the texts of the pieces, joined by `separator`; a list of parts if they contain an image."""
    parts = [piece for piece in pieces if isinstance(piece, dict)]
    if any(part["type"] != "text" for part in parts):
        return parts
    return separator.join(part["text"] for part in parts)


# Images. Their bytes are never fetched; an image stays the reference, or the data, that the record has.


def image(url: Any) -> list[Piece]:
    """Return an image part. `url` is an address, or an object with one. Raises Rejected if there is none."""
    if isinstance(url, dict):
        url = url.get("url", url.get("uri"))
    if not isinstance(url, str) or not url.strip():
        raise Rejected("unknown_part", "an image has no address and no data")
    return [{"type": "image_url", "image_url": {"url": clean(url)}}]


def _data(data: Any, kind: Any) -> list[Piece]:
    if not isinstance(kind, str) or not kind.startswith("image/"):
        raise Rejected("unknown_part", f"content of the type {named(kind if isinstance(kind, str) else None)} is no image")
    if not isinstance(data, str) or not data:
        raise Rejected("unknown_part", "an image has no address and no data")
    return image(data if data.startswith(("data:", "http://", "https://", "@@@langfuse")) else f"data:{kind};base64,{data}")


def _image_url(part: dict[str, Any]) -> list[Piece]:
    return image(part.get("image_url", part.get("file_id")))


def _image(part: dict[str, Any]) -> list[Piece]:
    """An image of Anthropic (source), of the Vercel AI SDK (image), of OpenInference (image.url) or of LangChain (url, data, base64)."""
    source = part.get("source")
    if isinstance(source, dict):
        if source.get("type") == "base64":
            return _data(source.get("data"), source.get("media_type", source.get("mediaType")))
        return image(source.get("url", source.get("file_id")))
    found = part.get("image", part.get("url"))
    if isinstance(found, dict):
        return image(found)
    kind = part.get("mediaType") or part.get("mimeType") or part.get("mime_type") or "image/png"
    data = found if found is not None else part.get("data", part.get("base64", part.get("file_id")))
    return _data(data, kind)


def _file(part: dict[str, Any]) -> list[Piece]:
    inner = part["file"] if isinstance(part.get("file"), dict) else part
    kind = inner.get("mediaType") or inner.get("mimeType") or inner.get("mime_type")
    if part.get("modality") == "image" and isinstance(part.get("file_id"), str):
        return image(part["file_id"])
    return _data(inner.get("data", inner.get("url", inner.get("file_data"))), kind)


def _blob(part: dict[str, Any]) -> list[Piece]:
    return _data(part.get("content", part.get("data")), part.get("mime_type") or ("image/png" if part.get("modality") == "image" else None))


def _uri(part: dict[str, Any]) -> list[Piece]:
    kind = part.get("mime_type")
    if not kind.startswith("image/") if isinstance(kind, str) and kind else part.get("modality") != "image":
        raise Rejected("unknown_part", "an address that is no image")
    return image(part.get("uri"))


def _inline(data: Any) -> list[Piece]:
    found = data if isinstance(data, dict) else {}
    return _data(found.get("data"), found.get("mime_type", found.get("mimeType")))


def _file_data(data: Any) -> list[Piece]:
    found = data if isinstance(data, dict) else {}
    return _data(found.get("file_uri", found.get("fileUri")), found.get("mime_type", found.get("mimeType")))


def _gemini_call(call: Any) -> list[Piece]:
    return [Call(call_of(call))]


def _gemini_result(result: Any) -> list[Piece]:
    if not isinstance(result, dict) or "response" not in result:
        raise Rejected("empty_message", "the result of a tool has no content")
    return [Result(result_of(result))]


def _bedrock_result(result: Any) -> list[Piece]:
    if not isinstance(result, dict) or not isinstance(result.get("content"), list):
        raise Rejected("empty_message", "the result of a tool has no content")
    items = result["content"]
    single = items[0] if len(items) == 1 and isinstance(items[0], dict) else {}
    content = dump(single["json"]) if "json" in single else content_of(pieces_of(items))
    identity = result.get("toolUseId")
    return [Result(tool_message(content, identity if isinstance(identity, str) else None, None))]


def _bedrock_image(given: Any) -> list[Piece]:
    found = given if isinstance(given, dict) else {}
    source = found["source"] if isinstance(found.get("source"), dict) else {}
    if source.get("bytes") is not None:
        return _data(source["bytes"], f"image/{found.get('format')}")
    return image(found if "url" in found else source.get("s3Location", source))


def _bedrock_call(call: Any) -> list[Piece]:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not clean(call["name"]).strip():
        raise Rejected("bad_tool_call", "a tool call has no name")
    if any(key not in ("toolUseId", "name", "input", "type") and value not in (None, "", [], {}) for key, value in call.items()):
        raise Rejected("bad_tool_call", "a tool call has a key that is unknown")
    return [Call(made_call(call.get("toolUseId"), call["name"], call.get("input")))]


Reader: TypeAlias = Callable[[Any], list[Piece]]

_BY_TYPE: dict[str, Reader] = {
    **dict.fromkeys(("text", "input_text", "output_text", "summary_text"), _of_text),
    "refusal": _refusal,
    **dict.fromkeys(
        ("thinking", "redacted_thinking", "reasoning", "reasoning_content", "reasoningContent", "thought", "step-start"), _nothing
    ),
    **dict.fromkeys(("tool_use", "tool-call", "tool_call", "function_call"), _call),
    **dict.fromkeys(("tool_result", "tool-result", "tool_call_response", "function_call_output"), _result),
    **dict.fromkeys(("image_url", "input_image"), _image_url),
    "image-url": lambda part: image(part.get("url", part.get("image_url"))),  # pydantic-ai
    "binary": lambda part: _data(part.get("content", part.get("data")), part.get("media_type")),
    "image": _image,
    "file": _file,
    "blob": _blob,
    "uri": _uri,
}
_CONTENT_TYPES = ("text", "input_text", "output_text", "image_url", "input_image", "image", "blob", "uri")
_BY_KEY: dict[str, Reader] = {
    **dict.fromkeys(("text", "content"), lambda text: [_text(text)]),
    **dict.fromkeys(("functionCall", "function_call"), _gemini_call),
    **dict.fromkeys(("functionResponse", "function_response"), _gemini_result),
    **dict.fromkeys(("inlineData", "inline_data"), _inline),
    **dict.fromkeys(("fileData", "file_data"), _file_data),
    "toolUse": _bedrock_call,
    "toolResult": _bedrock_result,
    "image": _bedrock_image,
}
_OF_PROVIDERS = ("executableCode", "executable_code", "codeExecutionResult", "code_execution_result", "cachePoint", "video", "document")
