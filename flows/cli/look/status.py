"""`ratchet status`: shows all lines with their champions, recent cycles and pending approvals."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from ratchet.contracts.ids import line_stream
from ratchet.flows.cli.output import json_option, open_installation, print_json, table
from ratchet.flows.cli.terminal import say, show
from ratchet.flows.composition.installation import Installation
from ratchet.flows.core.folds.line import LineView
from ratchet.flows.core.waiting import waiting_text
from ratchet.flows.engine.context import busy_text
from ratchet.flows.engine.line import cycle_requests


@click.command()
@json_option
def status(as_json: bool) -> None:
    """Show all lines with their champions, recent cycles and pending approvals.

    Also shows which process works on a line now, whether the line is frozen, and which versions are recalled.
    """
    installation = open_installation()
    now = datetime.now(UTC)
    lines = [_line_json(installation, view, now) for view in installation.lines()]
    if as_json:
        print_json(lines)
        return
    if not lines:
        say(f"no line in {installation.home.root}; create one with `ratchet init` and `ratchet adopt`")
        return
    rows = [[line["line"], line["champion"], line["previous"] or "–", line["open"] or "–", line["waits"] or "–"] for line in lines]
    table("Lines", ["line", "champion", "previous", "open cycle", "state"], rows)
    for line in lines:
        if line["busy"]:
            show(f"{line['line']} is busy: {line['busy']}")
        if line["frozen"]:
            frozen = line["frozen"]
            show(f"{line['line']} is frozen by {frozen['actor']} since {frozen['since']} UTC: {frozen['reason']}", fg="yellow")
        for tag, reason in line["recalled"].items():
            show(f"{line['line']}: {tag} is recalled{' and still serves' if tag == line['champion'] else ''}: {reason}", fg="yellow")
        if line["alarm"]:
            alarm = line["alarm"]
            say(f"{line['line']}: alarm of the quarantine since {alarm['since']} UTC: {alarm['text']}; see `ratchet quarantine list`")
    for line in lines:
        if line["cycles"]:
            done = [[c["cycle"], c["opened"], c["state"], c["candidate"] or "–", c["reason"]] for c in line["cycles"]]
            table(f"Cycles of {line['line']}", ["cycle", "opened (UTC)", "state", "candidate", "reason"], done)


def _line_json(installation: Installation, view: LineView, now: datetime) -> dict[str, Any]:
    cycles = installation.cycles(view.line)
    current = next((cycle for cycle in cycles if cycle.id == view.open_cycle), None)
    lease = installation.ledger.holder(line_stream(view.line))
    frozen = view.frozen
    return {
        "line": view.line,
        "champion": view.champion.tag if view.champion else None,
        "previous": view.previous.tag if view.previous else None,
        "open": view.open_cycle,
        "waits": waiting_text(current, cycle_requests(installation.ledger, current), now) if current else None,
        "busy": busy_text(lease, now) if lease is not None and lease.expires > now else None,
        "frozen": {"actor": frozen.actor, "reason": frozen.reason, "since": f"{frozen.since:%Y-%m-%d %H:%M:%S}"} if frozen else None,
        "recalled": view.recalled,
        "alarm": {"text": view.alarm.text, "since": f"{view.alarm.since:%Y-%m-%d %H:%M:%S}"} if view.alarm else None,
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
