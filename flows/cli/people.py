"""`ratchet approve`, `reject`, `cancel` and `rollback`: what a person says, into the ledger. The first answer wins."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import click

from contracts.cycle import Answer, Identity
from contracts.errors import Rejected, Retryable
from flows.cli.show import actor, installation, json_option, loop_argument, picked_line, print_json, say
from flows.engine.house import House
from flows.engine.installation import Installation
from flows.engine.line import answer, approvals, ask_cancel, ask_rollback

_request = click.argument("request", required=False)
_by = click.option("--by", default=actor, show_default="your login name", help="Who answers (claimed, not proven).")
_note = click.option("--note", default="", help="Why; kept in the ledger.")


@click.command()
@_request
@_by
@_note
@json_option
def approve(request: str | None, by: str, note: str, as_json: bool) -> None:
    """Approve REQUEST (approval/LINE/NUMBER/training or …/rollout); without it, the only one that waits."""
    _answer(request, True, by, note, as_json)


@click.command()
@_request
@_by
@_note
@json_option
def reject(request: str | None, by: str, note: str, as_json: bool) -> None:
    """Reject REQUEST; the cycle ends."""
    _answer(request, False, by, note, as_json)


def _answer(name: str | None, yes: bool, by: str, note: str, as_json: bool) -> None:
    shop = installation()
    known = [view for line in shop.lines() for view in approvals(shop.ledger, line.line)]
    waiting = [view for view in known if view.awaiting]
    named = [view for view in known if name in (view.id, view.id.removeprefix("approval/"))] if name else waiting
    if len(named) != 1:
        listed = "\n".join(f"  {view.id}  until {view.expires:%Y-%m-%d %H:%M} UTC" for view in waiting) or "  none"
        problem = f"there is no request {name!r}" if name else f"{len(waiting)} requests wait"
        raise Rejected("which_request", f"{problem}; waiting now:\n{listed}")
    given = Answer(approve=yes, actor=by, identity=Identity.CLAIMED, via="cli", note=note)
    stands, ours = answer(shop.ledger, named[0], given, datetime.now(UTC))
    if as_json:
        print_json({"request": named[0].id, "accepted": ours, "answer": stands.model_dump(mode="json") if stands else None})
    elif ours:
        say(f"{'approved' if yes else 'rejected'} {named[0].id} as {by}")
    if not ours:
        said = f"{stands.actor} {'approved' if stands.approve else 'rejected'} it first, by {stands.via}" if stands else "it has expired"
        raise Rejected("answered", f"{named[0].id}: {said}")


_reason = click.option("--reason", default="", help="Why; kept in the ledger.")


@click.command()
@loop_argument
@_by
@_reason
@click.option("--no-wait", is_flag=True, help="Only ask; a running service carries it out within a minute.")
def rollback(loop: Path, by: str, reason: str, no_wait: bool) -> None:
    """Go back: a running rollout ends with the champion, or a promoted version gives way to the one before. An open cycle ends."""
    from flows.engine.reconcile import reconcile
    from flows.engine.work import turn

    shop = installation()
    name = picked_line(shop, loop)
    ask_rollback(shop.ledger, name, by, reason, datetime.now(UTC))
    if no_wait:
        say(f"asked line {name} to go back")
        return
    house = shop.house(loop)
    for line in reconcile(house):
        say(line)
    _end_open_cycle(shop, house, turn)
    view = house.line_view()
    if view.rollback_asked:
        raise Retryable(f"line {name} is asked to go back and has not done so yet; a running service does, or this command again")
    say(f"line {name} serves {view.champion.tag if view.champion else 'nothing'}")


@click.command()
@loop_argument
@_by
@_reason
def cancel(loop: Path, by: str, reason: str) -> None:
    """End the open cycle; the champion goes on serving."""
    from flows.engine.work import turn

    shop = installation()
    name = picked_line(shop, loop)
    ask_cancel(shop.ledger, name, by, reason, datetime.now(UTC))
    _end_open_cycle(shop, shop.house(loop), turn)
    opened = shop.line(name).open_cycle
    say(f"{opened} ends when it looks up from what it does" if opened else f"line {name} has no open cycle any more")


def _end_open_cycle(shop: Installation, house: House, turn: Callable[..., object]) -> None:
    """Lets the open cycle hear it now, unless another process is at it."""
    opened = house.line_view().open_cycle
    if opened is not None:
        try:
            turn(shop, house.cycle_view(opened))
        except Retryable as error:
            say(str(error))
