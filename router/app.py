"""The router's application: it assigns each request to a version by its session or its user, forwards it, and traces it.

A request gives its user, session, consent, region and slice in headers, or in the `user` and `metadata` fields of the API. A trace
contains content only with the caller's consent. If consent is assumed, it also contains content if the caller does not mention consent.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as Endpoint

from ratchet.contracts.serving import Route, RouterHeader
from ratchet.router.apis.api import Api
from ratchet.router.apis.chat import ChatCompletions
from ratchet.router.apis.messages import Messages
from ratchet.router.apis.responses import Responses
from ratchet.router.apis.texts import Completions, Embeddings, TokenCounts
from ratchet.router.assignment import assign, position
from ratchet.router.call import GONE, Call
from ratchet.router.counts.forwarded import ForwardedCounts
from ratchet.router.counts.outcomes import Outcomes
from ratchet.router.forward import StreamedAnswer, error_reply, forward_whole
from ratchet.router.models import ModelClient
from ratchet.router.requests import MAX_BODY, CallerLimit, Refused, caller_of, caller_value, check_model, parsed, pinned
from ratchet.router.traces.exporter import Exporter
from ratchet.runtime.serving.asgi import CallerGone, TooLarge, read_body


@dataclass(frozen=True)
class RouterSettings:
    """Settings of a line."""

    assume_consent: bool = False
    """Whether content goes into traces unless the caller refuses consent."""
    name_versions: bool = False
    """Whether answers name the version that gave them."""
    deadline: float = 600.0
    """Maximum seconds until an answer is complete."""
    per_caller: int = 64
    """Maximum number of requests of one caller at the same time."""
    pins: bool = False
    """Whether the header x-ratchet-pin of a request names the version that answers it."""


APIS: tuple[Api, ...] = (ChatCompletions(), Completions(), Responses(), Messages(), Embeddings(), TokenCounts())
"""The endpoints, as far as the model servers have them. The form of errors at other paths is that of the first one."""
_UNITS = ((RouterHeader.SESSION, "session"), (RouterHeader.USER, "user"))


class Router:
    """What the requests of one line share. `client` sends them to the model servers."""

    def __init__(
        self,
        route: Callable[[], Route | None],
        exporter: Exporter,
        forwarded: ForwardedCounts,
        client: ModelClient,
        settings: RouterSettings,
        outcomes: Outcomes,
    ) -> None:
        self.route = route
        self.exporter = exporter
        self.forwarded = forwarded
        self.client = client
        self._outcomes = outcomes
        self._settings = settings
        self._callers = CallerLimit(settings.per_caller)

    async def answer(self, api: Api, request: Request) -> Response:
        """Answer a request to an endpoint."""
        try:
            body = parsed(await read_body(request, MAX_BODY))
            route = self.route()  # after the body, because the route may change until the body is there
            if route is None:
                self._outcomes.turn_away()
                return error_reply(api, 503, "the router has no route yet; try again later")
            api.check(body)
            check_model(body, route.names)
            call = self._begin(api, route, body, request)
        except CallerGone:
            return error_reply(api, GONE, "the caller has closed the connection")
        except TooLarge as error:
            self._outcomes.turn_away()
            return error_reply(api, 413, str(error))
        except Refused as refused:
            self._outcomes.turn_away()
            return error_reply(api, refused.status, str(refused))

        def headers() -> dict[str, str]:
            told: dict[str, str] = {RouterHeader.TRACE: f"{call.ids[0]}:{call.ids[1]}"}
            return told | ({RouterHeader.VERSION: call.backend.tag} if self._settings.name_versions else {})

        if body.get("stream"):
            return StreamedAnswer(self.client, call, headers, self._settings.deadline)
        return await forward_whole(self.client, call, request, headers, self._settings.deadline)

    def _begin(self, api: Api, route: Route, body: dict[str, Any], request: Request) -> Call:
        """Choose the version of a request and count it as in flight until it is finished. Raises Refused if the caller has too many."""
        session, user = (caller_value(request, body, header, field, api.user(body)) for header, field in _UNITS)
        unit = (user or session) if route.unit == "user" else (session or user)
        pin = request.headers.get(RouterHeader.PIN)
        if pin is not None:
            backend = pinned(route, pin, self._settings.pins)
        else:
            backend = assign(route.backends, position(route.line, unit, route.salt) if unit else random.uniform(0, 100))
        caller = caller_of(request, user)
        self._callers.enter(caller)
        interval = self.forwarded.begin(backend.tag, time.time(), is_evidence=api.is_evidence and pin is None)

        def ended() -> None:
            self.forwarded.end(interval)
            self._callers.leave(caller)

        def store(tag: str, span: Span) -> None:
            if pin is None:
                self._outcomes.add(tag, span)
            self.exporter.add(span)

        return Call(api, route, backend, body, request, self._settings.assume_consent, store, ended, is_pinned=pin is not None)


def build_app(router: Router) -> Starlette:
    """Return the ASGI app of a line."""

    async def health(_request: Request) -> Response:
        dropped = router.exporter.spool.dropped
        status = "ok" if router.route() else "no route"
        return JSONResponse({"status": status, "dropped_traces": dropped.total(), "dropped": dict(dropped)})

    async def models(_request: Request) -> Response:
        route = router.route()
        names = route.names if route else ()
        return JSONResponse({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})

    return Starlette(
        routes=[
            Endpoint("/health", health),
            Endpoint("/v1/models", models),
            *(Endpoint(api.path, partial(router.answer, api), methods=["POST"]) for api in APIS),
        ],
        exception_handlers={HTTPException: _unknown},
    )


async def _unknown(_request: Request, problem: Exception) -> Response:
    """Answer a request with another path or method in the form of the API."""
    assert isinstance(problem, HTTPException)
    return error_reply(APIS[0], problem.status_code, problem.detail, problem.headers)
