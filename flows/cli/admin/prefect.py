"""`ratchet prefect render`: prints `prefect.yaml` for a process work pool."""

from __future__ import annotations

import click

from ratchet.contracts.errors import ConfigError
from ratchet.flows.cli.lines import named_loop
from ratchet.flows.cli.names import LineName, complete_line
from ratchet.flows.cli.output import open_installation
from ratchet.flows.cli.terminal import show
from ratchet.flows.config.load import load_loop


@click.group()
def prefect() -> None:
    """Prepare a Prefect server that exists for this installation."""


@prefect.command()
@click.argument("loops", type=LineName(), nargs=-1, required=True, shell_complete=complete_line, metavar="LOOP...")
@click.option("--pool", default="ratchet", show_default=True, help="Name of the process work pool.")
def render(loops: tuple[str, ...], pool: str) -> None:
    """Print `prefect.yaml` with one deployment ratchet-request/LINE per LOOP.

    LOOP is the path of a loop file, or the name of a line. A worker on the service's machine runs these deployments. Each asks the service
    for a cycle and exits. Nothing is changed in Prefect.
    """
    from ratchet.flows.prefect.project import prefect_yaml

    installation = open_installation()
    read = [load_loop(named_loop(installation, one, quiet=True)) for one in loops]
    names = [loop.line.name for loop in read]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"two loop files define the line {twice[0]!r}; a line must have exactly one loop file")
    show(prefect_yaml(read, pool), newline=False)
