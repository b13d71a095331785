"""`ratchet status`: shows all lines with their champions, recent cycles and pending approvals."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from ratchet.contracts.ids import line_stream
from ratchet.flows.cli.lines import known_lines, named_line, unknown_line
from ratchet.flows.cli.names import line_argument
from ratchet.flows.cli.output import json_option, open_installation, print_json, table
from ratchet.flows.cli.terminal import say, show
from ratchet.flows.composition.installation import Installation
from ratchet.flows.core.folds.line import LineView
from ratchet.flows.core.waiting import waiting_text
from ratchet.flows.engine.context import busy_text
from ratchet.flows.engine.line import cycle_requests


@click.command()
@line_argument(required=False)
@json_option
def status(line: str | None, as_json: bool) -> None:
    """Show all lines with their champions, recent cycles and pending approvals.

    With LINE, the name of a line or the path of its loop file, only this line is shown. Also shows which process works on a line now,
    whether the line is frozen, and which versions are recalled. Fails if there is no installation, or if it has no line while another
    installation near the current folder has one.
    """
    installation = open_installation()
    names = [named_line(installation, line, as_json)] if line else known_lines(installation)
    if not names:
        _no_line(installation)
    now = datetime.now(UTC)
    lines = [_line_json(installation, installation.line(name), now) for name in names]
    if as_json:
        print_json(lines)
        return
    if not lines:
        return
    rows = [[one["line"], one["champion"], one["previous"] or "–", one["open"] or "–", one["waits"] or "–"] for one in lines]
    table("Lines", ["line", "champion", "previous", "open cycle", "state"], rows)
    for one in lines:
        if one["busy"]:
            show(f"{one['line']} is busy: {one['busy']}")
        if one["frozen"]:
            frozen = one["frozen"]
            show(f"{one['line']} is frozen by {frozen['actor']} since {frozen['since']} UTC: {frozen['reason']}", fg="yellow")
        for tag, reason in one["recalled"].items():
            show(f"{one['line']}: {tag} is recalled{' and still serves' if tag == one['champion'] else ''}: {reason}", fg="yellow")
        if one["alarm"]:
            alarm = one["alarm"]
            say(f"{one['line']}: alarm of the quarantine since {alarm['since']} UTC: {alarm['text']}; see `ratchet quarantine list`")
    for one in lines:
        if one["cycles"]:
            done = [[c["cycle"], c["opened"], c["state"], c["candidate"] or "–", c["reason"]] for c in one["cycles"]]
            table(f"Cycles of {one['line']}", ["cycle", "opened (UTC)", "state", "candidate", "reason"], done)


def _no_line(installation: Installation) -> None:
    """Say that the installation has no line yet. Raises ConfigError if it looks like the wrong one, because another one is near."""
    from ratchet.flows.config.nearby import remedy_text

    problem = unknown_line(installation.home, [], None)
    if remedy_text(installation.home):
        raise problem
    say(str(problem))


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
