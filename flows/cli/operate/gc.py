"""`ratchet gc`: deletes what nothing refers to, and data whose retention has ended."""

from __future__ import annotations

import click

from ratchet.flows.cli.lines import named_line, named_loop
from ratchet.flows.cli.names import line_argument
from ratchet.flows.cli.output import json_option, open_installation, print_json, table, watched
from ratchet.flows.cli.terminal import say


@click.command()
@line_argument(required=False)
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and change nothing.")
@json_option
def gc(line: str | None, dry_run: bool, as_json: bool) -> None:
    """Delete what LINE no longer needs, and merge the small files of its lake.

    LINE is the name of a line or the path of its loop file. It can be omitted if there is only one line. Deleted are rows by `[retention]`,
    content whose consent was withdrawn, and files that nothing refers to. The service does this once a day, and merges files every five
    minutes. Rows are left alone while a cycle is open. What the ledger names is kept, and files for `retention.grace` days; those of the
    lake for a day.
    """
    with watched(as_json, "looking for garbage …") as progress:
        from ratchet.flows.service.garbage import collect_line
        from ratchet.flows.service.lake_upkeep import keep_lake

        installation = open_installation(progress)
        name = line or named_line(installation, None, as_json)
        context = installation.context(named_loop(installation, name, as_json))
        tables = keep_lake(installation.home.lake(context.line), context.clock.now().date(), dry_run=dry_run)
        done = collect_line(installation, context, dry_run)
    if as_json:
        print_json(done.model_dump(mode="json") | {"lake": [table.model_dump(mode="json") for table in tables]})
        return
    changed = [
        [one.table, one.merged, _change(one.files, dry_run), _change(one.bytes, dry_run), _change(one.snapshots, dry_run)]
        for one in tables
        if one.is_changed
    ]
    if changed:
        title = f"{'Would merge files of' if dry_run else 'Merged files of'} the lake of {context.line}"
        table(title, ["table", "merged", "files", "bytes", "snapshots"], changed)
    rows = [[f"rows of {place}", count] for place, count in done.rows.items()] + [
        [f"files of {place}", count] for place, count in done.files.items()
    ]
    if done.waiting:
        rows.append(["files of lake that wait for readers", done.waiting])
    table(f"{'Would delete' if dry_run else 'Deleted'} in {context.line}", ["what", "number"], [*rows, ["bytes", done.bytes]])
    for text in done.left:
        say(f"not reached: {text}")
    if done.postponed:
        say("rows were left alone, because a cycle is open; run `ratchet gc` again after its end, or wait for the daily one of the service")


def _change(both: tuple[int, int], dry_run: bool) -> str:
    """Return a size before and after."""
    return f"{both[0]:,}" if dry_run else f"{both[0]:,} → {both[1]:,}"
