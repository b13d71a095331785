"""`ratchet gc`: deletes what nothing refers to, and data whose retention has ended."""

from __future__ import annotations

import click

from ratchet.flows.cli.lines import named_line, named_loop
from ratchet.flows.cli.names import line_argument
from ratchet.flows.cli.output import json_option, open_installation, print_json, table, watched


@click.command()
@line_argument(required=False)
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and change nothing.")
@json_option
def gc(line: str | None, dry_run: bool, as_json: bool) -> None:
    """Delete what LINE no longer needs: rows by `[retention]`, content whose consent was withdrawn, and files that nothing refers to.

    LINE is the name of a line or the path of its loop file. It can be omitted if there is only one line. The service does this once a day.
    Rows are left alone while a cycle is open. What the ledger names is kept, and files younger than `retention.grace` days.
    """
    with watched(as_json, "looking for garbage …") as progress:
        from ratchet.flows.service.garbage import collect_line

        installation = open_installation(progress)
        name = line or named_line(installation, None, as_json)
        context = installation.context(named_loop(installation, name, as_json))
        done = collect_line(installation, context, dry_run)
    if as_json:
        print_json(done.model_dump(mode="json"))
        return
    rows = [[f"rows of {place}", count] for place, count in done.rows.items()] + [
        [f"files of {place}", count] for place, count in done.files.items()
    ]
    table(f"{'Would delete' if dry_run else 'Deleted'} in {context.line}", ["what", "number"], [*rows, ["bytes", done.bytes]])
