"""Hashes by which records are recognised: the keys of the deduplication index, and the contents of traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from ratchet.materializer.dialects.plain.traces import CONSTANT

Key = bytes


def hashed(*parts: object) -> bytes:
    """Return a 128-bit hash of the parts. None and the empty string give different hashes."""
    plain = "\x1f".join(["\x00" if part is None else part if part.__class__ is str else str(part) for part in parts])
    return blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def identity_hash(source: str, identity: str) -> bytes:
    """Return a 128-bit hash of the id of a trace in its source."""
    return blake2b(f"{source}\x1f{identity}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


def trace_key(source: str, identity: str) -> Key:
    """Return the key that identifies a trace."""
    return b"t" + identity_hash(source, identity)


def content_hash(row: Mapping[str, Any]) -> bytes:
    """Return the hash of the content of a trace row."""
    return hashed(row["messages"], row["answer"], row["model"], row["status"], row["tools"])


def content_hashes(columns: Mapping[str, Sequence[Any]]) -> list[bytes]:
    """Return the hash of the content of each plain trace (dialects/plain/traces.py)."""
    status = CONSTANT["status"]
    rows = zip(columns["messages"], columns["answer"], columns["model"], columns["tools"], strict=True)
    return [hashed(messages, answer, model, status, tools) for messages, answer, model, tools in rows]
