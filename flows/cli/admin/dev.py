"""`ratchet dev`: tools for developers of Ratchet.

They require a source checkout, because an installation does not contain the test cluster.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from ratchet.contracts.errors import ConfigError

CHECKOUT = Path(__file__).resolve().parents[3]
folder_option = click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path(".ratchet-rig"),
    show_default=True,
    help="Folder for the state of the cluster.",
)


@click.group()
def dev() -> None:
    """Tools for developing Ratchet. They require a source checkout."""


@dev.group()
def cluster() -> None:
    """Manage a Kubernetes test cluster on this machine.

    The cluster consists of a control plane, Volcano, simulated nodes and optional real nodes. It does not need a container engine.
    """


@cluster.command()
@folder_option
@click.option(
    "--real",
    type=click.IntRange(0, 2),
    default=0,
    show_default=True,
    help="Number of real nodes, whose pods run as processes. Requires root.",
)
@click.option("--fake", type=click.IntRange(0), default=0, show_default=True, help="Number of simulated nodes, with 8 GPUs each.")
@click.option("--karpenter", is_flag=True, help="Start Karpenter, which creates simulated nodes on demand.")
@click.option("--traefik", is_flag=True, help="Start Traefik as the data plane of the Gateway API.")
def up(folder: Path, real: int, fake: int, karpenter: bool, traefik: bool) -> None:
    """Start the cluster and print the KUBECONFIG setting for kubectl.

    The first start builds the cluster's programs, which takes about 20 minutes.
    """
    chosen = [name for name, asked in (("--karpenter", karpenter), ("--traefik", traefik)) if asked]
    _rig("up", folder, f"--real={real}", f"--fake={fake}", *chosen)


@cluster.command()
@folder_option
def down(folder: Path) -> None:
    """Stop the cluster and delete its state, except the logs."""
    _rig("down", folder)


@cluster.command()
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
@folder_option
def lose(nodes: tuple[str, ...], folder: Path) -> None:
    """Simulate the sudden loss of nodes.

    NODE is the name of a node. A cloud provider that reclaims machines has the same effect. All processes of a real node are
    killed. A simulated node stops sending heartbeats.
    """
    _rig("lose", folder, *nodes)


@cluster.command()
@folder_option
def status(folder: Path) -> None:
    """Show the programs and nodes of the cluster."""
    _rig("status", folder)


def _rig(command: str, folder: Path, *arguments: str) -> None:
    """Run a command of the test cluster and exit with its exit code if not 0. Raises ConfigError outside a source checkout."""
    if not (CHECKOUT / "tests" / "cluster" / "rig" / "__main__.py").exists():
        raise ConfigError(f"the test cluster requires a source checkout, but {CHECKOUT} is an installation; run this command in a clone")
    run = [sys.executable, "-m", "tests.cluster.rig", command, *arguments, "--folder", str(folder.absolute())]
    code = subprocess.run(run, cwd=CHECKOUT, check=False).returncode
    if code:
        sys.exit(code)
