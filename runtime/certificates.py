"""The certificates by which HTTP clients trust servers. Loading them takes 36 ms of CPU and a megabyte, so a process does it once."""

from __future__ import annotations

from functools import cache
from ssl import PROTOCOL_TLS_CLIENT, SSLContext

import httpx


def certificates(url: str) -> SSLContext:
    """Return the argument `verify` of an httpx client of `url`, which all clients of the process share.

    Args:
        url: The address, or its scheme. A client of an `http` address gets no certificates: it trusts no server with an `https` address.
    """
    return _public() if url.lower().startswith("https:") else _none()


@cache
def _public() -> SSLContext:
    return httpx.create_ssl_context(trust_env=False)


@cache
def _none() -> SSLContext:
    return SSLContext(PROTOCOL_TLS_CLIENT)
