"""Resolves what a user gives for a line, its name or the path of its loop file, and words the errors for what is not there."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.contracts.errors import ConfigError
from ratchet.flows.cli.terminal import say

if TYPE_CHECKING:
    from ratchet.flows.composition.installation import Installation
    from ratchet.flows.config.home import Home


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the most similar known name, or empty text if none is similar."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def existing(installation: Installation) -> Installation:
    """Return the installation. Raises ConfigError, and creates nothing, if its ledger does not exist."""
    if installation.home.has_ledger:
        return installation
    from ratchet.flows.config.nearby import home_text, remedy_text

    remedy, here = remedy_text(installation.home), loop_files()
    if here and not remedy:
        raise ConfigError(
            f"no model is adopted yet in {home_text(installation.home)}; `ratchet adopt {here[0]} MODEL_FOLDER` creates the line of the "
            "loop file that is here"
        )
    remedy = remedy or "set RATCHET_HOME to the folder of your installation, or run the command beside it"
    raise ConfigError(f"there is no installation in {home_text(installation.home)}; {remedy}")


def known_lines(installation: Installation) -> list[str]:
    """Return the names of all lines of the installation; raises ConfigError if there is no installation."""
    return [stream.removeprefix("line/") for stream in existing(installation).ledger.streams("line/")]


def named_line(installation: Installation, name: str | None, quiet: bool, reads: bool = False) -> str:
    """Return the line that the user names, by its name or by the path of its loop file; without a name, the only line.

    Unless `quiet`, one line on standard error says what was taken. Raises ConfigError if the line does not exist, or if the user names
    none although there are several, or a loop file to which the line does not belong. A command that only `reads` takes any file.
    """
    if name is not None and not is_file_name(name) and not installation.home.has_ledger and Path(f"{name}.toml").is_file():
        raise unknown_line(installation.home, [], name)
    lines = known_lines(installation)
    if name is None:
        if len(lines) != 1:
            raise ConfigError(f"name a line; there are {', '.join(lines)}") if lines else unknown_line(installation.home, lines, None)
        _tell(f"taken as the only line: {lines[0]}", quiet)
        return lines[0]
    if name in lines:
        _tell(f"taken as the line {name}", quiet)
        return name
    if not is_file_name(name):
        raise unknown_line(installation.home, lines, name)
    line = _line_of(installation, name)
    if not reads:
        installation.refuse_other(line, Path(name))
    if line not in lines:
        raise unknown_line(installation.home, lines, line, name)
    _tell(f"taken as the loop file {name} of the line {line}", quiet)
    return line


def named_loop(installation: Installation, name: str, quiet: bool, reads: bool = False) -> Path:
    """Return the loop file that the user names, by its path or by its line. A path may define a line that does not exist yet.

    Unless `quiet`, one line on standard error says what was taken. Raises ConfigError if there is no such line or file, if the ledger
    knows no file of the line, or if the line belongs to another file. A command that only `reads` takes any file.
    """
    lines = known_lines(installation) if installation.home.has_ledger else []
    if name not in lines and is_file_name(name):
        line = _line_of(installation, name)
        if installation.home.has_ledger and not reads:
            installation.refuse_other(line, Path(name))
        if not installation.home.has_ledger:
            _refuse_second(installation.home, line, Path(name))
        _tell(f"taken as the loop file {name} of the line {line}", quiet)
        return Path(name)
    file = installation.loop_file(named_line(installation, name, quiet=True))
    _tell(f"taken as the line {name} with the loop file {file}", quiet)
    return file


def _refuse_second(home: Home, line: str, file: Path) -> None:
    """Raise ConfigError if `file` belongs to a line of an installation near it, unless RATCHET_HOME says which one is meant.

    Otherwise a command in a wrong folder would begin a second installation, with a second copy of the line and of its traces.
    """
    from ratchet.flows.composition.installation import Installation, is_same_file
    from ratchet.flows.config import variables
    from ratchet.flows.config.home import Home
    from ratchet.flows.config.nearby import home_text, installations_near

    if os.environ.get(variables.HOME):
        return
    for near in installations_near(Path(os.path.normpath(file.absolute().parent)), home):
        if line in near.lines and (owner := Installation(Home(near.root)).owner(line)) and is_same_file(owner, file):
            raise ConfigError(
                f"there is no installation in {home_text(home)}, and line {line!r} of {file} is in {near.root}; to use that one, set "
                f"{variables.HOME}={near.root}; for a second one, set {variables.HOME}={home.root}"
            )


def loop_files() -> list[str]:
    """Return the names of the loop files of the current folder."""
    return sorted(path.name for path in Path().glob("*.toml") if _is_loop_file(path))


def _is_loop_file(path: Path) -> bool:
    try:
        return path.name.isprintable() and "[line]" in path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError):
        return False


def is_file_name(name: str) -> bool:
    """Return whether a text that is no line is the path of a loop file: it looks like a path, or there is such a file."""
    return name.endswith(".toml") or "/" in name or Path(name).exists()


def _line_of(installation: Installation, file: str) -> str:
    """Return the name of the line that a loop file defines. Raises ConfigError if the file is missing or invalid."""
    from ratchet.flows.config.load import load_loop

    if not Path(file).exists():
        raise _missing_file(installation, file)
    return load_loop(Path(file)).line.name


def _missing_file(installation: Installation, file: str) -> ConfigError:
    from ratchet.flows.config.nearby import home_text, remedy_text

    lines = known_lines(installation) if installation.home.has_ledger else []
    if file.partition("/")[0] in lines:
        line, _, rest = file.partition("/")
        return ConfigError(f"there is no loop file {file}; name the line {line!r} without {'/' + rest!r}")
    text = f"there is no loop file {file}{nearest(Path(file).stem, lines)}"
    if lines:
        return ConfigError(
            f"{text}{_mark(text)} A line's name can be given instead; lines in {home_text(installation.home)}: {', '.join(lines)}"
        )
    remedy = remedy_text(installation.home)
    if remedy:
        return ConfigError(f"{text}, and no line in {home_text(installation.home)}; {remedy}")
    return ConfigError(f"{text}; create one with `ratchet init {file}`")


def unknown_line(home: Home, lines: list[str], name: str | None, file: str = "") -> ConfigError:
    """Return the error for a line that does not exist: the lines that do, and the installations near the current folder.

    `name` is None if the user named none. `file` is the loop file that defines the line, if the user gave one.
    """
    from ratchet.flows.config.nearby import home_text, remedy_text

    if name is not None and not file and (home.root / "lines" / name / "lake").is_dir():
        return ConfigError(
            f"line {name!r} in {home_text(home)} has traces and no model yet; pass the path of its loop file in place of its name, "
            "or adopt a model: `ratchet adopt LOOP.toml MODEL_FOLDER`"
        )
    text = "there is no line" if name is None else f"there is no line {name!r}{nearest(name, lines)}"
    text += f"{_mark(text)} Lines in {home_text(home)}: {', '.join(lines)}" if lines else f" in {home_text(home)}"
    remedy = remedy_text(home, name)
    if not remedy and file:
        remedy = f"`ratchet adopt {file} MODEL_FOLDER` creates the line"
    if not remedy and name is not None and Path(f"{name}.toml").is_file():
        remedy = f"to use the loop file {name}.toml of this folder, pass {name}.toml"
    if not remedy and not lines:
        remedy = remedy_text(home) or "`ratchet adopt LOOP.toml MODEL_FOLDER` creates a line"
    return ConfigError(f"{text}; {remedy}" if remedy else text)


def _mark(text: str) -> str:
    return "" if text.endswith("?") else "."


def _tell(text: str, quiet: bool) -> None:
    if not quiet:
        say(text)
