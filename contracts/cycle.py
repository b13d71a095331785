"""States and steps of a cycle, and the ledger rows that record them."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import Field

from contracts.ids import Digest
from contracts.model import Frozen


class State(StrEnum):
    """State of a cycle. The last ten states are final."""

    OPENED = "opened"
    SNAPSHOT = "snapshot"
    PROBED = "probed"
    PLANNED = "planned"
    TRAINING_APPROVED = "training_approved"
    ATTEMPT = "attempt"
    ACCEPTED = "accepted"
    EVALUATED = "evaluated"
    VERDICT = "verdict"
    REGISTERED = "registered"
    ROLLOUT_APPROVED = "rollout_approved"
    ROLLING = "rolling"

    PROMOTED = "promoted"
    NOT_TRAINED = "not_trained"
    REJECTED = "rejected"
    EXPIRED = "expired"
    HELD = "held"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ROLLED_BACK = "rolled_back"
    SUPERSEDED = "superseded"
    RECALLED = "recalled"


ENDS = frozenset(list(State)[list(State).index(State.PROMOTED) :])
"""Final states of a cycle."""


class Step(StrEnum):
    """Steps of a cycle, in order. Each step writes one `intended` row and one `done` row; training writes one pair per incarnation."""

    FREEZE = "freeze"
    PROBE = "probe"
    PLAN = "plan"
    TRAIN = "train"
    ACCEPT = "accept"
    EVALUATE = "evaluate"
    JUDGE = "judge"
    REGISTER = "register"
    ROLL = "roll"
    PROMOTE = "promote"


class ApprovalKind(StrEnum):
    """Subject of a request for approval."""

    TRAINING = "training"
    ROLLOUT = "rollout"


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
    actor: str
    identity: Identity
    via: str
    """Channel of the answer: cli | prefect | link | loop-file."""
    note: str = ""


class Entry(Frozen):
    """A row of the ledger. `hash` covers stream, seq, kind, key, data, at, epoch and the previous hash."""

    stream: str
    seq: int
    """Position within the stream, starting at 1."""
    kind: str
    """opened | intended | done | noted | asked | answered | ended | adopted | champion | …"""
    key: str
    """Step or effect that the row belongs to. Empty if the kind is sufficient."""
    data: dict[str, Any]
    at: datetime
    epoch: int
    """Lease epoch of the writer. 0 if the stream needs no lease."""
    previous: Digest
    hash: Digest


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
