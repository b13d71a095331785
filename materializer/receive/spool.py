"""Writes received requests to the spool, so that an acknowledged request survives a crash.

Each request is one file: one line of JSON (`.json`), or one protobuf frame (`.pb`, see materializer/dialects/decode.py). File names sort by
arrival time.
"""

from __future__ import annotations

import itertools
import os
import struct
import threading
import time
from pathlib import Path

from runtime.artifacts import write_atomic


class Spool:
    """The spool folder, which the receiver writes and `SpoolSource` reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def put_json(self, body: bytes) -> Path:
        """Store a JSON request as one line and return its path. Raises Retryable if the disk cannot be written.

        Line breaks are replaced by spaces. This is safe because JSON strings cannot contain unescaped line breaks.
        """
        return self._put(body.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n", ".json")

    def put_proto(self, mark: bytes, body: bytes) -> Path:
        """Store a protobuf request as a frame and return its path. `mark` is b"T" (traces) or b"L" (logs). Raises like `put_json`."""
        return self._put(mark + struct.pack(">I", len(body)) + body, ".pb")

    def _put(self, data: bytes, ending: str) -> Path:
        """Return after the file and its folder entry are on disk. Raises Retryable if the disk cannot be written."""
        with self._lock:
            number = next(self._numbers)
        path = self.folder / f"{time.time_ns():020d}-{os.getpid()}-{number:08d}{ending}"
        write_atomic(path, data)
        return path


def has_room(folder: Path, least: int) -> bool:
    """Return whether the disk of `folder` has at least `least` bytes free; False if this cannot be determined."""
    try:
        stat = os.statvfs(folder)
    except OSError:
        return False
    return stat.f_bavail * stat.f_frsize >= least
