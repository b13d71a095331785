"""Folds the rows of a rollout into its view. Pure; makes no decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import zip_longest
from typing import Any

from ratchet.contracts.cycle import Entry
from ratchet.contracts.schema import upgraded
from ratchet.contracts.serving import ModelVersion


@dataclass(frozen=True)
class RolloutStep:
    """One weight that the rollout has set."""

    index: int
    weight: float
    since: datetime
    until: datetime | None = None
    """Time when the next weight was decided, after which requests may follow its route. None for the last step."""


@dataclass(frozen=True)
class RolloutView:
    """The state of a rollout, folded from its rows."""

    id: str
    seq: int
    opened: dict[str, Any]
    intended: frozenset[str] = frozenset()
    done: frozenset[str] = frozenset()
    steps: tuple[RolloutStep, ...] = ()
    judgements: tuple[Entry, ...] = ()
    mirrored: tuple[Entry, ...] = ()
    """The rows about mirrored prompts (`flows/core/mirror.py`)."""
    end: str | None = None
    """promoted | rolled_back"""
    reason: str = ""

    @cached_property
    def champion(self) -> ModelVersion:
        """The champion when the rollout was opened."""
        return ModelVersion.model_validate(self.opened["champion"])

    @cached_property
    def candidate(self) -> ModelVersion:
        """The version that the rollout introduces."""
        return ModelVersion.model_validate(self.opened["candidate"])

    @property
    def salt(self) -> str:
        """The random text by which sessions are assigned."""
        return str(self.opened["salt"])


def fold_rollout(entries: Sequence[Entry]) -> RolloutView:
    """Fold a rollout's rows into its view. The first row must be `opened`."""
    entries = upgraded(entries)
    done = [entry for entry in entries if entry.kind == "done" and "index" in entry.data]
    decided = {entry.key: entry.at for entry in reversed(entries) if entry.kind == "intended"}
    steps = tuple(
        RolloutStep(
            row.data["index"], row.data["weight"], row.at, decided.get(f"weight/{later.data['index']}", later.at) if later else None
        )
        for row, later in zip_longest(done, done[1:])
    )
    ended = next((entry for entry in entries if entry.kind == "ended"), None)
    return RolloutView(
        id=entries[0].stream,
        seq=entries[-1].seq,
        opened=entries[0].data,
        intended=frozenset(entry.key for entry in entries if entry.kind == "intended"),
        done=frozenset(entry.key for entry in entries if entry.kind == "done"),
        steps=steps,
        judgements=tuple(entry for entry in entries if entry.kind == "judged"),
        mirrored=tuple(entry for entry in entries if entry.kind in ("mirror_intended", "mirrored")),
        end=ended.key if ended else None,
        reason=ended.data["reason"] if ended else "",
    )
