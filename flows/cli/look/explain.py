"""`ratchet explain` and `report`: show the decisions of a cycle and their reasons, from the ledger."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from ratchet.contracts.hash_chain import verify_chain
from ratchet.contracts.ids import rollout_stream
from ratchet.flows.cli.lines import named_line
from ratchet.flows.cli.names import cycle_argument, line_argument, named_cycle
from ratchet.flows.cli.output import json_option, open_installation, print_json, table
from ratchet.flows.cli.terminal import show
from ratchet.flows.core.folds.rollout import fold_rollout
from ratchet.flows.engine.line import cycle_requests


@click.command()
@cycle_argument()
@click.option("--rows", is_flag=True, help="Also show the ledger rows.")
@json_option
def explain(cycle: str | None, rows: bool, as_json: bool) -> None:
    """Explain the decisions of CYCLE from the ledger.

    CYCLE is cycle/LINE/NUMBER, LINE/NUMBER, or LINE, or its loop file, for its newest cycle. It
    can be omitted if there is only one line.
    """
    from ratchet.flows.report.story import ledger_table, loop_files, recalled, tell

    installation = open_installation()
    view = named_cycle(installation, cycle, as_json)
    entries = installation.ledger.read(view.id)
    rollout = installation.ledger.read(rollout_stream(view.id))
    verify_chain(entries)
    verify_chain(rollout)
    if as_json:
        print_json([entry.model_dump(mode="json") for entry in [*entries, *rollout]])
        return
    requests, line = cycle_requests(installation.ledger, view), installation.line(view.line)
    chapters = tell(entries, fold_rollout(rollout) if rollout else None, requests, datetime.now(UTC))
    for chapter in [*chapters, *filter(None, [recalled(line, view), loop_files(line)])]:
        show(f"\n{chapter.title}", bold=True)
        for sentence in chapter.text:
            show(f"  {sentence}")
        if chapter.table:
            table("", chapter.table.columns, chapter.table.rows)
        for drawn in chapter.picture:
            show(f"  {drawn}")
    if rows:
        shown = ledger_table([*entries, *rollout])
        table("Ledger", shown.columns, shown.rows)


@click.command()
@line_argument(required=False)
@click.option("--out", type=click.Path(path_type=Path), help="Output file. Default: RATCHET_HOME/reports/LINE.html.")
@json_option
def report(line: str | None, out: Path | None, as_json: bool) -> None:
    """Write the report of LINE as one self-contained HTML file and print its path.

    LINE is the name of a line or the path of its loop file. It can be omitted if there is only one line.
    """
    from ratchet.flows.report.page import write_page

    installation = open_installation()
    name = named_line(installation, line, as_json, reads=True)
    page = write_page(installation.ledger, installation.home, name, out or installation.home.reports / f"{name}.html")
    if as_json:
        print_json({"line": name, "path": str(page)})
    else:
        show(str(page))
