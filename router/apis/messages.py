"""Anthropic's Messages (`/v1/messages`), which vLLM and other servers have, too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ratchet.router.apis.api import Api, Clock, Stream, as_bytes, as_object, bodies, check_count, check_stream, count
from ratchet.router.events import Event
from ratchet.router.requests import Refused
from ratchet.router.traces.spans import Value

_ENDED: Mapping[Any, str] = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
"""Reason of the API -> that of the conventions."""
_KINDS: Mapping[int, str] = {400: "invalid_request_error", 404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error"}
_CONTENT = ("system", "messages", "tools")


def error_of_messages(status: int, message: str) -> dict[str, Any]:
    """Return an error in the form of the API."""
    return {"type": "error", "error": {"type": _KINDS.get(status, "api_error"), "message": message}}


class Messages(Api):
    """`/v1/messages`."""

    path = "/v1/messages"
    operation = "chat"

    def check(self, body: Mapping[str, Any]) -> None:
        """Raise Refused for a request that no version can serve."""
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
            raise Refused(400, "messages must be a list of objects, and not empty")
        if body.get("max_tokens") is None:
            raise Refused(400, "max_tokens is missing")
        check_count(body, "max_tokens", 2**31)
        check_stream(body)

    def user(self, body: Mapping[str, Any]) -> Any:
        """Return `metadata.user_id`."""
        metadata = body.get("metadata")
        return metadata.get("user_id") if isinstance(metadata, dict) else None

    def facts(self, reply: Mapping[str, Any] | None) -> dict[str, Value | None]:
        """Return id, tokens and finish reason."""
        usage, reason = (reply.get("usage"), reply.get("stop_reason")) if reply else (None, None)
        return {
            "gen_ai.response.id": str(reply["id"]) if reply and reply.get("id") else None,
            "gen_ai.response.finish_reasons": [_ENDED.get(reason, str(reason))] if reason else None,
            "gen_ai.usage.input_tokens": count(usage, "input_tokens"),
            "gen_ai.usage.output_tokens": count(usage, "output_tokens"),
        }

    def content(self, body: Mapping[str, Any], reply: Mapping[str, Any] | None) -> dict[str, Value | None]:
        """Return the bodies, without what describes the caller."""
        answered = {name: reply[name] for name in ("type", "role", "content", "stop_reason") if name in reply} if reply else None
        return bodies({name: body[name] for name in _CONTENT if body.get(name) is not None}, answered)

    def stream(self, body: Mapping[str, Any], name: str, clock: Clock) -> Stream:  # noqa: ARG002
        """Return a new streamed answer."""
        return MessageStream(name, clock)

    def error(self, status: int, message: str) -> dict[str, Any]:
        """Return an error in the form of the API."""
        return error_of_messages(status, message)

    def failed_event(self, status: int, message: str) -> bytes:
        """Return the event `error`."""
        return Event(json.dumps(self.error(status, message)).encode(), b"error").encoded()


class MessageStream(Stream):
    """An answer in blocks, which ends with `message_stop`."""

    def __init__(self, served_model: str, clock: Clock) -> None:
        super().__init__(clock)
        self._model = served_model
        self._message: dict[str, Any] | None = None
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, list[str]] = {}
        self._usage: dict[str, Any] = {}

    @property
    def tokens(self) -> Any:
        """Number of tokens of the answer."""
        return self._usage.get("output_tokens")

    def pass_on(self, event: Event) -> bytes | None:
        """Note an event and return it with the served model."""
        content = as_object(event.data)
        kind = content.get("type")
        if kind == "message_start" and isinstance(content.get("message"), dict):
            content["message"] = {**content["message"], "model": self._model}
            self._message = dict(content["message"])
            self._add_usage(self._message.get("usage"))
            return Event(as_bytes(content), event.name).encoded()
        if kind == "error":
            self.error = "the model server reports an error in the stream"
        elif kind == "message_stop":
            self.is_complete = True
        elif kind == "message_delta":
            self._add_usage(content.get("usage"))
            if self._message is not None and isinstance(content.get("delta"), dict):
                self._message |= {key: value for key, value in content["delta"].items() if key.startswith("stop_")}
        elif isinstance(content.get("index"), int):
            self._add_block(content["index"], content)
        return event.encoded()

    def _add_usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self._usage |= {key: value for key, value in usage.items() if value is not None}

    def _add_block(self, at: int, content: Mapping[str, Any]) -> None:
        begun, delta = content.get("content_block"), content.get("delta")
        if isinstance(begun, dict):
            self._blocks[at] = dict(begun)
        if not isinstance(delta, dict):
            return
        block = self._blocks.setdefault(at, {"type": "text", "text": ""})
        for key in ("text", "thinking"):
            if isinstance(delta.get(key), str) and delta[key]:
                block[key] = block.get(key, "") + delta[key]
                self.note_content()
        if isinstance(delta.get("partial_json"), str):
            self._inputs.setdefault(at, []).append(delta["partial_json"])
            self.note_content()

    def reply(self) -> dict[str, Any] | None:
        """Return the message so far. The input of a call that is not complete stays a text, which no dialect reads."""
        if self._message is None:
            return None
        for at, pieces in self._inputs.items():
            try:
                self._blocks[at]["input"] = json.loads("".join(pieces) or "{}")
            except (ValueError, RecursionError):
                self._blocks[at]["input"] = "".join(pieces)
        return {**self._message, "content": [self._blocks[at] for at in sorted(self._blocks)], "usage": self._usage}
