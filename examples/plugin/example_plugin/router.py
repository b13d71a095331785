"""A router for a gateway of your own: it writes the weights to a file that the gateway reads."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from ratchet.extend import Retryable, Route, canonical


class GatewayFile:
    """Writes the route to the file `file`. The gateway at `url` must keep a session on one version and log the version of each answer.

    Before the gateway sends a request to a model server, it appends a line {"time": …, "version": …} to the file `sent`.
    """

    attribution = True

    def __init__(
        self,
        folder: Path,
        _receiver: Path,
        _token: Path,
        _port: int,
        _assume_consent: bool,
        *,
        file: str,
        url: str,
        sent: str = "sent.jsonl",
    ) -> None:
        self._file = folder / file
        self._sent = folder / sent
        self._url = url

    def set(self, route: Route) -> None:
        """Write the route, so that the gateway reads either the old or the new one."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        partial = self._file.with_suffix(".partial")
        partial.write_bytes(canonical(route))
        partial.replace(self._file)

    def read(self, line: str) -> Route | None:
        """Return the route of a line from the file. A damaged file counts as missing, so that it is written again."""
        try:
            route = Route.model_validate_json(self._file.read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return route if route.line == line else None

    def forwarded(self, line: str, since: datetime, until: datetime) -> Mapping[str, int]:  # noqa: ARG002 -- one gateway per line
        """Return version tag -> number of requests that the gateway sent to it. Raises Retryable if the gateway does not count them."""
        try:
            lines = [json.loads(line) for line in self._sent.read_text().splitlines()]
        except FileNotFoundError as error:
            raise Retryable(f"{self._sent} does not exist yet; start the gateway") from error
        return Counter(line["version"] for line in lines if since <= datetime.fromisoformat(line["time"]) < until)

    def in_flight(self, line: str) -> Mapping[str, int]:
        """Raise Retryable, because this gateway does not report its requests in flight."""
        raise Retryable(f"the requests in flight of {line} are not known; its servers stop after serving.drain seconds")

    def url(self) -> str:
        """Return the address of the gateway."""
        return self._url

    def stop(self) -> None:
        """Do nothing: the gateway is not a process of Ratchet."""
