"""The forms of an answer in the OpenAI API: one completion, or the chunks of a streamed one."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from typing import Any

from ratchet.local.serve.generate import Generated, Model, Piece
from ratchet.runtime.chat_template import CallFormat, read_answer


class Completion:
    """The answer to one request for `n` choices. `logprobs` and `usage` tell what the caller asked for.

    `calls` is the format of tool calls in the answers; None if the request has no tools, or the model's template has no calls.
    """

    def __init__(
        self, model: Model, name: str, prompt_tokens: int, n: int, logprobs: bool, usage: bool = False, calls: CallFormat | None = None
    ) -> None:
        self._model = model
        self._name = name
        self._prompt_tokens = prompt_tokens
        self._n = n
        self._logprobs = logprobs
        self._wants_usage = usage
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._tokens = 0
        self._calls = calls

    @property
    def may_call(self) -> bool:
        """Whether an answer may call a tool."""
        return self._calls is not None

    def whole(self, results: Sequence[Generated]) -> dict[str, Any]:
        """Return the complete answer."""
        self._tokens = sum(len(result.tokens) for result in results)
        choices = []
        for index, result in enumerate(results):
            message, finish = self._message(result)
            choice = {"index": index, "message": message, "finish_reason": finish}
            choices.append(choice | self._logprobs_of(result.tokens, result.logprobs))
        return {**self._head("chat.completion"), "choices": choices, "usage": self._usage()}

    def _message(self, result: Generated) -> tuple[dict[str, Any], str]:
        """Return the message of an answer, and its finish reason. An answer that was cut calls nothing."""
        if self._calls is None or result.finish_reason != "stop":
            return {"role": "assistant", "content": result.text}, result.finish_reason
        message = read_answer(result.text, self._calls)
        if "tool_calls" not in message:
            return message, result.finish_reason
        calls = [call | {"id": f"call_{uuid.uuid4().hex}"} for call in message["tool_calls"]]
        return message | {"content": message["content"] or None, "tool_calls": calls}, "tool_calls"

    def answer(self, index: int, result: Generated) -> bytes:
        """Return the event for a whole answer that may call tools, the choice number `index`."""
        self._tokens += len(result.tokens)
        message, finish = self._message(result)
        delta = {key: value for key, value in message.items() if key != "role" and value is not None}
        if "tool_calls" in delta:
            delta["tool_calls"] = [{"index": at, **call} for at, call in enumerate(delta["tool_calls"])]
        choice = {"index": index, "delta": delta, "finish_reason": finish}
        return self._chunk(choice | self._logprobs_of(result.tokens, result.logprobs))

    def begin(self) -> bytes:
        """Return the first events, which have no text."""
        return b"".join(
            self._chunk({"index": i, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}) for i in range(self._n)
        )

    def piece(self, index: int, piece: Piece) -> bytes:
        """Return the event for a piece of the choice number `index`."""
        self._tokens += len(piece.tokens)
        delta = {"content": piece.text} if piece.text or piece.finish_reason is None else {}
        choice = {"index": index, "delta": delta, "finish_reason": piece.finish_reason}
        return self._chunk(choice | self._logprobs_of(piece.tokens, piece.logprobs))

    def end(self) -> bytes:
        """Return the last events of a complete answer."""
        usage = event({**self._head("chat.completion.chunk"), "choices": [], "usage": self._usage()}) if self._wants_usage else b""
        return usage + b"data: [DONE]\n\n"

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        return event({**self._head("chat.completion.chunk"), "choices": [choice], **({"usage": None} if self._wants_usage else {})})

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._name}

    def _logprobs_of(self, tokens: Sequence[int], logprobs: Sequence[float] | None) -> dict[str, Any]:
        if not self._logprobs or logprobs is None:
            return {}
        content = [{"token": self._model.token_text(t), "logprob": p} for t, p in zip(tokens, logprobs, strict=True)]
        return {"logprobs": {"content": content}}

    def _usage(self) -> dict[str, int]:
        total = self._prompt_tokens + self._tokens
        return {"prompt_tokens": self._prompt_tokens, "completion_tokens": self._tokens, "total_tokens": total}


def event(content: dict[str, Any]) -> bytes:
    """Return a server-sent event."""
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def error_body(message: str) -> dict[str, Any]:
    """Return an error in the form of the API."""
    return {"error": {"message": message, "type": "invalid_request_error"}}
