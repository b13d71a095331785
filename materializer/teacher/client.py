"""Client of a teacher: one question at a time, over HTTP. A failure becomes an outcome, so that no failure stops a cycle."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import httpx

from ratchet.contracts.data.teaching import TeacherOutcome, TeacherReply
from ratchet.contracts.errors import ConfigError
from ratchet.contracts.loop import TeacherSettings
from ratchet.materializer.dialects.values import MAX_TEXT_BYTES
from ratchet.rewards.judge.pace import retry_after
from ratchet.runtime.certificates import certificates
from ratchet.runtime.http_replies import BoundedTransport, ReplyTooLarge, strict_json
from ratchet.runtime.secrets.api_key import api_key

_MAX_REPLY = 4_000_000
"""Maximum size of a reply in bytes."""
_BUSY = frozenset({408, 409, 425, 429, 503, 529})
_REFUSES_TEXT = frozenset({400, 413, 422})
_NOT_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.LocalProtocolError,
    httpx.UnsupportedProtocol,
    httpx.InvalidURL,
    UnicodeError,
)
_PAUSES = (0.5, 30.0)
"""First and longest pause between two requests to a busy server, in seconds."""


class HttpTeacher:
    """`Teacher` behind an OpenAI-compatible API."""

    def __init__(
        self, settings: TeacherSettings, declines: Callable[[str], bool] = lambda _: False, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """`declines` tells whether a text refuses to answer. `sleep` waits between two requests, for a number of seconds."""
        self._settings = settings
        self._declines = declines
        self._sleep = sleep

    def ask(self, messages: Sequence[Mapping[str, Any]], requests: int) -> TeacherReply:
        """Ask one question. A busy server is asked again for `teacher.patience` seconds, as long as `requests` allows."""
        try:
            key = api_key("teacher", self._settings.key_env, self._settings.key_file)
        except ConfigError as error:
            return TeacherReply(outcome=TeacherOutcome.UNREACHABLE, requests=0, detail=str(error))
        waited, pause, sent = 0.0, _PAUSES[0], 0
        with self._client(key) as client:
            while True:
                reply, wait = self._once(client, messages)
                sent += reply.outcome is not TeacherOutcome.UNREACHABLE
                wait = max(wait, pause)
                if reply.outcome is not TeacherOutcome.BUSY or sent >= requests or waited + wait > self._settings.patience:
                    return reply.model_copy(update={"requests": sent})
                self._sleep(wait)
                waited, pause = waited + wait, min(pause * 2, _PAUSES[1])

    def _client(self, key: str | None) -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        transport = BoundedTransport(_MAX_REPLY, verify=certificates(self._settings.url))
        return httpx.Client(transport=transport, timeout=self._settings.timeout, headers=headers, trust_env=False, follow_redirects=False)

    def _once(self, client: httpx.Client, messages: Sequence[Mapping[str, Any]]) -> tuple[TeacherReply, float]:
        """Send one request. Return what became of it, and the seconds for which the server asks to wait."""
        settings = self._settings
        body: dict[str, Any] = {"model": settings.model, "messages": [dict(one) for one in messages], "max_tokens": settings.max_tokens}
        body |= {} if settings.temperature is None else {"temperature": settings.temperature}
        # The timeout of httpx is that of one read, so a server that sends a byte now and then would never be given up.
        deadline = threading.Timer(settings.timeout, client.close)
        deadline.start()
        try:
            response = client.post(f"{settings.url.rstrip('/')}/chat/completions", json=body)
        except _NOT_SENT as error:
            return _failed(TeacherOutcome.UNREACHABLE, f"no connection to {settings.url} ({type(error).__name__}); check teacher.url"), 0.0
        except ReplyTooLarge:
            return _failed(TeacherOutcome.MALFORMED, "the reply is too large, or compressed"), 0.0
        except (httpx.HTTPError, OSError) as error:
            return _failed(TeacherOutcome.LOST, f"no complete reply within {settings.timeout:g} s ({type(error).__name__})"), 0.0
        finally:
            deadline.cancel()
        status = response.status_code
        if status in _BUSY:
            return _failed(TeacherOutcome.BUSY, f"HTTP {status}"), retry_after(response.headers.get("retry-after"), datetime.now(UTC), 0.0)
        if status in _REFUSES_TEXT:
            return _failed(TeacherOutcome.REJECTED, f"HTTP {status}"), 0.0
        if status >= 500:
            return _failed(TeacherOutcome.LOST, f"HTTP {status}"), 0.0
        if status != 200:
            detail = f"HTTP {status}; correct url, model or key of the section [teacher]"
            return _failed(TeacherOutcome.REFUSED, detail), 0.0
        return self._read(response.content), 0.0

    def _read(self, content: bytes) -> TeacherReply:
        try:
            found = strict_json(content)
            choice = found["choices"][0]
            message, finish = choice["message"], choice.get("finish_reason")
            text = message.get("content")
        except (ValueError, LookupError, TypeError, AttributeError):
            return _failed(TeacherOutcome.MALFORMED, "the reply is no chat completion")
        used = _usage(found)
        if finish == "content_filter" or message.get("refusal") or (isinstance(text, str) and self._declines(text)):
            return TeacherReply(outcome=TeacherOutcome.DECLINED, **used)
        if finish == "length":
            return TeacherReply(outcome=TeacherOutcome.CUT, detail="the answer reached teacher.max_tokens", **used)
        if not isinstance(text, str) or not text.strip() or message.get("tool_calls"):
            return TeacherReply(outcome=TeacherOutcome.MALFORMED, detail="the reply has no text", **used)
        if not _can_be_stored(text):
            detail = f"the answer is larger than {MAX_TEXT_BYTES:,} bytes, or no valid Unicode"
            return TeacherReply(outcome=TeacherOutcome.MALFORMED, detail=detail, **used)
        return TeacherReply(outcome=TeacherOutcome.ANSWERED, text=text.strip(), **used)


def _failed(outcome: TeacherOutcome, detail: str) -> TeacherReply:
    return TeacherReply(outcome=outcome, detail=detail)


def _can_be_stored(text: str) -> bool:
    """Return whether the lake takes a text. JSON can contain halves of characters, which are no text."""
    try:
        return len(text.encode()) <= MAX_TEXT_BYTES
    except UnicodeEncodeError:
        return False


def _usage(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokens that the reply names; nothing without plausible figures."""
    usage = found.get("usage")
    if not isinstance(usage, dict):
        return {}
    counts = {"input_tokens": usage.get("prompt_tokens"), "output_tokens": usage.get("completion_tokens")}
    whole = all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one < 1 << 31 for one in counts.values())
    return counts if whole else {}
