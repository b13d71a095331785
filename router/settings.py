"""What the router process has to know about a line. Imports little, because the service imports it."""

from __future__ import annotations

from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from ratchet.runtime.serving.settings import ServedLine


class RouterLine(ServedLine):
    """Settings of a line. Paths are relative to the folder of the settings."""

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

    @model_serializer(mode="wrap")
    def _written(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out `pins` if it is off, so that a router process that does not know the field reads the settings."""
        return {name: value for name, value in dump(self).items() if name != "pins" or value}
