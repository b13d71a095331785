"""Writes received requests to the spool, a folder or a bucket, so that an acknowledged request survives a crash.

Each request is one file: the envelope, which is one line of JSON with the sender and the format, and then the request as one line of JSON
or one protobuf frame (see materializer/dialects/decode.py). File names sort by arrival time. The files contain what the sender sent, with
the user ids in clear, until ingest deletes them.
"""

from __future__ import annotations

import itertools
import os
import secrets
import struct
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Literal

from ratchet.contracts.data.senders import Sender
from ratchet.contracts.errors import NewerRelease
from ratchet.contracts.model import Frozen
from ratchet.contracts.schema import parse, stamped
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.serving.exchange import Exchange

SUFFIX = ".request"
"""Suffix of a spool file."""
_UNKNOWN = Sender(name="unknown", roles=())
"""Sender of a request with a damaged envelope. It may send nothing, so that the records are quarantined."""


class Envelope(Frozen):
    """How a request arrived."""

    sender: Sender
    format: str
    """Format of the batch: otlp-json (one line) or otlp-proto (one frame)."""


class Spool(ABC):
    """Stores requests under names that sort by the time of arrival. The mark in a name distinguishes the processes that write."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def put_json(self, sender: Sender, body: bytes) -> str:
        """Store a JSON request as one line and return its name. Raises Retryable if it cannot be stored.

        Line breaks are replaced by spaces. This is safe because JSON strings cannot contain unescaped line breaks.
        """
        return self._put(sender, "otlp-json", body.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n")

    def put_proto(self, sender: Sender, mark: bytes, body: bytes) -> str:
        """Store a protobuf request as a frame and return its name. `mark` is b"T" (traces) or b"L" (logs). Raises like `put_json`."""
        return self._put(sender, "otlp-proto", mark + struct.pack(">I", len(body)) + body)

    def _put(self, sender: Sender, kind: Literal["otlp-json", "otlp-proto"], data: bytes) -> str:
        with self._lock:
            number = next(self._numbers)
        name = f"{time.time_ns():020d}-{self._mark}-{number:08d}{SUFFIX}"
        self._store(name, stamped(Envelope(sender=sender, format=kind)) + b"\n" + data)
        return name

    @abstractmethod
    def has_room(self, least: int) -> bool:
        """Return whether there is room for at least `least` bytes more."""

    @abstractmethod
    def _store(self, name: str, content: bytes) -> None:
        """Return when the content survives a crash. Raises Retryable if it cannot be stored."""


class FolderSpool(Spool):
    """The spool folder, which the receiver writes and `SpoolSource` reads."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(os.getpid()))
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def has_room(self, least: int) -> bool:
        """Return whether the disk has at least `least` bytes free; False if this cannot be determined."""
        try:
            stat = os.statvfs(self.folder)
        except OSError:
            return False
        return stat.f_bavail * stat.f_frsize >= least

    def _store(self, name: str, content: bytes) -> None:
        write_atomic(self.folder / name, content)


class ExchangeSpool(Spool):
    """Requests of a line in the exchange of a cluster, from which the service takes them."""

    def __init__(self, exchange: Exchange, line: str) -> None:
        super().__init__(secrets.token_hex(6))
        self._exchange = exchange
        self._line = line

    def has_room(self, least: int) -> bool:  # noqa: ARG002 -- a bucket has no limit
        """Return True."""
        return True

    def _store(self, name: str, content: bytes) -> None:
        self._exchange.accept(self._line, name, content)


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
