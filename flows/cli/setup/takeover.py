"""`ratchet takeover`: lets a line belong to another loop file, or to the same file at a new place."""

from __future__ import annotations

from pathlib import Path

import click

from ratchet.flows.cli.lines import existing
from ratchet.flows.cli.output import actor_option, json_option, open_installation, print_json
from ratchet.flows.cli.terminal import say
from ratchet.flows.composition.installation import is_same_file


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--why", required=True, help="Reason, recorded in the ledger.")
@actor_option
@json_option
def takeover(file: Path, why: str, by: str, as_json: bool) -> None:
    """Let a line belong to the loop file FILE, which defines it, from now on.

    A line belongs to the loop file with which its model was adopted, and commands refuse another file that defines the same line, for
    example a copy. This command records that FILE decides for the line instead, for example after the file was moved. Its settings count
    from then on. An open cycle goes on with the content with which it was opened. A running service keeps the settings of the file that it
    serves, and opens no cycle, until it serves FILE.
    """
    from ratchet.flows.engine.line import take_over

    installation = existing(open_installation())
    context = installation.context(file, late=True, any_file=True)
    former = installation.owner(context.line)
    changed = former is None or not is_same_file(former, file)
    if changed:
        take_over(context, former, by, why)
    if as_json:
        print_json({"line": context.line, "changed": changed, "file": str(file.absolute()), "former": str(former) if former else None})
    elif changed:
        say(f"line {context.line} belongs to the loop file {file.absolute()} now{f', and no longer to {former}' if former else ''}")
        say(f"`ratchet check {file}` shows what its settings do; a running service follows it after `ratchet serve {file}`")
    else:
        say(f"line {context.line} already belongs to the loop file {former}")
