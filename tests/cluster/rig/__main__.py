"""The command line of the test cluster: python -m tests.cluster.rig build | up | status | lose NODE | down."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.cluster.rig import build, fake
from tests.cluster.rig.build import RigError
from tests.cluster.rig.cluster import GPU, Rig
from tests.cluster.rig.guard import watch

FOLDER = Path(".ratchet-rig")


def main() -> int:
    """Run one command and return the exit code: 1 after a RigError, else 0."""
    asked = _arguments().parse_args()
    rig = Rig(asked.folder, say=_say)
    try:
        COMMANDS[asked.command](rig, asked)
    except RigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.rig", description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("names", nargs="*", help="lose: the nodes to lose; build: the parts to build (default: all)")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--real", type=int, default=0, choices=(0, 1, 2), help="number of real nodes")
    parser.add_argument("--fake", type=int, default=0, help="number of simulated nodes with 8 GPUs each")
    parser.add_argument("--karpenter", action="store_true")
    parser.add_argument("--traefik", action="store_true")
    parser.add_argument("--runner", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--born", type=int, help=argparse.SUPPRESS)
    return parser


def _build(_rig: Rig, asked: argparse.Namespace) -> None:
    names = asked.names or [one.name for one in build.PARTS]
    build.build(names, _say)
    print(f"{len(names)} parts of the test cluster are in {build.cache()}")


def _up(rig: Rig, asked: argparse.Namespace) -> None:
    needs = [*build.PLANE, *build.VOLCANO]
    needs += [*(build.REAL if asked.real else ()), *(build.KARPENTER if asked.karpenter else ()), *(build.TRAEFIK if asked.traefik else ())]
    build.build(needs, _say)
    rig.up(real_nodes=asked.real, karpenter=asked.karpenter, traefik=asked.traefik)
    if asked.fake:
        rig.fake_nodes(asked.fake)
    print(f"export KUBECONFIG={rig.kubeconfig}")


def _status(rig: Rig, _asked: argparse.Namespace) -> None:
    _ = rig.site  # raises RigError if the test cluster is down
    for name in rig.processes.names():
        print(f"{'runs' if rig.processes.alive(name) else 'DEAD':5} {name}")
    for node in rig.api.items(fake.NODES) if rig.api.ready() else ():
        state, gpus = "ready" if fake.usable(node) else "LOST", node["status"].get("capacity", {}).get(GPU, 0)
        print(f"{state:5} node {node['metadata']['name']}, {gpus} GPUs")
    print(f"export KUBECONFIG={rig.kubeconfig}")


def _lose(rig: Rig, asked: argparse.Namespace) -> None:
    _ = rig.site
    for name in asked.names:
        if name in rig.processes.names() and name.startswith("real-"):
            rig.lose(name)
        elif name in fake.ours(rig.api):
            rig.silence(name)
        else:
            raise RigError(f"the test cluster in {rig.folder} has no node {name!r}; `status` lists the nodes")
        _say(f"{name} is lost")


def _down(rig: Rig, _asked: argparse.Namespace) -> None:
    rig.down()
    _say(f"the test cluster in {rig.folder} is down; only its logs are left")


def _guard(rig: Rig, asked: argparse.Namespace) -> None:
    watch(rig, asked.runner, asked.born)


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


COMMANDS = {"build": _build, "up": _up, "status": _status, "lose": _lose, "down": _down, "guard": _guard}

if __name__ == "__main__":
    sys.exit(main())
