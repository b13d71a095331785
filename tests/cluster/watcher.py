"""An independent observer of a gang.

It polls the API server and records how long an incarnation that was whole is only half alive, and how the GPU time of the cluster is used
meanwhile. It does not use the executor's states and meter, so that tests can compare both.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from types import TracebackType
from typing import Any

from ratchet.k8s.manifests.gang_manifest import GANG, VERSION
from tests.cluster.rig.build import RigError
from tests.cluster.rig.cluster import KARPENTER, Rig

PERIOD = 0.2


class Watcher:
    """Observes the gangs of a namespace, of `wanted` pods each, while its `with` block runs."""

    def __init__(self, rig: Rig, namespace: str, wanted: int) -> None:
        self.api, self.namespace, self.wanted = rig.api, namespace, wanted
        self.whole: dict[int, float] = {}
        """The time at which each incarnation (Volcano's restart count) was first seen whole, by time.monotonic()."""
        self.longest = 0.0
        """The longest time in which the gang was half alive since `forget`, in seconds."""
        self.paid: Counter[str] = Counter()
        """GPU-seconds since `forget`, of all nodes and of launched machines that are not nodes yet.

        They count as `used` while an incarnation was whole, as `lost` while one that had been whole was half alive, and else as `idle`."""
        self.samples = 0
        self._since: float | None = None
        self._last: tuple[float, int, str] | None = None
        """The newest sample: time, number of GPUs, and their use."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(60)

    def forget(self) -> None:
        """Reset `longest` and `paid` to zero."""
        self.longest = 0.0
        self.paid = Counter()

    def _run(self) -> None:
        while not self._stop.wait(PERIOD):
            try:
                self._look(time.monotonic())
            except (RigError, OSError):
                continue  # an outage of the API server is not an error of the observer

    def _look(self, now: float) -> None:
        nodes = self.api.items("/api/v1/nodes")
        ready = {node["metadata"]["name"] for node in nodes if _ready(node)}
        alive: dict[int, int] = {}
        for pod in self.api.items(f"/api/v1/namespaces/{self.namespace}/pods"):
            if GANG in pod["metadata"].get("labels", {}) and _alive(pod, ready):
                version = int(pod["metadata"].get("annotations", {}).get(VERSION, 0))
                alive[version] = alive.get(version, 0) + 1
        self.samples += 1
        for version, count in alive.items():
            if count == self.wanted:
                self.whole.setdefault(version, now)
        half = any(count < self.wanted for version, count in alive.items() if version in self.whole)
        booting = [claim for claim in self.api.items(f"{KARPENTER}/nodeclaims") if not claim.get("status", {}).get("nodeName")]
        into = "lost" if half else "used" if self.wanted in alive.values() else "idle"
        self._pay(now, sum(map(_gpus, nodes + booting)), into)
        if half:
            self._since = self._since or now
            self.longest = max(self.longest, now - self._since)
        else:
            self._since = None

    def _pay(self, now: float, gpus: int, into: str) -> None:
        """Assign half of the time between two samples to the state of the first sample and half to that of the second."""
        last, had, was = self._last or (now, gpus, into)
        self.paid[was] += had * (now - last) / 2
        self.paid[into] += gpus * (now - last) / 2
        self._last = (now, gpus, into)


def _alive(pod: dict[str, Any], ready: set[str]) -> bool:
    return pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"] and pod["spec"].get("nodeName") in ready


def _gpus(machine: dict[str, Any]) -> int:
    """Return the GPUs of a node, or of a NodeClaim, which reports them as soon as its machine is launched."""
    return int(machine.get("status", {}).get("allocatable", {}).get("nvidia.com/gpu", 0))


def _ready(node: dict[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", ()))
