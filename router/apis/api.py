"""What the router must know of an endpoint."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from ratchet.router.events import Event
from ratchet.router.requests import Refused
from ratchet.router.traces.spans import CONTENT_BYTES, OMITTED, Value, utf8
from ratchet.runtime.http_replies import strict_json

Clock = Callable[[], float]
"""Returns seconds."""
_ABSENT = (404, 405, 501)
"""Answers of a server that does not have an endpoint."""


class Stream(ABC):
    """A streamed answer of a model server, event by event. `clock` measures; the answer was asked for when the object is created."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asked = clock()
        self._first: float | None = None
        self._last = self._asked
        self.error: str | None = None
        """Error that the model server reports in the stream."""
        self.is_complete = False
        """Whether the last event of the answer has come."""

    @abstractmethod
    def pass_on(self, event: Event) -> bytes | None:
        """Note an event and return it as the caller gets it. None if nothing is left of it. Raises ValueError if it is not one."""

    @abstractmethod
    def reply(self) -> dict[str, Any] | None:
        """Return the answer so far, as the endpoint gives it without streaming. None if there is none."""

    @property
    @abstractmethod
    def tokens(self) -> Any:
        """Number of tokens of the answer, if the server has told it."""

    def note_content(self) -> None:
        """Note that a part of the answer has come now."""
        self._last = self._clock()
        self._first = self._first or self._last

    def figures(self) -> dict[str, Value | None]:
        """Return the attributes of the trace that only a streamed answer has. Times are in seconds."""
        tokens = self.tokens
        seconds = self._last - (self._first or self._last)
        rate = (tokens - 1) / seconds if isinstance(tokens, int) and tokens > 1 and seconds > 0 else None
        first = None if self._first is None else self._first - self._asked
        return {"gen_ai.response.time_to_first_chunk": first, "ratchet.output_tokens_per_second": rate}


class Api(ABC):
    """An endpoint. Requests and replies are JSON objects."""

    path: str
    operation: str
    """Value of `gen_ai.operation.name` in its spans."""
    is_evidence = True
    """Whether a call is evidence about the model version that answers it. If it is, the lake gets a trace of it."""
    refused_with: Sequence[int] = (400, 413, 415, 422, *_ABSENT)
    """Status codes of a model server for which the caller may be at fault, or that say that it does not have the endpoint.

    They are counted separately from errors. A version that rejects more requests than the other one is still found: the shares of both
    versions are compared."""

    @abstractmethod
    def check(self, body: Mapping[str, Any]) -> None:
        """Raise Refused for a request that no version can serve, so that it does not count as an error of a version."""

    @abstractmethod
    def facts(self, reply: Mapping[str, Any] | None) -> dict[str, Value | None]:
        """Return the attributes of a reply without its content: id, tokens, and why it ended."""

    @abstractmethod
    def content(self, body: Mapping[str, Any], reply: Mapping[str, Any] | None) -> dict[str, Value | None]:
        """Return the attributes with the content, or only one that says why it is left out."""

    @abstractmethod
    def stream(self, body: Mapping[str, Any], name: str, clock: Clock) -> Stream:
        """Return a new streamed answer to a request. `name` is the model name that the caller uses."""

    def asked(self, body: Mapping[str, Any], model: str) -> dict[str, Any]:
        """Return the request for the model server, which calls the version `model`."""
        return {**body, "model": model}

    def renamed(self, reply: dict[str, Any], name: str) -> dict[str, Any]:
        """Return a reply that calls the model `name`."""
        return {**reply, "model": name}

    def user(self, body: Mapping[str, Any]) -> Any:
        """Return the user that a request names in the endpoint's own field."""
        return body.get("user")

    def error(self, status: int, message: str) -> dict[str, Any]:  # noqa: ARG002 -- other endpoints name the kind of a status
        """Return an error in the form of the endpoint."""
        return {"error": {"message": message, "type": "ratchet_router"}}

    def failed_event(self, status: int, message: str) -> bytes:
        """Return the last event of a stream that cannot be completed."""
        return Event(json.dumps(self.error(status, message)).encode()).encoded()


MAX_CHOICES = 8
"""Maximum number of answers to one request."""


def check_count(body: Mapping[str, Any], name: str, most: int) -> None:
    """Raise Refused if a field is given and is not an integer from 1 to `most`."""
    value = body.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most):
        raise Refused(400, f"{name} must be an integer from 1 to {most}")


def check_stream(body: Mapping[str, Any]) -> None:
    """Raise Refused for an invalid `stream` or `stream_options`."""
    if not isinstance(body.get("stream"), bool | None):
        raise Refused(400, "stream must be true or false")
    options = body.get("stream_options")
    if options is not None and not (isinstance(options, dict) and body.get("stream")):
        raise Refused(400, "stream_options must be an object, and needs stream: true")


def count(usage: Any, name: str) -> int | None:
    """Return a number of tokens; None if it is missing or not valid."""
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and 0 <= value < 2**63 else None


def as_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object of an event. Raises ValueError if it is none."""
    found = strict_json(data)
    if not isinstance(found, dict):
        raise ValueError("an event is not a JSON object")
    return found


def as_bytes(found: Mapping[str, Any]) -> bytes:
    """Return the data of an event, in ASCII: some clients end a line at U+2028, and unpaired surrogates are not UTF-8."""
    try:
        data = orjson.dumps(found)
    except (orjson.JSONEncodeError, TypeError):
        data = b"\xff"
    return data if data.isascii() else json.dumps(found).encode()


def bodies(asked: Mapping[str, Any], answered: Mapping[str, Any] | None) -> dict[str, Value | None]:
    """Return the content of a call as bodies of the API, in the attributes of OpenInference, which ingest reads in each dialect."""
    texts = {
        "input.value": json.dumps(asked, ensure_ascii=False),
        "output.value": json.dumps(answered, ensure_ascii=False) if answered else "",
    }
    if sum(len(utf8(text).encode()) for text in texts.values()) > CONTENT_BYTES:
        return {OMITTED: "too_large"}
    return {"openinference.span.kind": "LLM", **{name: text or None for name, text in texts.items()}}
