"""Folds the rows of an approval request into its view. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ratchet.contracts.cycle import Answer, ApprovalKind, Entry
from ratchet.contracts.rows import Asked, content_of
from ratchet.contracts.schema import upgraded


@dataclass(frozen=True)
class ApprovalView:
    """The state of an approval request, folded from its rows."""

    id: str
    seq: int
    cycle: str
    kind: ApprovalKind
    subject: str
    """Digest of the approved object: the plan, or the candidate with its evaluation report."""
    evidence: str
    """Artifact digest of the evidence, a JSON object that the form shows."""
    expires: datetime
    answer: Answer | None = None
    answered_at: datetime | None = None
    expired: bool = False

    @property
    def awaiting(self) -> bool:
        """Whether the request is neither answered nor expired."""
        return self.answer is None and not self.expired


def fold_approval(entries: Sequence[Entry]) -> ApprovalView:
    """Fold an approval request's rows into its view. The first row must be `asked`; an `answered` or `expired` row closes the request."""
    entries = upgraded(entries)
    asked = content_of(Asked, entries[0])
    answered = next((entry for entry in entries if entry.kind == "answered"), None)
    return ApprovalView(
        id=entries[0].stream,
        seq=entries[-1].seq,
        cycle=asked.cycle,
        kind=asked.kind,
        subject=asked.subject,
        evidence=asked.evidence,
        expires=asked.expires,
        answer=content_of(Answer, answered) if answered else None,
        answered_at=answered.at if answered else None,
        expired=any(entry.kind == "expired" for entry in entries),
    )
