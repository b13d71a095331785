"""Two runs are equal when their projections are: (stream, effect, output digest) of every effect that was done, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from contracts.cycle import Entry, Step
from contracts.ids import Digest, digest


def project(entries: Sequence[Entry]) -> list[tuple[str, str, str, Digest]]:
    """What happened, without when, who and how often it was tried. Intermediate checkpoints depend on timing: left out, and which of
    them a job resumed from."""
    kept = [entry for entry in entries if entry.kind not in ("intended", "step_accepted", "judged", "tried")]
    return [(entry.stream, entry.kind, entry.key, digest(_timeless(entry))) for entry in kept]


def _timeless(entry: Entry) -> dict[str, Any]:
    """A job's diary and its meter hold times."""
    left_out = ("resume", "refused") if entry.key.startswith(f"{Step.TRAIN}/") else ("events", "usage") if entry.kind == "job_ended" else ()
    return {name: value for name, value in entry.data.items() if name not in left_out}
