"""Forwards calls to model servers: whole answers, and streamed answers chunk by chunk.

In both cases the trace of the call is stored before the answer is complete for the caller.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ratchet.router.apis.api import Api
from ratchet.router.call import GONE, Call
from ratchet.router.events import EventSplitter
from ratchet.router.models import Answer, Lost, ModelClient, ModelError, Unreachable
from ratchet.runtime.http_replies import strict_json
from ratchet.runtime.serving.asgi import CallerGone, while_connected

RETRY_SECONDS = 5
"""Value of the Retry-After header while a model server cannot be reached, in seconds."""
_FAILED = (Unreachable, Lost)
"""Failures of a model server after which the champion is asked, as long as the caller has got nothing."""
_PAUSES = (0.5, 1.5)
"""Seconds before each further try of a version's servers if none can be reached. Nothing was sent, and a server that was replaced has a
new address a moment later."""
Headers = Callable[[], Mapping[str, str]]
"""Returns the headers of the answer. They depend on the version that gives it."""


def error_reply(api: Api, status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return an error in the form of the API."""
    retry = {"retry-after": str(RETRY_SECONDS)} if status in (429, 503) else {}
    return JSONResponse(api.error(status, message), status_code=status, headers={**(headers or {}), **retry})


def _failure(problem: Exception, seconds: float) -> tuple[int, str]:
    """Return (status of the answer, message to the caller) for a model server that gave no answer within `seconds`."""
    if isinstance(problem, TimeoutError):
        return 504, f"the answer was not complete within {seconds:g} s"
    if isinstance(problem, Unreachable):
        return 503, "the model server cannot be reached; try again later"
    return 502, "the model server gave no valid answer"


def _reason(problem: Exception) -> str:
    """Return the error text of a trace."""
    return str(problem) if isinstance(problem, ModelError) else f"{type(problem).__name__}: {problem}"


async def forward_whole(client: ModelClient, call: Call, request: Request, headers: Headers, seconds: float) -> Response:
    """Forward a call and return the whole answer, for which the model server has `seconds` seconds."""
    try:
        async with asyncio.timeout(seconds):
            status, content = await _post(client, call, request)
        reply = _object(call.api, status, content)
        if status == 200:
            call.finish(200, None, reply)
            reply = call.api.renamed(reply, call.name)
        else:
            call.finish(status, f"HTTP {status}", None)
    except CallerGone:
        call.finish(GONE, None, None)
        return error_reply(call.api, GONE, "the caller has closed the connection", headers())
    except (TimeoutError, ModelError, ValueError, RecursionError) as problem:
        status, message = _failure(problem, seconds)
        call.finish(status, _reason(problem), None)
        return error_reply(call.api, status, message, headers())
    finally:
        call.finish(GONE, None, None)  # the router is being stopped; no version is at fault
    return _json(reply, status, headers())


async def _post(client: ModelClient, call: Call, request: Request) -> tuple[int, bytes]:
    """Return status and body of the answer of the call's version, or of the champion if the server of a candidate fails."""

    async def asked() -> tuple[int, bytes]:
        async with client.ask(call.url, call.asked()) as answer:
            return answer.status, await answer.read()

    pauses = iter(_PAUSES)
    while True:
        try:
            return await while_connected(request, asked())
        except _FAILED as problem:
            if not await _again(call, problem, pauses):
                raise


async def _again(call: Call, problem: ModelError, pauses: Iterator[float]) -> bool:
    """Return whether a failed call is tried again: by the champion, or after a pause by the same version if it could not be reached."""
    if call.fall_back(_reason(problem)):
        return True
    pause = next(pauses, None) if isinstance(problem, Unreachable) else None
    if pause is not None:
        await asyncio.sleep(pause)
    return pause is not None


def _json(reply: dict[str, Any], status: int, headers: Mapping[str, str]) -> Response:
    content = json.dumps(reply)  # ASCII: unpaired surrogates are not UTF-8
    return Response(content, status_code=status, headers=dict(headers), media_type="application/json")


def _object(api: Api, status: int, content: bytes) -> dict[str, Any]:
    """Return the JSON object of an answer. Raises ValueError if the answer to a valid request is none."""
    try:
        reply = strict_json(content)
        if isinstance(reply, dict):
            return reply
    except (ValueError, RecursionError):
        if status == 200:
            raise
    if status == 200:
        raise ValueError("the answer is not a JSON object")
    return api.error(status, f"the model server answered HTTP {status}")


class StreamedAnswer(Response):
    """The response to a streamed call. It forwards each chunk as it arrives.

    If the model server fails after the first chunk, the answer ends with an event that
    contains an error. If the caller leaves, the model server's work ends.
    """

    def __init__(self, client: ModelClient, call: Call, headers: Headers, seconds: float) -> None:
        super().__init__()
        self._client = client
        self._call = call
        self._told = headers
        self._seconds = seconds
        self._reply = call.api.stream(call.body, call.name, time.monotonic)
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request. If the caller closes the connection, stop and store what there is as an abandoned answer."""
        work = asyncio.ensure_future(self._answer(scope, receive, send))
        left = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self._end(GONE, "the caller has closed the connection")
        finally:
            left.cancel()
            work.cancel()
            await asyncio.gather(work, left, return_exceptions=True)
            self._end(GONE, "the router was stopped")  # no version is at fault
        if not work.cancelled():
            work.result()

    def _end(self, status: int, error: str | None) -> None:
        """Store the trace, once. With an error, the answer is marked as partial if the caller got a part of it."""
        reply = self._reply.reply()
        partial = True if error is not None and reply is not None else None
        self._call.finish(status, error, reply, {**self._reply.figures(), "ratchet.partial": partial})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await self._ask(scope, receive, send)
        except (TimeoutError, ModelError, ValueError, RecursionError) as problem:
            status, message = _failure(problem, self._seconds)
            self._end(status, _reason(problem))
            if self._started:
                await send({"type": "http.response.body", "body": self._call.api.failed_event(status, message)})
            else:
                await error_reply(self._call.api, status, message, self._told())(scope, receive, send)

    async def _ask(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on the answer of the call's version, or that of the champion if the server of a candidate fails before the answer begins."""
        pauses = iter(_PAUSES)
        while True:
            try:
                async with self._client.ask(self._call.url, self._call.asked()) as answer:
                    if answer.status != 200:
                        await self._pass_error_on(answer, scope, receive, send)
                    else:
                        await self._stream(answer, send)
                    return
            except _FAILED as problem:
                if self._started or not await _again(self._call, problem, pauses):
                    raise

    async def _pass_error_on(self, answer: Answer, scope: Scope, receive: Receive, send: Send) -> None:
        content = await answer.read()
        self._end(answer.status, f"HTTP {answer.status}")
        await _json(_object(self._call.api, answer.status, content), answer.status, self._told())(scope, receive, send)

    async def _stream(self, answer: Answer, send: Send) -> None:
        """Pass the events on. Raises ValueError if the stream is not valid or ends too early."""
        if not answer.content_type.startswith("text/event-stream"):
            raise ValueError("the model server does not stream")
        headers = {**self._told(), "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": encoded})
        self._started = True
        splitter = EventSplitter()
        async for piece in answer.pieces():
            for event in splitter.feed(piece):
                passed = self._reply.pass_on(event)
                if self._reply.is_complete:
                    self._end(502 if self._reply.error else 200, self._reply.error)
                    await send({"type": "http.response.body", "body": passed or b""})
                    return
                if passed is not None:
                    await send({"type": "http.response.body", "body": passed, "more_body": True})
        raise ValueError(self._reply.error or "the stream ended too early")


async def _disconnected(receive: Receive) -> None:
    """Return when the caller has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
