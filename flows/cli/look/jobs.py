"""`ratchet jobs`: lists the training jobs of all lines, with those that wait for a machine first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratchet.contracts.errors import RatchetError
from ratchet.flows.cli.lines import known_lines
from ratchet.flows.cli.output import json_option, open_installation, print_json, span, table
from ratchet.flows.cli.terminal import say
from ratchet.flows.composition.installation import Installation
from ratchet.flows.core.folds.cycle import CycleView, fold_cycle

if TYPE_CHECKING:
    from ratchet.contracts.jobs.training import JobStatus


@click.command()
@json_option
def jobs(as_json: bool) -> None:
    """List the training jobs of all lines: those that wait for a machine, longest first, then those that run.

    Each job is shown with its place, its state as the executor reports it now, its steps, and what it has cost so far. A job whose executor
    cannot be reached has the state "unknown". `ratchet logs LINE` shows one job in detail.
    """
    installation = open_installation()
    now = datetime.now(UTC)
    found = sorted((one for line in known_lines(installation) if (one := _job(installation, line, now))), key=_place_in_queue)
    if as_json:
        print_json(found)
    elif found:
        columns = ["job", "place", "state", "for", "step", "GPU hours", "cost", "remark"]
        table("Training jobs", columns, [_row(one) for one in found])
    else:
        say("no line has a training job that waits or runs")


def _place_in_queue(job: dict[str, Any]) -> tuple[bool, str]:
    return job["state"] == "running", job["since"] or ""


def _job(installation: Installation, line: str, now: datetime) -> dict[str, Any] | None:
    """Return the job of the line's open cycle; None if it has none that has not ended."""
    opened = installation.line(line).open_cycle
    cycle = fold_cycle(installation.ledger.read(opened)) if opened else None
    if cycle is None or not cycle.incarnations or cycle.incarnations[-1].outcome is not None:
        return None
    newest = cycle.incarnations[-1]
    status, problem = _status(installation, cycle)
    usage = status.usage if status else None
    return {
        "job": f"{cycle.id.removeprefix('cycle/')}, attempt {newest.attempt}, start {newest.number}",
        "line": line,
        "cycle": cycle.id,
        "place": "this machine" if cycle.loop.cluster is None else f"cluster, queue {cycle.loop.cluster.queue}",
        "state": str(status.state) if status else "unknown",
        "since": f"{newest.began:%Y-%m-%d %H:%M:%S}" if newest.began else None,
        "seconds": round((now - newest.began).total_seconds()) if newest.began else None,
        "step": status.step if status else None,
        "total": status.total if status else None,
        "gpu_hours": round(usage.used / 3600, 2) if usage else None,
        "cost": round(usage.cost, 2) if usage else None,
        "remark": status.reason if status else problem,
    }


def _status(installation: Installation, cycle: CycleView) -> tuple[JobStatus | None, str]:
    """Return the status of the cycle's newest job, or None and the reason why it is not known."""
    from ratchet.flows.composition.ports import open_executor

    try:
        return open_executor(cycle.loop, Path(cycle.opened.folder), installation.home).observe(cycle.incarnations[-1].job), ""
    except RatchetError as error:
        return None, str(error)


def _row(job: dict[str, Any]) -> Sequence[object]:
    steps = f"{job['step']} of {job['total']}" if job["total"] else "–"
    past = span(job["seconds"]) if job["seconds"] is not None else "–"
    return [job["job"], job["place"], job["state"], past, steps, job["gpu_hours"], job["cost"], job["remark"]]
