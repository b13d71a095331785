"""Says in one sentence what an open cycle waits for. Pure.

The cycle's own rows follow an answer only at its next turn, so the sentence is made from the rows of the request itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from ratchet.contracts.cycle import ApprovalKind
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.core.requests import ApprovalView


def waiting_text(cycle: CycleView, requests: Mapping[ApprovalKind, ApprovalView], now: datetime) -> str:
    """Return the state of an open cycle and what it waits for.

    `requests` are the cycle's approval requests as their own streams describe them.
    """
    pending = [kind for kind in ApprovalKind if kind in cycle.asked and kind not in cycle.answers]
    if pending:
        return f"{cycle.state}; {request_text(cycle, requests.get(pending[-1]), pending[-1], now)}"
    tried = [(key, errors) for key, errors in cycle.tries.items() if key not in cycle.done]
    if tried:
        key, errors = tried[-1]
        return f"{cycle.state}; {key} failed {len(errors)} times; last error: {errors[-1]}"
    return str(cycle.state)


def request_text(cycle: CycleView, request: ApprovalView | None, kind: ApprovalKind, now: datetime) -> str:
    """Return how a request stands whose answer the cycle has not recorded yet. None: only the cycle's own row is known."""
    if request is not None and request.answer is not None:
        return f"{answer_text(request)}; {'continuing' if request.answer.approve else 'ending'}"
    if (request is not None and request.expired) or now >= cycle.asked[kind]:
        return f"the request to approve the {kind} has expired; ending"
    return f"waiting for approval: ratchet approve {cycle.id.removeprefix('cycle/')}/{kind}"


def answer_text(request: ApprovalView) -> str:
    """Return who answered a request and when, for example `approved by hana 14:56 UTC`; "not answered" if nobody did."""
    if request.answer is None:
        return "not answered"
    at = f" {request.answered_at:%H:%M} UTC" if request.answered_at else ""
    return f"{'approved' if request.answer.approve else 'rejected'} by {request.answer.actor}{at}"
