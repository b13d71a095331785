"""Compares two runs by their projections: (stream, kind, key, data digest) of each row that does not depend on timing, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ratchet.contracts.cycle import Entry
from ratchet.contracts.ids import Digest, digest
from ratchet.contracts.steps import Step


def project(entries: Sequence[Entry]) -> list[tuple[str, str, str, Digest]]:
    """Project ledger rows to (stream, kind, key, digest of the data), without times, lease epochs and retries.

    Intermediate checkpoints, and the checkpoint that a job resumed from, depend on timing and are left out.
    """
    kept = [entry for entry in entries if entry.kind not in ("intended", "step_accepted", "judged", "tried")]
    return [(entry.stream, entry.kind, entry.key, digest(_timeless(entry))) for entry in kept]


def _timeless(entry: Entry) -> dict[str, Any]:
    """Return the row's data without the fields that depend on timing: resume points, event logs and usage."""
    left_out = ("resume", "refused") if entry.key.startswith(f"{Step.TRAIN}/") else ("events", "usage") if entry.kind == "job_ended" else ()
    return {name: value for name, value in entry.data.items() if name not in left_out}
