"""Identifiers: canonical JSON, content digests, and the names of external effects.

Names are derived deterministically from the objects they belong to. A repeated call therefore finds the result of the first call.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import BaseModel

Digest: TypeAlias = str
"""SHA-256 of content, as lower-case hexadecimal text."""


def canonical(value: Any) -> bytes:
    """Return the canonical JSON encoding of `value`: sorted keys, no spaces, UTF-8. Raises `ValueError` for NaN and infinities."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest(value: Any) -> Digest:
    """Return the SHA-256 of `value`. Bytes are hashed unchanged; any other value is hashed in its canonical encoding."""
    return hashlib.sha256(value if isinstance(value, bytes) else canonical(value)).hexdigest()


def digest_file(path: Path) -> Digest:
    """Return the SHA-256 of a file, which is read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checkpoint_name(plan: Digest, attempt: int, incarnation: int) -> str:
    """Return the name that a job binds its finished checkpoint to.

    The name includes the incarnation. A stale incarnation that is still alive (for example behind a network partition) therefore cannot
    publish under the current name.
    """
    return f"checkpoint/{plan}/a{attempt}/i{incarnation}"


def line_stream(line: str) -> str:
    """Return the ledger stream of a model line: adoptions, opened and ended cycles, champions."""
    return f"line/{line}"


def cycle_stream(line: str, number: int) -> str:
    """Return the ledger stream of a cycle. Its name is also the cycle's id."""
    return f"cycle/{line}/{number:04d}"


def approval_stream(cycle: str, kind: str) -> str:
    """Return the ledger stream of a request for approval."""
    return f"approval/{cycle.removeprefix('cycle/')}/{kind}"


def rollout_stream(cycle: str) -> str:
    """Return the ledger stream of a cycle's rollout. Its name is also the rollout's id."""
    return f"rollout/{cycle.removeprefix('cycle/')}"


def ingest_stream(line: str, batch: Digest) -> str:
    """Return the ledger stream of an ingested batch. `batch` is the digest of its content."""
    return f"ingest/{line}/{batch}"


def effect_name(cycle: str, step: str) -> str:
    """Return the name that a step's result is bound to in `Artifacts`."""
    return f"{cycle}/{step}"


def job_name(plan: Digest, attempt: int, spec: Digest) -> str:
    """Return a job's name, a valid DNS label. It is determined by the plan, the attempt and the digest of the rendered spec."""
    return f"rt-{digest([plan, attempt, spec])[:16]}-a{attempt}"


def version_tag(checkpoint: Digest) -> str:
    """Return the tag of a model version, derived from the digest of its checkpoint."""
    return f"v-{checkpoint[:12]}"
