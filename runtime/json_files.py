"""Reads small JSON files. Uses only the standard library, so that the process that launches a job starts fast."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None if the file does not exist."""
    try:
        return dict(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
