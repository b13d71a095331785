"""Gangs for cluster tests: Volcano Jobs whose pods start all together or not at all, on simulated or real nodes."""

from __future__ import annotations

from typing import Any

from tests.cluster.rig.images import HOST, host_mounts

GPU = "nvidia.com/gpu"
JOBS = "/apis/batch.volcano.sh/v1alpha1"


def gang(name: str, members: int, pod: dict[str, Any], policies: tuple[dict, ...] = ()) -> dict:
    """Return a Volcano Job of `members` pods.

    It sets every default that Volcano's webhook would set, because the test cluster runs no webhook.
    """
    task = {"name": "worker", "replicas": members, "minAvailable": members, "template": {"spec": pod}}
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "volcano",
            "queue": "default",
            "minAvailable": members,
            "maxRetry": 10,
            "plugins": {"env": [], "svc": ["--publish-not-ready-addresses=true", "--disable-network-policy=true"]},
            "policies": list(policies),
            "tasks": [task],
        },
    }


def pretended(gpus: int) -> dict[str, Any]:
    """Return a pod specification for simulated nodes; the pod has a status but no processes."""
    return {"restartPolicy": "Never", "containers": [_container(gpus) | {"image": "pretended"}]}


def real(gpus: int, *command: str, **mounted: Any) -> dict[str, Any]:
    """Return a pod specification for real nodes that runs `command` of this machine.

    The keyword arguments `read` and `write` are the folders to mount; see host_mounts().
    """
    seen = host_mounts(*mounted.get("read", ()), write=tuple(mounted.get("write", ())))
    container = _container(gpus) | {
        "image": HOST,
        "imagePullPolicy": "Never",
        "command": list(command),
        "volumeMounts": seen["volumeMounts"],
    }
    return {
        "restartPolicy": "Never",
        "nodeSelector": {"rig.ratchet/node": "real"},
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "containers": [_container(gpus) | container],
        "volumes": seen["volumes"],
    }


def _container(gpus: int) -> dict[str, Any]:
    return {"name": "main", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {GPU: gpus}}}
