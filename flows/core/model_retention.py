"""Decides which models of a line may be deleted. Pure.

A model that serves, or that a rollback, a recall, an open cycle or a pin may need, is never among them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ratchet.contracts.ids import Digest
from ratchet.contracts.loop import RetentionSettings
from ratchet.contracts.serving import ModelVersion
from ratchet.flows.core.folds.line import LineView

KEPT = 3
"""Newest generations that are always kept: the newest versions of the line, and the newest of those that have served."""


@dataclass(frozen=True)
class Generation:
    """A version of the line, and the end of its cycle."""

    version: ModelVersion
    ended_at: datetime | None
    """When its cycle ended; None while it is open, and for the adopted model."""


def expired_models(
    line: LineView, generations: Sequence[Generation], in_use: Collection[str], settings: RetentionSettings, now: datetime
) -> list[ModelVersion]:
    """Return the versions whose models may be deleted, oldest first.

    `generations` are all versions of the line, oldest first. `in_use` are the tags of versions with a server or a route, and of those that
    an open cycle starts from or compares with. Without `retention.models`, nothing expires. The adopted model is kept, because trainings
    start from it and adapters need it.
    """
    if settings.models is None:
        return []
    kept = {one.tag for one in (line.champion, line.previous, line.base) if one is not None}
    kept |= {one.tag for one in line.served[-KEPT:]} | {one.version.tag for one in generations[-KEPT:]}
    kept |= set(in_use) | set(line.recalled)
    before = now - timedelta(days=settings.models)
    return [
        one.version
        for one in generations
        if one.version.tag not in kept
        and one.version.number not in settings.pinned_models
        and one.ended_at is not None
        and one.ended_at < before
    ]


def folders_of(versions: Iterable[ModelVersion]) -> set[Digest]:
    """Return the artifacts of the model folders that versions need, with base models and merged ones."""
    found: set[Digest] = set()
    for version in versions:
        for model in (version.model, version.model.merged):
            if model is not None:
                found |= {model.files, *([model.parent] if model.parent else [])}
    return found
