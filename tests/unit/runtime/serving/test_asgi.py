"""Tests of the limits of a request: its size, and the end of its work when the caller is gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from ratchet.runtime.serving.asgi import CallerGone, TooLarge, read_body, while_connected


class Caller:
    """The caller's end of a connection. It sends a body in pieces and closes the connection when `close` is called."""

    def __init__(self, *pieces: bytes) -> None:
        last = len(pieces) - 1
        self.sent: list[dict[str, Any]] = [
            {"type": "http.request", "body": piece, "more_body": number < last} for number, piece in enumerate(pieces)
        ]
        self.read = 0
        self.gone = asyncio.Event()
        self.request = Request({"type": "http", "method": "POST", "headers": []}, self.receive)

    async def receive(self) -> dict[str, Any]:
        if self.sent:
            self.read += 1
            return self.sent.pop(0)
        await self.gone.wait()
        return {"type": "http.disconnect"}


def test_a_body_over_the_limit_is_not_read_to_its_end() -> None:
    async def scenario() -> None:
        caller = Caller(*[b"x" * 10] * 100)
        with pytest.raises(TooLarge, match="larger than 25 bytes"):
            await read_body(caller.request, 25)
        assert caller.read == 3
        assert await read_body(Caller(b"one", b"two").request, 6) == b"onetwo"

    asyncio.run(scenario())


def test_the_work_ends_when_the_caller_is_gone() -> None:
    async def scenario() -> None:
        caller, begun, ended = Caller(b"{}"), asyncio.Event(), asyncio.Event()

        async def work() -> None:
            begun.set()
            try:
                await asyncio.sleep(3600)
            finally:
                ended.set()

        await read_body(caller.request, 10)
        waiting = asyncio.create_task(while_connected(caller.request, work()))
        await begun.wait()
        caller.gone.set()
        with pytest.raises(CallerGone):
            await waiting
        await asyncio.wait_for(ended.wait(), 5)

    asyncio.run(scenario())


@pytest.mark.slow
def test_the_result_or_the_error_of_the_work_is_passed_on() -> None:
    async def scenario() -> None:
        caller = Caller(b"{}")
        await read_body(caller.request, 10)
        assert await while_connected(caller.request, asyncio.sleep(0.5, "answer")) == "answer"

        async def fails() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await while_connected(caller.request, fails())

    asyncio.run(scenario())


def test_the_work_ends_when_the_handler_is_cancelled() -> None:
    async def scenario() -> None:
        caller = Caller(b"{}")
        await read_body(caller.request, 10)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        handler = asyncio.create_task(while_connected(caller.request, future))
        await asyncio.sleep(0.05)
        handler.cancel()
        with pytest.raises(asyncio.CancelledError):
            await handler
        assert future.cancelled()

    asyncio.run(scenario())
