"""Golden files: rendered manifests that are kept under version control, so that every change of a manifest is reviewed.

RATCHET_GOLDEN=write replaces the files with the current output.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

FOLDER = Path(__file__).with_name("golden")


def agrees(name: str, text: str) -> None:
    """Fail with the difference if `text` differs from the golden file `name`."""
    path = FOLDER / name
    if os.environ.get("RATCHET_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    kept = path.read_text() if path.exists() else ""
    lines = difflib.unified_diff(kept.splitlines(), text.splitlines(), f"golden/{name}", "rendered now", lineterm="", n=2)
    difference = "\n".join(lines)
    assert not difference, f"{difference}\n\nif the change is intended: RATCHET_GOLDEN=write pytest {Path(__file__).parent}"
