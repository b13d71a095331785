"""One forwarded request: its version, and the one trace that is stored before its answer is complete for the caller."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span
from starlette.requests import Request

from ratchet.contracts.data.records import is_slice_name
from ratchet.contracts.serving import Backend, Route, RouterHeader
from ratchet.router.apis.api import Api
from ratchet.router.requests import caller_value
from ratchet.router.traces.spans import Value, call_span, new_ids

GONE = 499
"""Status for a caller that closes the connection before the answer is complete. The model server stops its work."""


class Call:
    """One request that is forwarded to `backend`, and to the champion if that fails.

    `keep` tells whether content goes into the trace if the caller does not mention consent. `store` gets each span with the tag of the
    version that was asked. `ended` is called once, after the last span, and frees what the request holds. A pinned request is evidence of
    no version, so its trace names none, and no other version answers it.
    """

    def __init__(
        self,
        api: Api,
        route: Route,
        backend: Backend,
        body: dict[str, Any],
        request: Request,
        keep: bool,
        store: Callable[[str, Span], None],
        ended: Callable[[], None],
        is_pinned: bool = False,
    ) -> None:
        self.api = api
        self.route = route
        self.backend = backend
        self.body = body
        self.ids = new_ids()
        self.started_ns, self._steady_ns = time.time_ns(), time.monotonic_ns()
        self.done = False
        self._fallen_back = False
        self._is_pinned = is_pinned
        self._request = request
        self._keep = keep
        self._store = store
        self._ended = ended

    @property
    def name(self) -> str:
        """Model name that the caller uses, which the answer repeats: the line's present one or a former one."""
        return str(self.body["model"])

    @property
    def url(self) -> str:
        """Address of the endpoint of the model server."""
        return f"{self.backend.url}{self.api.path}"

    def asked(self) -> bytes:
        """Return the body of the request for the model server."""
        return json.dumps(self.api.asked(self.body, self.backend.model)).encode()

    def fall_back(self, error: str) -> bool:
        """Store the failed try of a candidate as a trace with status 503, and continue as a call to the champion.

        The answer of the champion gets a trace of its own that names no version, because it is evidence of none: the session was
        assigned to the candidate. Returns False, and changes nothing, if there is no other version to ask: a candidate never answers for
        the champion.
        """
        champion = self.route.backends[0]
        if self.done or self._is_pinned or champion.tag == self.backend.tag:
            return False
        self._store(self.backend.tag, self._span(self._values(None), error))
        self.ids, self.backend, self._fallen_back = new_ids(), champion, True
        self.started_ns, self._steady_ns = time.time_ns(), time.monotonic_ns()
        return True

    def _span(self, values: dict[str, Value | None], error: str | None) -> Span:
        """Return the span of the call, which ends now. Its duration does not depend on the wall clock, which may be set meanwhile."""
        return call_span(self.ids, self.started_ns, time.monotonic_ns() - self._steady_ns, values, error)

    def finish(self, status: int, error: str | None, reply: dict[str, Any] | None, more: dict[str, Value | None] | None = None) -> None:
        """Store the trace of the call, with the attributes `more`. Further calls have no effect.

        `status` is that of the answer, and `error` says why it is not complete. `reply` is the answer or a part of it, in the form of
        the API.
        """
        if self.done:
            return
        self.done = True
        try:
            refused = status == GONE or status in self.api.refused_with
            values = self._values(reply) | (more or {})
            values["ratchet.refused"] = True if refused else None
            self._store(self.backend.tag, self._span(values, None if refused else error))
        finally:
            self._ended()

    def _values(self, reply: dict[str, Any] | None) -> dict[str, Value | None]:
        """Return the attributes of the span.

        Consent is set only if the caller mentions it. Otherwise the loop file decides at ingest.
        """
        body = self.body
        given = self._value(RouterHeader.CONSENT, "consent").lower()
        consent = given in ("true", "1", "yes") if given else None
        third = self._value(RouterHeader.CONSENT_THIRD_PARTY, "consent_third_party").lower()
        group = self._value(RouterHeader.SLICE, "slice")
        return {
            "gen_ai.operation.name": self.api.operation,
            "gen_ai.provider.name": "ratchet",
            "gen_ai.request.model": self.name,
            "gen_ai.request.temperature": _number(body.get("temperature")),
            "gen_ai.request.stream": True if body.get("stream") else None,
            "gen_ai.response.model": self.route.served_model,
            **self.api.facts(reply),
            "gen_ai.conversation.id": self._value(RouterHeader.SESSION, "session") or None,
            "user.id": self._value(RouterHeader.USER, "user") or None,
            "ratchet.model_version": None if self._fallen_back or self._is_pinned else self.backend.tag,
            "ratchet.origin": "traffic",
            "metadata.consent": consent,
            "metadata.consent_third_party": third in ("true", "1", "yes") if third else None,
            "metadata.region": self._value(RouterHeader.REGION, "region") or None,
            "metadata.confidentiality": self._value(RouterHeader.CONFIDENTIALITY, "confidentiality") or None,
            "metadata.slice": group if is_slice_name(group) else None,
            **(self.api.content(body, reply) if (self._keep if consent is None else consent) else {}),
        }

    def _value(self, header: str, field: str) -> str:
        return caller_value(self._request, self.body, header, field, self.api.user(self.body))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e9 else None
