"""An eye of its own on a gang: asks the API server again and again and notes how long an incarnation that was whole is only half alive, and
what the cluster's GPUs are paid for meanwhile. It knows nothing of our executor's states and meter, so that it can contradict them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from types import TracebackType
from typing import Any

from k8s.gang import GANG, VERSION
from tests.cluster.rig.build import RigError
from tests.cluster.rig.cluster import KARPENTER, Rig

PERIOD = 0.2


class Watcher:
    """Over the gangs of a namespace, `wanted` pods each, between `with` and its end."""

    def __init__(self, rig: Rig, namespace: str, wanted: int) -> None:
        self.api, self.namespace, self.wanted = rig.api, namespace, wanted
        self.whole: dict[int, float] = {}
        """Incarnation (Volcano's count) -> when it was first seen whole."""
        self.longest = 0.0
        """Seconds, of the longest time in which it was half alive, since `forget`."""
        self.paid: Counter[str] = Counter()
        """GPU-seconds, since `forget`, of all nodes and of machines that an autoscaler launched and that are no nodes yet: `used` while an
        incarnation was whole, `lost` while one that had been was half alive, else `idle`."""
        self.samples = 0
        self._since: float | None = None
        self._last: tuple[float, int, str] | None = None
        """Of the newest look: when, GPUs, and what they were good for."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(60)

    def forget(self) -> None:
        self.longest = 0.0
        self.paid = Counter()

    def _run(self) -> None:
        while not self._stop.wait(PERIOD):
            try:
                self._look(time.monotonic())
            except (RigError, OSError):
                continue  # an outage of the API server is for others to judge

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
        """Half of the time between two looks counts as the one saw it, half as the other."""
        last, had, was = self._last or (now, gpus, into)
        self.paid[was] += had * (now - last) / 2
        self.paid[into] += gpus * (now - last) / 2
        self._last = (now, gpus, into)


def _alive(pod: dict[str, Any], ready: set[str]) -> bool:
    return pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"] and pod["spec"].get("nodeName") in ready


def _gpus(machine: dict[str, Any]) -> int:
    """Of a node, or of a NodeClaim, which tells it from its launch on."""
    return int(machine.get("status", {}).get("allocatable", {}).get("nvidia.com/gpu", 0))


def _ready(node: dict[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", ()))
