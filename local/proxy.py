"""The router process: an OpenAI chat API that splits sessions over versions by weight.

It attributes every answer to a version and exports a trace of every call. Run as
`python -m local.proxy --route FILE --receiver FILE --token FILE [--port N]`.

The route is read from a file that `LocalRouter` replaces atomically. A request gives its user, session, consent, region and slice in
headers, or in the `user` and `metadata` fields of the API. A trace contains content only with the caller's consent. With
--assume-consent, it also contains content if the caller does not mention consent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import click
import httpx
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from contracts.data.records import is_slice_name
from contracts.errors import RatchetError
from contracts.schema import parse
from contracts.serving import Backend, Route, RouterHeader
from local.asgi import CallerGone, TooLarge, read_body, run_app, while_connected
from local.assignment import assign, position
from local.forwarded import FORWARDED, ForwardedCounts
from local.spans import Exporter, Value, chat_span, content_values, new_ids

log = logging.getLogger("ratchet.router")
_MAX_BODY = 8_000_000
_MAX_DEPTH = 32
"""Maximum nesting depth of the request's JSON."""
_MAX_CHOICES = 8
_MAX_VALUE = 256
"""Maximum number of characters of a user, session, region, slice or consent value. Longer values are ignored."""
_GONE = 499
"""Status for a caller that closes the connection before the answer. The model server stops its work."""
_CALLERS_FAULT = (400, 413, 415, 422, _GONE)
"""Status codes for an invalid or abandoned request. They are counted separately from errors, because the caller may be at fault.
A version that rejects more requests than the other one is still found: the shares of both versions are compared."""


class _Refused(Exception):
    """A request that the router rejects with `status`, without calling a model server."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class RouteFile:
    """The route file on disk, which is read again when it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._route: Route | None = None

    def current(self) -> Route | None:
        """Return the newest valid route that the file has contained; None if there was none yet.

        A missing or damaged file does not stop the router. The service finds the damage and writes the file again.
        """
        try:
            stat = self._path.stat()
            if (stat.st_mtime_ns, stat.st_ino) != self._stamp:
                self._stamp = (stat.st_mtime_ns, stat.st_ino)
                self._route = parse(Route, self._path.read_bytes())
        except FileNotFoundError:
            self._stamp = None
        except (RatchetError, ValueError, OSError) as error:
            log.error("%s is not a valid route (%s); the last valid route stays in force", self._path, type(error).__name__)
        return self._route


def build_app(routes: RouteFile, exporter: Exporter, forwarded: ForwardedCounts, assume_consent: bool = False) -> FastAPI:
    """Return the router's ASGI app. It follows the route file, sends traces to `exporter` and counts its requests in `forwarded`."""
    client = httpx.AsyncClient(timeout=300, trust_env=False, limits=httpx.Limits(max_connections=512, max_keepalive_connections=128))

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(exporter.run()), asyncio.create_task(forwarded.run(time.time))]
        yield
        for task in tasks:
            task.cancel()
        forwarded.write(time.time())
        await exporter.flush()
        await client.aclose()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/health")
    async def health() -> JSONResponse:
        route = routes.current()
        weights = {backend.tag: backend.weight for backend in route.backends} if route else {}
        return JSONResponse({"status": "ok" if route else "no route", "weights": weights, "dropped_traces": exporter.dropped})

    @app.get("/v1/models")
    async def models() -> JSONResponse:
        route = routes.current()
        return JSONResponse({"object": "list", "data": [{"id": route.served_model, "object": "model"}] if route else []})

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        route = routes.current()
        if route is None:
            return _error(503, "the router has no route yet; try again later")
        try:
            body = _parsed(await read_body(request, _MAX_BODY))
            _check(body, route.served_model)
        except TooLarge as error:
            return _error(413, str(error))
        except _Refused as refused:
            return _error(refused.status, str(refused))
        return await _forward(client, exporter, forwarded, route, body, request, assume_consent)

    return app


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw, parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError):
        body = None
    messages = body.get("messages") if isinstance(body, dict) else None
    if not isinstance(body, dict) or not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise _Refused(400, "the body must be a JSON object with a list of messages, each an object; all numbers must be finite")
    if not _shallow(body, _MAX_DEPTH):
        raise _Refused(400, f"the body is nested deeper than {_MAX_DEPTH} levels")
    return body


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not valid JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is outside the range of a float")
    return value


def _shallow(value: Any, most: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return most >= 0 and all(_shallow(item, most - 1) for item in inner if isinstance(item, dict | list))


def _check(body: dict[str, Any], served: str) -> None:
    """Raise _Refused for a request that no version can serve, so that it does not count as an error of a version."""
    if body.get("model") != served:
        raise _Refused(404, f"the model {str(body.get('model'))[:100]!r} is not served here; use {served!r}")
    if body.get("stream"):
        raise _Refused(400, "streaming is not supported by this router; send stream: false")
    for name, most in (("n", _MAX_CHOICES), ("max_tokens", 2**31), ("max_completion_tokens", 2**31)):
        value = body.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most):
            raise _Refused(400, f"{name} must be an integer from 1 to {most}")


async def _forward(
    client: httpx.AsyncClient,
    exporter: Exporter,
    forwarded: ForwardedCounts,
    route: Route,
    body: dict[str, Any],
    request: Request,
    assume_consent: bool,
) -> Response:
    session = _caller_value(request, body, RouterHeader.SESSION, "session") or None
    backend = assign(route.backends, position(route.line, session, route.salt) if session else random.uniform(0, 100))
    ids, started = new_ids(), time.time_ns()
    forwarded.add(backend.tag, started / 1e9)
    reply, error, status = None, None, 502
    try:
        url, content = f"{backend.url}/v1/chat/completions", json.dumps({**body, "model": backend.model})
        answer = await while_connected(request, client.post(url, content=content, headers={"content-type": "application/json"}))
        status = answer.status_code
        reply = answer.json()
        error = None if status == 200 else f"HTTP {status}"
    except CallerGone:
        error, status = "the caller has closed the connection", _GONE
    except (httpx.HTTPError, ValueError, RecursionError) as problem:
        error = f"{type(problem).__name__}: {problem}"
    refused = status in _CALLERS_FAULT
    values = _values(route, backend, body, reply if error is None else None, session, request, assume_consent)
    values["ratchet.refused"] = True if refused else None
    exporter.add(chat_span(ids, started, values, None if refused else error))
    headers: dict[str, str] = {RouterHeader.VERSION: backend.tag, RouterHeader.TRACE: f"{ids[0]}:{ids[1]}"}
    if not isinstance(reply, dict):
        return _error(502, f"the model server of {backend.tag} returned no valid answer", headers)
    content = json.dumps({**reply, "model": route.served_model} if error is None else reply)  # ASCII: unpaired surrogates are not UTF-8
    return Response(content, status_code=status, headers=headers, media_type="application/json")


def _values(
    route: Route,
    backend: Backend,
    body: dict[str, Any],
    reply: dict[str, Any] | None,
    session: str | None,
    request: Request,
    assume_consent: bool,
) -> dict[str, Value | None]:
    """Return the attributes of the span.

    Consent is set only if the caller mentions it. Otherwise the loop file decides at ingest.
    """
    choice = _first_choice(reply)
    usage = reply.get("usage") if reply else None
    message = choice.get("message") if choice else None
    answer = [{"role": "assistant", "content": message.get("content")}] if isinstance(message, dict) else None
    given = _caller_value(request, body, RouterHeader.CONSENT, "consent").lower()
    consent = given in ("true", "1", "yes") if given else None
    keep = assume_consent if consent is None else consent
    group = _caller_value(request, body, RouterHeader.SLICE, "slice")
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "ratchet",
        "gen_ai.request.model": route.served_model,
        "gen_ai.request.temperature": _number(body.get("temperature")),
        "gen_ai.response.model": route.served_model,
        "gen_ai.response.id": str(reply["id"]) if reply and reply.get("id") else None,
        "gen_ai.response.finish_reasons": [str(choice.get("finish_reason"))] if choice else None,
        "gen_ai.usage.input_tokens": _count(usage, "prompt_tokens"),
        "gen_ai.usage.output_tokens": _count(usage, "completion_tokens"),
        "gen_ai.conversation.id": session,
        "user.id": _caller_value(request, body, RouterHeader.USER, "user") or None,
        "ratchet.model_version": backend.tag,
        "ratchet.origin": "traffic",
        "metadata.consent": consent,
        "metadata.region": _caller_value(request, body, RouterHeader.REGION, "region") or None,
        "metadata.slice": group if is_slice_name(group) else None,
        **(content_values(body["messages"], answer) if keep else {}),
    }


def _caller_value(request: Request, body: dict[str, Any], header: str, field: str) -> str:
    """Return a value from the header, from the API's `metadata` or, for the user, from the API's own field.

    The result is empty if the value is missing or too long.
    """
    metadata = body.get("metadata")
    value = request.headers.get(header) or (metadata.get(field) if isinstance(metadata, dict) else None)
    if value is None and field == "user":
        value = body.get("user")
    text = str(value) if isinstance(value, str | bool | int) else ""
    return text if len(text) <= _MAX_VALUE else ""


def _first_choice(reply: dict[str, Any] | None) -> dict[str, Any] | None:
    choices = reply.get("choices") if reply else None
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None


def _count(usage: Any, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and 0 <= value < 2**63 else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e9 else None


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": "ratchet_router"}}, status_code=status, headers=headers)


@click.command()
@click.option("--route", type=click.Path(path_type=Path), required=True)
@click.option("--receiver", type=click.Path(path_type=Path), required=True)
@click.option("--token", type=click.Path(path_type=Path), required=True)
@click.option("--port", default=0)
@click.option("--assume-consent", is_flag=True, help="Put content into traces unless the caller refuses consent.")
def main(route: Path, receiver: Path, token: Path, port: int, assume_consent: bool) -> None:
    """Run the router process until SIGTERM."""
    app = build_app(RouteFile(route), Exporter(receiver, token), ForwardedCounts(route.with_name(FORWARDED)), assume_consent)
    run_app(app, port, "the router", "free the port, or set serving.router_port in the loop file")


if __name__ == "__main__":
    main()
