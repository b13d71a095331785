"""Identity: canonical JSON, content digests, and the names of outside effects.

A name derives from the object that it belongs to, so that a repeat finds what the first one did.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import BaseModel

Digest: TypeAlias = str
"""Lower-case hex SHA-256 of content."""


def canonical(value: Any) -> bytes:
    """The one byte form of a JSON value: sorted keys, no blanks, UTF-8. NaN and infinities are refused (ValueError)."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest(value: Any) -> Digest:
    """SHA-256 of `value`: of bytes as they are, of anything else in canonical form."""
    return hashlib.sha256(value if isinstance(value, bytes) else canonical(value)).hexdigest()


def digest_file(path: Path) -> Digest:
    """SHA-256 of a file's bytes, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checkpoint_name(plan: Digest, attempt: int, incarnation: int) -> str:
    """What a job binds its finished checkpoint to. Each incarnation has a name of its own: what an older one, cut off from the rest
    but alive, publishes is found by nobody."""
    return f"checkpoint/{plan}/a{attempt}/i{incarnation}"


def line_stream(line: str) -> str:
    """The ledger stream of a model line: adoptions, cycles opened and ended, champions."""
    return f"line/{line}"


def cycle_stream(line: str, number: int) -> str:
    """The ledger stream of one cycle; also the cycle's id."""
    return f"cycle/{line}/{number:04d}"


def approval_stream(cycle: str, kind: str) -> str:
    """The ledger stream of one request for approval."""
    return f"approval/{cycle.removeprefix('cycle/')}/{kind}"


def rollout_stream(cycle: str) -> str:
    """The ledger stream of a cycle's rollout; also the rollout's id."""
    return f"rollout/{cycle.removeprefix('cycle/')}"


def ingest_stream(line: str, batch: Digest) -> str:
    """The ledger stream of one ingested batch, by its content."""
    return f"ingest/{line}/{batch}"


def effect_name(cycle: str, step: str) -> str:
    """The name under which a step's result is stored in Artifacts."""
    return f"{cycle}/{step}"


def job_name(plan: Digest, attempt: int, spec: Digest) -> str:
    """A job's name, a DNS label: the same plan, attempt and rendered spec give the same name, anything else another."""
    return f"rt-{digest([plan, attempt, spec])[:16]}-a{attempt}"


def version_tag(checkpoint: Digest) -> str:
    """A model version's tag, from the digest of its checkpoint."""
    return f"v-{checkpoint[:12]}"
