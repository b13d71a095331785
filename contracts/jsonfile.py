"""Small JSON files that are written atomically. Standard library alone: the last program before a job imports it, and starts fast."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file, or None where there is no file."""
    try:
        return dict(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
