"""Folds the rows of a model line into its view. Pure; makes no decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ratchet.contracts.cycle import Entry
from ratchet.contracts.rows import (
    Adopted,
    CycleEnd,
    CycleNoted,
    FileTaken,
    HubSource,
    NewChampion,
    QuarantineAlarm,
    Reason,
    Request,
    RolledBack,
    ServedAs,
    content_of,
)
from ratchet.contracts.schema import upgraded
from ratchet.contracts.serving import ModelVersion
from ratchet.contracts.steps import State


@dataclass(frozen=True)
class Freeze:
    """An operator's request that no new cycle opens. It is in force until the line is unfrozen."""

    actor: str
    reason: str
    since: datetime

    def __str__(self) -> str:
        return f"frozen by {self.actor} since {self.since:%Y-%m-%d %H:%M} UTC: {self.reason}"


@dataclass(frozen=True)
class Alarm:
    """The alarm of the quarantine that is in force."""

    text: str
    since: datetime


@dataclass(frozen=True)
class LineView:
    """The state of a model line, folded from its rows."""

    line: str
    seq: int
    champion: ModelVersion | None = None
    previous: ModelVersion | None = None
    """The champion before the current one. Its server keeps running for a rollback."""
    served: tuple[ModelVersion, ...] = ()
    """The versions to which rollbacks return one after the other, oldest first, and the champion as the last one."""
    base: ModelVersion | None = None
    """The adopted model, version 0."""
    source: HubSource | None = None
    """The hub from which the adopted model was downloaded, if it was."""
    cycles: int = 0
    """Number of cycles opened so far."""
    evaluated: tuple[bool, ...] = ()
    """For each ended cycle whose candidate was evaluated, oldest first: whether the candidate was promoted, and neither rolled back nor
    recalled since."""
    open_cycle: str | None = None
    last_opened: datetime | None = None
    last_traces: int = 0
    """Number of traces in the lake when the newest cycle was opened."""
    promotions: int = 0
    plan_again: bool = False
    """Whether the last cycle ended because an upgrade changed the training code after its plan. The next cycle is then due at once."""
    rollback_asked: str | None = None
    """The actor of a rollback request that is not carried out yet."""
    cancel_asked: str | None = None
    """The actor who requested the end of the open cycle."""
    recalled: dict[str, str] = field(default_factory=dict)
    """Tag -> reason, of each version that was trained on rows which were erased later. None of them is trained further."""
    recall_asked: str | None = None
    """Why the open cycle must end as recalled; None if it need not."""
    frozen: Freeze | None = None
    """The freeze that is in force; None while new cycles may open. Neither the open cycle nor serving and ingest depend on it."""
    alarm: Alarm | None = None
    """The alarm of the quarantine; None while there is none. Nothing else depends on it."""
    served_model: str = ""
    """Model name by which clients call the line; empty if no row records it."""
    former_names: tuple[str, ...] = ()
    """Model names before it, newest first, by which clients may still call the line."""
    rows: tuple[Entry, ...] = ()

    @property
    def clean_champion(self) -> ModelVersion | None:
        """The champion, or the newest one before it that is not recalled. The adopted model is never recalled. None without a model."""
        return next((version for version in reversed(self.served) if version.tag not in self.recalled), None)

    @property
    def takeovers(self) -> list[tuple[datetime, FileTaken]]:
        """Time and content of each decision that another loop file is the one of the line, oldest first."""
        return [(row.at, content_of(FileTaken, row)) for row in self.rows if row.kind == "file_taken"]

    @property
    def evaluations(self) -> int:
        """Number of ended cycles whose candidate was evaluated."""
        return len(self.evaluated)


def fold_line(line: str, entries: Sequence[Entry]) -> LineView:
    """Fold a line's rows into its view. The list may be empty."""
    entries = upgraded(entries)
    view: dict[str, Any] = {"line": line, "seq": entries[-1].seq if entries else 0, "rows": tuple(entries)}
    served: list[ModelVersion] = []
    recalled: dict[str, str] = {}
    evaluated: list[str | None] = []  # tag of the version that was promoted, or None
    for entry in entries:
        match entry.kind:
            case "recalled":
                recalled.setdefault(entry.key, content_of(Reason, entry).reason)
            case "recall_asked":
                view["recall_asked"] = content_of(Reason, entry).reason
            case "adopted":
                adopted = content_of(Adopted, entry)
                served = [adopted.version]
                view |= {"base": adopted.version, "source": adopted.source}
            case "champion":
                served.append(content_of(NewChampion, entry).version)
                evaluated = [served[-1].tag if tag == "" else tag for tag in evaluated]
                view["promotions"] = view.get("promotions", 0) + 1
            case "rollback_asked":
                view["rollback_asked"] = content_of(Request, entry).actor
            case "rolled_back":
                view["rollback_asked"] = None
                if content_of(RolledBack, entry).to is not None:
                    gone = served.pop()  # a second rollback must not return to this version, but to an earlier one
                    evaluated = [None if tag == gone.tag else tag for tag in evaluated]
            case "cancel_asked":
                view["cancel_asked"] = content_of(Request, entry).actor
            case "frozen":
                asked = content_of(Request, entry)
                view["frozen"] = Freeze(asked.actor, asked.reason, entry.at)
            case "unfrozen":
                view["frozen"] = None
            case "quarantine_alarm":
                view["alarm"] = Alarm(content_of(QuarantineAlarm, entry).text, entry.at)
            case "quarantine_calm":
                view["alarm"] = None
            case "served_as":
                named = content_of(ServedAs, entry)
                names = (*([view["served_model"]] if "served_model" in view else []), *view.get("former_names", ()), *named.former)
                view["served_model"] = named.name
                view["former_names"] = tuple(name for name in dict.fromkeys(names) if name != named.name)
            case "name_ended":
                view["former_names"] = tuple(name for name in view.get("former_names", ()) if name != entry.key)
            case "cycle_opened":
                view.update(open_cycle=entry.key, cycles=view.get("cycles", 0) + 1, last_opened=entry.at, plan_again=False)
                view["last_traces"] = content_of(CycleNoted, entry).traces
            case "cycle_ended":
                end = content_of(CycleEnd, entry)
                view.update(open_cycle=None, cancel_asked=None, recall_asked=None, plan_again=end.plan_again)
                if end.evaluated:
                    evaluated.append("" if end.state is State.PROMOTED else None)  # the row of the champion follows
    view.update(served=tuple(served), champion=served[-1] if served else None, previous=served[-2] if len(served) > 1 else None)
    passed = tuple(tag is not None and tag not in recalled for tag in evaluated)
    return LineView(**view, recalled=recalled, evaluated=passed)
