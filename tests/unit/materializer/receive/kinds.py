"""Opens sources of the built-in kinds as a loop file does, and decodes what they deliver."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.contracts.loop import SourceSettings
from ratchet.materializer.dialects.decode import decode
from ratchet.runtime.extensions import ExtensionKind, load

NOW = int(datetime(2026, 12, 1, tzinfo=UTC).timestamp() * 1_000_000)


def opened(kind: str, path: Path | str | None, state: Path, mapping: dict[str, str] | None = None, **options: Any) -> Any:
    """The source of a kind at a path or URL."""
    settings = SourceSettings.model_validate(
        {"name": "s", "kind": kind, "path": None if path is None else str(path), "mapping": mapping or {}}
    )
    return load(ExtensionKind.SOURCE, kind).create(settings, Path("/"), state, options=options, where="sources.s.options")


def ingested(source: Any, mapping: dict[str, str] | None = None, assumed: bool = True) -> Decoded:
    """Everything that the source has, decoded; the source is told that the lake has it."""
    whole = Decoded()
    for batch in list(source.batches()):
        found = decode(batch, Limits(NOW, assumed, mapping or {}))
        whole.merge(found, batch.origin)
        source.done(batch)
    return whole


def reasons(found: Decoded) -> dict[str, int]:
    """Reason -> number of quarantined records."""
    counts: dict[str, int] = {}
    for bad in found.bad:
        counts[bad.reason] = counts.get(bad.reason, 0) + bad.count
    return counts
