"""Identity of the code of an installed extension, as decisions record it."""

from __future__ import annotations

from ratchet.contracts.ids import Digest
from ratchet.contracts.model import Frozen


class ExtensionVersion(Frozen):
    """Name and code version of an installed extension (runtime/extensions.py finds and identifies it)."""

    name: str
    """Entry point name."""
    distribution: str
    """Name of the distribution that provides it."""
    version: str
    """Version of the distribution."""
    code: Digest
    """Digest of the extension's whole package, or of its file if it belongs to no package."""
