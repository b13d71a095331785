"""The folder, ports, network and name of one test cluster on this machine. Two test clusters share none of these."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import random
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.cluster.rig.build import RigError

PORTS = ("etcd", "etcd-peer", "api", "karpenter-metrics", "karpenter-health", "web", "kubelet-0", "kubelet-1")
LONGEST = 60
"""The longest path of a cluster's folder, in characters. A socket path has at most 107, and containerd's sockets are deep below it."""


@dataclass(frozen=True)
class Site:
    """The values chosen when the cluster starts. They are stored in site.json, so that later processes use the same ones."""

    folder: str
    name: str
    """The name of the cluster's bridge and the prefix of its control groups."""
    ports: dict[str, int]
    subnet: str
    """The subnet of the real nodes' pods; the bridge has its first address."""

    @property
    def root(self) -> Path:
        """The folder of the cluster as a path."""
        return Path(self.folder)

    @property
    def pki(self) -> Path:
        """The folder of keys and certificates."""
        return self.root / "pki"

    @property
    def kubeconfig(self) -> Path:
        """The path of the administrator's kubeconfig."""
        return self.root / "kubeconfig"

    @property
    def server(self) -> str:
        """The URL of the API server."""
        return f"https://127.0.0.1:{self.ports['api']}"

    @property
    def gateway(self) -> str:
        """The address at which pods of real nodes reach this machine."""
        return str(next(ipaddress.ip_network(self.subnet).hosts()))

    @classmethod
    def choose(cls, folder: Path) -> Site:
        """Choose free ports and a free subnet and write site.json. Raises RigError if the folder's path is too long."""
        if len(str(folder)) > LONGEST:
            raise RigError(f"{folder} is longer than {LONGEST} characters, too long for sockets in it; choose a shorter --folder")
        site = cls(str(folder), name_of(folder), dict(zip(PORTS, free_ports(len(PORTS)), strict=True)), free_subnet(folder))
        (folder / "site.json").write_text(json.dumps(asdict(site), indent=1))
        return site

    @classmethod
    def of(cls, folder: Path) -> Site | None:
        """Return the site of the cluster that is up in `folder`, or None."""
        file = folder / "site.json"
        return cls(**json.loads(file.read_text())) if file.exists() else None


def name_of(folder: Path) -> str:
    """Return the cluster's name on this machine; it fits into the 15 characters of a network interface name."""
    return "rig-" + hashlib.sha256(str(folder).encode()).hexdigest()[:8]


def free_ports(count: int) -> list[int]:
    """Return free TCP ports below the kernel's range for client ports.

    A port in that range could be taken by a client connection before the server starts.
    """
    found: set[int] = set()
    while len(found) < count:
        port = random.randrange(15000, 32000)
        with socket.socket() as attempt:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                attempt.bind(("0.0.0.0", port))
            except OSError:
                continue
        found.add(port)
    return sorted(found)


def free_subnet(folder: Path) -> str:
    """Return a /24 that overlaps no route of this machine; the search starts at a place derived from the folder's path.

    Raises RigError if there is none.
    """
    taken = _routed()
    start = int(hashlib.sha256(str(folder).encode()).hexdigest(), 16)
    for step in range(1 << 14):
        number = (start + step) % (1 << 14)
        subnet = ipaddress.IPv4Network(f"10.{128 + number // 256}.{number % 256}.0/24")
        if not any(subnet.overlaps(other) for other in taken):
            return str(subnet)
    raise RigError("every /24 between 10.128.0.0 and 10.191.255.0 overlaps a route of this machine; remove a route")


def _routed() -> list[ipaddress.IPv4Network]:
    """Return the kernel's IPv4 routes except the default one; /proc/net/route has them in hexadecimal and host byte order."""
    routes = []
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        fields = line.split()
        address, mask = (int.from_bytes(bytes.fromhex(fields[n]), "little") for n in (1, 7))
        if mask:
            routes.append(ipaddress.IPv4Network((address, mask.bit_count())))
    return routes
