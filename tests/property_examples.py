"""How many examples the property tests try."""

from __future__ import annotations

import os

EXPLORES = os.environ.get("RATCHET_EXPLORE") == "1"
"""Whether the property tests try new examples, as in `make soak`. Otherwise each run tries the same ones."""


def examples(usual: int, exploring: int) -> int:
    """Return the number of examples of a test for which each takes seconds."""
    return exploring if EXPLORES else usual
