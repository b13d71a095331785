"""State of a line in a replica of the router, in files of its volume, and the report about it for the service."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.contracts.errors import RatchetError, Retryable
from ratchet.contracts.ids import Digest, digest
from ratchet.contracts.schema import parse, stamped
from ratchet.router.counts.report import figures, in_flight
from ratchet.router.settings import RouterLine
from ratchet.router.state import ROUTE, Document
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.json_files import read_json
from ratchet.runtime.serving.exchange import Published
from ratchet.runtime.serving.pod_lines import ANY_ADDRESS
from ratchet.runtime.serving.settings import ANSWERS, LINES
from ratchet.runtime.watched_file import stamp_of

ROUTE_SECONDS = 6 * 3600.0
"""Age in seconds at which a route that the exchange has not confirmed is used no more. Until then, the service stops no model server that a
silent replica may use."""


@dataclass(frozen=True)
class LineFiles:
    """The files of one line below `root`, the folder of the replica's state. `keys` has the folder of the line's token and keys."""

    root: Path
    keys: Path
    receiver_url: str
    name: str
    port: int

    @property
    def folder(self) -> Path:
        """Folder with the route, the counts, the report and the spool."""
        return self.root / "state" / self.name

    @property
    def followed(self) -> dict[tuple[str, Published], Path]:
        """The files of the published documents."""
        return {(self.name, Published.ROUTE): self.folder / ROUTE, (self.name, Published.ROUTER): self.folder / Published.ROUTER}

    @property
    def token(self) -> Path:
        """File with the router's token for the receiver."""
        return self.keys / self.name / "router"

    def settle(self) -> None:
        """Write the line's settings for the router process if the published ones have changed. Without published ones, nothing happens.

        Raises Retryable if a file cannot be written, ValueError if the published document is damaged, and NewerRelease if a newer
        release has published it.
        """
        try:
            published = parse(RouterLine, (self.folder / Published.ROUTER).read_bytes())
        except FileNotFoundError:
            return
        base, address = self.root / LINES, self.folder / "receiver.json"
        write_changed(address, stamped({"url": self.receiver_url}))
        paths = {"folder": self.folder, "receiver": address, "token": self.token}
        places = {name: os.path.relpath(path, base) for name, path in paths.items()}
        settings = published.model_copy(update={"port": self.port, "host": ANY_ADDRESS, **places})
        write_changed(base / f"{self.name}.json", stamped(settings))

    def obstacle(self, confirmed: float, now: float) -> str:
        """Return why the line is not served; empty if it is.

        `confirmed` is when the exchange last confirmed the route, `now` the present time, both in seconds since the epoch.
        """
        answer = read_json(self.root / ANSWERS / f"{self.name}.json") or {}
        if "port" not in answer or answer.get("pid") != os.getpid():
            return str(answer.get("error") or "the service has not published the line's settings")
        if not (self.folder / ROUTE).exists():
            return "the service has not published a route"
        if now - confirmed > ROUTE_SECONDS:
            return f"the route was last confirmed {now - confirmed:.0f} s ago, so its versions may not serve any more"
        return ""

    def account(self) -> dict[str, Any]:
        """Return the report for the service: the digest of the followed route, the requests in flight, and the document with the counts.

        The requests in flight are None if the router has not yet reported them since the route was set.
        """
        try:
            before = stamp_of(self.folder / ROUTE)
            route: Digest | None = digest((self.folder / ROUTE).read_bytes())
            flying: dict[str, int] | None = in_flight(self._read(Document.REPORT), os.getpid(), before)
        except FileNotFoundError:
            route, flying = None, None
        except Retryable:
            flying = None
        counts = self._read(Document.FORWARDED)
        return {"route": route, "in_flight": flying, "forwarded": None if counts is None else counts.decode()}

    def figures(self) -> dict[str, Any]:
        """Return the content of the router's last report; empty if there is none."""
        try:
            report = self._read(Document.REPORT)
            return dict(figures(report)) if report else {}
        except (RatchetError, ValueError):
            return {}

    def _read(self, document: Document) -> bytes | None:
        try:
            return (self.folder / document).read_bytes()
        except FileNotFoundError:
            return None


def write_changed(path: Path, content: bytes) -> None:
    """Write a file unless it has this content. Raises Retryable if it cannot be written."""
    if not path.exists() or path.read_bytes() != content:
        write_atomic(path, content)
