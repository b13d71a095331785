"""`ModelClient` for the OpenAI chat API. A failed request returns an answer with `error` and the server's reason; the caller decides how it
counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from ratchet.contracts.conversation import are_tool_calls, stored_answer
from ratchet.contracts.errors import Unreachable
from ratchet.contracts.evaluation import ChatAnswer, ChatRequest
from ratchet.contracts.ports import Progress
from ratchet.contracts.serving import Endpoint, RouterHeader
from ratchet.gates.server_reason import server_reason
from ratchet.runtime.certificates import certificates
from ratchet.runtime.http_replies import BoundedTransport, ReplyTooLarge, strict_json

_TRIES = 3
_MAX_REPLY = 16_000_000
"""Maximum size of a reply in bytes."""
_FUNCTION = ("name", "arguments")
_BUSY = {429, 502, 503, 504}


class HttpModelClient:
    """Client of one endpoint.

    It sends up to `concurrency` requests in parallel, each with a timeout of `timeout` seconds. Requests to a busy or unreachable server
    are retried up to three attempts in total. If the server then refuses connections, `chat` raises Unreachable: a server that was killed
    says nothing about its model.
    """

    def __init__(self, endpoint: Endpoint, concurrency: int = 16, timeout: float = 120.0, timeouts: int = _TRIES) -> None:
        """`timeouts` is the number of tries of a request that times out."""
        self.endpoint = endpoint
        self._concurrency = concurrency
        self._limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
        self._timeout = timeout
        self._timeouts = timeouts

    def chat(self, requests: Sequence[ChatRequest], progress: Progress | None = None) -> list[ChatAnswer]:
        """Send all requests and return their answers in order. `progress` is called after every 20 answers and at the end.

        Raises Unreachable if the server refuses connections.
        """
        done, gone = 0, False
        lock = threading.Lock()

        def ask(request: ChatRequest) -> ChatAnswer:
            nonlocal done, gone
            if gone:
                return ChatAnswer(text=None, error="not sent")
            try:
                answer = self._ask(client, request)
            except Unreachable:
                gone = True
                raise
            with lock:
                done += 1
                if progress and (done % 20 == 0 or done == len(requests)):
                    progress(f"querying {self.endpoint.tag}", done, len(requests))
            return answer

        with (
            httpx.Client(
                base_url=self.endpoint.url,
                transport=BoundedTransport(_MAX_REPLY, limits=self._limits, verify=certificates(self.endpoint.url)),
                timeout=self._timeout,
                trust_env=False,
            ) as client,
            ThreadPoolExecutor(self._concurrency) as pool,
        ):
            return list(pool.map(ask, requests))

    def _ask(self, client: httpx.Client, request: ChatRequest) -> ChatAnswer:
        headers: dict[str, str] = {RouterHeader.SESSION: request.session} if request.session else {}
        error = reason = ""
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(0.2 * 2**attempt)
            started = time.perf_counter()
            try:
                response = client.post("/v1/chat/completions", json=_body(self.endpoint.model, request), headers=headers)
            except httpx.ConnectError as problem:
                if attempt == _TRIES - 1:
                    raise Unreachable(f"the model server of {self.endpoint.tag} at {self.endpoint.url} refuses connections") from problem
                continue
            except httpx.TimeoutException as problem:
                error, reason = f"{type(problem).__name__}: {problem}", ""
                if attempt + 1 >= self._timeouts:
                    break
                continue
            except ReplyTooLarge as problem:
                return ChatAnswer(text=None, error=str(problem))
            except httpx.HTTPError as problem:  # includes responses that cannot be decoded
                error, reason = f"{type(problem).__name__}: {problem}", ""
                continue
            if response.status_code in _BUSY:
                error, reason = f"HTTP {response.status_code}", server_reason(response.content, request)
                continue
            return _answer(response, request, (time.perf_counter() - started) * 1000)
        return ChatAnswer(text=None, error=error, reason=reason)


def _body(model: str, request: ChatRequest) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "messages": list(request.messages),
        "temperature": request.temperature,
        "max_tokens": request.max_tokens,
    }
    if request.tools:
        body["tools"] = list(request.tools)
    return body | ({"seed": request.seed} if request.seed is not None else {})


def _answer(response: httpx.Response, request: ChatRequest, latency_ms: float) -> ChatAnswer:
    if response.status_code != 200:
        reason = server_reason(response.content, request)
        return ChatAnswer(text=None, error=f"HTTP {response.status_code}", reason=reason, latency_ms=latency_ms)
    try:
        choice = strict_json(response.content)["choices"][0]
        message, finish = choice["message"], choice.get("finish_reason")
        text = stored_answer(_assistant(message)) if message.get("tool_calls") else message["content"]
    except (ValueError, LookupError, TypeError, AttributeError) as problem:
        return ChatAnswer(text=None, error=f"not a chat completion: {type(problem).__name__}: {str(problem)[:200]}", latency_ms=latency_ms)
    if not isinstance(text, str):  # an empty string would be scored as a wrong answer
        return ChatAnswer(text=None, error="no text in the answer", latency_ms=latency_ms)
    if not message.get("tool_calls"):
        text = stored_answer({"role": "assistant", "content": text})
    return ChatAnswer(
        text=text,
        finish_reason=finish if isinstance(finish, str) else None,
        latency_ms=latency_ms,
        version=response.headers.get(RouterHeader.VERSION),
        trace=response.headers.get(RouterHeader.TRACE),
    )


def _assistant(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message that calls tools in the form of contracts/conversation.py. Raises ValueError if its calls are invalid."""
    calls = [
        {"id": str(call.get("id") or f"call_{place}"), "type": "function", "function": {key: call["function"][key] for key in _FUNCTION}}
        for place, call in enumerate(message["tool_calls"])
    ]
    if not are_tool_calls(calls):
        raise ValueError("a tool call has no name, or arguments that are no text")
    return {"role": "assistant", "content": message.get("content") or "", "tool_calls": calls}
