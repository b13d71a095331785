"""Emits an event in Prefect for every change of a cycle, an approval, a rollout or a line, so that automations can act on it.

The ledger is the outbox: a cursor remembers, per stream, the last row that was emitted. The id of an event derives from the row, so Prefect
stores an event once, however often it is sent. Prefect may still lose an event that it has accepted, when its server stops.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any
from uuid import UUID

from ratchet.contracts.cycle import Entry
from ratchet.contracts.data.datasets import IngestReport
from ratchet.contracts.ports import Ledger
from ratchet.contracts.schema import stamped, unstamped
from ratchet.runtime.documents import Documents

EVENTS: Mapping[tuple[str, str], str] = {
    ("cycle", "opened"): "ratchet.cycle.opened",
    ("cycle", "done"): "ratchet.cycle.step",
    ("cycle", "ended"): "ratchet.cycle.ended",
    ("approval", "asked"): "ratchet.approval.waiting",
    ("approval", "answered"): "ratchet.approval.answered",
    ("approval", "expired"): "ratchet.approval.expired",
    ("rollout", "opened"): "ratchet.rollout.opened",
    ("rollout", "done"): "ratchet.rollout.moved",
    ("line", "adopted"): "ratchet.line.adopted",
    ("line", "champion"): "ratchet.line.promoted",
    ("line", "rollback_asked"): "ratchet.line.rollback_asked",
    ("line", "rolled_back"): "ratchet.line.rolled_back",
    ("line", "cancel_asked"): "ratchet.cycle.cancel_asked",
    ("line", "frozen"): "ratchet.line.frozen",
    ("line", "unfrozen"): "ratchet.line.unfrozen",
    ("line", "served_as"): "ratchet.line.served_as",
    ("line", "name_ended"): "ratchet.line.name_ended",
    ("line", "file_taken"): "ratchet.line.file_taken",
    ("line", "recalled"): "ratchet.line.recalled",
    ("line", "recall_asked"): "ratchet.cycle.recall_asked",
    ("line", "collected"): "ratchet.line.collected",
    ("line", "quarantine_alarm"): "ratchet.quarantine.alarm",
    ("line", "quarantine_calm"): "ratchet.quarantine.calm",
}
"""(kind of stream, kind of row) -> name of the event. The end of a rollout is ratchet.rollout.promoted or ratchet.rollout.rolled_back."""
CURSOR = "events.json"
"""Document with the number of the last row of each stream whose event was sent."""
INGESTED = "ratchet.traces.ingested"
"""Emitted after an ingest that kept records, with their counts."""
_SORTS = frozenset(sort for sort, _ in EVENTS)
_SPACE = uuid.UUID("6f1b7a52-55a4-4b0e-9a37-0b7f0f0c7a11")


def event_of(entry: Entry) -> dict[str, Any] | None:
    """Return the event of a ledger row as JSON for Prefect's API, or None for a row that is no change of state.

    The payload has no text that users or models wrote; it names the row, whose content is in the ledger.
    """
    sort, line = entry.stream.split("/")[:2]
    name = f"ratchet.rollout.{entry.key}" if (sort, entry.kind) == ("rollout", "ended") else EVENTS.get((sort, entry.kind))
    if name is None:
        return None
    payload = {"stream": entry.stream, "seq": entry.seq, "kind": entry.kind, "key": entry.key, "line": line}
    for field in ("state", "weight", "index", "approve", "rows", "files", "bytes", "read", "quarantined"):
        if field in entry.data:
            payload[field] = entry.data[field]
    if (sort, entry.kind) == ("cycle", "ended"):
        payload["state"] = entry.key
    return {
        "id": str(uuid.uuid5(_SPACE, entry.hash)),
        "occurred": entry.at.isoformat(),
        "event": name,
        "resource": {"prefect.resource.id": line_resource(line), "prefect.resource.name": line},
        "related": [{"prefect.resource.id": f"ratchet.{entry.stream.replace('/', '.')}", "prefect.resource.role": sort}],
        "payload": payload,
    }


def ingested_event(line: str, report: IngestReport, now: datetime) -> dict[str, Any]:
    """Return the event of an ingest that kept records, with their counts."""
    payload = {"traces": report.traces.kept, "feedback": report.feedback.kept, "quarantined": report.traces.quarantined}
    payload["consent_changed"] = report.consent_changed
    resource = {"prefect.resource.id": line_resource(line), "prefect.resource.name": line}
    return {"id": str(uuid.uuid4()), "occurred": now.isoformat(), "event": INGESTED, "resource": resource, "payload": payload}


def with_deployment(event: dict[str, Any], deployment: UUID | None) -> dict[str, Any]:
    """Return an event that also names its line's deployment, so that the action of an automation can be applied to it."""
    if deployment is None:
        return event
    related = {"prefect.resource.id": f"prefect.deployment.{deployment}", "prefect.resource.role": "deployment"}
    return {**event, "related": [*event.get("related", []), related]}


def line_resource(line: str) -> str:
    """Return the Prefect resource id of a line's events."""
    return f"ratchet.line.{line}"


class Outbox:
    """The events that Prefect does not have yet. A new outbox begins at the present rows; it does not replay the past."""

    def __init__(self, documents: Callable[[], Documents], ledger: Ledger) -> None:
        """`documents` opens those with the cursor, at its first use. A service must find it again that continues this one."""
        self._opened = documents
        self._ledger = ledger
        self._sent: dict[str, int] = {}
        self._new: bool | None = None

    @cached_property
    def _documents(self) -> Documents:
        return self._opened()

    def _load(self) -> None:
        known = self._documents.read(CURSOR)
        if known is not None:
            self._sent = {str(name): int(seq) for name, seq in unstamped(known, "cursor of the events")["streams"].items()}
        self._new = known is None

    def pending(self, streams: Iterable[str]) -> tuple[list[dict[str, Any]], dict[str, int]]:
        """Return the events of the rows that were not sent yet, and the cursor to pass to `sent` after Prefect has accepted them."""
        lengths = self._ledger.lengths(list(streams))
        if self._new is None:
            self._load()
        if self._new:
            self._new = False
            self.sent({head.stream: head.seq for head in self._ledger.heads() if head.stream.split("/")[0] in _SORTS} | lengths)
            return [], {}
        events, cursor = [], {}
        for stream, length in lengths.items():
            if length > self._sent.get(stream, 0):
                rows = self._ledger.read(stream, self._sent.get(stream, 0))
                events += [event for row in rows if (event := event_of(row)) is not None]
                cursor[stream] = rows[-1].seq if rows else length
        return events, cursor

    def sent(self, cursor: Mapping[str, int]) -> None:
        """Remember that Prefect has accepted the events up to this cursor."""
        if cursor:
            self._sent.update(cursor)
            content = stamped({"streams": self._sent})
            self._documents.change(CURSOR, lambda _: content)
