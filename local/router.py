"""Implements the `Router` port on one machine: writes the route file of a line, and keeps the router process running.

The route file is a derived copy of ledger state.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.ids import canonical
from ratchet.contracts.model import Frozen
from ratchet.contracts.schema import parse, stamped
from ratchet.contracts.serving import Route
from ratchet.contracts.wording import invalid_options
from ratchet.local.line_process import LineProcess
from ratchet.router.counts.forwarded import sent_between
from ratchet.router.counts.report import in_flight
from ratchet.router.settings import RouterLine
from ratchet.router.state import ROUTE, Document
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.json_files import read_json
from ratchet.runtime.serving.announcement import DRAIN_SECONDS
from ratchet.runtime.watched_file import stamp_of

_PORT = "port.json"
"""File with the line's port, which stays the same after a restart."""


class RouterOptions(Frozen):
    """Settings in `[serving.router_options]` for routers of kind "local". A line that is served keeps them until it is stopped."""

    name_versions: bool = False
    """Whether each answer names its version in the header x-ratchet-version. A user who sees the version can rate it on purpose, and so
    influence the evidence of a rollout. Enable it only if the header does not reach users."""
    deadline: float = Field(default=600, gt=0, le=800)
    """Maximum seconds until an answer is complete. After that, the caller gets status 504, or a streamed answer ends with an error."""
    per_caller: int = Field(default=64, ge=1)
    """Maximum number of requests of one caller at the same time; more get status 429. A caller is the user that a request names. If it
    names none, it is the credential in the header `Authorization`, and without a credential the address of the peer."""
    pins: bool = False
    """Whether a request chooses the version that answers it by the header `x-ratchet-pin: champion` or `candidate`. For testers: such a
    request is evidence of no version. Enable it only if users' requests cannot carry the header, because each one loads the candidate's
    server, which slows its answers to others."""
    spool_mb: int = Field(default=256, ge=1)
    """Maximum size in megabytes of the traces that wait for the receiver. Further traces are dropped and counted."""


class LocalRouter:
    """Answers for a line in the router process, which serves all lines of an installation.

    Each line has a port of its own, which is chosen once and kept, so that clients' URLs stay valid after restarts. `receiver` and `token`
    are the files with the receiver's address and bearer token. With `port` 0, the first start chooses any free port. With
    `assume_consent`, content goes into traces unless the caller refuses consent. A line that is served keeps its settings until `stop`.
    """

    attribution = True

    def __init__(self, folder: Path, receiver: Path, token: Path, port: int = 0, assume_consent: bool = False, **options: Any) -> None:
        try:
            self._options = RouterOptions.model_validate(options)
        except ValidationError as error:
            raise invalid_options("serving.router_options", RouterOptions, error) from None
        self._folder = folder.absolute() / "router"
        self._route = self._folder / ROUTE
        self._receiver = receiver.absolute()
        self._token = token.absolute()
        self._port = port
        self._assume_consent = assume_consent
        self.join(self._folder / "process", "line")

    def join(self, process: Path, line: str) -> None:
        """Use the process with the folder `process`, which may serve other lines, too. `line` is this line's name.

        Without this call, the line has a process of its own, below its folder.
        """
        self._line = line
        self.process = LineProcess(process, ["-m", "ratchet.router", "--folder"], DRAIN_SECONDS)

    def set(self, route: Route) -> None:
        """Put a route in force, and start the router process if it does not run. A process of another release is replaced.

        Raises Permanent if no backend has a weight above 0, or if the line's port is taken.
        """
        if sum(backend.weight for backend in route.backends) <= 0:
            raise Permanent(f"the route {route.annotation} has no backend with a weight above 0")
        write_atomic(self._route, stamped(route))
        self.url()

    def read(self, line: str) -> Route | None:
        """Return the route of `line` in force.

        None if no route is set, if its file is damaged, or if no router process of this release is ready to follow it. `set` repairs all
        of them.
        """
        try:
            route = parse(Route, self._route.read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return route if route.line == line and self.process.port(self._line) is not None else None

    def forwarded(self, line: str, since: datetime, until: datetime) -> Mapping[str, int]:  # noqa: ARG002 -- one object per line
        """Return version tag -> number of requests that were sent to it. Raises Retryable if the router process does not count them."""
        return sent_between(self._document(Document.FORWARDED), since, until)

    def in_flight(self, line: str) -> Mapping[str, int]:  # noqa: ARG002 -- one object per line
        """Return version tag -> number of requests that are not answered yet, under the route that was set last.

        Raises Retryable if the router process has not yet reported them since the route was set.
        """
        pid = self.process.pid()
        if pid is None or self.process.port(self._line) is None:
            return {}
        report = self._document(Document.REPORT)
        try:
            route = stamp_of(self._route)
        except OSError as error:
            raise Retryable(f"{self._route} is not readable: {error.strerror}, so the requests in flight are unknown") from error
        return in_flight(report, pid, route)

    def url(self) -> str:
        """Return the base URL for clients, without /v1. Starts the router process if it does not run, and adds the line to it.

        Raises Permanent if the line's port is taken.
        """
        port = self.process.port(self._line)
        if port is None:
            port = self.process.serve(self._line, self._settings())
        if self._kept_port() != port:
            write_atomic(self._folder / _PORT, canonical({"port": port}))
        return f"http://127.0.0.1:{port}"

    def stop(self) -> None:
        """Close the line's port, after the router has finished the answers that it has begun. The route file stays on disk."""
        self.process.remove(self._line)

    def _document(self, document: Document) -> bytes | None:
        """Return what the router process has written. Reading it this way opens no spool, which belongs to the process."""
        try:
            return (self._folder / document).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Retryable(f"{self._folder / document} is not readable: {error.strerror}") from error

    def _settings(self) -> RouterLine:
        base, options = self.process.settings, self._options
        self._folder.mkdir(parents=True, exist_ok=True)
        return RouterLine(
            port=self._port or self._kept_port() or 0,
            folder=os.path.relpath(self._folder, base),
            receiver=os.path.relpath(self._receiver, base),
            token=os.path.relpath(self._token, base),
            assume_consent=self._assume_consent,
            name_versions=options.name_versions,
            deadline=options.deadline,
            per_caller=options.per_caller,
            spool_mb=options.spool_mb,
            pins=options.pins,
        )

    def _kept_port(self) -> int | None:
        kept = read_json(self._folder / _PORT)
        return int(kept["port"]) if kept else None
