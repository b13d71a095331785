"""Reads pages of Langfuse's public API: observations (version 2), and scores (version 3, or 2 where the server has no version 3).

The API is described in Langfuse's OpenAPI document. A page is bounded, a redirect is not followed, so that the keys go to no other server,
and a refused request (429) or a failure of the server is repeated after the time that the server asks for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from ratchet.contracts.errors import ConfigError, Rejected, Retryable
from ratchet.materializer.dialects.values import parse_json

MAX_REPLY = 64 << 20
"""Largest reply that is read, in bytes."""
_TRIES = 5
_LONGEST_WAIT = 60.0
"""Seconds that one request waits at most before it is repeated."""
_FIELDS = "core,basic,time,io,metadata,model,usage,trace_context"
_PAGES = 100_000
"""More pages of one window are taken for an endless answer."""


class LangfuseClient:
    """A client for one project. `key` is the pair of public and secret key."""

    def __init__(self, base_url: str, key: tuple[str, str], page: int = 100, sleep: Callable[[float], None] = time.sleep) -> None:
        self._base, self._page, self._sleep = base_url.rstrip("/"), page, sleep
        self._http = httpx.Client(auth=key, timeout=60, follow_redirects=False)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def observations(self, begin: datetime, end: datetime, expand: str) -> Iterator[list[Any]]:
        """Yield pages of observations that start in [begin, end). `expand` names keys of metadata that are not cut, with commas.

        Raises ConfigError if the server refuses the keys, Retryable if it does not answer.
        """
        query = {"fields": _FIELDS, "expandMetadata": expand, "limit": self._page}
        query |= {"fromStartTime": _iso(begin), "toStartTime": _iso(end)}
        yield from self._by_cursor("/api/public/v2/observations", query)

    def scores(self, begin: datetime, end: datetime) -> Iterator[list[Any]]:
        """Yield pages of scores that were given in [begin, end). Raises like `observations`."""
        query = {"limit": min(self._page, 100), "fromTimestamp": _iso(begin), "toTimestamp": _iso(end)}
        try:
            yield from self._by_cursor("/api/public/v3/scores", query | {"fields": "subject,annotation"})
            return
        except _NotFound:
            pass
        for number in range(1, _PAGES):
            found = self._get("/api/public/v2/scores", query | {"page": number})
            yield found["data"]
            if number >= int(found["meta"].get("totalPages") or 0):
                return

    def _by_cursor(self, path: str, query: dict[str, Any]) -> Iterator[list[Any]]:
        cursor, seen = None, set[str]()
        for _ in range(_PAGES):
            found = self._get(path, query | ({"cursor": cursor} if cursor else {}))
            yield found["data"]
            cursor = found["meta"].get("cursor")
            if not cursor:
                return
            if cursor in seen:
                break
            seen.add(cursor)
        raise Retryable(f"{self._base}{path} repeats its pages without an end")

    def _get(self, path: str, query: dict[str, Any]) -> dict[str, Any]:
        where = f"{self._base}{path}"
        wait = 1.0
        for number in range(1, _TRIES + 1):
            try:
                status, headers, body = self._request(where, query)
            except httpx.HTTPError as error:
                status, headers, body = 0, httpx.Headers(), type(error).__name__.encode()
            if status == 200:
                return _page(where, body)
            if status in (401, 403):
                raise ConfigError(f"{where} refuses the keys (HTTP {status}); check the two variables with the keys, and the project")
            if status == 404:
                raise _NotFound(f"{where} does not exist (HTTP 404); this source needs Langfuse 4, or its blob export")
            if status != 429 and status < 500 and status != 0:
                raise ConfigError(f"{where} answers HTTP {status}; check base_url")
            if number < _TRIES:
                self._sleep(min(_LONGEST_WAIT, _asked(headers.get("retry-after")) or wait))
                wait *= 2
        raise Retryable(f"{where} has failed {_TRIES} times, the last time with {f'HTTP {status}' if status else body.decode()}")

    def _request(self, where: str, query: dict[str, Any]) -> tuple[int, httpx.Headers, bytes]:
        with self._http.stream("GET", where, params=query) as reply:
            body = b""
            for piece in reply.iter_bytes(1 << 16):
                body += piece
                if len(body) > MAX_REPLY:
                    raise Retryable(f"{where}: the reply is larger than {MAX_REPLY >> 20} MiB; set a smaller options.page")
            return reply.status_code, reply.headers, body


class _NotFound(ConfigError):
    """The server has no such part of the API."""


def _page(where: str, body: bytes) -> dict[str, Any]:
    try:
        found = parse_json(body)
    except Rejected as error:
        raise Retryable(f"{where} answers with broken JSON: {error.detail}") from None
    if not isinstance(found, dict) or not isinstance(found.get("data"), list) or not isinstance(found.get("meta"), dict):
        raise ConfigError(f"{where} does not answer like Langfuse's API; check base_url")
    return found


def _asked(header: str | None) -> float | None:
    """Return the seconds of a `Retry-After` header: a number, or a date. None if it cannot be read."""
    if not header:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
