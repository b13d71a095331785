"""`ratchet ingest` and `ratchet run`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from contracts.cycle import ENDS, State
from contracts.data import IngestReport
from contracts.errors import ConfigError
from contracts.loop import SourceSettings
from contracts.ports import TraceSource
from flows.cli.show import installation, json_option, loop_argument, print_json, say, table, watched
from flows.core.decide import End, Wait
from flows.engine.house import House


@click.command()
@loop_argument
@click.option("--source", type=click.Path(path_type=Path), help="Read this file or folder instead of the loop file's sources.")
@click.option("--format", "kind", type=click.Choice(["otlp", "jsonl"]), help="Of --source; default: that of the loop file's first source.")
@json_option
def ingest(loop: Path, source: Path | None, kind: str | None, as_json: bool) -> None:
    """Bring traces and feedback into the lake, each record exactly once."""
    from flows.engine.house import TURN_SECONDS
    from flows.engine.ingest import ingest as bring_in

    with watched(as_json) as progress:
        house = installation(progress).house(loop)
        report = bring_in(house, [_named_source(house, source, kind)] if source else None, TURN_SECONDS)
    if as_json:
        print_json(ingest_json(report))
        return
    columns = ["", "read", "kept", "duplicate", "skipped", "quarantined"]
    rows = [
        [name, c.read, c.kept, c.duplicate, c.skipped, c.quarantined]
        for name, c in (("traces", report.traces), ("feedback", report.feedback))
    ]
    table(f"Ingested into line {house.line}", columns, rows)
    reasons = {**report.traces.reasons, **{f"feedback {reason}": n for reason, n in report.feedback.reasons.items()}}
    if reasons:
        table("Why skipped or quarantined", ["reason", "records"], sorted(reasons.items()))


def ingest_json(report: IngestReport) -> dict[str, Any]:
    """The counts of one ingest; read is the sum of the rest, for traces and for feedback."""
    traces = report.traces.model_dump()
    return {**traces, "feedback": report.feedback.model_dump()}


def _named_source(house: House, path: Path, kind: str | None) -> TraceSource:
    from flows.config.home import Home
    from flows.engine.wiring import open_source

    if not path.exists():
        raise ConfigError(f"--source {path} does not exist")
    first = next((source for source in house.loop.sources if source.kind != "receiver"), None)
    name = first.name if first else "files"
    chosen = kind or (first.kind if first else "otlp")
    settings = SourceSettings.model_validate({"name": name, "kind": chosen, "path": str(path.absolute())})
    return open_source(settings, house.folder, Home.from_environment(), house.line)


@click.command()
@loop_argument
@click.option("--wait", default=86_400.0, show_default=True, help="Seconds to stay with the cycle; it goes on later where it stopped.")
@click.option("--no-ingest", is_flag=True, help="Do not read the sources first.")
@json_option
def run(loop: Path, wait: float, no_ingest: bool, as_json: bool) -> None:
    """Run one cycle now: go on with the open one, or open the next. Waits for approvals (`ratchet approve` in another terminal)."""
    from flows.engine.house import TURN_SECONDS
    from flows.engine.ingest import ingest as bring_in
    from flows.engine.line import open_cycle
    from flows.engine.reconcile import reconcile
    from flows.engine.work import run_to_end

    with watched(as_json) as progress:
        shop = installation(progress)
        house = shop.house(loop)
        if not no_ingest:
            bring_in(house, wait=TURN_SECONDS)
        reconcile(house)
        opened = house.line_view().open_cycle or open_cycle(house, "ratchet run")
        decision = run_to_end(shop, house.cycle_view(opened), wait)
        cycle = house.cycle_view(opened)
    waiting = decision.reason if isinstance(decision, Wait) else None
    if as_json:
        print_json({"cycle": cycle.id, "state": cycle.state, "ended": cycle.state in ENDS, "reason": cycle.reason, "waiting": waiting})
    else:
        say(f"{cycle.id} {'ended' if isinstance(decision, End) else 'is at'} {cycle.state}: {cycle.reason or waiting}")
        say(f"ratchet explain {cycle.id} tells why")
    sys.exit(1 if cycle.state is State.FAILED else 0)
