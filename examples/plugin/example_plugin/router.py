"""A router for a gateway of your own: it writes the weights to a file that the gateway reads."""

from __future__ import annotations

from pathlib import Path

from contracts.ids import canonical
from contracts.serving import Route


class GatewayFile:
    """Writes the route to the file `file`. The gateway at `url` must keep a session on one version and log the version of each answer."""

    attribution = True

    def __init__(self, folder: Path, _receiver: Path, _token: Path, _port: int, _assume_consent: bool, *, file: str, url: str) -> None:
        self._file = folder / file
        self._url = url

    def set(self, route: Route) -> None:
        """Write the route, so that the gateway reads either the old or the new one."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        partial = self._file.with_suffix(".partial")
        partial.write_bytes(canonical(route))
        partial.replace(self._file)

    def read(self, line: str) -> Route | None:
        """Return the route of a line from the file."""
        if not self._file.exists():
            return None
        route = Route.model_validate_json(self._file.read_bytes())
        return route if route.line == line else None

    def url(self) -> str:
        """Return the address of the gateway."""
        return self._url

    def stop(self) -> None:
        """Do nothing: the gateway is not a process of Ratchet."""
