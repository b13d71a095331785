"""The training set that is exported for a trainer elsewhere, with the consent of now, and its record in the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ratchet.contracts.cycle import Append
from ratchet.contracts.data.datasets import HoldoutEdition, Snapshot, TrainingSet
from ratchet.contracts.errors import Conflict, Rejected
from ratchet.contracts.ids import NORMALISER, Digest, digest, exports_stream
from ratchet.contracts.ports import Ledger
from ratchet.contracts.rows import DatasetExported, content_of, row_of
from ratchet.contracts.steps import FreezeResult, ProbeResult
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.core.triggers import edition_number
from ratchet.flows.engine.context import LineContext


@dataclass(frozen=True)
class ExportedSet:
    """A training set and the snapshot that it comes from."""

    source: str
    """cycle/LINE/NUMBER, or `now`."""
    snapshot: Snapshot
    data: TrainingSet


@dataclass(frozen=True)
class Written:
    """The files of an export."""

    actor: str
    format: str
    folder: Path
    rows: Mapping[str, int]
    """File -> number of its rows."""
    digests: Mapping[str, Digest]
    """File -> digest of its content."""


def set_of_cycle(context: LineContext, cycle: CycleView) -> ExportedSet:
    """Return the training set of a cycle, without what consent was withdrawn for since. `context` is that of the cycle.

    Raises Rejected if the cycle has frozen no data yet.
    """
    frozen, probed = cycle.get(FreezeResult), cycle.get(ProbeResult)
    if frozen is None:
        raise no_data(cycle)
    report = probed.report if probed is not None else None
    return ExportedSet(cycle.id, frozen.snapshot, context.datasets.assemble(_name(context, frozen.snapshot.name), frozen.snapshot, report))


def set_of_now(context: LineContext) -> ExportedSet:
    """Return the training set of all data that the line has now. It needs no model, so it has no answers of a probe.

    The holdout and the golden prompts of all editions are left out, as in a cycle that opens now.
    """
    snapshot, name = snapshot_of_now(context), _name(context, "now")
    return ExportedSet("now", snapshot, context.datasets.assemble(f"{name}/plan", snapshot, None))


def snapshot_of_now(context: LineContext) -> Snapshot:
    """Return the snapshot of all data that the line has now, without the holdout and the golden prompts of all editions."""
    line, loop = context.line_view(), context.loop
    number = edition_number(line.evaluations, loop.holdout.rotate_after)
    # Only what separates the holdout from the rest: no prompt of an edition is chosen by an export.
    split = HoldoutEdition(
        line=context.line,
        number=number,
        prompts=digest([]),
        size=0,
        golden=None,
        normaliser=NORMALISER,
        fraction=loop.holdout.fraction,
        skipped=loop.holdout.skipped,
    )
    context.progress("freezing the data …", 0, 0)
    return context.datasets.freeze(f"{_name(context, 'now')}/freeze", context.clock.now(), split)


def _name(context: LineContext, source: str) -> str:
    """Return the name under which the set is stored. It changes with the lake, so that a set of yesterday is not exported today."""
    seen = digest([source, context.datasets.cursor().model_dump(mode="json"), context.loop.model_dump(mode="json")])
    return f"export/{context.line}/{seen[:16]}"


def note_export(context: LineContext, found: ExportedSet, written: Written) -> DatasetExported:
    """Record an export in the ledger. Call it before the files get their name: a file that is not recorded must not leave."""
    exported = DatasetExported(
        actor=written.actor,
        source=found.source,
        format=written.format,
        rows=dict(written.rows),
        snapshot=found.snapshot.content,
        files=digest(dict(written.digests)),
        folder=str(written.folder.absolute()),
    )
    stream = exports_stream(context.line)
    while True:
        after = len(context.ledger.read(stream))
        try:
            context.ledger.append([Append(stream=stream, after=after, rows=(row_of("exported", exported),))], None, context.clock.now())
        except Conflict:
            continue  # another export was recorded in between
        return exported


def exports(ledger: Ledger, line: str) -> list[tuple[str, DatasetExported]]:
    """Return time (UTC) and content of each export of the line, the oldest first."""
    return [(f"{row.at:%Y-%m-%d %H:%M}", content_of(DatasetExported, row)) for row in ledger.read(exports_stream(line))]


def no_data(cycle: CycleView) -> Rejected:
    """Return the error of a request for the frozen data of a cycle that has none."""
    if cycle.ended:
        return Rejected("no_data", f"{cycle.id} has no frozen data: it ended as {cycle.state} before its data was frozen")
    return Rejected("no_data", f"{cycle.id} has no frozen data yet; `ratchet status` shows what it waits for")
