"""`ratchet ingest` and `ratchet run`: ingest records and run one cycle."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratchet.contracts.errors import ConfigError
from ratchet.flows.cli.lines import named_loop
from ratchet.flows.cli.names import line_argument
from ratchet.flows.cli.output import json_option, open_installation, print_json, table, watched
from ratchet.flows.cli.terminal import say
from ratchet.flows.cli.unread import unread_json, unread_text

if TYPE_CHECKING:
    from ratchet.contracts.data.datasets import IngestReport
    from ratchet.contracts.ports import TraceSource
    from ratchet.flows.engine.context import LineContext


FILE_KINDS = ("otlp", "jsonl", "parquet", "litellm", "langfuse")
"""Kinds of sources that read files."""


@click.command()
@line_argument()
@click.option("--source", help="File, folder or place on S3 to read instead of the sources in the loop file.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(FILE_KINDS),
    help="Format of --source. Default: the format of the first file source in the loop file, else otlp.",
)
@json_option
def ingest(line: str, source: str | None, kind: str | None, as_json: bool) -> None:
    """Ingest traces and feedback into the lake, each record exactly once.

    LINE is the name of a line or the path of its loop file; the sources in the file are read.
    """
    with watched(as_json, f"ingesting {source or f'the sources of {line}'} …") as progress:
        from ratchet.flows.engine.context import TURN_SECONDS
        from ratchet.flows.engine.ingest import ingest as ingest_sources

        installation = open_installation(progress)
        context = installation.context(named_loop(installation, line, as_json), late=True)
        sources = [_named_source(context, source, kind)] if source else context.sources
        report = ingest_sources(context, sources, TURN_SECONDS, note_always=False)
    if as_json:
        print_json(ingest_json(report) | {"unread": unread_json(sources)})
        return
    columns = ["", "read", "kept", "duplicate", "skipped", "quarantined"]
    rows = [
        [name, c.read, c.kept, c.duplicate, c.skipped, c.quarantined]
        for name, c in (("traces", report.traces), ("feedback", report.feedback))
    ]
    table(f"Ingested into line {context.line}", columns, rows)
    reasons = {**report.traces.reasons, **{f"feedback {reason}": n for reason, n in report.feedback.reasons.items()}}
    if report.traces.unsigned:
        say(f"{report.traces.unsigned} traces name a version of the line without a valid signature of the router; they are no evidence")
    if report.consent_changed:
        say(f"{report.consent_changed} records changed the consent of users, sessions or known traces")
    if report.feedback.parked:
        say(
            f"{report.feedback.parked} feedback records are about calls that are not in the lake; each counts once a call arrives with the "
            "span or response id that it names"
        )
    if report.late_references:
        say(f"{report.late_references} right answers came with records of known traces; they are kept, and count for these traces")
    if report.masked:
        say("personal data replaced by placeholders: " + ", ".join(f"{n} × {kind}" for kind, n in report.masked.items()))
    for one in sources:
        if files := getattr(one, "unread", ()):
            say(f"source {one.name}: {unread_text(files)}")
    if not (report.traces.read or report.feedback.read):
        say("no source has a record that was not read before")
    if reasons:
        table("Skipped or quarantined", ["reason", "records"], sorted(reasons.items()))


def ingest_json(report: IngestReport) -> dict[str, Any]:
    """Return the counts of one ingest as JSON data. `read` is the sum of the other counts, for traces and for feedback."""
    traces = report.traces.model_dump()
    more = report.model_dump(include={"consent_changed", "masked", "late_references"})
    return {**traces, "feedback": report.feedback.model_dump(), **more}


def _named_source(context: LineContext, place: str, kind: str | None) -> TraceSource:
    from ratchet.contracts.loop import SourceSettings
    from ratchet.flows.composition.extensions import open_source
    from ratchet.flows.config.home import Home

    remote = "://" in place
    if not remote and not Path(place).exists():
        raise ConfigError(f"--source {place} does not exist")
    first = next((source for source in context.loop.sources if source.kind in FILE_KINDS and kind in (None, source.kind)), None)
    first = first or next((source for source in context.loop.sources if source.kind in FILE_KINDS), None)
    known: dict[str, Any] = {} if first is None else {"name": first.name, "kind": first.kind}
    given: dict[str, Any] = {"kind": kind} if kind else {}
    if first is not None and first.kind == (kind or first.kind):
        known |= {"options": {key: value for key, value in first.options.items() if key != "base_url"}, "mapping": first.mapping}
    path = place if remote else str(Path(place).absolute())
    settings = SourceSettings.model_validate({"name": "files", "kind": "otlp", **known, **given, "path": path})
    return open_source(settings, context.folder, Home.from_environment(), context.line)


@click.command()
@line_argument()
@click.option(
    "--wait", default=86_400.0, show_default=True, help="Maximum time to wait for the cycle, in seconds. The cycle can be continued later."
)
@click.option("--no-ingest", is_flag=True, help="Do not ingest the sources first.")
@json_option
def run(line: str, wait: float, no_ingest: bool, as_json: bool) -> None:
    """Run one cycle of LINE now.

    LINE is the name of a line or the path of its loop file. Continues the open cycle, or opens the next one. Waits for approvals, which can
    be answered in another terminal with `ratchet approve`.
    """
    with watched(as_json, f"running a cycle of {line} …") as progress:
        from ratchet.contracts.steps import ENDS, State
        from ratchet.flows.core.decide import End, Wait
        from ratchet.flows.engine.context import TURN_SECONDS
        from ratchet.flows.engine.ingest import ingest as ingest_sources
        from ratchet.flows.engine.line import note_name, open_cycle
        from ratchet.flows.engine.reconcile import reconcile
        from ratchet.flows.engine.work import run_to_end

        installation = open_installation(progress)
        context = installation.context(named_loop(installation, line, as_json))
        if not no_ingest:
            ingest_sources(context, wait=TURN_SECONDS)
        note_name(context)
        reconcile(context)
        opened = context.line_view().open_cycle or open_cycle(context, "ratchet run")
        cycle = context.cycle_view(opened)
        decision = run_to_end(installation.cycle_context(cycle), cycle, wait)
        cycle = context.cycle_view(opened)
    waiting = decision.reason if isinstance(decision, Wait) else None
    if as_json:
        print_json({"cycle": cycle.id, "state": cycle.state, "ended": cycle.state in ENDS, "reason": cycle.reason, "waiting": waiting})
    else:
        say(f"{cycle.id} {'ended' if isinstance(decision, End) else 'is in state'} {cycle.state}: {cycle.reason or waiting}")
        say(f"for details, run `ratchet explain {cycle.id}`")
    sys.exit(1 if cycle.state is State.FAILED else 0)
