"""`ratchet approve`, `reject`, `cancel` and `rollback`: write an operator's request or answer to the ledger."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import click

from contracts.cycle import Answer, Identity
from contracts.errors import Rejected, Retryable
from flows.cli.output import actor, json_option, loop_argument, open_installation, picked_line, print_json
from flows.cli.terminal import say
from flows.composition.installation import Installation
from flows.engine.context import LineContext
from flows.engine.line import answer, approvals, ask_cancel, ask_rollback

_request = click.argument("request", required=False)
_by = click.option("--by", default=actor, show_default="your login name", help="Your name, recorded in the ledger without verification.")
_note = click.option("--note", default="", help="Reason, recorded in the ledger.")


@click.command()
@_request
@_by
@_note
@json_option
def approve(request: str | None, by: str, note: str, as_json: bool) -> None:
    """Approve a pending request; the cycle continues.

    REQUEST is approval/LINE/NUMBER/training or approval/LINE/NUMBER/rollout. It can be omitted if only one request is pending. The
    first answer counts.
    """
    _answer(request, True, by, note, as_json)


@click.command()
@_request
@_by
@_note
@json_option
def reject(request: str | None, by: str, note: str, as_json: bool) -> None:
    """Reject a pending request; the cycle ends.

    REQUEST is approval/LINE/NUMBER/training or approval/LINE/NUMBER/rollout. It can be omitted if only one request is pending. The
    first answer counts.
    """
    _answer(request, False, by, note, as_json)


def _answer(name: str | None, yes: bool, by: str, note: str, as_json: bool) -> None:
    installation = open_installation()
    known = [view for line in installation.lines() for view in approvals(installation.ledger, line.line)]
    waiting = [view for view in known if view.awaiting]
    named = [view for view in known if name in (view.id, view.id.removeprefix("approval/"))] if name else waiting
    if len(named) != 1:
        listed = "\n".join(f"  {view.id}  until {view.expires:%Y-%m-%d %H:%M} UTC" for view in waiting) or "  none"
        problem = f"there is no request {name!r}" if name else f"no REQUEST given, and {len(waiting)} requests are pending"
        raise Rejected("which_request", f"{problem}; pending requests:\n{listed}")
    given = Answer(approve=yes, actor=by, identity=Identity.CLAIMED, via="cli", note=note)
    stands, ours = answer(installation.ledger, named[0], given, datetime.now(UTC))
    if as_json:
        print_json({"request": named[0].id, "accepted": ours, "answer": stands.model_dump(mode="json") if stands else None})
    elif ours:
        say(f"{'approved' if yes else 'rejected'} {named[0].id} as {by}")
    if not ours:
        outcome = (
            f"{stands.actor} {'approved' if stands.approve else 'rejected'} it first via {stands.via}"
            if stands
            else "the request has expired"
        )
        raise Rejected("answered", f"{named[0].id}: {outcome}")


_reason = click.option("--reason", default="", help="Reason, recorded in the ledger.")


@click.command()
@loop_argument
@_by
@_reason
@click.option("--no-wait", is_flag=True, help="Only record the request. A running service executes it within a minute.")
def rollback(loop: Path, by: str, reason: str, no_wait: bool) -> None:
    """Roll back the line of LOOP to the previous version.

    LOOP is the path of a loop file. During a rollout, all traffic returns to the champion. Otherwise, the previous version replaces
    the champion. An open cycle ends.
    """
    from flows.engine.reconcile import reconcile
    from flows.engine.work import turn

    installation = open_installation()
    name = picked_line(installation, loop)
    ask_rollback(installation.ledger, name, by, reason, datetime.now(UTC))
    if no_wait:
        say(f"rollback of line {name} requested")
        return
    context = installation.context(loop)
    for line in reconcile(context):
        say(line)
    _end_open_cycle(installation, context, turn)
    view = context.line_view()
    if view.rollback_asked:
        raise Retryable(f"rollback of line {name} requested but not completed; a running service completes it, or run this command again")
    say(f"line {name} now serves {view.champion.tag if view.champion else 'nothing'}")


@click.command()
@loop_argument
@_by
@_reason
def cancel(loop: Path, by: str, reason: str) -> None:
    """Cancel the open cycle of the line of LOOP; the champion keeps serving.

    LOOP is the path of a loop file.
    """
    from flows.engine.work import turn

    installation = open_installation()
    name = picked_line(installation, loop)
    ask_cancel(installation.ledger, name, by, reason, datetime.now(UTC))
    _end_open_cycle(installation, installation.context(loop), turn)
    opened = installation.line(name).open_cycle
    say(f"cancellation requested; {opened} stops after its current step" if opened else f"line {name} has no open cycle")


def _end_open_cycle(installation: Installation, context: LineContext, turn: Callable[..., object]) -> None:
    """Advance the open cycle so that it ends now, unless another process holds its lease."""
    opened = context.line_view().open_cycle
    if opened is not None:
        cycle = context.cycle_view(opened)
        try:
            turn(installation.cycle_context(cycle), cycle)
        except Retryable as error:
            say(str(error))
