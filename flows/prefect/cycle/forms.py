"""Approval forms in Prefect: shows a request as the form of its cycle's run, and reads the answer.

The ledger is the truth. An answer that Prefect has stored is read at any time, whatever the state of the run and whether or not a process
carries it, and is then recorded in the ledger. So no answer depends on Prefect starting something after the form was submitted.
"""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from typing import Literal
from uuid import UUID, uuid4

from prefect.client.orchestration import PrefectClient
from prefect.exceptions import Pause
from prefect.input import RunInput, keyset_from_paused_state
from prefect.states import State, Suspended
from prefect.utilities.engine import propose_state
from pydantic import Field, ValidationError

from ratchet.contracts.cycle import Answer, Identity
from ratchet.contracts.errors import Rejected
from ratchet.contracts.ports import Ledger
from ratchet.contracts.schema import unstamped
from ratchet.flows.composition.artifacts import open_artifacts
from ratchet.flows.composition.installation import Installation
from ratchet.flows.core.requests import ApprovalView, fold_approval
from ratchet.flows.engine.line import answer
from ratchet.flows.prefect.cycle.approval_form import evidence_page, form_text

_PAGE = 50
"""Number of stored inputs that are read with one request."""


class ApprovalForm(RunInput):
    """The approval form. Prefect checks its JSON schema before it accepts the answer."""

    decision: Literal["approve", "reject"] = Field(description="Approve continues the cycle; reject ends it.")
    approver: str = Field(
        min_length=1,
        max_length=100,
        pattern=r"\S",
        description="Your name. The ledger records it as a claim, because this form does not verify your identity.",
    )
    note: str = Field(default="", max_length=2000, description="The reason for your decision, stored in the ledger.")


def request_view(ledger: Ledger, request: str) -> ApprovalView:
    """Return the approval request with the id `request`. Raises Rejected if the ledger does not contain it."""
    rows = ledger.read(request)
    if not rows:
        raise Rejected("no_request", f"no {request} in the ledger; `ratchet status` lists pending requests")
    return fold_approval(rows)


def closed_reason(view: ApprovalView, now: datetime | None = None) -> str | None:
    """Return a sentence on how the request was closed, or None while it is pending. `now` defaults to the current time."""
    if view.answer is not None:
        return f"{view.answer.actor} {'approved' if view.answer.approve else 'rejected'} it via {view.answer.via}"
    if view.expired or (now or datetime.now(UTC)) >= view.expires:
        return f"closed without an answer: it expired at {view.expires:%Y-%m-%d %H:%M} UTC, or its cycle ended first"
    return None


def texts_of(installation: Installation, view: ApprovalView, links: str) -> tuple[str, str]:
    """Return the text of a request's form, and the page with all evidence, both as Markdown. `links` names the places of the evidence."""
    evidence = unstamped(open_artifacts(installation.home).get(view.evidence), "evidence")
    return form_text(view.id, evidence, view.expires, links), f"{evidence_page(view.id, evidence, view.expires)}\n{links}\n"


async def show_form(client: PrefectClient, run: UUID, view: ApprovalView, text: str) -> None:
    """Suspend a run with the form of a request. Raises Pause, with which Prefect's engine leaves the run.

    Returns if Prefect does not suspend the run, because somebody has given it another state. The form is stored before the run is
    suspended, so a kill in between leaves no suspended run without a form. Prefect accepts each pause key once; therefore each form has a
    new one. The suspension has no timeout, because the ledger decides when the request expires.
    """
    state: State[None] = Suspended(pause_key=f"{view.kind}-{uuid4().hex[:8]}")
    keys = keyset_from_paused_state(state)
    state.state_details.run_input_keyset = keys
    await ApprovalForm.with_initial_data(description=text).asave(keys, flow_run_id=run)
    suspended = await propose_state(client, state, flow_run_id=run)
    if suspended.is_paused():
        raise Pause(state=suspended)


async def take_answer(client: PrefectClient, ledger: Ledger, run: UUID, view: ApprovalView) -> str | None:
    """Record the answer that Prefect has stored for a request, if there is one. Return how the request was closed, or None.

    The first answer that can be read counts. It counts with the time at which it was submitted, so that one which was given in time is
    accepted although the service was away until after the expiry.
    """
    if view.answer is not None:
        return closed_reason(view)
    for at, typed in await _stored(client, run, f"suspended-{view.kind}-"):
        said = Answer(
            approve=typed.decision == "approve",
            actor=typed.approver.strip(),
            identity=Identity.CLAIMED,
            via="prefect",
            note=typed.note,
        )
        stands, _ = answer(ledger, view, said, at)
        if stands is not None:
            return closed_reason(request_view(ledger, view.id))
    return None


async def _stored(client: PrefectClient, run: UUID, prefix: str) -> list[tuple[datetime, ApprovalForm]]:
    """Return the answers that Prefect has stored for a run, oldest first, with the times at which they were submitted."""
    found: list[tuple[datetime, ApprovalForm]] = []
    seen: set[str] = set()
    while True:  # each form has stored three inputs, and a run shows a form again after each interruption
        page = await client.filter_flow_run_input(run, key_prefix=prefix, limit=_PAGE, exclude_keys=seen)
        for stored in page:
            if stored.key.endswith("-response"):
                with contextlib.suppress(ValueError, ValidationError):
                    found.append((stored.created or datetime.now(UTC), ApprovalForm.model_validate(json.loads(stored.value))))
        seen |= {stored.key for stored in page}
        if len(page) < _PAGE:
            return sorted(found, key=lambda pair: pair[0])
