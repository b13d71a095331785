"""A Prefect server that exists already, and a stub of Prefect Cloud in front of it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
import websockets
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from tests.waiting import until

LOGIN = "team:a password of the team"
KEY = "pnu_a_key_of_the_team"
WORKSPACE = "/api/accounts/11111111-1111-4111-8111-111111111111/workspaces/22222222-2222-4222-8222-222222222222"


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def prefect_server(folder: Path, database: str) -> Iterator[str]:
    """A Prefect server with a login, started with Prefect's own command, whose database is the SQLAlchemy URL. Yields its API's address."""
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")} | {
        "PREFECT_HOME": str(folder / "team-prefect"),
        "PREFECT_API_DATABASE_CONNECTION_URL": database,
        "PREFECT_SERVER_API_AUTH_STRING": LOGIN,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }
    url = f"http://127.0.0.1:{port}/api"
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "team-prefect.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        until(lambda: _is_healthy(url), 240, pause=0.3, why=(folder / "team-prefect.log").read_text)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)


def _is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False, timeout=3).status_code == 200
    except httpx.HTTPError:
        return False


@contextmanager
def cloud_stub(url: str) -> Iterator[str]:
    """A server with the paths and the key of Prefect Cloud, which passes what has the key to the server at `url`. Yields its API's address.

    Without the key it answers 401 on every path.
    """
    target = url.removesuffix("/api")
    basic = {"Authorization": f"Basic {base64.b64encode(LOGIN.encode()).decode()}"}
    client = httpx.AsyncClient(base_url=target, trust_env=False, timeout=60)

    async def pass_on(request: Request) -> Response:
        if request.headers.get("authorization", "").partition(" ")[2] != KEY:
            return Response("Unauthorized", 401)
        kept = {name: value for name, value in request.headers.items() if name in ("content-type", "x-prefect-api-version", "accept")}
        path = f"/api/{request.path_params['path']}"
        try:
            reply = await client.request(
                request.method, path, params=request.query_params, content=await request.body(), headers={**kept, **basic}
            )
        except httpx.TransportError:
            return Response("Bad Gateway", 502)
        return Response(reply.content, reply.status_code, media_type=reply.headers.get("content-type"))

    async def pass_events(socket: WebSocket) -> None:
        if socket.headers.get("authorization", "").partition(" ")[2] != KEY:
            await socket.close(4001)
            return
        await socket.accept(subprotocol="prefect" if "prefect" in socket.scope["subprotocols"] else None)
        address = f"{target.replace('http', 'ws', 1)}/api/{socket.path_params['path']}"
        with contextlib.suppress(WebSocketDisconnect, websockets.WebSocketException, OSError):
            async with websockets.connect(address, additional_headers=basic) as inner:
                while True:
                    await inner.send(await socket.receive_text())

    routes: list[Any] = [
        Route(f"{WORKSPACE}/{{path:path}}", pass_on, methods=["GET", "POST", "PATCH", "PUT", "DELETE"]),
        WebSocketRoute(f"{WORKSPACE}/{{path:path}}", pass_events),
    ]
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=asyncio.run, args=(server.serve(),), daemon=True)
    thread.start()
    until(lambda: server.started, 30)
    try:
        yield f"http://127.0.0.1:{port}{WORKSPACE}"
    finally:
        server.should_exit = True
        thread.join(20)
