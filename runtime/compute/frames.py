"""Numbered messages over a pipe: eight bytes number, eight bytes length (both big-endian), the bytes."""

from __future__ import annotations

import struct
from typing import IO

_HEAD = struct.Struct(">QQ")


def write_frame(stream: IO[bytes], number: int, data: bytes) -> None:
    """Write a message. Raises OSError if the other end is closed."""
    stream.write(_HEAD.pack(number, len(data)))
    stream.write(data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[int, bytes] | None:
    """Return number and bytes of the next message; None if the stream has ended, also inside of a message."""
    head = stream.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    number, length = _HEAD.unpack(head)
    data = stream.read(length)
    return (number, data) if len(data) == length else None
