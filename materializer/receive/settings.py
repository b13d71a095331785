"""What the receiver process has to know about a line. Imports little, because the service imports it."""

from __future__ import annotations

from ratchet.runtime.serving.settings import ServedLine

DRAIN_SECONDS = 10.0
"""Seconds within which the receiver finishes the answers that it has begun when it ends or a line is removed."""


class ReceiverLine(ServedLine):
    """Settings of a line. Paths are relative to the folder of the settings."""

    spool: str
    """Folder for received requests."""
    credentials: str
    """File with the credentials; it is read again when it changes."""
