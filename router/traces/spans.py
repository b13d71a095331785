"""Builds and signs the OTLP spans of the router's traffic. Names follow the OpenTelemetry semantic conventions for generative AI."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from ratchet.runtime.secrets.keyring import Key
from ratchet.runtime.secrets.span_signature import SIGNATURE, signature_of, signed_form

CONTENT_BYTES = 256_000
"""Maximum size of prompt and answer of one span, in bytes of JSON. Larger content is omitted, and the span is marked."""
Value = str | bool | int | float | list[str]


def _any(value: Value) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, list):
        return AnyValue(array_value=ArrayValue(values=[AnyValue(string_value=utf8(item)) for item in value]))
    return AnyValue(string_value=utf8(value))


def utf8(text: str) -> str:
    """Replace unpaired surrogates, which JSON can contain but protobuf cannot.

    Otherwise an error in the trace would make the answer to the user fail.
    """
    return text.encode("utf-8", "replace").decode()


def attributes(values: Mapping[str, Value | None]) -> list[KeyValue]:
    """Convert values to OTLP attributes. Values of None are left out."""
    return [KeyValue(key=key, value=_any(value)) for key, value in values.items() if value is not None]


def new_ids() -> tuple[str, str]:
    """Return a new random (trace id, span id), both in hex."""
    return secrets.token_hex(16), secrets.token_hex(8)


OMITTED = "ratchet.content_omitted"
"""Attribute of a span without content: `too_large`, or `unreadable` if the content has parts that a trace cannot represent."""


def messages_json(messages: list[dict[str, Any]]) -> str:
    """Return messages as JSON in the form of the conventions: a role and parts. Raises ValueError for a part that they do not have."""
    return json.dumps([{"role": _role(message), "parts": _parts(message)} for message in messages], ensure_ascii=False)


_ROLES = ("system", "developer", "user", "assistant", "tool")


def _role(message: Mapping[str, Any]) -> str:
    role = message.get("role", "user")
    if role not in _ROLES or any(message.get(key) for key in ("function_call", "audio")):
        raise ValueError("a message has another role or other content than text, images and tool calls")
    return str(role)


def _parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content, calls = message.get("content"), message.get("tool_calls") or []
    if message.get("role") == "tool":
        return [{"type": "tool_call_response", "id": str(message["tool_call_id"]), "response": content}]
    if calls and message.get("role") != "assistant":
        raise ValueError("only the assistant calls tools")
    texts = [] if calls and not content else [_part(part) for part in (content if isinstance(content, list) else [content or ""])]
    return [*texts, *(_call(call) for call in calls)]


def _part(part: Any) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "content": part}
    if isinstance(part.get("text"), str) and part.get("type") == "text":
        return {"type": "text", "content": part["text"]}
    if part.get("type") == "image_url":
        return {"type": "uri", "modality": "image", "uri": str(part["image_url"]["url"])}
    raise ValueError("a part is neither text nor an image")


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    if not isinstance(json.loads(function["arguments"] or "{}"), dict):
        raise ValueError("the arguments of a tool call are no object")
    return {"type": "tool_call", "id": str(call["id"]), "name": str(function["name"]), "arguments": function["arguments"] or "{}"}


def content_values(
    asked: list[dict[str, Any]], answered: list[dict[str, Any]] | None, tools: list[dict[str, Any]] | None = None
) -> dict[str, Value | None]:
    """Return the content attributes. If a trace can represent only a part of the content, return only an attribute that says so."""
    try:
        content = {"gen_ai.input.messages": messages_json(asked), "gen_ai.output.messages": messages_json(answered) if answered else ""}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {OMITTED: "unreadable"}
    if tools:
        content["gen_ai.tool.definitions"] = json.dumps(tools, ensure_ascii=False)
    if sum(len(utf8(text).encode()) for text in content.values()) > CONTENT_BYTES:
        return {OMITTED: "too_large"}
    return {name: text or None for name, text in content.items()}


def call_span(ids: tuple[str, str], started_ns: int, lasted_ns: int, values: Mapping[str, Value | None], error: str | None) -> Span:
    """Return the span of one model call.

    `ids` is (trace id, span id) in hex, `started_ns` the start in nanoseconds since the epoch, and `lasted_ns` the duration in
    nanoseconds. A non-empty `error` sets the error status.
    """
    status = Status(code=Status.STATUS_CODE_ERROR, message=utf8(error)) if error else Status(code=Status.STATUS_CODE_UNSET)
    return Span(
        trace_id=bytes.fromhex(ids[0]),
        span_id=bytes.fromhex(ids[1]),
        name=utf8(f"{values.get('gen_ai.operation.name', 'chat')} {values.get('gen_ai.request.model', '')}"),
        kind=Span.SPAN_KIND_CLIENT,
        start_time_unix_nano=started_ns,
        end_time_unix_nano=started_ns + lasted_ns,
        attributes=attributes(values),
        status=status,
    )


def sign(span: Span, key: Key | None) -> None:
    """Add the signature that makes the span evidence about its version. Without a key, the span stays without a signature."""
    if key is None:
        return
    values = {kv.key: _plain(kv.value) for kv in span.attributes}
    failed = span.status.code == Status.STATUS_CODE_ERROR
    form = signed_form(span.trace_id.hex(), span.span_id.hex(), span.start_time_unix_nano, span.end_time_unix_nano, failed, values)
    span.attributes.extend(attributes({SIGNATURE: signature_of(form, key)}))


def _plain(value: AnyValue) -> Value:
    kind = str(value.WhichOneof("value"))
    found: Value = [item.string_value for item in value.array_value.values] if kind == "array_value" else getattr(value, kind)
    return found
