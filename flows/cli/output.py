"""Output of the commands: tables, JSON, messages, and progress bars on a terminal."""

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
from flows.composition.installation import Installation
from flows.config.home import Home

loop_argument = click.argument("loop", type=click.Path(path_type=Path))
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


_CONTROL: dict[int, str] = {
    **{code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"},
    0x0D: "\n",  # the next text would overwrite the line
    **{code: f"\\u{code:04x}" for code in (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))},
}
"""Character -> the text shown in its place. C0 and C1 control characters can control a terminal (ECMA-48, section 5). Bidirectional
controls change the order in which a text is shown (Unicode Standard Annex 9, section 2)."""


def visible(text: str) -> str:
    """Return the text with its control characters replaced by escapes, because a person or a model may have written it."""
    return text.translate(_CONTROL)


def show(text: str = "", newline: bool = True, error: bool = False, **style: Any) -> None:
    """Print a text on standard output, or on standard error if `error`. `style` are the arguments of `click.style`."""
    click.secho(visible(text), nl=newline, err=error, **style)


def print_json(value: Any) -> None:
    """Print the value as JSON on standard output. Control characters are printed as escapes."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)  # escapes C0 itself
    click.echo(text.translate({code: f"\\u{code:04x}" for code in _CONTROL}))


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


def say(text: str) -> None:
    """Print a message on standard error, because standard output is reserved for results."""
    show(text, error=True)


def actor() -> str:
    """Return the login name of the user, unverified, or `unknown`."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


@contextmanager
def watched(quiet: bool) -> Iterator[Progress]:
    """Yield a progress callback: bars on a terminal, otherwise one line per 10 percent, or no output if `quiet`."""
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
    home = Home.from_environment()
    return Installation(home, progress) if progress else Installation(home)


def picked_line(installation: Installation, loop: Path | None) -> str:
    """Return the name of the line of a loop file, or of the only line if `loop` is None.

    Raises UsageError if `loop` is None and the number of lines is not one.
    """
    if loop is not None:
        from flows.config.load import load_loop

        return load_loop(loop).line.name
    lines = [view.line for view in installation.lines()]
    if len(lines) == 1:
        return lines[0]
    raise click.UsageError("name a loop file" + (f"; there are the lines {', '.join(lines)}" if lines else "; no line exists yet"))
