"""Folds the rows of a rollout into its view. Pure; makes no decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import zip_longest

from ratchet.contracts.cycle import Entry
from ratchet.contracts.rows import Reason, RolloutOpened, WeightSet, content_of
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
    first: Entry
    """The row that opened it. Its content is parsed when it is first read."""
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
    def opened(self) -> RolloutOpened:
        """What the rollout was opened with. Raises Permanent if its first row does not fit the type."""
        return content_of(RolloutOpened, self.first)

    @property
    def champion(self) -> ModelVersion:
        """The champion when the rollout was opened."""
        return self.opened.champion

    @property
    def candidate(self) -> ModelVersion:
        """The version that the rollout introduces."""
        return self.opened.candidate


def fold_rollout(entries: Sequence[Entry]) -> RolloutView:
    """Fold a rollout's rows into its view. The first row must be `opened`."""
    entries = upgraded(entries)
    done = [(entry, content_of(WeightSet, entry)) for entry in entries if entry.kind == "done" and entry.key != "back"]
    decided = {entry.key: entry.at for entry in reversed(entries) if entry.kind == "intended"}
    steps = tuple(
        RolloutStep(found.index, found.weight, row.at, decided.get(later[0].key, later[0].at) if later else None)
        for (row, found), later in zip_longest(done, done[1:])
    )
    ended = next((entry for entry in entries if entry.kind == "ended"), None)
    return RolloutView(
        id=entries[0].stream,
        seq=entries[-1].seq,
        first=entries[0],
        intended=frozenset(entry.key for entry in entries if entry.kind == "intended"),
        done=frozenset(entry.key for entry in entries if entry.kind == "done"),
        steps=steps,
        judgements=tuple(entry for entry in entries if entry.kind == "judged"),
        mirrored=tuple(entry for entry in entries if entry.kind in ("mirror_intended", "mirrored")),
        end=ended.key if ended else None,
        reason=content_of(Reason, ended).reason if ended else "",
    )
