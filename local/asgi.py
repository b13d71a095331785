"""Serves an ASGI application on loopback and announces its port in a ready file."""

from __future__ import annotations

import os
import socket
from typing import Any

import uvicorn

from contracts.errors import Permanent
from local.service import announce


def bind(port: int, what: str, remedy: str) -> socket.socket:
    """Return a listening socket on 127.0.0.1; port 0 means any free port.

    Raises Permanent if the port is taken. `what` names the application in the message, and `remedy` is the advice in it.
    """
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
    """A uvicorn server that writes its ready file once it answers requests."""

    def __init__(self, config: uvicorn.Config, port: int) -> None:
        super().__init__(config)
        self._port = port

    async def startup(self, sockets: Any = None) -> None:
        """Start the server, then announce its port."""
        await super().startup(sockets)
        announce(self._port)


def run_app(app: Any, port: int, what: str, remedy: str) -> None:
    """Serve an ASGI application on loopback until SIGTERM, and announce its port. For `what` and `remedy`, see `bind`.

    Only the owner can read the files that the process writes.
    """
    os.umask(0o077)
    listener = bind(port, what, remedy)
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=5)
    AnnouncingServer(config, listener.getsockname()[1]).run(sockets=[listener])
