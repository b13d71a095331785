"""Divides a JSON array into its elements without parsing them, so that a file that is one array needs the memory of one element."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

MAX_ELEMENT = 64 << 20
"""Largest element, in bytes."""
_BLOCK = 1 << 20
_TOKEN = re.compile(rb'"[^"\\]*(?:\\(?s:.)[^"\\]*)*"|[\[\]{},"]')
"""A whole string, a bracket, a comma, or the quote of a string whose end is not read yet."""


def array_elements(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the bytes of each element of the JSON array in `stream`, each as one line. Their syntax is not checked.

    Raises EOFError, after the elements before, if the array has no end, if an element is too large, or if something follows the array.
    """
    held = bytearray(stream.read(_BLOCK).removeprefix(b"\xef\xbb\xbf").lstrip())
    if held[:1] != b"[":
        raise EOFError("the file is no JSON array")
    begin = at = 1
    depth = 0
    while True:
        found = _TOKEN.search(held, at)
        if found is None or found[0] == b'"':
            at = len(held) if found is None else found.start()
            more = stream.read(_BLOCK)
            if not more:
                raise EOFError("the JSON array has no end")
            if len(held) - begin > MAX_ELEMENT:
                raise EOFError(f"an element of the JSON array is larger than {MAX_ELEMENT >> 20} MiB")
            del held[:begin]
            at, begin = at - begin, 0
            held += more
            continue
        token, at = found[0], found.end()
        if token in (b"[", b"{"):
            depth += 1
        elif token in (b"]", b"}"):
            depth -= 1
        if depth < 0 or (depth == 0 and token == b","):
            element = bytes(held[begin : found.start()])
            if element.strip() or token == b",":
                yield element.strip().replace(b"\n", b" ").replace(b"\r", b" ") + b"\n"
            begin = at
        if depth < 0:
            break
    if bytes(held[at:]).strip() or stream.read(_BLOCK).strip():
        raise EOFError("something follows the end of the JSON array")
