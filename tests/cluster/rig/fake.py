"""Simulated nodes: Node objects that kwok keeps alive, with any number of GPUs. Their pods have a status but no processes."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from tests.cluster.rig.api import Api, until

MANAGED = "kwok.x-k8s.io/node"
NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def create(
    api: Api, count: int, gpus: int, prefix: str, labels: Mapping[str, str], taints: Sequence[Mapping[str, str]], cpu: str, memory: str
) -> list[str]:
    """Create `count` nodes, wait until they are Ready, and return their names.

    Names are never reused, because the lease of a deleted node exists until garbage collection. A new node with the same name would inherit
    the holder of that lease, or would be silenced and then revived when the old lease is deleted.
    """
    names = [f"{prefix}-{secrets.token_hex(3)}-{number}" for number in range(count)]
    for name in names:
        api.call("POST", NODES, _node(name, gpus, labels, taints, cpu, memory))
    until(lambda: all(usable(api.get(f"{NODES}/{name}")) for name in names), 30, f"readiness of nodes {', '.join(names)}")
    return names


def delete(api: Api, names: Sequence[str]) -> None:
    """Delete the Node objects. Their pods stay until pod garbage collection finds them, as after the loss of a real machine."""
    for name in names:
        api.call("DELETE", f"{NODES}/{name}")


def silence(api: Api, name: str) -> None:
    """Make a node silent: it sends no more heartbeats, and its pods no longer change. It becomes NotReady after the grace period.

    The function gives the node's lease to a holder that never renews it, because kwok ignores nodes whose lease belongs to another holder.
    kwok was observed to end and remove a pod of such a node, so the stages also ignore pods that are annotated as silent.
    """
    for pod in api.items(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{name}"):
        where = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        api.patch(where, {"metadata": {"annotations": {"rig.ratchet/silent": "true"}}})
    never = {
        "holderIdentity": "nobody",
        "leaseDurationSeconds": 1_000_000,
        "renewTime": datetime.now(UTC).isoformat(timespec="microseconds"),
    }
    api.patch(f"{LEASES}/{name}", {"spec": never | {"renewTime": never["renewTime"].replace("+00:00", "Z")}})
    api.patch(f"{NODES}/{name}", {"metadata": {"annotations": {MANAGED: "silent"}}})


def ours(api: Api) -> list[str]:
    """Return the names of the simulated nodes, silent ones included."""
    return [node["metadata"]["name"] for node in api.items(NODES) if MANAGED in node["metadata"].get("annotations", {})]


def usable(node: dict | None) -> bool:
    """Return whether the node is Ready and has none of the taints of a new or unreachable node."""
    if node is None:
        return False
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", []))
    return ready and not any(t["key"].startswith("node.kubernetes.io/") for t in node["spec"].get("taints", []))


def _node(name: str, gpus: int, labels: Mapping[str, str], taints: Sequence[Mapping[str, str]], cpu: str, memory: str) -> dict:
    common = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "p5en.48xlarge" if gpus else "m7i.2xlarge",
        "topology.kubernetes.io/zone": "us-east-1a",
        "karpenter.sh/capacity-type": "spot",
    }
    room = {"cpu": cpu, "memory": memory, "pods": "110", "ephemeral-storage": "1000Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": {MANAGED: "fake"}, "labels": common | dict(labels)},
        "spec": {"taints": list(taints)},
        "status": {"capacity": room, "allocatable": room},
    }
