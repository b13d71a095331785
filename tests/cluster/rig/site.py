"""Where one rig is: its folder, its ports, its network and its name on this machine. Two rigs share none of it."""

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
"""Characters of a rig's folder: a socket's path has at most 107, and containerd's lie deep below."""


@dataclass(frozen=True)
class Site:
    """Chosen once, when the rig comes up; kept in site.json, so that any later process finds the same."""

    folder: str
    name: str
    """On this machine: of the bridge, of the cgroups."""
    ports: dict[str, int]
    subnet: str
    """Of the real nodes' pods; its first address is the bridge's."""

    @property
    def root(self) -> Path:
        return Path(self.folder)

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self.ports['api']}"

    @property
    def gateway(self) -> str:
        """The address under which pods of real nodes reach this machine."""
        return str(next(ipaddress.ip_network(self.subnet).hosts()))

    @classmethod
    def choose(cls, folder: Path) -> Site:
        if len(str(folder)) > LONGEST:
            raise RigError(f"{folder} is longer than {LONGEST} characters: sockets in it could not be opened; choose a shorter --folder")
        site = cls(str(folder), name_of(folder), dict(zip(PORTS, free_ports(len(PORTS)), strict=True)), free_subnet(folder))
        (folder / "site.json").write_text(json.dumps(asdict(site), indent=1))
        return site

    @classmethod
    def of(cls, folder: Path) -> Site | None:
        """The one that is up in `folder`, or None."""
        file = folder / "site.json"
        return cls(**json.loads(file.read_text())) if file.exists() else None


def name_of(folder: Path) -> str:
    """Short enough for a network interface (15 characters)."""
    return "rig-" + hashlib.sha256(str(folder).encode()).hexdigest()[:8]


def free_ports(count: int) -> list[int]:
    """Below the range from which the kernel takes ports for clients, which could take one back before its server starts."""
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
    """A /24 that no route of this machine touches; the folder decides where the search begins."""
    taken = _routed()
    start = int(hashlib.sha256(str(folder).encode()).hexdigest(), 16)
    for step in range(1 << 14):
        number = (start + step) % (1 << 14)
        subnet = ipaddress.IPv4Network(f"10.{128 + number // 256}.{number % 256}.0/24")
        if not any(subnet.overlaps(other) for other in taken):
            return str(subnet)
    raise RigError("no /24 between 10.128.0.0 and 10.191.255.0 is free of routes on this machine")


def _routed() -> list[ipaddress.IPv4Network]:
    """The kernel's IPv4 routes but the default one; addresses are written in its byte order, in hexadecimal."""
    routes = []
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        fields = line.split()
        address, mask = (int.from_bytes(bytes.fromhex(fields[n]), "little") for n in (1, 7))
        if mask:
            routes.append(ipaddress.IPv4Network((address, mask.bit_count())))
    return routes
