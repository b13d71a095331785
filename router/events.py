"""Server-sent events of a streamed completion: splits them, and collects what the trace of the answer needs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from ratchet.router.spans import Value
from ratchet.runtime.http_replies import strict_json

DONE = b"[DONE]"
"""Data of the last event of a complete answer."""
_MAX_EVENT = 8_000_000
"""Maximum size of an event in bytes."""


def event(data: bytes) -> bytes:
    """Return an event with these data, which have no line break."""
    return b"data: " + data + b"\n\n"


class EventSplitter:
    """Splits a byte stream into the data of its events. Lines end with LF or CR LF; comments and other fields are left out."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Return the data of the events that the next bytes complete. Raises ValueError if an event is too large."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for raw in lines:
            line = raw.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                yield b"\n".join(self._data)
                self._data.clear()
        if len(self._rest) + sum(map(len, self._data)) > _MAX_EVENT:
            raise ValueError(f"an event is larger than {_MAX_EVENT} bytes")


class StreamedReply:
    """The answer of a model server, chunk by chunk. `clock` returns seconds; the answer was asked for when the object is created."""

    def __init__(self, served_model: str, usage_wanted: bool, clock: Callable[[], float]) -> None:
        self._model = served_model
        self._usage_wanted = usage_wanted
        self._clock = clock
        self._asked = clock()
        self._first: float | None = None
        self._last = self._asked
        self._id: Any = None
        self._text: list[str] = []
        self._begun = False
        self._calls: dict[int, dict[str, Any]] = {}
        self._finish: Any = None
        self._usage: Any = None
        self.error: str | None = None
        """Error that the model server reports in the stream."""

    def pass_on(self, data: bytes) -> bytes | None:
        """Note a chunk and return it as the caller gets it: with the served model, and with usage figures only if the caller wants them.

        None if nothing is left of it. Raises ValueError if it is not a chunk.
        """
        chunk = strict_json(data)
        if not isinstance(chunk, dict):
            raise ValueError("a chunk is not a JSON object")
        if chunk.get("error") is not None:
            self.error = "the model server reports an error in the stream"
            return data
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
        return json.dumps({**chunk, "model": self._model}).encode()  # ASCII: unpaired surrogates are not UTF-8

    def _note(self, choice: dict[str, Any]) -> None:
        given = choice.get("delta")
        delta = given if isinstance(given, dict) else {}
        if any(value for name, value in delta.items() if name != "role"):
            self._last = self._clock()
            self._first = self._first or self._last
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

    def figures(self) -> dict[str, Value | None]:
        """Return the attributes of the trace that only a streamed answer has. Times are in seconds."""
        tokens = self._usage.get("completion_tokens") if isinstance(self._usage, dict) else None
        seconds = self._last - (self._first or self._last)
        rate = (tokens - 1) / seconds if isinstance(tokens, int) and tokens > 1 and seconds > 0 else None
        first = None if self._first is None else self._first - self._asked
        return {"gen_ai.response.time_to_first_chunk": first, "ratchet.output_tokens_per_second": rate}
