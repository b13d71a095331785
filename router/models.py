"""The HTTP client for model servers.

It uses aiohttp, which takes a third of the CPU time that httpx takes for a request, and does not take longer with many connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ssl import SSLContext

import aiohttp

_CONNECT_SECONDS = 5.0
_ROOM_SECONDS = 60.0
"""How long a request waits for one of the connections."""
_CONNECTIONS = 512
_IDLE_SECONDS = 4.0
"""A connection is used again only if it was idle for less. uvicorn closes it after five seconds; vLLM and the embedded server use it."""
_PIECE = 1 << 16


class ModelError(Exception):
    """A model server gave no answer that can be used."""


class Unreachable(ModelError):
    """The model server cannot be reached."""


class Lost(ModelError):
    """The connection was lost, or what came is no HTTP."""


class Answer:
    """The answer of a model server. Its body is at most `most` bytes large."""

    def __init__(self, response: aiohttp.ClientResponse, most: int) -> None:
        self._response = response
        self._most = most
        self.status = response.status
        self.content_type = response.headers.get("content-type", "")

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises ModelError."""
        left = self._most
        while piece := await self._response.content.readany():
            left -= len(piece)
            if left < 0:
                raise ModelError(f"the reply is larger than {self._most:,} bytes")
            yield piece

    async def read(self) -> bytes:
        """Return the whole body. Raises ModelError."""
        return b"".join([piece async for piece in self.pieces()])


class ModelClient:
    """Sends requests to the model servers of one line. `most` is the maximum size of an answer in bytes."""

    def __init__(self, most: int, certificates: SSLContext) -> None:
        self._most = most
        self._certificates = certificates
        self._room = asyncio.Semaphore(_CONNECTIONS)
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def ask(self, url: str, content: bytes) -> AsyncIterator[Answer]:
        """Send a JSON request and return the answer once its head is there. Raises ModelError, also while the body is read."""
        try:
            async with asyncio.timeout(_ROOM_SECONDS):
                await self._room.acquire()
        except TimeoutError:
            raise ModelError("too many requests wait for the model servers") from None
        try:
            async with self._open().post(url, data=content, headers=_HEADERS, allow_redirects=False) as response:
                if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
                    raise ModelError("the reply is compressed")
                yield Answer(response, self._most)
        except (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError) as error:
            raise Unreachable(_text(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Lost(_text(error)) from error
        finally:
            self._room.release()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_SECONDS, ssl=self._certificates)
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=timeout, auto_decompress=False, read_bufsize=_PIECE, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()


_HEADERS = {"content-type": "application/json", "accept-encoding": "identity", "user-agent": "ratchet-router"}


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
