"""Opens the credentials of a line's receiver in the home folder."""

from __future__ import annotations

from datetime import UTC, datetime

from ratchet.flows.config.home import Home
from ratchet.materializer.receive.credentials import CredentialStore


def open_credentials(home: Home, line: str) -> CredentialStore:
    """Return the store of the line's credentials. Nothing is created."""
    return CredentialStore(home.credentials(line), lambda: datetime.now(UTC))
