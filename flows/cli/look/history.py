"""`ratchet history`: lists all cycles and versions of a line, one row each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ratchet.flows.cli.lines import named_line
from ratchet.flows.cli.names import line_argument
from ratchet.flows.cli.output import json_option, open_installation, print_json, span, table
from ratchet.flows.cli.terminal import show

if TYPE_CHECKING:
    from ratchet.flows.report.history import Chapter


@click.command()
@line_argument(required=False)
@json_option
def history(line: str | None, as_json: bool) -> None:
    """List all cycles and versions of LINE, oldest first.

    LINE is the name of a line or the path of its loop file. It can be omitted if there is only one line. Each row shows the outcome, the
    training method with its number of examples, the difference of the mean rewards at the gate with its interval, the cost by the price
    table, and the duration. Below the table are the changes of the line's loop file and of its model names.
    """
    from ratchet.flows.report.history import history as line_history

    installation = open_installation()
    name = named_line(installation, line, as_json, reads=True)
    chapters = line_history(installation.line(name), installation.cycles(name))
    if as_json:
        print_json([_as_json(chapter) for chapter in chapters])
        return
    columns = ["cycle", "opened (UTC)", "outcome", "version", "method", "examples", "difference", "cost", "time"]
    table(f"History of {name}", columns, [_row(chapter) for chapter in chapters if not chapter.note])
    for chapter in chapters:
        if chapter.note:
            show(f"{chapter.at:%Y-%m-%d %H:%M} UTC  {chapter.outcome.replace('_', ' ')}: {chapter.note}")


def _row(chapter: Chapter) -> list[object]:
    from ratchet.flows.report.story import interval

    version = f"{chapter.version} ({chapter.standing})" if chapter.standing else chapter.version
    examples = "–" if chapter.examples is None else chapter.examples
    return [
        chapter.name,
        f"{chapter.at:%Y-%m-%d %H:%M}",
        chapter.outcome.replace("_", " "),
        version or "–",
        chapter.method or "–",
        examples,
        interval(chapter.difference) if chapter.difference else "–",
        _cost(chapter),
        "–" if chapter.seconds is None else span(chapter.seconds),
    ]


def _cost(chapter: Chapter) -> str:
    if chapter.cost:
        return f"{chapter.cost:.2f}"
    return f"{chapter.gpu_minutes:.1f} GPU min" if chapter.gpu_minutes else "–"


def _as_json(chapter: Chapter) -> dict[str, Any]:
    difference = chapter.difference.model_dump(mode="json") if chapter.difference else None
    return {**vars(chapter), "at": chapter.at.isoformat(), "difference": difference}
