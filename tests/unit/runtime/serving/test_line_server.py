"""Tests of the sockets on which router, receiver and model servers listen."""

from __future__ import annotations

import asyncio
import socket

from ratchet.runtime.serving.line_server import bind


def test_an_answer_in_two_parts_does_not_wait_for_an_acknowledgement() -> None:
    async def scenario() -> int:
        options = list[int]()

        async def handle(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            options.append(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = bind(0, "the thing", "choose another")
        async with await asyncio.start_server(handle, sock=listener):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            await reader.read()
            writer.close()
        return options[0]

    assert asyncio.run(scenario())
