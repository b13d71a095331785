"""Server-sent events of streamed answers: splits a stream into them, and encodes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

DONE = b"[DONE]"
"""Data of the last event of a complete answer in chunks."""
_MAX_EVENT = 8_000_000
"""Maximum size of an event in bytes."""


class Event(NamedTuple):
    """An event with its data and its name, which is empty for most endpoints."""

    data: bytes
    name: bytes = b""

    def encoded(self) -> bytes:
        """Return the event as it is sent."""
        name = b"event: " + self.name + b"\n" if self.name else b""
        return name + b"data: " + self.data.replace(b"\n", b"\ndata: ") + b"\n\n"


class EventSplitter:
    """Splits a byte stream into events. Lines end with LF or CR LF; comments and other fields are left out."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._name = b""

    def feed(self, piece: bytes) -> Iterator[Event]:
        """Return the events that the next bytes complete. Raises ValueError if an event is too large."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for raw in lines:
            line = raw.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif line.startswith(b"event:"):
                self._name = line[6:].strip()
            elif not line:
                data, name = b"\n".join(self._data), self._name
                has_data, self._data, self._name = bool(self._data), [], b""
                if has_data:
                    yield Event(data, name)
        if len(self._rest) + sum(map(len, self._data)) > _MAX_EVENT:
            raise ValueError(f"an event is larger than {_MAX_EVENT} bytes")
