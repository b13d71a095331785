"""Settings that the router process needs for a line. Imports little, because the service imports it."""

from __future__ import annotations

from ratchet.contracts.model import Extended
from ratchet.runtime.serving.settings import ServedLine


class RouterLine(ServedLine, Extended):
    """Settings of a line. Paths are relative to the folder of the settings."""

    LATER = ("pins",)

    folder: str
    """Folder with the route, the counts, the state and the spool."""
    receiver: str
    """File with the address of the receiver."""
    token: str
    """File with the bearer token for the receiver. The keys for signatures are beside it."""
    assume_consent: bool
    name_versions: bool
    deadline: float
    per_caller: int
    spool_mb: int
    pins: bool = False
