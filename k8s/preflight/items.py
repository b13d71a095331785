"""One item of the list that `ratchet k8s doctor` walks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

INSTALL_PAGE = "docs/kubernetes/install.md"


@dataclass(frozen=True)
class Item:
    """One item of the list, printed as one line."""

    about: str
    state: Literal["ok", "missing", "unknown"]
    text: str
    remedy: str = ""
    """The exact command or page for a missing item. Empty if nothing is missing."""
    stops: bool = False
    """Whether an installation cannot start, or cannot do its work, until it is resolved."""


def ok(about: str, text: str) -> Item:
    """Return an item that needs nothing."""
    return Item(about, "ok", text)


def missing(about: str, text: str, remedy: str, stops: bool = True) -> Item:
    """Return an item that is missing or wrong."""
    return Item(about, "missing", " ".join(text.split()), remedy, stops)


def unknown(about: str, text: str, remedy: str = "") -> Item:
    """Return an item that could not be looked at."""
    return Item(about, "unknown", " ".join(text.split()), remedy)
