"""Requests of callers: their validation, the values that describe them, and the number of requests that one caller has at a time."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request

from ratchet.contracts.ids import person_id
from ratchet.contracts.serving import Backend, Pin, Route, RouterHeader
from ratchet.runtime.http_replies import strict_json

MAX_BODY = 8_000_000
"""Maximum size of a request body in bytes."""
_MAX_DEPTH = 32
"""Maximum nesting depth of the request's JSON."""
_MAX_VALUE = 256
"""Maximum number of characters of a region, slice or consent value. Longer values are ignored."""
_PERSONS = ("session", "user")


class Refused(Exception):
    """A request that the router rejects with `status`, without calling a model server."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def parsed(raw: bytes) -> dict[str, Any]:
    """Return the JSON object of a request. Raises Refused if it is none."""
    try:
        body = strict_json(raw, _MAX_DEPTH)
    except ValueError as error:
        raise Refused(400, f"the body is no valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refused(400, "the body must be a JSON object")
    return body


def check_model(body: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise Refused if a request asks for another model than `names`, the present one first."""
    if body.get("model") not in names:
        raise Refused(404, f"the model {str(body.get('model'))[:100]!r} is not served here; use {names[0]!r}")


def pinned(route: Route, pin: str, allowed: bool) -> Backend:
    """Return the backend that the header x-ratchet-pin names.

    Raises Refused if pins are not allowed, for another value, and for a candidate while there is none: no other version answers then.
    """
    if not allowed:
        raise Refused(403, f"the header {RouterHeader.PIN} is not allowed here; set serving.router_options.pins, or leave it out")
    if pin == Pin.CHAMPION:
        return route.backends[0]
    if pin != Pin.CANDIDATE:
        raise Refused(400, f"the header {RouterHeader.PIN} must be {Pin.CHAMPION} or {Pin.CANDIDATE}")
    if len(route.backends) < 2:
        raise Refused(404, "no candidate is being rolled out")
    return route.backends[1]


def caller_value(request: Request, body: Mapping[str, Any], header: str, field: str, own: Any = None) -> str:
    """Return a value from the header, from the API's `metadata` or, for the user, `own`, which the endpoint's own field has.

    A user and a session are returned as `person_id`. The result is empty if the value is missing, or if another value is too long.
    """
    metadata = body.get("metadata")
    value = _header(request, header) or (metadata.get(field) if isinstance(metadata, dict) else None)
    if value is None and field == "user":
        value = own
    text = str(value) if isinstance(value, str | bool | int) else ""
    if field in _PERSONS:
        return person_id(text)
    return text if len(text) <= _MAX_VALUE else ""


def _header(request: Request, name: str) -> str:
    """Return a header's text. Clients send letters outside of ASCII as UTF-8 or as ISO 8859-1 (RFC 9110, 5.5)."""
    raw = request.headers.get(name, "").encode("latin-1")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def caller_of(request: Request, user: str) -> str:
    """Return the name under which the requests of one caller are counted.

    It is `user`. A request without a user counts for its credential, and one without a credential for the peer's address. The router
    does not verify users and credentials.
    """
    if user:
        return f"user {user}"
    credential = request.headers.get("authorization") or request.headers.get("x-api-key")
    if credential:
        return f"credential {hashlib.sha256(credential.encode()).hexdigest()}"
    return f"peer {request.client.host if request.client else ''}"


class CallerLimit:
    """Counts the requests that each caller has at a time, of which there are at most `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._running: Counter[str] = Counter()

    def enter(self, caller: str) -> None:
        """Count a request of the caller. Raises Refused 429 if it has too many."""
        if self._running[caller] >= self._most:
            raise Refused(429, f"this caller already has {self._most} requests at the same time; wait for one of them")
        self._running[caller] += 1

    def leave(self, caller: str) -> None:
        """Count the end of a request."""
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]
