"""`ratchet rollback` and `cancel`: return to the previous version, and end the open cycle."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import click

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.flows.cli.lines import named_line, named_loop
from ratchet.flows.cli.names import line_argument
from ratchet.flows.cli.output import actor_option, json_option, open_installation, print_json, watched
from ratchet.flows.cli.terminal import say

if TYPE_CHECKING:
    from ratchet.flows.composition.installation import Installation
    from ratchet.flows.core.folds.line import LineView
    from ratchet.flows.engine.context import LineContext
    from ratchet.flows.engine.rollouts.going_back import Back

_SECONDS = 60.0
"""Seconds that a rollback waits until every session is back, for example for a model server that loads."""
_reason = click.option("--why", "reason", default="", help="Reason, recorded in the ledger.")


@click.command()
@line_argument()
@actor_option
@_reason
@click.option("--no-wait", is_flag=True, help="Only record the request. A running service carries it out within seconds.")
@json_option
def rollback(line: str, by: str, reason: str, no_wait: bool, as_json: bool) -> None:
    """Roll back LINE to the previous version.

    LINE is the name of a line or the path of its loop file. During a rollout, all traffic returns to the champion. Otherwise, the previous
    version replaces the champion. An open cycle ends. The request is recorded first, and the command returns when every session is back.
    """
    from ratchet.flows.engine.line import ask_rollback

    installation = open_installation(_quiet if as_json else _progress)
    name = named_line(installation, line, as_json)
    begun = ask_rollback(installation.ledger, name, by, reason, datetime.now(UTC))
    _tell(f"rollback of line {name} requested by {by} and recorded", as_json)
    if no_wait:
        if as_json:
            print_json(_result(installation, name, None, []))
        else:
            _tell("a running service carries it out within seconds", as_json)
        return
    back, notes = _carried_out(installation, line, begun, as_json)
    if as_json:
        print_json(_result(installation, name, back, notes))
    for note in () if as_json else notes:
        say(note)
    if back is None or not back.done:
        raise Retryable(f"rollback of line {name} requested but not completed; a running service completes it, or run this command again")


def _carried_out(installation: Installation, line: str, begun: LineView, as_json: bool) -> tuple[Back | None, list[str]]:
    """Bring every session back, and end the open cycle unless a service does. Return the outcome, and what is left to do."""
    from ratchet.flows.engine.rollouts.going_back import bring_back, target

    opened = begun.open_cycle
    tag = target(begun, installation.cycle(begun.line, int(opened.rpartition("/")[2])) if opened else None)
    if tag is None:
        return None, []
    context = _context(installation, line, begun, as_json)
    _tell(f"bringing every session back to {tag} …", as_json)
    back = bring_back(context, tag, partial(installation.cycle_context, late=True), _SECONDS, lambda text: _tell(text, as_json))
    if not back.done:
        return back, []
    _tell(f"every session of line {begun.line} is on {tag}", as_json)
    opened = context.line_view().open_cycle
    if opened is None:
        return back, []
    from ratchet.flows.service.process import serving_process

    if serving_process(installation.home) is not None:
        return back, [f"{opened} ends at its next turn in the service"]
    _tell(f"no service runs, so this command ends {opened} …", as_json)
    from ratchet.flows.engine.work import turn

    try:
        whole = installation.context(named_loop(installation, line, quiet=True))
    except ConfigError as error:
        return back, [f"{opened} ends when a service runs with a valid loop file: {error}"]
    return back, _end_open_cycle(installation, whole, turn)


def _context(installation: Installation, line: str, begun: LineView, as_json: bool) -> LineContext:
    """Return the context of the loop file; if it cannot be used, that of the settings with which the newest cycle was opened.

    A rollback must not wait until somebody has mended a file.
    """
    try:
        return installation.context(named_loop(installation, line, quiet=True), late=True)
    except ConfigError as error:
        newest = installation.cycle(begun.line, begun.cycles) if begun.cycles else None
        if newest is None:
            raise
        _tell(f"the loop file cannot be used ({error}); the rollback uses the settings of {newest.id}", as_json)
        return installation.cycle_context(newest, late=True)


def _result(installation: Installation, name: str, back: Back | None, notes: list[str]) -> dict[str, object]:
    view = installation.line(name)
    champion = view.champion.tag if view.champion else None
    return {"line": name, "completed": back is not None and back.done, "champion": champion, "mended": notes}


def _tell(text: str, as_json: bool) -> None:
    """Show progress at once. With --json, only a terminal gets it: a program that reads the result may also read standard error."""
    if not as_json or sys.stderr.isatty():
        say(text)


def _progress(what: str, _done: int, total: int) -> None:
    if total == 0:
        say(what)


def _quiet(_what: str, _done: int, _total: int) -> None:
    return


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
    say(
        f"cancellation requested; {opened} stops after its current step" if opened else f"{cancelled} has ended; the champion keeps serving"
    )


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
