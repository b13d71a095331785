"""`ratchet prefect render`: prints `prefect.yaml` for a process work pool."""

from __future__ import annotations

from pathlib import Path

import click

from ratchet.contracts.errors import ConfigError
from ratchet.flows.cli.terminal import show
from ratchet.flows.config.load import load_loop


@click.group()
def prefect() -> None:
    """Prepare a Prefect server that exists for this installation."""


@prefect.command()
@click.argument("loops", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="LOOP...")
@click.option("--pool", default="ratchet", show_default=True, help="Name of the process work pool.")
def render(loops: tuple[Path, ...], pool: str) -> None:
    """Print `prefect.yaml` with one deployment ratchet-request/LINE per LOOP file.

    A worker on the service's machine runs these deployments. Each asks the service for a cycle and exits. Nothing is changed in Prefect.
    """
    from ratchet.flows.prefect.project import prefect_yaml

    read = [load_loop(path) for path in loops]
    names = [loop.line.name for loop in read]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"two loop files define the line {twice[0]!r}; a line must have exactly one loop file")
    show(prefect_yaml(read, pool), newline=False)
