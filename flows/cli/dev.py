"""`ratchet dev`: what a developer of Ratchet uses beside the tests. It works in a source checkout only, where the test cluster's own
programs lie; an installation does not have them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from contracts.errors import ConfigError

CHECKOUT = Path(__file__).resolve().parents[2]
folder_option = click.option(
    "--folder", type=click.Path(path_type=Path), default=Path(".ratchet-rig"), show_default=True, help="Where the cluster keeps its state."
)


@click.group()
def dev() -> None:
    """Things for developing Ratchet itself; they need its source checkout."""


@dev.group()
def cluster() -> None:
    """A Kubernetes cluster on this machine: control plane, Volcano, pretending nodes and real ones; no container engine needed."""


@cluster.command()
@folder_option
@click.option("--real", type=click.IntRange(0, 2), default=0, show_default=True, help="Nodes whose pods really run (needs root).")
@click.option("--fake", type=click.IntRange(0), default=0, show_default=True, help="Nodes of 8 GPUs that only pretend.")
@click.option("--karpenter", is_flag=True, help="With an autoscaler that makes pretending nodes.")
@click.option("--traefik", is_flag=True, help="With a data plane for the Gateway API.")
def up(folder: Path, real: int, fake: int, karpenter: bool, traefik: bool) -> None:
    """Start the cluster and print the line that points kubectl at it. The first time, its programs are built (about 20 minutes)."""
    chosen = [name for name, asked in (("--karpenter", karpenter), ("--traefik", traefik)) if asked]
    _rig("up", folder, f"--real={real}", f"--fake={fake}", *chosen)


@cluster.command()
@folder_option
def down(folder: Path) -> None:
    """End the cluster, however it was left; only its logs stay."""
    _rig("down", folder)


@cluster.command()
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
@folder_option
def lose(nodes: tuple[str, ...], folder: Path) -> None:
    """Let nodes vanish as reclaimed machines do: every process of a real one ends at once, a pretending one falls silent."""
    _rig("lose", folder, *nodes)


@cluster.command()
@folder_option
def status(folder: Path) -> None:
    """Show the cluster's programs and nodes."""
    _rig("status", folder)


def _rig(command: str, folder: Path, *words: str) -> None:
    """Raises ConfigError outside a source checkout; otherwise ends with the rig's exit code."""
    if not (CHECKOUT / "tests" / "cluster" / "rig" / "__main__.py").exists():
        raise ConfigError(f"the test cluster belongs to Ratchet's source checkout, and {CHECKOUT} is an installation: work in a clone")
    run = [sys.executable, "-m", "tests.cluster.rig", command, *words, "--folder", str(folder.absolute())]
    code = subprocess.run(run, cwd=CHECKOUT, check=False).returncode
    if code:
        sys.exit(code)
