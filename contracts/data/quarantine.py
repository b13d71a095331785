"""Types of the quarantine: its entries, the result of a replay, and the counts by which its alarm is decided."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Literal

from pydantic import Field

from ratchet.contracts.model import Frozen


class QuarantineEntry(Frozen):
    """A bad record, or a bad part of a record, as its newest row describes it."""

    id: str
    source: str
    batch: str
    """Digest of the first batch that contained it."""
    position: str
    """Line or frame of the batch, and the place within it."""
    kind: str
    """traces | feedback"""
    reason: str
    detail: str | None
    parts: int
    """Number of parts of the record that the entry stands for."""
    origin: str
    """File, or `received by` and the sender."""
    format: str
    offset: int | None
    """First byte of the record in its file or request. A compressed file is read decompressed."""
    length: int | None
    digest: str | None
    cut: bool
    """Whether the file ended before the end of the record."""
    sender: str | None
    user: str | None
    """Pseudonym of the user, if it could be read."""
    first: datetime
    """When it was quarantined (UTC)."""
    last: datetime
    """When its newest row was written (UTC)."""
    expires: datetime | None
    """When its kept bytes are deleted (UTC); None if none were kept."""
    state: str | None
    """resolved | replaced (by an entry of the longer record); None while it is open."""
    release: str
    """Release of Ratchet that wrote the newest row."""

    @property
    def is_open(self) -> bool:
        """Whether the record is not stored yet."""
        return self.state is None


class QuarantineContent(Frozen):
    """The masked bytes of an entry that are kept."""

    text: str
    truncated: bool


class Replayed(Frozen):
    """What a replay did with one entry."""

    id: str
    outcome: Literal["resolved", "bad", "unavailable"]
    """unavailable: neither the file has the record, nor are its whole bytes kept."""
    reason: str
    """Reason of a record that is still bad; otherwise the reason it was quarantined for."""
    detail: str
    by: Literal["file", "kept", ""] = ""
    """Where the record was read from."""


class ReplayReport(Frozen):
    """Result of a replay. Invariant: each of its entries has one outcome."""

    entries: tuple[Replayed, ...] = ()
    stored: int = 0
    """Number of rows that were added to the lake, or would be in a dry run: traces, feedback and statements about consent."""
    dry_run: bool = False

    @property
    def outcomes(self) -> dict[str, int]:
        """Outcome -> number of entries."""
        return dict(sorted(Counter(one.outcome for one in self.entries).items()))


class QuarantineCounts(Frozen):
    """What the ingests of a window of time have read and quarantined."""

    read: int = 0
    """Number of records that were read. A batch counts once, however often it was delivered."""
    quarantined: int = 0
    reasons: dict[str, int] = Field(default_factory=dict)
    """Reason -> number of records that were quarantined."""

    @property
    def share(self) -> float:
        """Share of the records that were quarantined; 0 without records."""
        return self.quarantined / self.read if self.read else 0.0
