"""Rows and streams of the ledger, leases, and requests for approval with their answers."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from pydantic import Field

from ratchet.contracts.ids import Digest
from ratchet.contracts.model import Frozen


class ApprovalKind(StrEnum):
    """Subject of a request for approval."""

    TRAINING = "training"
    """The training according to the plan."""
    ROLLOUT = "rollout"
    """The rollout of the registered candidate."""


class Identity(StrEnum):
    """How the identity of the approver was established."""

    CLAIMED = "claimed"
    """The approver typed a name into a form; it was not verified."""
    AUTHENTICATED = "authenticated"
    """The identity was verified."""
    AUTO = "auto"
    """The loop file configures automatic approval."""


class Answer(Frozen):
    """Answer to a request for approval."""

    approve: bool
    """Whether the request is approved."""
    actor: str
    """Name of the approver."""
    identity: Identity
    """How the approver's identity was established."""
    via: str
    """Channel of the answer: cli | prefect | link | loop-file."""
    note: str = ""
    """Reason that the approver gave."""


class Entry(Frozen):
    """A row of the ledger.

    `hash` covers schema_version, stream, seq, kind, key, data, at, epoch and the previous hash.
    """

    stream: str
    """Name of the stream that the row belongs to."""
    seq: int
    """Position within the stream, starting at 1."""
    kind: str
    """Kind of the row, for example opened, intended, done, asked, answered or ended."""
    key: str
    """Step or effect that the row belongs to. Empty if the kind is sufficient."""
    data: dict[str, Any]
    """Content of the row. Its keys depend on the kind."""
    at: datetime
    """Time at which the row was written, in UTC."""
    epoch: int
    """Lease epoch of the writer. 0 if the stream needs no lease."""
    schema_version: int = Field(ge=1)
    """Version of the release's formats (contracts/schema.py)."""
    previous: Digest
    """`hash` of the previous row of the stream. For the first row, 64 zeros."""
    hash: Digest
    """SHA-256 of the row, which includes the previous hash."""


class Head(Frozen):
    """Last row of a stream."""

    stream: str
    """Name of the stream."""
    seq: int
    """Position of the row, which is the number of rows of the stream."""
    hash: Digest
    """Hash of the row. It covers all rows of the stream."""


class Row(Frozen):
    """A row to append to a stream."""

    kind: str
    key: str = ""
    data: dict[str, Any] = Field(default_factory=dict)


class Append(Frozen):
    """Rows to append to one stream with compare-and-set.

    The append is valid only if `after` is still the last sequence number of the stream.
    """

    stream: str
    after: int
    rows: tuple[Row, ...]


class Lease(Frozen):
    """Exclusive right to write the streams of a line until `expires`. Each later acquisition has a higher epoch."""

    name: str
    holder: str
    epoch: int
    expires: datetime

    def has_ended(self, ttl: float, now: datetime) -> bool:
        """Return whether another process may take the lease, which lasts `ttl` seconds after each renewal.

        A lease that seems to last more than twice as long was renewed before the clock was set back. The epoch keeps its holder from
        writing, so taking it too early does no harm. Clocks of two machines may differ by `ttl`.
        """
        return self.expires <= now or self.expires > now + timedelta(seconds=2 * ttl)
