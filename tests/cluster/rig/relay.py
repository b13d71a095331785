"""Passes connections on: `python relay.py ADDRESS PORT`. Pods of real nodes reach the API server, which listens on loopback, through it."""

from __future__ import annotations

import asyncio
import sys


async def relay(address: str, port: int) -> None:
    """Accept connections at ADDRESS:PORT, and pass each on to the same port of loopback."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner, outer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, outer), pump(inner, writer))

    server = await asyncio.start_server(accept, address, port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(relay(sys.argv[1], int(sys.argv[2])))
