"""The network bridge that connects the pods of real nodes. Each test cluster has its own bridge, named after the cluster."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.cluster.rig.api import until
from tests.cluster.rig.site import Site

INTERFACES = Path("/sys/class/net")


def raise_bridge(site: Site) -> None:
    """Create the bridge and the configuration of the network plugins. Must run before cluster DNS, which listens on its address."""
    if not (INTERFACES / site.name).exists():
        # Set a fixed hardware address. Otherwise the bridge takes one from its ports, which changes when a pod ends; the other pods then
        # cannot reach the bridge for half a minute.
        _ip("link", "add", site.name, "address", _hardware(site.gateway), "type", "bridge")
        _ip("address", "add", f"{site.gateway}/{site.subnet.rpartition('/')[2]}", "dev", site.name)
        _ip("link", "set", site.name, "up")
    folder = site.root / "cni"
    folder.mkdir(exist_ok=True)
    addresses = {"type": "host-local", "ranges": [[{"subnet": site.subnet}]], "dataDir": str(site.root / "addresses"), "routes": []}
    bridge = {"type": "bridge", "bridge": site.name, "isGateway": True, "ipMasq": False, "ipam": addresses}
    (folder / "10-rig.conflist").write_text(json.dumps({"cniVersion": "1.0.0", "name": site.name, "plugins": [bridge]}))


def drop_bridge(name: str) -> None:
    """Delete the bridge and the interfaces still attached to it.

    The kernel removes the interface of a dead container only some time after its last process has ended.
    """
    if not (INTERFACES / name).exists():
        return
    for port in list((INTERFACES / name / "brif").iterdir()):
        subprocess.run(["ip", "link", "delete", port.name], capture_output=True, check=False)
    _ip("link", "delete", name)
    until(lambda: not (INTERFACES / name).exists(), 5, f"the end of bridge {name}")


def _hardware(address: str) -> str:
    return "0a:58:" + ":".join(f"{int(part):02x}" for part in address.split("."))


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
