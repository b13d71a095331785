"""Serves an ASGI application on this machine's loopback and announces it. A port that is taken is a clear error."""

from __future__ import annotations

import os
import socket
from typing import Any

import uvicorn

from contracts.errors import Permanent
from local.service import announce


def bind(port: int, what: str, remedy: str) -> socket.socket:
    """A listening socket on 127.0.0.1; port 0 is any free one. Permanent where the port is taken, with `remedy`."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise Permanent(f"{what} cannot listen on 127.0.0.1:{port}: {error.strerror}; {remedy}") from error
    listener.listen(512)
    return listener


class AnnouncingServer(uvicorn.Server):
    """A uvicorn server that writes its ready file once it answers."""

    def __init__(self, config: uvicorn.Config, port: int) -> None:
        super().__init__(config)
        self._port = port

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        announce(self._port)


def run_app(app: Any, port: int, what: str, remedy: str) -> None:
    """Serves an ASGI application on loopback until SIGTERM, and announces it. What the process writes is its owner's alone."""
    os.umask(0o077)
    listener = bind(port, what, remedy)
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=5)
    AnnouncingServer(config, listener.getsockname()[1]).run(sockets=[listener])
