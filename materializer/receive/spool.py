"""Writes received requests to the spool, so that an acknowledged request survives a crash.

Each request is one file: the envelope, which is one line of JSON with the sender and the format, and then the request as one line of JSON
or one protobuf frame (see materializer/dialects/decode.py). File names sort by arrival time. The files contain what the sender sent, with
the user ids in clear, until ingest deletes them.
"""

from __future__ import annotations

import itertools
import os
import struct
import threading
import time
from pathlib import Path
from typing import Literal

from ratchet.contracts.data.senders import Sender
from ratchet.contracts.errors import NewerRelease
from ratchet.contracts.model import Frozen
from ratchet.contracts.schema import parse, stamped
from ratchet.runtime.artifacts import write_atomic

SUFFIX = ".request"
"""Suffix of a spool file."""
_UNKNOWN = Sender(name="unknown", roles=())
"""Sender of a request with a damaged envelope. It may send nothing, so that the records are quarantined."""


class Envelope(Frozen):
    """How a request arrived."""

    sender: Sender
    format: str
    """Format of the batch: otlp-json (one line) or otlp-proto (one frame)."""


class Spool:
    """The spool folder, which the receiver writes and `SpoolSource` reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def put_json(self, sender: Sender, body: bytes) -> Path:
        """Store a JSON request as one line and return its path. Raises Retryable if the disk cannot be written.

        Line breaks are replaced by spaces. This is safe because JSON strings cannot contain unescaped line breaks.
        """
        return self._put(sender, "otlp-json", body.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n")

    def put_proto(self, sender: Sender, mark: bytes, body: bytes) -> Path:
        """Store a protobuf request as a frame and return its path. `mark` is b"T" (traces) or b"L" (logs). Raises like `put_json`."""
        return self._put(sender, "otlp-proto", mark + struct.pack(">I", len(body)) + body)

    def _put(self, sender: Sender, kind: Literal["otlp-json", "otlp-proto"], data: bytes) -> Path:
        """Return after the file and its folder entry are on disk. Raises Retryable if the disk cannot be written."""
        with self._lock:
            number = next(self._numbers)
        path = self.folder / f"{time.time_ns():020d}-{os.getpid()}-{number:08d}{SUFFIX}"
        write_atomic(path, stamped(Envelope(sender=sender, format=kind)) + b"\n" + data)
        return path


def spooled(folder: Path) -> list[Path]:
    """Return the spool files in order of arrival."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def read_envelope(file: Path) -> Envelope:
    """Return the envelope of a spool file. If it is damaged, its sender is unknown. Raises NewerRelease if a newer release wrote it."""
    try:
        with file.open("rb") as stream:
            return parse(Envelope, stream.readline())
    except NewerRelease:
        raise
    except ValueError:
        return Envelope(sender=_UNKNOWN, format="otlp-json")


def read_request(file: Path) -> bytes:
    """Return the request in a spool file, without its envelope."""
    return file.read_bytes().partition(b"\n")[2]


def has_room(folder: Path, least: int) -> bool:
    """Return whether the disk of `folder` has at least `least` bytes free; False if this cannot be determined."""
    try:
        stat = os.statvfs(folder)
    except OSError:
        return False
    return stat.f_bavail * stat.f_frsize >= least
