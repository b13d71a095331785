"""A problem of an installation, for the commands that show it."""

from __future__ import annotations

from typing import Literal

from ratchet.contracts.model import Frozen


class Problem(Frozen):
    """Something that stops the installation from working, or that its operator should know."""

    level: Literal["error", "note"]
    about: Literal["service", "disk", "prefect", "backlog", "ledger", "line"]
    text: str
