"""`ratchet rollback` and `cancel`: return to the previous version, and end the open cycle."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from ratchet.contracts.errors import Retryable
from ratchet.flows.cli.lines import named_line, named_loop
from ratchet.flows.cli.names import line_argument
from ratchet.flows.cli.output import actor_option, json_option, open_installation, print_json, watched
from ratchet.flows.cli.terminal import say

if TYPE_CHECKING:
    from ratchet.flows.composition.installation import Installation
    from ratchet.flows.engine.context import LineContext

_reason = click.option("--reason", default="", help="Reason, recorded in the ledger.")


@click.command()
@line_argument()
@actor_option
@_reason
@click.option("--no-wait", is_flag=True, help="Only record the request. A running service carries it out within seconds.")
@json_option
def rollback(line: str, by: str, reason: str, no_wait: bool, as_json: bool) -> None:
    """Roll back LINE to the previous version.

    LINE is the name of a line or the path of its loop file. During a rollout, all traffic returns to the champion. Otherwise, the previous
    version replaces the champion. An open cycle ends.
    """
    with watched(as_json, f"rolling back {line} …") as progress:
        from ratchet.flows.engine.line import ask_rollback
        from ratchet.flows.engine.reconcile import reconcile
        from ratchet.flows.engine.work import turn

        installation = open_installation(progress)
        name = named_line(installation, line, as_json)
        ask_rollback(installation.ledger, name, by, reason, datetime.now(UTC))
        repairs: list[str] = []
        if not no_wait:
            context = installation.context(named_loop(installation, line, quiet=True))
            repairs = reconcile(context)
            repairs += _end_open_cycle(installation, context, turn)
    view = installation.line(name)
    if as_json:
        champion = view.champion.tag if view.champion else None
        print_json({"line": name, "completed": not view.rollback_asked, "champion": champion, "mended": repairs})
    for text in () if as_json else repairs:
        say(text)
    if no_wait:
        say(f"rollback of line {name} requested")
        return
    if view.rollback_asked:
        raise Retryable(f"rollback of line {name} requested but not completed; a running service completes it, or run this command again")
    if not as_json:
        say(f"line {name} now serves {view.champion.tag if view.champion else 'nothing'}")


@click.command()
@line_argument()
@actor_option
@_reason
@json_option
def cancel(line: str, by: str, reason: str, as_json: bool) -> None:
    """Cancel the open cycle of LINE; the champion keeps serving.

    LINE is the name of a line or the path of its loop file.
    """
    with watched(as_json, f"cancelling the open cycle of {line} …") as progress:
        from ratchet.flows.engine.line import ask_cancel
        from ratchet.flows.engine.work import turn

        installation = open_installation(progress)
        name = named_line(installation, line, as_json)
        cancelled = installation.line(name).open_cycle
        ask_cancel(installation.ledger, name, by, reason, datetime.now(UTC))
        notes = _end_open_cycle(installation, installation.context(named_loop(installation, line, quiet=True)), turn)
    opened = installation.line(name).open_cycle
    if as_json:
        print_json({"line": name, "cycle": cancelled, "ended": opened is None, "notes": notes})
        return
    for note in notes:
        say(note)
    say(f"cancellation requested; {opened} stops after its current step" if opened else f"line {name} has no open cycle")


def _end_open_cycle(installation: Installation, context: LineContext, turn: Callable[..., object]) -> list[str]:
    """Advance the open cycle so that it ends now. If another process holds its lease, return that as a text."""
    opened = context.line_view().open_cycle
    if opened is not None:
        cycle = context.cycle_view(opened)
        try:
            turn(installation.cycle_context(cycle), cycle)
        except Retryable as error:
            return [str(error)]
    return []
