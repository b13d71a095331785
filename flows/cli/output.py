"""Output of the commands: tables, JSON, messages, and progress bars on a terminal."""

from __future__ import annotations

import getpass
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ratchet.flows.cli.terminal import CONTROL, say, visible

if TYPE_CHECKING:  # imported late, so that the first line of progress is printed at once
    from ratchet.contracts.ports import Progress
    from ratchet.flows.composition.installation import Installation

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def actor() -> str:
    """Return the login name of the user, unverified, or `unknown`."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


actor_option = click.option(
    "--by", default=actor, show_default="your login name", help="Your name, recorded in the ledger without verification."
)


def print_json(value: Any) -> None:
    """Print the value as JSON on standard output. Control characters are printed as escapes."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)  # escapes C0 itself
    click.echo(text.translate({code: f"\\u{code:04x}" for code in CONTROL}))


def json_line(value: Any) -> None:
    """Print the value as one line of JSON on standard output, at once, for a program that reads while the command runs."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    click.echo(text.translate({code: f"\\u{code:04x}" for code in CONTROL}))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table on standard output. All columns except the first wrap. Markup and control characters in the texts have no effect."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(
        title=Text(visible(title)), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False
    )
    for number, column in enumerate(columns):
        shown.add_column(Text(visible(column)), overflow="fold", no_wrap=number == 0)
    for row in rows:
        shown.add_row(*[Text("" if cell is None else visible(str(cell))) for cell in row])
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(shown)


def span(seconds: float) -> str:
    """Return a duration for people, for example `4 min 10 s`."""
    whole = round(seconds)
    days, hours, minutes = whole // 86_400, whole % 86_400 // 3600, whole % 3600 // 60
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (whole % 60, "s")]
    first = next((number for number, (value, _) in enumerate(parts) if value), len(parts) - 1)
    shown = parts[first : first + 2]
    return " ".join(f"{value} {unit}" for value, unit in shown if value) or "0 s"


@contextmanager
def watched(as_json: bool, first: str) -> Iterator[Progress]:
    """Print `first` at once, and yield a progress callback.

    It shows bars on a terminal, otherwise one line per 10 percent. All of it is on standard error. With `as_json`, only a terminal gets it:
    a program that reads the result may also read standard error.
    """
    if as_json and not sys.stderr.isatty():
        yield lambda _what, _done, _total: None
        return
    say(first)  # before the slow imports of the command
    if sys.stderr.isatty():
        yield from _bars()
    else:
        yield _lines()


def _bars() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    with Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bars:
        tasks: dict[str, Any] = {}

        def progress(what: str, done: int, total: int) -> None:
            if total == 0:
                bars.console.print(visible(what), markup=False, highlight=False)
                return
            if what not in tasks:
                tasks[what] = bars.add_task(visible(what), total=total)
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


def open_installation(progress: Progress | None = None) -> Installation:
    """Return the installation in RATCHET_HOME, with `progress` as its callback if given."""
    from ratchet.flows.composition.installation import Installation
    from ratchet.flows.config.home import Home

    home = Home.from_environment()
    return Installation(home, progress) if progress else Installation(home)
