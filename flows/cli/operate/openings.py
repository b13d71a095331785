"""`ratchet trigger`, `retry`, `freeze` and `unfreeze`: decide from outside when cycles of a line open."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ratchet.contracts.errors import ConfigError
from ratchet.flows.cli.lines import named_line, named_loop
from ratchet.flows.cli.names import cycle_argument, line_argument, named_cycle
from ratchet.flows.cli.output import actor_option, json_option, open_installation, print_json, watched
from ratchet.flows.cli.terminal import say

if TYPE_CHECKING:
    from ratchet.flows.composition.installation import Installation

_why = click.option("--why", required=True, help="Reason, recorded in the ledger.")


@click.command()
@line_argument()
@click.option("--why", default="", help="Reason, recorded in the ledger.")
@actor_option
@json_option
def trigger(line: str, why: str, by: str, as_json: bool) -> None:
    """Open a cycle of LINE now, although its triggers are not reached.

    LINE is the name of a line or the path of its loop file. A running service continues the cycle; without one, run `ratchet run`. Fails
    if a cycle is open or if the line is frozen.
    """
    with watched(as_json, f"opening a cycle of {line} …") as progress:
        from ratchet.flows.engine.line import open_cycle

        installation = open_installation(progress)
        context = installation.context(named_loop(installation, line, as_json), late=True)
        opened = open_cycle(context, f"triggered by {by}" + (f": {why}" if why else ""), by)
    _opened(opened, f"triggered by {by}", as_json)


@click.command()
@cycle_argument(required=True)
@click.option("--loop", type=click.Path(path_type=Path), help="Loop file. Default: the one to which the line belongs.")
@actor_option
@json_option
def retry(cycle: str, loop: Path | None, by: str, as_json: bool) -> None:
    """Open a new cycle after the ended CYCLE, although no new traces arrived.

    CYCLE is cycle/LINE/NUMBER, LINE/NUMBER, or LINE, or its loop file, for its newest cycle. The new cycle uses the present content of the
    loop file and all data up to now. A running service continues it; without one, run `ratchet run`. Fails if a cycle is open or if the
    line is frozen.
    """
    with watched(as_json, f"opening a cycle after {cycle} …") as progress:
        from ratchet.flows.engine.line import retry_cycle

        installation = open_installation(progress)
        ended = named_cycle(installation, cycle, as_json)
        context = installation.context(loop or installation.loop_file(ended.line), late=True)
        if context.line != ended.line:
            raise ConfigError(f"{loop} defines line {context.line!r}, but {ended.id} is a cycle of line {ended.line!r}")
        opened = retry_cycle(context, ended.number, by)
    _opened(opened, f"retry of {ended.number}", as_json)


def _opened(cycle: str, reason: str, as_json: bool) -> None:
    if as_json:
        print_json({"cycle": cycle, "reason": reason})
    else:
        say(f"{cycle} opened ({reason}); follow it with `ratchet logs {cycle.removeprefix('cycle/')} --follow`")


@click.command()
@line_argument()
@_why
@actor_option
@json_option
def freeze(line: str, why: str, by: str, as_json: bool) -> None:
    """Freeze LINE: no new cycle opens, neither by a trigger nor by a command, until `ratchet unfreeze`.

    LINE is the name of a line or the path of its loop file. An open cycle goes on; `ratchet cancel` ends it. Serving and ingest go on.
    """
    from ratchet.flows.engine.line import freeze as freeze_line

    installation = open_installation()
    name = named_line(installation, line, as_json)
    changed = freeze_line(installation.ledger, name, by, why, datetime.now(UTC))
    view = installation.line(name)
    if as_json:
        print_json({"line": name, "changed": changed, "frozen": _frozen(installation, name), "open": view.open_cycle})
        return
    say(f"line {name} is {'now' if changed else 'already'} {view.frozen or 'not frozen; another process ended the freeze'}")
    if view.open_cycle:
        say(f"{view.open_cycle} is open and goes on; `ratchet cancel` ends it")


@click.command()
@line_argument()
@_why
@actor_option
@json_option
def unfreeze(line: str, why: str, by: str, as_json: bool) -> None:
    """End the freeze of LINE; the triggers open cycles again.

    LINE is the name of a line or the path of its loop file.
    """
    from ratchet.flows.engine.line import unfreeze as unfreeze_line

    installation = open_installation()
    name = named_line(installation, line, as_json)
    changed = unfreeze_line(installation.ledger, name, by, why, datetime.now(UTC))
    if as_json:
        print_json({"line": name, "changed": changed, "frozen": _frozen(installation, name)})
    else:
        say(f"line {name} is no longer frozen" if changed else f"line {name} is not frozen")


def _frozen(installation: Installation, line: str) -> dict[str, str] | None:
    frozen = installation.line(line).frozen
    return {"actor": frozen.actor, "reason": frozen.reason, "since": frozen.since.isoformat()} if frozen else None
