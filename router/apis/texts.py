"""Text completions, embeddings and counts of tokens. Their content is not a conversation, so their traces do not have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.router.apis.api import MAX_CHOICES, Api, Clock, Stream, check_count, check_stream, count
from ratchet.router.apis.chat import ChatCompletions, ChunkStream
from ratchet.router.apis.messages import error_of_messages
from ratchet.router.requests import Refused
from ratchet.router.traces.spans import OMITTED, Value

_TEXTS = 2048
"""Maximum number of texts of one request."""


class Completions(Api):
    """`/v1/completions`. A prompt may be a part of a text, or several turns in one text, so it is not stored as a message."""

    path = "/v1/completions"
    operation = "text_completion"

    def check(self, body: Mapping[str, Any]) -> None:
        """Raise Refused for a request that no version can serve."""
        _check_texts(body, "prompt")
        check_stream(body)
        check_count(body, "n", MAX_CHOICES)
        check_count(body, "max_tokens", 2**31)

    def asked(self, body: Mapping[str, Any], model: str) -> dict[str, Any]:
        """Return the request for the model server, as that of chat completions."""
        return _CHAT.asked(body, model)

    def facts(self, reply: Mapping[str, Any] | None) -> dict[str, Value | None]:
        """Return id, tokens and finish reason."""
        return _CHAT.facts(reply)

    def content(self, body: Mapping[str, Any], reply: Mapping[str, Any] | None) -> dict[str, Value | None]:  # noqa: ARG002
        """Return that the content is left out."""
        return {OMITTED: "text_completion"}

    def stream(self, body: Mapping[str, Any], name: str, clock: Clock) -> Stream:
        """Return a new streamed answer."""
        return ChunkStream(name, bool((body.get("stream_options") or {}).get("include_usage")), clock)


class Embeddings(Api):
    """`/v1/embeddings`."""

    path = "/v1/embeddings"
    operation = "embeddings"
    is_evidence = False

    def check(self, body: Mapping[str, Any]) -> None:
        """Raise Refused for a request that no version can serve."""
        _check_texts(body, "input")
        if body.get("stream"):
            raise Refused(400, "this endpoint does not stream")

    def facts(self, reply: Mapping[str, Any] | None) -> dict[str, Value | None]:
        """Return the tokens."""
        return {"gen_ai.usage.input_tokens": count(reply.get("usage") if reply else None, "prompt_tokens")}

    def content(self, body: Mapping[str, Any], reply: Mapping[str, Any] | None) -> dict[str, Value | None]:  # noqa: ARG002
        """Return nothing."""
        return {}

    def stream(self, body: Mapping[str, Any], name: str, clock: Clock) -> Stream:  # noqa: ARG002
        """Return an answer in chunks. It is never asked for, because `check` refuses a request that does."""
        return ChunkStream(name, False, clock)


class TokenCounts(Embeddings):
    """`/v1/messages/count_tokens`."""

    path = "/v1/messages/count_tokens"
    operation = "count_tokens"

    def check(self, body: Mapping[str, Any]) -> None:
        """Raise Refused for a request that no version can serve."""
        if not isinstance(body.get("messages"), list):
            raise Refused(400, "messages must be a list")

    def renamed(self, reply: dict[str, Any], name: str) -> dict[str, Any]:  # noqa: ARG002 -- its reply names no model
        """Return the reply as it is."""
        return reply

    def facts(self, reply: Mapping[str, Any] | None) -> dict[str, Value | None]:
        """Return the tokens."""
        return {"gen_ai.usage.input_tokens": count(reply, "input_tokens")}

    def error(self, status: int, message: str) -> dict[str, Any]:
        """Return an error in the form of the endpoint."""
        return error_of_messages(status, message)


_CHAT = ChatCompletions()


def _check_texts(body: Mapping[str, Any], name: str) -> None:
    """Raise Refused if a field is neither a text, nor a list of texts, of tokens or of lists of tokens."""
    value = body.get(name)
    if not isinstance(value, str | list) or not value:
        raise Refused(400, f"{name} must be a text or a list, and not empty")
    if isinstance(value, list) and not isinstance(value[0], int) and len(value) > _TEXTS:
        raise Refused(400, f"{name} must have at most {_TEXTS} texts")
