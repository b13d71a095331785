"""Implements the `Router` port on one machine: writes the route file and keeps the router process running.

The route file is a derived copy of ledger state.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from contracts.errors import Permanent
from contracts.ids import canonical
from contracts.model import Frozen
from contracts.schema import SCHEMA_VERSION, UNVERSIONED, parse, stamped
from contracts.serving import Route
from local.proxy.forwarded import FORWARDED, read_counts
from local.proxy.state import STATE, read_in_flight
from local.service import DRAIN_SECONDS, ManagedProcess, invalid_options
from runtime.artifacts import write_atomic
from runtime.json_files import read_json


class RouterOptions(Frozen):
    """Settings in `[serving.router_options]` for routers of kind "local". A router that runs keeps them until it is stopped."""

    name_versions: bool = False
    """Whether each answer names its version in the header x-ratchet-version. A user who sees the version can rate it on purpose, and so
    influence the evidence of a rollout. Enable it only if the header does not reach users."""
    deadline: float = Field(default=600, gt=0, le=800)
    """Maximum seconds until an answer is complete. After that, the caller gets status 504, or a streamed answer ends with an error."""
    per_caller: int = Field(default=64, ge=1)
    """Maximum number of requests of one caller at the same time; more get status 429. A caller is the user that a request names. If it
    names none, it is the credential in the header `Authorization`, and without a credential the address of the peer."""
    spool_mb: int = Field(default=256, ge=1)
    """Maximum size in megabytes of the traces that wait for the receiver. Further traces are dropped and counted."""


class LocalRouter:
    """Runs one router process per line. Its port is chosen once and kept, so that clients' URLs stay valid after restarts.

    `receiver` and `token` are the files with the receiver's address and bearer token. With `port` 0, the first start chooses any free port.
    With `assume_consent`, content goes into traces unless the caller refuses consent. A process that already runs keeps its setting.
    """

    attribution = True

    def __init__(self, folder: Path, receiver: Path, token: Path, port: int = 0, assume_consent: bool = False, **options: Any) -> None:
        try:
            self._options = RouterOptions.model_validate(options)
        except ValidationError as error:
            raise invalid_options("serving.router_options", RouterOptions, error) from None
        self._folder = folder.absolute() / "router"
        self._route = self._folder / "route.json"
        self._receiver = receiver.absolute()
        self._token = token.absolute()
        self._port = port
        self._assume_consent = assume_consent

    def set(self, route: Route) -> None:
        """Put a route in force and start the router process if it does not run. A router of an older release is replaced.

        Raises Permanent if no backend has a weight above 0.
        """
        if sum(backend.weight for backend in route.backends) <= 0:
            raise Permanent(f"the route {route.annotation} has no backend with a weight above 0")
        ready = self._service(0).ready()
        if ready is not None and _of_older_release(ready):
            self.stop()  # a router of an older release cannot read the new route; `url` starts the current one on the same port
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
        ready = self._service(0).ready()
        return route if route.line == line and ready is not None and not _of_older_release(ready) else None

    def forwarded(self, line: str, since: datetime, until: datetime) -> Mapping[str, int]:  # noqa: ARG002 -- one router per line
        """Return version tag -> number of requests that were sent to it. Raises Retryable if the router process does not count them."""
        return read_counts(self._folder / FORWARDED, since, until)

    def in_flight(self, line: str) -> Mapping[str, int]:  # noqa: ARG002 -- one router per line
        """Return version tag -> number of requests that are not answered yet, under the route that was set last.

        Raises Retryable if the router process has not yet reported them since the route was set.
        """
        ready = self._service(0).ready()
        return {} if ready is None else read_in_flight(self._folder / STATE, ready["pid"], self._route)

    def url(self) -> str:
        """Return the base URL for clients, without /v1. Starts the router process if it does not run."""
        kept = read_json(self._folder / "port.json")
        port = self._port or (int(kept["port"]) if kept else 0)
        ready = self._service(port).ensure()
        if kept is None or kept["port"] != ready["port"]:
            write_atomic(self._folder / "port.json", canonical({"port": ready["port"]}))
        return f"http://127.0.0.1:{ready['port']}"

    def stop(self) -> None:
        """Stop the router process, after it has finished the answers that it has begun. The route file stays on disk."""
        self._service(0).stop()

    def _service(self, port: int) -> ManagedProcess:
        options = self._options
        command = ["-m", "local.proxy", "--route", str(self._route), "--receiver", str(self._receiver), "--token", str(self._token)]
        command += ["--assume-consent"] if self._assume_consent else []
        command += ["--name-versions"] if options.name_versions else []
        command += ["--deadline", str(options.deadline), "--per-caller", str(options.per_caller)]
        command += ["--spool-bytes", str(options.spool_mb << 20), "--port", str(port)]
        return ManagedProcess(self._folder, command, grace=DRAIN_SECONDS + 10)


def _of_older_release(ready: dict[str, Any]) -> bool:
    """Whether the router process with this ready file is of an older release.

    Such a process cannot read new routes, or it reports no requests in flight and cannot stream.
    """
    return int(ready.get("schema_version", UNVERSIONED)) < SCHEMA_VERSION or not ready.get("drains")
