"""States and steps of a cycle, and the ledger rows that record them."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from pydantic import Field

from ratchet.contracts.ids import Digest
from ratchet.contracts.model import Frozen


class State(StrEnum):
    """State of a cycle. The last ten states are final."""

    OPENED = "opened"
    """The cycle is open, and its loop file is recorded."""
    SNAPSHOT = "snapshot"
    """The holdout edition and the snapshot are frozen."""
    PROBED = "probed"
    """The probe is complete, or the loop file disables it."""
    PLANNED = "planned"
    """The training method is chosen. If it is not `none`, the training plan is recorded."""
    TRAINING_APPROVED = "training_approved"
    """The training is approved."""
    ATTEMPT = "attempt"
    """At least one incarnation of the training job was started."""
    ACCEPTED = "accepted"
    """The final checkpoint is verified and is the candidate."""
    EVALUATED = "evaluated"
    """Candidate and champion have answered the prompts of the holdout edition."""
    VERDICT = "verdict"
    """The gate has judged the evaluation."""
    REGISTERED = "registered"
    """The candidate is in the model registry."""
    ROLLOUT_APPROVED = "rollout_approved"
    """The rollout is approved."""
    ROLLING = "rolling"
    """The rollout is in progress."""

    PROMOTED = "promoted"
    """Final: the candidate is the new champion."""
    NOT_TRAINED = "not_trained"
    """Final: no training method was suitable."""
    REJECTED = "rejected"
    """Final: a check of the gate failed, or an operator rejected the training or the rollout."""
    EXPIRED = "expired"
    """Final: a request for approval was not answered in time."""
    HELD = "held"
    """Final: the evidence was not sufficient, so the champion stays."""
    FAILED = "failed"
    """Final: a step cannot succeed, or all training attempts failed."""
    CANCELLED = "cancelled"
    """Final: an operator cancelled the cycle or requested a rollback of the line."""
    ROLLED_BACK = "rolled_back"
    """Final: the rollout was rolled back."""
    SUPERSEDED = "superseded"
    """Final: another version became the champion while the cycle was open, or an upgrade changed the training code after the plan."""
    RECALLED = "recalled"
    """Final: rows on which the cycle's plan rests were erased, or its start model was recalled because of such rows."""


ENDS = frozenset(list(State)[list(State).index(State.PROMOTED) :])
"""Final states of a cycle."""


class Step(StrEnum):
    """Steps of a cycle, in order. Each step writes one `intended` row and one `done` row; training writes one pair per incarnation."""

    FREEZE = "freeze"
    """Freeze the holdout edition and the snapshot."""
    PROBE = "probe"
    """Let the start model answer training prompts, and score the answers."""
    PLAN = "plan"
    """Assemble the training set and choose the training method."""
    TRAIN = "train"
    """Start one incarnation of the training job."""
    ACCEPT = "accept"
    """Verify the final checkpoint and accept it as the candidate."""
    EVALUATE = "evaluate"
    """Let candidate and champion answer the prompts of the holdout edition."""
    JUDGE = "judge"
    """Judge the evaluation with the checks of the gate."""
    REGISTER = "register"
    """Register the candidate in the model registry."""
    ROLL = "roll"
    """Open the rollout."""
    PROMOTE = "promote"
    """Route all traffic to the candidate."""


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
