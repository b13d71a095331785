"""`ratchet dataset`: exports training sets for trainers elsewhere, and lists what was exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ratchet.contracts.data.datasets import EXPORT_FORMATS
from ratchet.flows.cli.lines import existing, is_file_name, named_line, named_loop
from ratchet.flows.cli.names import cycle_argument, line_argument, named_cycle
from ratchet.flows.cli.new_folder import new_folder, refuse_existing
from ratchet.flows.cli.output import actor_option, json_option, open_installation, print_json, table, watched
from ratchet.flows.cli.terminal import say

if TYPE_CHECKING:
    from ratchet.contracts.rows import DatasetExported
    from ratchet.flows.engine.asking.dataset_export import ExportedSet
    from ratchet.flows.engine.context import LineContext
    from ratchet.materializer.exports import ExportedFiles


@click.group()
def dataset() -> None:
    """Export training sets for trainers elsewhere."""


@dataset.command()
@cycle_argument()
@click.option("--now", is_flag=True, help="Export all data that LINE has now, instead of those of a cycle. No model is needed.")
@click.option("--format", "form", type=click.Choice(EXPORT_FORMATS), required=True, help="Format of the files.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="New folder for the files.")
@actor_option
@json_option
def export(cycle: str | None, now: bool, form: str, out: Path, by: str, as_json: bool) -> None:
    """Write the training set of CYCLE to files: pairs, demonstrations, prompts, and development prompts.

    CYCLE is LINE/NUMBER, or LINE for its newest cycle. With --now, it is LINE: the name of a line or the path of its loop file.

    The files contain what a cycle would train on: no holdout, no golden prompt, and nothing that governance or a missing consent leaves
    out, by the consent of now. `card.md` describes the data, and `manifest.json` has counts and digests. The export is recorded in the
    ledger. The files contain texts of users: `ratchet erase` does not reach them.
    """
    refuse_existing(out)
    with watched(as_json, "building the training set …") as progress:
        from ratchet.flows.engine.asking.dataset_export import set_of_cycle, set_of_now

        installation = open_installation(progress)
        if now:
            context = installation.context(named_loop(installation, cycle or named_line(installation, None, as_json), as_json))
            found = set_of_now(context)
        else:
            view = named_cycle(installation, cycle, as_json)
            context = installation.cycle_context(view)
            found = set_of_cycle(context, view)
        noted, files = _write(context, found, form, out, by)
    if as_json:
        print_json({"folder": str(out), "line": context.line} | noted.model_dump(mode="json") | {"left_out": files.left_out})
        return
    rows = [[name, f"{n:,}", str(files.left_out.get(name, "–"))] for name, n in files.rows.items()]
    table(f"Training set of {context.line}, {found.source}, in {out}", ["file", "rows", "left out: no right answer"], rows)
    if not any(files.rows.values()):
        say("The training set is empty; `card.md` in the folder says what became of the records.")


@dataset.command("list")
@line_argument()
@json_option
def list_(line: str, as_json: bool) -> None:
    """List the exports of LINE: when, by whom, and where the files were written to."""
    from ratchet.flows.engine.asking.dataset_export import exports

    installation = existing(open_installation())
    if is_file_name(line):  # a line that has adopted no model can have exports
        line = installation.context(named_loop(installation, line, as_json)).line
    found = exports(installation.ledger, line)
    if not found:
        line = named_line(installation, line, as_json)
    if as_json:
        print_json([{"at": at, **one.model_dump(mode="json")} for at, one in found])
        return
    rows = [[at, one.actor, one.source, one.format, f"{sum(one.rows.values()):,}", one.folder] for at, one in found]
    table(f"Exports of {line}", ["when (UTC)", "by", "source", "format", "rows", "folder"], rows)


def _write(context: LineContext, found: ExportedSet, form: str, out: Path, by: str) -> tuple[DatasetExported, ExportedFiles]:
    """Write the files to a new folder beside `out`, record the export, and give the folder its name."""
    from ratchet.contracts.ids import digest
    from ratchet.flows.engine.asking.dataset_export import Written, note_export
    from ratchet.flows.report.dataset_card import as_markdown, card_of
    from ratchet.materializer.exports import export_files

    files = export_files(found.data, context.artifacts, form)
    digests = {name: digest(content) for name, content in files.contents.items()}
    title = f"Training set of {context.line}, {found.source}"
    card = as_markdown(title, card_of(context.loop, found.snapshot, found.data, context.artifacts))
    with new_folder(out) as part:
        for name, content in files.contents.items():
            (part / name).write_bytes(content)
        (part / "card.md").write_text(card, encoding="utf-8")
        noted = note_export(context, found, Written(by, form, out, files.rows, digests))
        manifest = noted.model_dump(mode="json") | {"line": context.line, "left_out": files.left_out, "sha256": digests}
        (part / "manifest.json").write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return noted, files
