"""Hashes by which records are recognised: the keys of the deduplication index, and the contents of traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from ratchet.materializer.dialects.plain.traces import CONSTANT

Key = bytes
_BEGUN = blake2b(digest_size=16)
"""A hash without content. To copy it costs less than to make one."""
_STATUS = CONSTANT["status"]


def _hash(text: str) -> bytes:
    begun = _BEGUN.copy()
    begun.update(text.encode("utf-8", "surrogatepass"))
    return begun.digest()


def hashed(*parts: object) -> bytes:
    """Return a 128-bit hash of the parts. None and the empty string give different hashes."""
    plain = "\x1f".join(["\x00" if part is None else part if part.__class__ is str else str(part) for part in parts])
    return _hash(plain)


def identity_hash(source: str, identity: str) -> bytes:
    """Return a 128-bit hash of the id of a trace in its source."""
    return _hash(f"{source}\x1f{identity}")


def trace_key(source: str, identity: str) -> Key:
    """Return the key that identifies a trace."""
    return b"t" + identity_hash(source, identity)


def content_hash(row: Mapping[str, Any]) -> bytes:
    """Return the hash of the content of a trace row."""
    return hashed(row["messages"], row["answer"], row["model"], row["status"], row["tools"])


def content_hashes(columns: Mapping[str, Sequence[Any]]) -> list[bytes]:
    """Return the hash of the content of each plain trace (dialects/plain/traces.py), as `content_hash` computes it."""
    models, tools = (["\x00" if one is None else one for one in columns[name]] for name in ("model", "tools"))
    rows = zip(columns["messages"], columns["answer"], models, tools, strict=True)
    return [_hash(f"{messages}\x1f{answer}\x1f{model}\x1f{_STATUS}\x1f{listed}") for messages, answer, model, listed in rows]
