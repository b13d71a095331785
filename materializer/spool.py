"""Writes received requests to the spool so that an acknowledged one survives a crash. Knows nothing of HTTP.

One file per request: a line of JSON (`.json`), or one frame of protobuf (`.pb`, see materializer/decode.py). Names sort by
time of arrival.
"""

from __future__ import annotations

import itertools
import os
import struct
import threading
import time
from pathlib import Path

from contracts.files import write_atomic


class Spool:
    """The folder that the receiver writes and `SpoolSource` reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def put_json(self, body: bytes) -> Path:
        """Stores a JSON request, in one line: line ends in JSON lie between values only, never within."""
        return self._put(body.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n", ".json")

    def put_proto(self, mark: bytes, body: bytes) -> Path:
        """Stores a protobuf request as a frame. `mark` is T or L."""
        return self._put(mark + struct.pack(">I", len(body)) + body, ".pb")

    def _put(self, data: bytes, ending: str) -> Path:
        """Returns when the file and its name are on disk. Retryable where the disk refuses."""
        with self._lock:
            number = next(self._numbers)
        path = self.folder / f"{time.time_ns():020d}-{os.getpid()}-{number:08d}{ending}"
        write_atomic(path, data)
        return path


def has_room(folder: Path, least: int) -> bool:
    """Whether the disk below `folder` has at least `least` bytes left."""
    try:
        stat = os.statvfs(folder)
    except OSError:
        return False
    return stat.f_bavail * stat.f_frsize >= least
