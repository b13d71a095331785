"""`ratchet logs`: shows what a cycle did, from its ledger rows, its training job's events and its training job's output."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from ratchet.contracts.errors import RatchetError
from ratchet.flows.cli.names import cycle_argument, named_cycle
from ratchet.flows.cli.output import json_line, json_option, open_installation, print_json
from ratchet.flows.cli.terminal import say, show
from ratchet.flows.composition.installation import Installation
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.engine.line import approvals

if TYPE_CHECKING:
    from ratchet.flows.report.timeline import Moment

_POLL = 1.0
"""Seconds between two looks with --follow."""


@click.command()
@cycle_argument()
@click.option("--follow", is_flag=True, help="Show new entries until the cycle has ended.")
@click.option("--until-asked", is_flag=True, help="With --follow: also end when the cycle waits for a person's answer.")
@click.option("--output", "lines", default=0, type=click.IntRange(0), help="Also show the last N lines of the training job's output.")
@json_option
def logs(cycle: str | None, follow: bool, until_asked: bool, lines: int, as_json: bool) -> None:
    """Show what CYCLE did, one line per event, with its time in UTC.

    CYCLE is cycle/LINE/NUMBER, LINE/NUMBER, or LINE for its newest cycle. It can be omitted if there is only one line. The events are the
    rows of the ledger and the events of the training job. With --follow and --json, each event is one line of JSON.
    """
    installation = open_installation()
    view = named_cycle(installation, cycle, as_json)
    missing: set[str] = set()

    def look() -> tuple[list[Moment], bool]:
        found, ended, problem = moments(installation, view.id)
        if problem and problem not in missing:
            missing.add(problem)
            say(f"the events of the training job are not available: {problem}")
        return found, ended or (until_asked and is_asked(installation, view))

    if as_json and not follow:
        print_json([_as_json(moment) for moment in look()[0]])
        return
    for moment in followed(look, follow, time.sleep):
        if as_json:
            json_line(_as_json(moment))
        else:
            show(f"{moment.at:%Y-%m-%d %H:%M:%S}  {moment.text}")
    if lines:
        from ratchet.flows.composition.jobs import job_output

        newest = named_cycle(installation, view.id, quiet=True)
        for line in job_output(newest, installation.home, lines):
            show(line)


def is_asked(installation: Installation, cycle: CycleView) -> bool:
    """Return whether a cycle waits for a person's answer."""
    return any(request.awaiting and request.cycle == cycle.id for request in approvals(installation.ledger, cycle.line))


def followed(
    look: Callable[[], tuple[list[Moment], bool]], follow: bool, sleep: Callable[[float], None], poll: float = _POLL
) -> Iterator[Moment]:
    """Yield each moment once. `look` returns the moments so far and whether the cycle has ended.

    With `follow`, look again every `poll` seconds until the cycle has ended.
    """
    shown: set[tuple[str, int]] = set()
    while True:
        found, ended = look()
        for moment in found:
            if (moment.source, moment.number) not in shown:
                shown.add((moment.source, moment.number))
                yield moment
        if ended or not follow:
            return
        sleep(poll)


def moments(installation: Installation, cycle: str) -> tuple[list[Moment], bool, str]:
    """Return the moments of a cycle so far, whether it has ended, and why the job's events are out of reach; empty text if they are not."""
    from ratchet.contracts.cycle import ApprovalKind
    from ratchet.contracts.ids import approval_stream, rollout_stream
    from ratchet.flows.composition.jobs import job_events
    from ratchet.flows.core.folds.cycle import fold_cycle
    from ratchet.flows.report.timeline import timeline

    ledger = installation.ledger
    rows = ledger.read(cycle)
    view = fold_cycle(rows)
    streams = [rows, ledger.read(rollout_stream(cycle)), *(ledger.read(approval_stream(cycle, kind)) for kind in ApprovalKind)]
    try:
        events, problem = job_events(view, installation.home), ""
    except RatchetError as error:
        events, problem = {}, str(error)
    return timeline(streams, events), view.ended, problem


def _as_json(moment: Moment) -> dict[str, object]:
    return {**vars(moment), "at": moment.at.isoformat()}
