"""`ratchet status`: shows all lines with their champions, recent cycles and pending approvals."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from ratchet.contracts.errors import RatchetError
from ratchet.contracts.ids import line_stream
from ratchet.flows.cli.lines import known_lines, named_line, unknown_line
from ratchet.flows.cli.names import line_argument
from ratchet.flows.cli.output import json_option, open_installation, print_json, table
from ratchet.flows.cli.terminal import say, show
from ratchet.flows.composition.installation import Installation
from ratchet.flows.core.folds.cycle import CycleView, fold_cycle
from ratchet.flows.core.folds.line import LineView
from ratchet.flows.core.problem import Problem
from ratchet.flows.core.waiting import waiting_text
from ratchet.flows.engine.context import busy_text
from ratchet.flows.engine.line import cycle_requests
from ratchet.flows.service.vitals import is_away, problems, take

JSON_CYCLES = 20
"""Number of the newest cycles of a line that --json contains."""
ENDED_CYCLES = 5
"""Number of the newest ended cycles that the table of a line shows. `ratchet history` shows all."""


@click.command()
@line_argument(required=False)
@click.option("--watch", "watched", is_flag=True, help="Show one line on one screen, and redraw it until Ctrl-C.")
@json_option
def status(line: str | None, watched: bool, as_json: bool) -> None:
    """Show whether the installation works, and all lines with their champions, recent cycles and pending approvals.

    With LINE, the name of a line or the path of its loop file, only this line is shown. Also shows which process works on a line now,
    whether the line is frozen, and which versions are recalled.

    Problems come first: a service that crashed, hangs or fails at its work; a full disk; a Prefect server that does not answer; traces
    that wait too long for their ingest. If there is one, the exit code is 1, and the lines are shown nevertheless. A service that was
    stopped, or that has never run, is not a problem.

    The exit code is 2 if there is no installation in this folder. It is also 2 if the installation has no line, and another installation
    near this folder has one.

    With --watch, the line is shown as its steps, with the rollout and its evidence, the traffic of the last minutes, what comes next, and
    who must act. Ctrl-C ends it with code 0. Without a terminal, it prints a new block when something has changed; with --json, a line of
    JSON.
    """
    installation = open_installation()
    if watched:
        from ratchet.flows.cli.look.watch import watch

        watch(installation, named_line(installation, line, as_json, reads=True), as_json)
        return
    names = [named_line(installation, line, as_json, reads=True)] if line else known_lines(installation)
    now = datetime.now(UTC)
    wrong = problems(take(installation.home, names, now, is_away))
    for one in wrong:  # before what may fail
        if not as_json or not names:
            show_problem(one, error=as_json)
    if not names:
        _no_line(installation)
    lines = [_line_json(installation, installation.line(name), now) for name in names]
    if as_json:
        print_json([{**one, "problems": [problem.model_dump() for problem in wrong]} for one in lines])
    elif lines:
        _show_lines(lines)
    sys.exit(1 if any(one.level == "error" for one in wrong) else 0)


def show_problem(problem: Problem, error: bool = False) -> None:
    """Print a problem on standard output, or on standard error if `error`."""
    if problem.level == "error":
        show(f"✗ {problem.text}", error=error, fg="red", bold=True)
    else:
        show(f"· {problem.text}", error=error)


def _show_lines(lines: list[dict[str, Any]]) -> None:
    rows = [[one["line"], one["champion"], one["previous"] or "–", one["open"] or "–", one["waits"] or "–"] for one in lines]
    table("Lines", ["line", "champion", "previous", "open cycle", "state"], rows)
    for one in lines:
        if one["busy"]:
            show(f"{one['line']} is busy: {one['busy']}")
        if one["frozen"]:
            frozen = one["frozen"]
            show(f"{one['line']} is frozen by {frozen['actor']} since {frozen['since']} UTC: {frozen['reason']}", fg="yellow")
        if one["former_names"]:
            former = ", ".join(map(repr, one["former_names"]))
            show(f"{one['line']} answers to {one['served_model']!r}, and still to {former}; `ratchet names {one['line']}` can end it")
        if one["taken_over"]:
            taken = one["taken_over"]
            show(f"{one['line']} belongs to {taken['file']}, taken over by {taken['actor']} at {taken['since']} UTC: {taken['reason']}")
        for tag, reason in one["recalled"].items():
            show(f"{one['line']}: {tag} is recalled{' and still serves' if tag == one['champion'] else ''}: {reason}", fg="yellow")
        if one["alarm"]:
            alarm = one["alarm"]
            say(f"{one['line']}: alarm of the quarantine since {alarm['since']} UTC: {alarm['text']}; see `ratchet quarantine list`")
    for one in lines:
        if one["cycles"]:
            newest = [c for c in reversed(one["cycles"]) if c["cycle"] != one["open"]]
            newest = [c for c in one["cycles"] if c["cycle"] == one["open"]] + newest[:ENDED_CYCLES]
            done = [[c["cycle"], c["opened"], c["state"], c["candidate"] or "–", c["reason"]] for c in newest]
            table(f"Cycles of {one['line']}", ["cycle", "opened (UTC)", "state", "candidate", "reason"], done)


def _no_line(installation: Installation) -> None:
    """Say that the installation has no line yet. Raises ConfigError if it looks like the wrong one, because another one is near."""
    from ratchet.flows.config.nearby import remedy_text

    problem = unknown_line(installation.home, [], None)
    if remedy_text(installation.home):
        raise problem
    say(str(problem))


def _line_json(installation: Installation, view: LineView, now: datetime) -> dict[str, Any]:
    current = fold_cycle(installation.ledger.read(view.open_cycle)) if view.open_cycle else None
    streams = installation.ledger.streams(f"cycle/{view.line}/")[-JSON_CYCLES:]
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
        "served_model": view.served_model or None,
        "former_names": list(view.former_names),
        "taken_over": _taken_over(view),
        "recalled": view.recalled,
        "alarm": {"text": view.alarm.text, "since": f"{view.alarm.since:%Y-%m-%d %H:%M:%S}"} if view.alarm else None,
        "cycles": [_cycle_json(installation, stream, current) for stream in streams],
    }


def _taken_over(view: LineView) -> dict[str, str] | None:
    """Return the newest decision that another loop file is the one of the line; None if there is none."""
    if not view.takeovers:
        return None
    at, taken = view.takeovers[-1]
    path = str(Path(taken.folder) / taken.file)
    return {"file": path, "former": taken.former, "actor": taken.actor, "reason": taken.reason, "since": f"{at:%Y-%m-%d %H:%M:%S}"}


def _cycle_json(installation: Installation, stream: str, current: CycleView | None) -> dict[str, Any]:
    """Return one cycle. An ended one whose rows cannot be read hides no other."""
    try:
        cycle = current if current is not None and current.id == stream else fold_cycle(installation.ledger.read(stream))
        candidate = cycle.candidate
    except RatchetError as error:
        if current is not None and current.id == stream:
            raise
        return {"cycle": stream, "opened": "–", "state": "unreadable", "candidate": None, "reason": str(error)}
    return {
        "cycle": cycle.id,
        "opened": f"{cycle.opened_at:%Y-%m-%d %H:%M:%S}",
        "state": str(cycle.state),
        "candidate": candidate.tag if candidate else None,
        "reason": cycle.reason,
    }
