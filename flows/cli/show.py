"""How commands show things: tables for people, JSON for programs, progress bars where a terminal watches."""

from __future__ import annotations

import getpass
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from contracts.ports import Progress
from flows.config.home import Home
from flows.engine.installation import Installation

loop_argument = click.argument("loop", type=click.Path(path_type=Path))
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def print_json(value: Any) -> None:
    """The machine-readable result, on standard output, alone."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on standard output; the last column wraps."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for number, column in enumerate(columns):
        shown.add_column(column, overflow="fold", no_wrap=number == 0)
    for row in rows:
        shown.add_row(*["" if cell is None else str(cell) for cell in row])
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(shown)


def say(text: str) -> None:
    """A line for people: on standard error, so that standard output stays the result's."""
    click.echo(text, err=True)


def actor() -> str:
    """Who we believe the person at the terminal to be; claimed, not proven."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


@contextmanager
def watched(quiet: bool) -> Iterator[Progress]:
    """A progress callback: bars on a terminal, a line at each tenth elsewhere, nothing where `quiet`."""
    if quiet:
        yield lambda _what, _done, _total: None
    elif sys.stderr.isatty():
        yield from _bars()
    else:
        yield _lines()


def _bars() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    with Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bars:
        tasks: dict[str, Any] = {}

        def progress(what: str, done: int, total: int) -> None:
            if total == 0:
                bars.console.print(what, markup=False, highlight=False)
                return
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield progress


def _lines() -> Progress:
    shown: dict[str, int] = {}

    def progress(what: str, done: int, total: int) -> None:
        tenth = done * 10 // total if total else -1
        if shown.get(what) != tenth:
            shown[what] = tenth
            say(f"{what}: {done} of {total}" if total else what)

    return progress


def installation(progress: Progress | None = None) -> Installation:
    """The installation that the environment names."""
    home = Home.from_environment()
    return Installation(home, progress) if progress else Installation(home)


def picked_line(shop: Installation, loop: Path | None) -> str:
    """The line of a loop file, or the only line there is."""
    if loop is not None:
        from flows.config.load import load_loop

        return load_loop(loop).line.name
    lines = [view.line for view in shop.lines()]
    if len(lines) == 1:
        return lines[0]
    raise click.UsageError("name a loop file" + (f"; there are the lines {', '.join(lines)}" if lines else "; no line exists yet"))
