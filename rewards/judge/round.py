"""The requests of one call of a judge, many at the same time. Each verdict is handed over at once: a crash loses only what is in flight."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import httpx

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.rewards.judge.client import Answer, BudgetSpent
from ratchet.rewards.judge.messages import Question, repaired
from ratchet.rewards.judge.options import EndpointOptions
from ratchet.rewards.judge.pace import Pace, retry_after
from ratchet.rewards.judge.verdict import Outcome, read_reply, response_format
from ratchet.runtime.certificates import certificates
from ratchet.runtime.http_replies import AsyncBoundedTransport, ReplyTooLarge, strict_json

_MAX_REPLY = 4_000_000
"""Maximum size of a reply in bytes. A larger one counts as a reply of another form."""
_BUSY = frozenset({408, 409, 425, 429, 500, 502, 503, 504, *range(520, 525), 529})
"""Statuses of a server that is busy or away for a while. Proxies have 520 to 524 for a server that they cannot reach."""
_REFUSES_TEXT = frozenset({400, 413, 422})
_REJECTED_AT_START = 8
"""Rejected requests without a success from which on the settings are wrong, and not the texts."""


class Round:
    """The requests of one call of `JudgeClient.ask`, inside its event loop."""

    def __init__(
        self,
        name: str,
        options: EndpointOptions,
        key: str | None,
        questions: Sequence[Question],
        left: int,
        record: Callable[[int, Answer], None],
    ) -> None:
        self._name = name
        self._options = options
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._questions = questions
        self._waiting = deque(range(len(questions)))
        self._left = left
        self._record = record
        self._pace = Pace(options.concurrency)
        self._changed = asyncio.Event()
        self._heard = time.monotonic()
        self._succeeded = 0
        self._rejected: list[tuple[int, int]] = []
        self._task: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """End the requests, from another thread."""
        if self._task is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    async def run(self) -> None:
        """Ask all questions."""
        self._task = asyncio.current_task()
        width = min(self._options.concurrency, len(self._questions))
        async with contextlib.AsyncExitStack() as stack:
            verify = certificates(self._options.url)
            # Each worker has a connection of its own: the cost of a shared pool grows with the square of its connections.
            clients = [
                await stack.enter_async_context(
                    httpx.AsyncClient(
                        transport=AsyncBoundedTransport(_MAX_REPLY, verify=verify, limits=httpx.Limits(max_connections=1)),
                        timeout=self._options.timeout,
                        headers=self._headers,
                        trust_env=False,
                    )
                )
                for _ in range(width)
            ]
            workers = [asyncio.create_task(self._work(client)) for client in clients]
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
                if self._succeeded or len(self._rejected) < _REJECTED_AT_START:
                    for index, tokens in self._rejected:
                        self._record(index, Answer(Outcome.REJECTED, None, tokens))

    async def _work(self, client: httpx.AsyncClient) -> None:
        while self._waiting:
            index = self._waiting.popleft()
            answer = await self._answer(client, self._questions[index])
            if answer.outcome is Outcome.REJECTED:
                self._rejected.append((index, answer.tokens))
                if not self._succeeded and len(self._rejected) >= _REJECTED_AT_START:
                    raise self._all_rejected()
            else:
                self._succeeded += 1
                self._record(index, answer)

    async def _answer(self, client: httpx.AsyncClient, question: Question) -> Answer:
        """Ask one question, and once again if the reply has another form."""
        messages, tokens = question.messages(secrets.token_hex(16)), 0
        for _ in range(2):
            status, text, used = await self._reply(client, _body(self._options, question, messages))
            tokens += used
            if status != 200:
                return Answer(Outcome.REJECTED, None, tokens)
            reply = read_reply(question.form, text)
            if reply is not None:
                outcome, value = reply.verdict
                return Answer(outcome, value, tokens)
            messages = repaired(messages, text)
        return Answer(Outcome.INVALID, None, tokens)

    async def _reply(self, client: httpx.AsyncClient, body: Mapping[str, Any]) -> tuple[int, str, int]:
        """Return status, text and tokens of the server's answer to one request. A busy or silent server is asked again."""
        most = _most_tokens(body)
        tries = lost = 0
        while True:
            await self._turn(most)
            wait = min(30.0, 0.5 * 2.0 ** min(tries, 6)) * random.uniform(0.5, 1.0)
            response, busy, used = None, False, 0
            try:
                async with asyncio.timeout(self._options.timeout):  # of httpx, only the pauses between two parts of a reply have a limit
                    response = await client.post(f"{self._options.url.rstrip('/')}/chat/completions", json=body)
                busy = response.status_code in _BUSY
                if not busy:
                    text, used = self._read(response, most)
                    return response.status_code, text, used + lost
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout):
                pass
            except ReplyTooLarge:
                used, self._heard = most, time.monotonic()
                return 200, "", most + lost
            except (httpx.HTTPError, TimeoutError):
                used = most  # the server may have computed a reply that did not arrive
                lost += most
            finally:
                self._left += most - used
                self._count(response, busy, wait)
            if response is not None:
                wait = max(wait, retry_after(response.headers.get("retry-after"), datetime.now(UTC), 0.0))
            tries += 1
            if time.monotonic() - self._heard + wait > self._options.patience:
                what = f"answers HTTP {response.status_code}" if response is not None else "does not answer"
                raise Retryable(f"reward {self._name!r}: the judge at {self._options.url} {what}; check it")
            await asyncio.sleep(wait)

    def _count(self, response: httpx.Response | None, busy: bool, wait: float) -> None:
        """Tell the pace how a request has ended, and wake a request that waits."""
        now = time.monotonic()
        if response is None:
            self._pace.failed()
        elif busy:
            self._pace.refused(now, max(wait, retry_after(response.headers.get("retry-after"), datetime.now(UTC), 0.0)))
        else:
            self._heard = now
            self._pace.succeeded()
        self._changed.set()

    async def _turn(self, tokens: int) -> None:
        """Wait until another request may start, and reserve its tokens. Raises BudgetSpent."""
        while True:
            now = time.monotonic()
            if self._pace.may_start(now):
                if tokens <= self._left:
                    break
                if self._pace.running == 0:  # otherwise wait: requests in flight reserve more than they use
                    raise BudgetSpent(f"reward {self._name!r}: its budget of {self._options.budget:,} tokens in 24 hours is used up")
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self._pace.paused(now) or None)
        self._left -= tokens
        self._pace.started()

    def _read(self, response: httpx.Response, most: int) -> tuple[str, int]:
        """Return the text of a reply, empty for another form, and its tokens. Raises Permanent if the server refuses all."""
        if response.status_code in _REFUSES_TEXT:
            return "", 0
        if response.status_code != 200:
            raise Permanent(
                f"reward {self._name!r}: the judge at {self._options.url} answers HTTP {response.status_code}; "
                "correct url, model or key in the options of the reward"
            )
        try:
            content = strict_json(response.content)
        except ValueError:
            content = None
        return _text(content), max(1, min(_tokens(content, most), 10 * most))

    def _all_rejected(self) -> Permanent:
        return Permanent(
            f"reward {self._name!r}: the judge at {self._options.url} rejects all requests (HTTP 400, 413 or 422); check the options "
            "model, max_tokens and structured of the reward"
        )


def _body(options: EndpointOptions, question: Question, messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    body = {"model": options.model, "messages": list(messages), "temperature": 0.0, "max_tokens": options.max_tokens}
    return body | ({"response_format": response_format(question.form)} if options.structured else {})


def _most_tokens(body: Mapping[str, Any]) -> int:
    """Return an upper estimate of the tokens of a request and its reply: a token has at least two bytes of text on average."""
    return sum(len(message["content"].encode()) for message in body["messages"]) // 2 + 16 + int(body["max_tokens"])


def _text(content: Any) -> str:
    """Return the text of a chat completion; empty if the content is none."""
    try:
        text = content["choices"][0]["message"]["content"]
    except (LookupError, TypeError):
        return ""
    return text if isinstance(text, str) else ""


def _tokens(content: Any, default: int) -> int:
    """Return the tokens that a chat completion has used; `default` if it does not say so."""
    try:
        usage = content["usage"]
        parts = ("total_tokens",) if "total_tokens" in usage else ("prompt_tokens", "completion_tokens")
        return sum(int(usage[part]) for part in parts)
    except (LookupError, TypeError, ValueError):
        return default
