"""Folds the rows of a rollout into its view. Pure; makes no decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from ratchet.contracts.cycle import Entry
from ratchet.contracts.rows import Away, Died, Reason, RolloutOpened, WeightSet, content_of
from ratchet.contracts.schema import upgraded
from ratchet.contracts.serving import ModelVersion, Outage
from ratchet.flows.core.rollouts.shared_process import IN_FLIGHT

_BEGUN = "a rollback that had begun goes on"
"""Reason of a rollback that a former release has begun: its row has none."""


@dataclass(frozen=True)
class RolloutStep:
    """One weight that the rollout has set, or the rest of one after an outage."""

    index: int
    weight: float
    since: datetime
    until: datetime | None = None
    """Time when the next weight was decided, after which requests may follow its route, or from which on requests may have failed in an
    outage. None for the last step."""


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
    """The rows about mirrored prompts (`flows/core/rollouts/mirror.py`)."""
    outages: tuple[Outage, ...] = ()
    """Times that count for neither version: the process that they share did not run, or no server of the candidate could be reached."""
    away: datetime | None = None
    """Since when no server of the candidate can be reached; None if one can."""
    back: str | None = None
    """Why a rollback has begun; None if none has. It is not taken back, whatever the evidence says later."""
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
    ended = next((entry for entry in entries if entry.kind == "ended"), None)
    back = next((entry for entry in entries if entry.kind == "intended" and entry.key == "back"), None)
    return RolloutView(
        id=entries[0].stream,
        seq=entries[-1].seq,
        first=entries[0],
        intended=frozenset(entry.key for entry in entries if entry.kind == "intended"),
        done=frozenset(entry.key for entry in entries if entry.kind == "done"),
        steps=_steps(entries),
        judgements=tuple(entry for entry in entries if entry.kind == "judged"),
        mirrored=tuple(entry for entry in entries if entry.kind in ("mirror_intended", "mirrored")),
        outages=tuple(
            Outage(since=one.since, until=one.until) for entry in entries if entry.kind == "died" for one in [content_of(Died, entry)]
        ),
        away=_away(entries),
        back=None if back is None else content_of(Reason, back).reason if back.data else _BEGUN,
        end=ended.key if ended else None,
        reason=content_of(Reason, ended).reason if ended else "",
    )


def _away(entries: Sequence[Entry]) -> datetime | None:
    last = next((entry for entry in reversed(entries) if entry.kind in ("away", "died")), None)
    return content_of(Away, last).since if last is not None and last.kind == "away" else None


def _steps(entries: Sequence[Entry]) -> tuple[RolloutStep, ...]:
    """Return the steps. One with an outage ends before that, and its rest is a step of the same weight."""
    decided = {entry.key: entry.at for entry in reversed(entries) if entry.kind == "intended"}
    steps: list[RolloutStep] = []
    for entry in entries:
        if entry.kind == "done" and entry.key != "back":
            found = content_of(WeightSet, entry)
            if steps:
                until = decided.get(entry.key, entry.at)
                # After an outage between decision and route, the rest of the step goes on until the route is set.
                steps[-1] = replace(steps[-1], until=until if until > steps[-1].since else entry.at)
            steps.append(RolloutStep(found.index, found.weight, entry.at))
        elif entry.kind == "died" and steps:
            died, last = content_of(Died, entry), steps[-1]
            steps[-1] = replace(last, until=died.since - IN_FLIGHT)
            steps.append(RolloutStep(last.index, last.weight, died.until))
    return tuple(steps)
