"""Serves the reports of the lines beside the installation's own Prefect UI, at /ratchet/LINE and /ratchet/LINE/NUMBER.

They need the login of the Prefect server, as the API does. A page is rendered from the ledger when it is read, and changes nothing.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from ratchet.contracts.errors import RatchetError
from ratchet.contracts.ids import cycle_stream
from ratchet.flows.config.home import Home

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PREFIX = "/ratchet/"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; base-uri 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def report_link(ui: str, cycle: str) -> str:
    """Return the address of a cycle in the report of its line. `ui` is the address of the Prefect UI, `cycle` the cycle's stream."""
    return f"{ui.rstrip('/')}{PREFIX}{cycle.removeprefix('cycle/')}"


class ReportPages:
    """An ASGI app that answers requests below /ratchet/ and passes all others to `app`.

    `authorization` is the value of the header Authorization that a reader must send.
    """

    def __init__(self, app: Any, home: Home, authorization: str) -> None:
        self._app = app
        self._home = home
        self._authorization = authorization.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        answer = await run_in_threadpool(self._answer, request)
        answer.headers.update(_HEADERS)
        await answer(scope, receive, send)

    def _answer(self, request: Request) -> Response:
        given = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, self._authorization):
            text = "The report needs the login of this Prefect server: the user `ratchet` and the password in RATCHET_HOME/prefect/login."
            return PlainTextResponse(text, 401, {"WWW-Authenticate": 'Basic realm="Ratchet", charset="UTF-8"'})
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("A report can only be read.", 405, {"Allow": "GET, HEAD"})
        line, _, number = request.url.path.removeprefix(PREFIX).rstrip("/").partition("/")
        if number:
            if not number.isdecimal() or len(number) > 9:
                return PlainTextResponse(f"There is no page {request.url.path}.", 404)
            return RedirectResponse(f"{PREFIX}{line}#{cycle_stream(line, int(number))}")
        return self._report(line)

    def _report(self, line: str) -> Response:
        """Return the report of a line. Its imports are late, because most Prefect servers never show a report."""
        from ratchet.flows.composition.artifacts import open_artifacts
        from ratchet.flows.composition.ports import open_ledger
        from ratchet.flows.report.page import render_report

        ledger = open_ledger(self._home)
        if f"line/{line}" not in ledger.streams("line/"):
            return PlainTextResponse(f"There is no line {line!r} in this installation.", 404)
        try:
            return HTMLResponse(render_report(ledger, open_artifacts(self._home), line, datetime.now(UTC)))
        except RatchetError as error:
            return PlainTextResponse(f"The report of {line} cannot be shown: {error}", 503)


class Confined:
    """Tells the browser to let Prefect's UI contact this server only.

    The UI would report its use to a statistics service, and fetch fonts, whatever the settings of the server are.
    """

    def __init__(self, app: Any, port: int, names: Sequence[str]) -> None:
        """The UI may call the server by all its `names`, on its port."""
        self._app = app
        own = " ".join(f"{scheme}://{name}:{port}" for scheme in ("http", "ws") for name in names)
        self._policy = (
            "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; worker-src 'self' blob:; style-src 'self' "
            f"'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' {own}; object-src 'none'; "
            "base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. A page that has a policy of its own keeps it."""

        async def confined(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("content-security-policy", self._policy)
                headers.setdefault("referrer-policy", "no-referrer")
            await send(message)

        await self._app(scope, receive, confined)
