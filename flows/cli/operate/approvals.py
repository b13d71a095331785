"""`ratchet approve` and `reject`: write an operator's answer to the ledger."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from ratchet.contracts.cycle import Answer, Identity
from ratchet.contracts.errors import Rejected
from ratchet.flows.cli.names import complete_request, named_request
from ratchet.flows.cli.output import actor_option, json_option, open_installation, print_json
from ratchet.flows.cli.terminal import say
from ratchet.flows.engine.line import answer

_request = click.argument("request", required=False, shell_complete=complete_request)
_note = click.option("--note", default="", help="Reason, recorded in the ledger.")


@click.command()
@_request
@actor_option
@_note
@json_option
def approve(request: str | None, by: str, note: str, as_json: bool) -> None:
    """Approve a pending request; the cycle continues.

    REQUEST is approval/LINE/NUMBER/training or approval/LINE/NUMBER/rollout; or LINE, or its loop file, if only one request of the line is
    pending. It can be omitted if only one request is pending at all. The first answer counts.
    """
    _answer(request, True, by, note, as_json)


@click.command()
@_request
@actor_option
@_note
@json_option
def reject(request: str | None, by: str, note: str, as_json: bool) -> None:
    """Reject a pending request; the cycle ends.

    REQUEST is approval/LINE/NUMBER/training or approval/LINE/NUMBER/rollout; or LINE, or its loop file, if only one request of the line is
    pending. It can be omitted if only one request is pending at all. The first answer counts.
    """
    _answer(request, False, by, note, as_json)


def _answer(name: str | None, yes: bool, by: str, note: str, as_json: bool) -> None:
    installation = open_installation()
    request = named_request(installation, name, as_json)
    given = Answer(approve=yes, actor=by, identity=Identity.CLAIMED, via="cli", note=note)
    stands, ours = answer(installation.ledger, request, given, datetime.now(UTC))
    if as_json:
        print_json({"request": request.id, "accepted": ours, "answer": stands.model_dump(mode="json") if stands else None})
    elif ours:
        say(f"{'approved' if yes else 'rejected'} {request.id} as {by}")
    if not ours:
        outcome = (
            f"{stands.actor} {'approved' if stands.approve else 'rejected'} it first via {stands.via}"
            if stands
            else "the request has expired"
        )
        raise Rejected("answered", f"{request.id}: {outcome}")
