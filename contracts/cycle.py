"""The states of a cycle, its steps, and the rows that a ledger keeps of it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import Field

from contracts.ids import Digest
from contracts.model import Frozen


class State(StrEnum):
    """Where a cycle is. The last ten are ends."""

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


class Step(StrEnum):
    """What a cycle does, in order. Each is one `intended` row and one `done` row; training has a pair per incarnation."""

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
    """What a person is asked."""

    TRAINING = "training"
    ROLLOUT = "rollout"


class Identity(StrEnum):
    """How sure we are of who answered."""

    CLAIMED = "claimed"
    """Typed into a form."""
    AUTHENTICATED = "authenticated"
    AUTO = "auto"
    """The loop file says that nobody is asked."""


class Answer(Frozen):
    """One answer to a request for approval."""

    approve: bool
    actor: str
    identity: Identity
    via: str
    """cli | prefect | link | loop-file"""
    note: str = ""


class Entry(Frozen):
    """One row of the ledger. `hash` covers stream, seq, kind, key, data, at, epoch and the previous hash."""

    stream: str
    seq: int
    """1, 2, 3, … within the stream"""
    kind: str
    """opened | intended | done | noted | asked | answered | ended | adopted | champion | …"""
    key: str
    """The step or effect that the row belongs to; empty where the kind says all."""
    data: dict[str, Any]
    at: datetime
    epoch: int
    """Lease epoch of the writer; 0 where the stream needs no lease."""
    previous: Digest
    hash: Digest


class Row(Frozen):
    """A row to be appended."""

    kind: str
    key: str = ""
    data: dict[str, Any] = Field(default_factory=dict)


class Append(Frozen):
    """Rows for one stream, valid only if it still ends at `after`: compare-and-set."""

    stream: str
    after: int
    rows: tuple[Row, ...]


class Lease(Frozen):
    """The right to write a line's streams until `expires`. A later holder has a higher epoch."""

    name: str
    holder: str
    epoch: int
    expires: datetime
