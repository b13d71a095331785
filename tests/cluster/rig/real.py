"""Real nodes: a kubelet and a container runtime in separate namespaces. Their pods are real processes of this machine."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from tests.cluster.rig import cgroups
from tests.cluster.rig.build import RigError, need
from tests.cluster.rig.images import PAUSE, write_images
from tests.cluster.rig.machine import PRIVATE
from tests.cluster.rig.processes import Processes, search_path
from tests.cluster.rig.site import Site

PLUGINS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
PROGRAMS = {"containerd": "containerd", "ctr": "containerd", "runc": "runc", "ip": "iproute2", "unshare": "util-linux", "mount": "mount"}
"""The programs that must be on PATH, and the Debian package of each."""


def obstacles() -> list[str]:
    """Return the reasons why this machine cannot run real nodes; empty if it can."""
    found = [] if os.geteuid() == 0 else ["real nodes need root"]
    if not cgroups.available():
        found.append("real nodes need control groups of version 1 under /sys/fs/cgroup")
    absent = {package for program, package in PROGRAMS.items() if shutil.which(program, path=search_path()) is None}
    if _plugins() is None:
        absent.add("containernetworking-plugins")
    return found + ([f"packages are missing: apt-get install {' '.join(sorted(absent))}"] if absent else [])


def start(site: Site, processes: Processes, number: int) -> str:
    """Start real node `number` and return its name; the node is Ready some seconds later. Raises RigError with the obstacles."""
    if reasons := obstacles():
        raise RigError("; ".join(reasons))
    name = f"real-{number}"
    folder = site.root / name
    folder.mkdir()
    cgroups.make(group(site.name, name))
    for private in PRIVATE:  # never removed: that would unmount the file system of another test cluster's node
        Path(private).mkdir(parents=True, exist_ok=True)
    runtime, kubelet = _containerd(site, folder), _kubelet(site, folder, name, number)
    socket = str(folder / "c.sock")
    plan = {"containerd": runtime, "kubelet": kubelet, "socket": socket, "images": [str(i) for i in write_images(site.root / "images")]}
    (folder / "machine.json").write_text(json.dumps(plan, indent=1))
    apart = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc"]
    program = str(Path(__file__).with_name("machine.py"))
    processes.start(name, [*apart, sys.executable, "-I", program, str(folder / "machine.json")])
    return name


def lose(site: Site, processes: Processes, name: str) -> None:
    """Kill the node's first process; the kernel then ends all other processes and mounts of the node at once."""
    processes.end(name)
    cgroups.remove(group(site.name, name))


def recover(site: Site, processes: Processes, name: str) -> None:
    """Start a lost node again, with what is on its disk."""
    cgroups.make(group(site.name, name))
    processes.again(name)


def sweep(rig: str) -> None:
    """Remove the control groups of nodes that died with their runner; `rig` is the test cluster's name on this machine."""
    for name in {path.name for path in cgroups.groups(f"{rig}-real-")}:
        cgroups.remove(name)


def group(rig: str, node: str) -> str:
    """Return the name of the node's control group."""
    return f"{rig}-{node}"


def _plugins() -> Path | None:
    return next((folder for folder in PLUGINS if (folder / "bridge").exists() and (folder / "host-local").exists()), None)


def _containerd(site: Site, folder: Path) -> list[str]:
    """Write the configuration of containerd and return its command line.

    AppArmor profiles and lower out-of-memory scores are switched off, because a nested machine does not allow them.
    """
    config = f"""version = 2
root = "{folder}/containerd"
state = "{folder}/c"
[grpc]
address = "{folder}/c.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
disable_apparmor = true
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{_plugins()}"
conf_dir = "{site.root}/cni"
"""
    (folder / "containerd.toml").write_text(config)
    return ["containerd", "--config", str(folder / "containerd.toml")]


def _kubelet(site: Site, folder: Path, name: str, number: int) -> list[str]:
    unlimited = {"memory.available": "1Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"}
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "port": site.ports[f"kubelet-{number}"],
        "readOnlyPort": 0,
        "healthzPort": 0,
        "failSwapOn": False,
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": True,
        "cgroupRoot": f"/{group(site.name, name)}",
        "enforceNodeAllocatable": [],
        "evictionHard": unlimited,
        "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": False,
        "containerRuntimeEndpoint": f"unix://{folder}/c.sock",
        "podLogsDir": f"{folder}/logs",
        "nodeStatusUpdateFrequency": "2s",
        "nodeLeaseDurationSeconds": 12,
        "syncFrequency": "5s",
        "clusterDNS": [site.gateway],
        "clusterDomain": "cluster.local",
        "resolvConf": "",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(site.pki / "ca.crt")},
        },
        "authorization": {"mode": "AlwaysAllow"},
    }
    (folder / "kubelet.json").write_text(json.dumps(config, indent=1))
    return [
        str(need("kubelet")),
        f"--kubeconfig={site.kubeconfig}",
        f"--config={folder / 'kubelet.json'}",
        f"--root-dir={folder / 'kubelet'}",
        f"--cert-dir={folder / 'pki'}",
        f"--hostname-override={name}",
        "--node-labels=rig.ratchet/node=real",
    ]
