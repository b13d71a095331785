"""What is rendered, kept as files: a change of a manifest is read by a person before it is believed. RATCHET_GOLDEN=write keeps what is
rendered now."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

FOLDER = Path(__file__).with_name("golden")


def agrees(name: str, text: str) -> None:
    """Fails with the difference."""
    path = FOLDER / name
    if os.environ.get("RATCHET_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    kept = path.read_text() if path.exists() else ""
    lines = difflib.unified_diff(kept.splitlines(), text.splitlines(), f"golden/{name}", "rendered now", lineterm="", n=2)
    difference = "\n".join(lines)
    assert not difference, f"{difference}\n\nif that is meant: RATCHET_GOLDEN=write pytest {Path(__file__).parent}"
