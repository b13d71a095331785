"""`ratchet card`: shows what the training data of a cycle consists of, as a Markdown page."""

from __future__ import annotations

from pathlib import Path

import click

from ratchet.flows.cli.names import cycle_argument, named_cycle
from ratchet.flows.cli.output import json_option, open_installation, print_json
from ratchet.flows.cli.terminal import show


@click.command()
@cycle_argument()
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Output file. Default: standard output.")
@json_option
def card(cycle: str | None, out: Path | None, as_json: bool) -> None:
    """Show the dataset card of CYCLE as Markdown.

    It has counts and histograms of the snapshot and of the training set, and no text of a user. CYCLE is cycle/LINE/NUMBER, LINE/NUMBER, or
    LINE for its newest cycle. It can be omitted if there is only one line.
    """
    from ratchet.flows.composition.artifacts import open_artifacts
    from ratchet.flows.engine.asking.dataset_export import no_data
    from ratchet.flows.report.dataset_card import as_markdown, dataset_card

    installation = open_installation()
    view = named_cycle(installation, cycle, as_json)
    sections = dataset_card(view, open_artifacts(installation.home))
    if not sections:
        raise no_data(view)
    if as_json:
        print_json([{"title": s.title, "text": s.text, "rows": s.table.rows if s.table else []} for s in sections])
        return
    page = as_markdown(f"Dataset card of {view.id}", sections)
    if out is None:
        show(page)
    else:
        out.write_text(page, encoding="utf-8")
        show(str(out))
