"""`ratchet names`: the model names by which clients may call a line, and the end of a former one."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from ratchet.contracts.errors import ConfigError
from ratchet.flows.cli.lines import named_line
from ratchet.flows.cli.names import line_argument
from ratchet.flows.cli.output import actor_option, json_option, open_installation, print_json
from ratchet.flows.cli.terminal import say, show


@click.command()
@line_argument()
@click.option("--end", metavar="NAME", help="Former name to end: clients that still use it get status 404.")
@click.option("--why", default="", help="Reason for the end, recorded in the ledger. Required with --end.")
@actor_option
@json_option
def names(line: str, end: str | None, why: str, by: str, as_json: bool) -> None:
    """Show the model names by which clients may call LINE, or end a former one.

    LINE is the name of a line or the path of its loop file. If `line.served_model` changes, the former name stays valid until it is ended
    with --end. A running service ends it within seconds; without one, the route changes when the line is served again.
    """
    from ratchet.flows.engine.line import end_name

    installation = open_installation()
    name = named_line(installation, line, as_json, reads=end is None)
    if end is not None and not why:
        raise ConfigError("--end needs a reason: --why TEXT")
    view = end_name(installation.ledger, name, end, by, why, datetime.now(UTC)) if end is not None else installation.line(name)
    present = view.served_model or None
    if as_json:
        print_json({"line": name, "served_model": present, "former_names": view.former_names, "ended": end})
        return
    if end is not None:
        say(f"line {name}: the former model name {end!r} was ended by {by}; a running service stops to answer it within seconds")
    if present is None:
        say(f"no model name of line {name} is recorded yet; it is `line.served_model` of its loop file")
        return
    show(f"{present}  (present)")
    for former in view.former_names:
        show(f"{former}  (former)")
