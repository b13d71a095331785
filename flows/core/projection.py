"""Two runs are equal when their projections are: (stream, effect, output digest) of every effect that was done, in order."""

from __future__ import annotations

from collections.abc import Sequence

from contracts.cycle import Entry
from contracts.ids import Digest, digest


def project(entries: Sequence[Entry]) -> list[tuple[str, str, str, Digest]]:
    """What happened, without when, who and how often it was tried. Intermediate checkpoints depend on timing: left out."""
    kept = [entry for entry in entries if entry.kind not in ("intended", "step_accepted", "judged", "tried")]
    return [(entry.stream, entry.kind, entry.key, digest(entry.data)) for entry in kept]
