"""OpenAI's Responses (`/v1/responses`), without its state.

A state would be in the memory of one model server. The router may send the next request to another version, a rollout ends servers, and
Ratchet would have no trace of what the model was told. So a request must have its whole conversation in `input`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ratchet.router.apis.api import Api, Clock, Stream, as_bytes, as_object, bodies, check_count, check_stream, count
from ratchet.router.events import Event
from ratchet.router.requests import Refused
from ratchet.router.traces.spans import Value

_STATE = ("previous_response_id", "conversation", "background", "prompt")
"""Fields that refer to what a server keeps."""
_CONTENT = ("instructions", "input", "tools")
_ENDS = ("response.completed", "response.incomplete", "response.failed")


class Responses(Api):
    """`/v1/responses`."""

    path = "/v1/responses"
    operation = "responses"

    def check(self, body: Mapping[str, Any]) -> None:
        """Raise Refused for a request that no version can serve."""
        asked = body.get("input")
        if not isinstance(asked, str | list) or not asked:
            raise Refused(400, "input must be a text or a list of items, and not empty")
        for name in _STATE:
            if body.get(name):
                raise Refused(400, f"{name} is not supported: no server keeps responses; send the whole conversation as input")
        check_stream(body)
        check_count(body, "max_output_tokens", 2**31)

    def asked(self, body: Mapping[str, Any], model: str) -> dict[str, Any]:
        """Return the request for the model server, which must not keep the response."""
        return {**super().asked(body, model), "store": False}

    def user(self, body: Mapping[str, Any]) -> Any:
        """Return `user`, or `safety_identifier`, which replaces it in newer clients."""
        return body.get("user") or body.get("safety_identifier")

    def facts(self, reply: Mapping[str, Any] | None) -> dict[str, Value | None]:
        """Return id, tokens and finish reason."""
        if reply is None:
            return {}
        details, usage = reply.get("incomplete_details"), reply.get("usage")
        why = details.get("reason") if isinstance(details, dict) else None
        ended = {"completed": "stop", "incomplete": "length" if why == "max_output_tokens" else str(why)}.get(str(reply.get("status")))
        return {
            "gen_ai.response.id": str(reply["id"]) if reply.get("id") else None,
            "gen_ai.response.finish_reasons": [ended] if ended else None,
            "gen_ai.usage.input_tokens": count(usage, "input_tokens"),
            "gen_ai.usage.output_tokens": count(usage, "output_tokens"),
        }

    def content(self, body: Mapping[str, Any], reply: Mapping[str, Any] | None) -> dict[str, Value | None]:
        """Return the bodies, without what describes the caller."""
        answered = {name: reply[name] for name in ("object", "status", "output") if name in reply} if reply else None
        return bodies({name: body[name] for name in _CONTENT if body.get(name) is not None}, answered)

    def stream(self, body: Mapping[str, Any], name: str, clock: Clock) -> Stream:  # noqa: ARG002
        """Return a new streamed answer."""
        return ResponseStream(name, clock)

    def failed_event(self, status: int, message: str) -> bytes:
        """Return the event `error`."""
        content = {"type": "error", "code": str(status), "message": message, "param": None}
        return Event(json.dumps(content).encode(), b"error").encoded()


class ResponseStream(Stream):
    """An answer in events with a type, of which the last one has the whole response."""

    def __init__(self, served_model: str, clock: Clock) -> None:
        super().__init__(clock)
        self._model = served_model
        self._response: dict[str, Any] | None = None
        self._text: list[str] = []

    @property
    def tokens(self) -> Any:
        """Number of tokens of the answer."""
        usage = self._response.get("usage") if self._response else None
        return usage.get("output_tokens") if isinstance(usage, dict) else None

    def pass_on(self, event: Event) -> bytes | None:
        """Note an event and return it with the served model."""
        content = as_object(event.data)
        kind, response = content.get("type"), content.get("response")
        if kind == "error" or kind == "response.failed":
            self.error = "the model server reports an error in the stream"
        if isinstance(kind, str) and kind.endswith(".delta"):
            self.note_content()
            if kind == "response.output_text.delta" and isinstance(content.get("delta"), str):
                self._text.append(content["delta"])
        if not isinstance(response, dict):
            return event.encoded()
        content["response"] = self._response = {**response, "model": self._model}
        self.is_complete = kind in _ENDS
        return Event(as_bytes(content), event.name).encoded()

    def reply(self) -> dict[str, Any] | None:
        """Return the response, or its text so far."""
        if self.is_complete or self._response is None:
            return self._response
        part = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "".join(self._text)}]}
        return {**self._response, "status": "in_progress", "output": [part]} if self._text else None
