"""Admits the decoded rows of one record: a row that the role of its sender must not send is quarantined.

All dialects pass through here, also those of other packages.
"""

from __future__ import annotations

from contracts.data.decoding import Decoded, Row
from contracts.data.senders import Role, Sender
from contracts.errors import Rejected


def admit(found: Decoded, sender: Sender | None) -> None:
    """Quarantine the rows of `found` that `sender` must not send. None is the operator, who may send any row."""
    if sender is None:
        return
    traces, feedback = found.traces, found.feedback
    found.traces, found.feedback = [], []
    for row in traces:
        _take(found, "traces", row, _refusal_of_trace(row, sender))
    for row in feedback:
        _take(found, "feedback", row, None if sender.may_send_feedback(row["kind"]) else f"feedback of the kind {row['kind']}")


def _refusal_of_trace(row: Row, sender: Sender) -> str | None:
    if not sender.may_send_traces():
        return "traces"
    if row["reference"] is not None and not {Role.TRACES, Role.OPERATOR} & set(sender.roles):
        return "references in traces"
    return None


def _take(found: Decoded, kind: str, row: Row, refused: str | None) -> None:
    if refused is None:
        (found.traces if kind == "traces" else found.feedback).append(row)
    else:
        found.reject(
            "traces" if kind == "traces" else "feedback",
            row["position"],
            Rejected("role_not_allowed", f"{refused} must not be sent with a credential of another role"),
        )
