"""The HTTP client for model servers.

It uses aiohttp, which takes a third of the CPU time that httpx takes for a request, and does not take longer with many connections.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ssl import SSLContext

import aiohttp
from aiohttp.abc import ResolveResult
from aiohttp.resolver import ThreadedResolver

_CONNECT_SECONDS = 5.0
_PROBE_AFTER, _PROBE_EVERY, _PROBES = 5, 2, 4
"""A machine that vanishes closes no connection. The kernel asks it after this number of silent seconds, then at this interval, and gives
the connection up after this number of questions without a reply: 13 seconds. It replies for a model server that is busy."""
_NAME_SECONDS = 1
"""How long an address is used without looking it up again: in a cluster, the name of a version has an address per server that is ready."""
_RESOLVE_SECONDS = 3.0
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
            connector = aiohttp.TCPConnector(
                limit=0,
                keepalive_timeout=_IDLE_SECONDS,
                ttl_dns_cache=_NAME_SECONDS,
                ssl=self._certificates,
                socket_factory=_socket,
                resolver=_Resolver(),
            )
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=timeout, auto_decompress=False, read_bufsize=_PIECE, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()


class _Resolver(ThreadedResolver):
    """Resolves host names. While the name server does not answer, a name keeps its last addresses.

    A name that has no address, as that of model servers of which none is ready, keeps none.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[tuple[str, int, int], list[ResolveResult]] = {}

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[ResolveResult]:
        key = (host, port, family)
        try:
            async with asyncio.timeout(_RESOLVE_SECONDS):
                self._last[key] = await super().resolve(host, port, family)
        except TimeoutError:
            if key not in self._last:
                raise socket.gaierror(socket.EAI_AGAIN, f"no name server answered within {_RESOLVE_SECONDS:g} s") from None
        except socket.gaierror as error:
            if error.errno != socket.EAI_AGAIN:
                self._last.pop(key, None)
            if key not in self._last:
                raise
        return self._last[key]


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """Return a socket on which a lost machine is noticed, also while its answer is waited for."""
    family, kind, protocol, _, _ = address
    opened = socket.socket(family=family, type=kind, proto=protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # macOS names the idle time differently; its connections keep the defaults of the system
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_AFTER)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_EVERY)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    return opened


_HEADERS = {"content-type": "application/json", "accept-encoding": "identity", "user-agent": "ratchet-router"}


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
