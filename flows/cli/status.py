"""`ratchet status`, `explain` and `report`: read-only commands that show the state and its reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from contracts.cycle import ApprovalKind
from contracts.errors import ConfigError
from contracts.hash_chain import verify_chain
from contracts.ids import approval_stream, cycle_stream, rollout_stream
from flows.cli.output import json_option, open_installation, picked_line, print_json, table
from flows.cli.terminal import say, show
from flows.composition.installation import Installation
from flows.core.folds import CycleView, LineView, fold_rollout


@click.command()
@json_option
def status(as_json: bool) -> None:
    """Show all lines with their champions, recent cycles and pending approvals."""
    installation = open_installation()
    lines = [_line_json(installation, view) for view in installation.lines()]
    if as_json:
        print_json(lines)
        return
    if not lines:
        say(f"no line in {installation.home.root}; create one with `ratchet init` and `ratchet adopt`")
        return
    rows = [[line["line"], line["champion"], line["previous"] or "–", line["open"] or "–", line["waits"] or "–"] for line in lines]
    table("Lines", ["line", "champion", "previous", "open cycle", "state"], rows)
    for line in lines:
        if line["cycles"]:
            done = [[c["cycle"], c["opened"], c["state"], c["candidate"] or "–", c["reason"]] for c in line["cycles"]]
            table(f"Cycles of {line['line']}", ["cycle", "opened (UTC)", "state", "candidate", "reason"], done)


def _line_json(installation: Installation, view: LineView) -> dict[str, Any]:
    cycles = installation.cycles(view.line)
    current = next((cycle for cycle in cycles if cycle.id == view.open_cycle), None)
    return {
        "line": view.line,
        "champion": view.champion.tag if view.champion else None,
        "previous": view.previous.tag if view.previous else None,
        "open": view.open_cycle,
        "waits": _waits(current) if current else None,
        "cycles": [
            {
                "cycle": cycle.id,
                "opened": f"{cycle.opened_at:%Y-%m-%d %H:%M:%S}",
                "state": str(cycle.state),
                "candidate": cycle.candidate.tag if cycle.candidate else None,
                "reason": cycle.reason,
            }
            for cycle in cycles[-20:]
        ],
    }


def _waits(cycle: CycleView) -> str:
    asked = [kind for kind in ApprovalKind if kind in cycle.asked and kind not in cycle.answers]
    if asked:
        return f"{cycle.state}; waiting for approval: ratchet approve {approval_stream(cycle.id, asked[-1]).removeprefix('approval/')}"
    tried = [(key, errors) for key, errors in cycle.tries.items() if key not in cycle.done]
    return f"{cycle.state}; {tried[-1][0]} failed {len(tried[-1][1])} times; last error: {tried[-1][1][-1]}" if tried else str(cycle.state)


@click.command()
@click.argument("cycle", required=False)
@click.option("--rows", is_flag=True, help="Also show the ledger rows.")
@json_option
def explain(cycle: str | None, rows: bool, as_json: bool) -> None:
    """Explain the decisions of CYCLE from the ledger.

    CYCLE is cycle/LINE/NUMBER, LINE/NUMBER, or LINE for its newest cycle. It can be omitted if there is only one line.
    """
    from flows.report.story import ledger_table, tell

    installation = open_installation()
    entries = installation.ledger.read(_named(installation, cycle))
    rollout = installation.ledger.read(rollout_stream(entries[0].stream))
    verify_chain(entries)
    verify_chain(rollout)
    if as_json:
        print_json([entry.model_dump(mode="json") for entry in [*entries, *rollout]])
        return
    for chapter in tell(entries, fold_rollout(rollout) if rollout else None):
        show(f"\n{chapter.title}", bold=True)
        for sentence in chapter.text:
            show(f"  {sentence}")
        if chapter.table:
            table("", chapter.table.columns, chapter.table.rows)
    if rows:
        shown = ledger_table([*entries, *rollout])
        table("Ledger", shown.columns, shown.rows)


def _named(installation: Installation, name: str | None) -> str:
    """Return the ledger stream of the cycle that the user names. Raises ConfigError if there is no such cycle."""
    known = installation.ledger.streams("cycle/")
    line, _, number = (name or picked_line(installation, None)).removeprefix("cycle/").partition("/")
    named = (
        [cycle_stream(line, int(number))] if number.isdigit() else installation.ledger.streams(f"cycle/{line}/")[-1:] if not number else []
    )
    if not named or named[0] not in known:
        raise ConfigError(f"there is no cycle {name!r}; available: {', '.join(known[-10:]) or 'none'}")
    return named[0]


@click.command()
@click.argument("line", required=False)
@click.option("--out", type=click.Path(path_type=Path), help="Output file. Default: RATCHET_HOME/reports/LINE.html.")
def report(line: str | None, out: Path | None) -> None:
    """Write the report of LINE as one self-contained HTML file and print its path.

    LINE can be omitted if there is only one line.
    """
    from flows.report.page import write_page

    installation = open_installation()
    name = line or picked_line(installation, None)
    if not installation.line(name).rows:
        raise ConfigError(f"there is no line {name!r}; available: {', '.join(view.line for view in installation.lines()) or 'none'}")
    show(str(write_page(installation.ledger, installation.home, name, out or installation.home.reports / f"{name}.html")))
