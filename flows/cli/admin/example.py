"""`ratchet example`: the files, the model and the users of the quickstart."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from ratchet.contracts.errors import ConfigError
from ratchet.flows.cli.lines import named_line, named_loop
from ratchet.flows.cli.names import line_argument
from ratchet.flows.cli.output import json_option, open_installation, print_json, table, watched
from ratchet.flows.cli.terminal import say


@click.group()
def example() -> None:
    """Write the files of the quickstart, make its model, and play its users.

    Everything is made by scripts with fixed seeds. Nothing is downloaded.
    """


@example.command()
@click.argument("folder", type=click.Path(path_type=Path), default="first-loop")
@json_option
def files(folder: Path, as_json: bool) -> None:
    """Write a loop file, traces and a golden set into FOLDER (default: first-loop)."""
    from ratchet.flows.demo.example import write_example

    made = write_example(folder, datetime.now(UTC))
    if as_json:
        print_json({str(path): text for path, text in made.items()})
        return
    table("", ["file", "content"], [[str(path), text] for path, text in made.items()])


@example.command()
@click.argument("folder", type=click.Path(path_type=Path), default="model")
@json_option
def model(folder: Path, as_json: bool) -> None:
    """Train a small base model into FOLDER (default: model). Takes about a minute on one core.

    It is a Llama model with about a million weights that knows six of the eight intents of the example.
    """
    import shutil
    import tempfile

    from ratchet.flows.demo.world import base_ready, build_world, start_base

    if folder.exists():
        raise ConfigError(f"{folder} exists; name a new folder")
    with watched(as_json, "training a small model from scratch …"), tempfile.TemporaryDirectory() as scratch:
        made = base_ready(start_base(build_world(), Path(scratch)), Path(scratch))
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(made, folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if as_json:
        print_json({"folder": str(folder), "bytes": size})
    else:
        say(f"{folder}: {size / 1e6:.1f} MB; `ratchet adopt LOOP.toml {folder}` registers it as version 0")


@example.command()
@line_argument(required=False)
@click.option("--rounds", type=click.IntRange(1), help="Number of rounds. Default: until the open cycle has ended.")
@json_option
def users(line: str | None, rounds: int | None, as_json: bool) -> None:
    """Play 200 users of LINE (default: the only line), who send requests to its router and rate the answers.

    LINE is the name of a line or the path of its loop file. A round has 80 requests. The service must run. Users and reviewers get
    credentials of the line's receiver.
    """
    from ratchet.flows.demo.example_users import ExampleUsers

    installation = open_installation()
    file = named_loop(installation, named_line(installation, line, as_json), quiet=True)
    played = ExampleUsers(installation, installation.context(file), lambda text: None if as_json else say(text)).play(rounds)
    if as_json:
        print_json(asdict(played))
