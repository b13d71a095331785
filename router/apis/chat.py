"""Chat completions (`/v1/chat/completions`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.router.apis.api import MAX_CHOICES, Api, Clock, Stream, as_bytes, as_object, check_count, check_stream, count
from ratchet.router.events import DONE, Event
from ratchet.router.requests import Refused
from ratchet.router.traces.spans import Value, content_values


class ChatCompletions(Api):
    """`/v1/chat/completions`, which every model server has."""

    path = "/v1/chat/completions"
    operation = "chat"
    refused_with = (400, 413, 415, 422)

    def check(self, body: Mapping[str, Any]) -> None:
        """Raise Refused for a request that no version can serve."""
        messages = body.get("messages")
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise Refused(400, "the body must be a JSON object with a list of messages, each an object")
        check_stream(body)
        check_count(body, "n", MAX_CHOICES)
        for name in ("max_tokens", "max_completion_tokens"):
            check_count(body, name, 2**31)

    def asked(self, body: Mapping[str, Any], model: str) -> dict[str, Any]:
        """Return the request for the model server. A streamed answer is asked for its figures."""
        asked = super().asked(body, model)
        return asked | {"stream_options": {**(body.get("stream_options") or {}), "include_usage": True}} if body.get("stream") else asked

    def facts(self, reply: Mapping[str, Any] | None) -> dict[str, Value | None]:
        """Return id, tokens and finish reason."""
        choice, usage = _first_choice(reply), reply.get("usage") if reply else None
        return {
            "gen_ai.response.id": str(reply["id"]) if reply and reply.get("id") else None,
            "gen_ai.response.finish_reasons": [str(choice["finish_reason"])] if choice and choice.get("finish_reason") else None,
            "gen_ai.usage.input_tokens": count(usage, "prompt_tokens"),
            "gen_ai.usage.output_tokens": count(usage, "completion_tokens"),
        }

    def content(self, body: Mapping[str, Any], reply: Mapping[str, Any] | None) -> dict[str, Value | None]:
        """Return the messages in the form of the conventions."""
        choice = _first_choice(reply)
        message = choice.get("message") if choice else None
        answer = [{**message, "role": "assistant"}] if isinstance(message, dict) else None
        return content_values(body["messages"], answer, body.get("tools"))

    def stream(self, body: Mapping[str, Any], name: str, clock: Clock) -> Stream:
        """Return a new streamed answer."""
        asked = body.get("stream_options") or {}
        return ChunkStream(name, bool(asked.get("include_usage")), clock)


class ChunkStream(Stream):
    """An answer in chunks with choices, which ends with `[DONE]`."""

    def __init__(self, served_model: str, usage_wanted: bool, clock: Clock) -> None:
        super().__init__(clock)
        self._model = served_model
        self._usage_wanted = usage_wanted
        self._id: Any = None
        self._text: list[str] = []
        self._begun = False
        self._calls: dict[int, dict[str, Any]] = {}
        self._finish: Any = None
        self._usage: Any = None

    @property
    def tokens(self) -> Any:
        """Number of tokens of the answer."""
        return self._usage.get("completion_tokens") if isinstance(self._usage, dict) else None

    def pass_on(self, event: Event) -> bytes | None:
        """Note a chunk and return it with the served model, and with usage figures only if the caller wants them."""
        if event.data == DONE:
            self.is_complete = True
            return event.encoded()
        chunk = as_object(event.data)
        if chunk.get("error") is not None:
            self.error = "the model server reports an error in the stream"
            return event.encoded()
        self._id = self._id or chunk.get("id")
        self._usage = chunk.get("usage") or self._usage
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self._note(choice)
        if not self._usage_wanted and "usage" in chunk:
            del chunk["usage"]
            if not choices:
                return None
        return Event(as_bytes({**chunk, "model": self._model})).encoded()

    def _note(self, choice: dict[str, Any]) -> None:
        given = choice.get("delta")
        delta: dict[str, Any] = given if isinstance(given, dict) else {"content": choice.get("text")}  # completions have a text instead
        if any(value for name, value in delta.items() if name != "role"):
            self.note_content()
        if choice.get("index", 0) != 0:
            return
        self._begun = True
        self._add_calls(delta.get("tool_calls"))
        if delta.get("function_call"):
            self._add_calls([{"index": -1}])
        if isinstance(delta.get("content"), str):
            self._text.append(delta["content"])
        self._finish = choice.get("finish_reason") or self._finish

    def _add_calls(self, pieces: Any) -> None:
        """Add the pieces of tool calls. A piece without its place makes a call without a name, which a trace does not represent."""
        for piece in pieces if isinstance(pieces, list) else ():
            found = piece if isinstance(piece, dict) else {}
            place = found["index"] if isinstance(found.get("index"), int) else -1
            call = self._calls.setdefault(place, {"type": "function", "function": {"arguments": ""}})
            if isinstance(found.get("id"), str):
                call.setdefault("id", found["id"])
            function = found["function"] if isinstance(found.get("function"), dict) else {}
            if isinstance(function.get("name"), str):
                call["function"].setdefault("name", function["name"])
            if isinstance(function.get("arguments"), str):
                call["function"]["arguments"] += function["arguments"]

    def reply(self) -> dict[str, Any] | None:
        """Return the first answer so far as a completion of the API. None if there is none."""
        if not self._begun:
            return None
        calls = [self._calls[place] for place in sorted(self._calls)]
        message: dict[str, Any] = {"content": "".join(self._text), **({"tool_calls": calls} if calls else {})}
        return {"id": self._id, "choices": [{"message": message, "finish_reason": self._finish}], "usage": self._usage}


def _first_choice(reply: Mapping[str, Any] | None) -> dict[str, Any] | None:
    choices = reply.get("choices") if reply else None
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
