"""Gang benchmark: gangs of mixed sizes compete for fewer nodes than they need together.

One submitter (gang_sides.py) submits all gangs. The state is sampled several times a second, and a gang is ended after it has run whole for
a fixed time. The benchmark sums the GPU time held by gangs that have only a part of their nodes. Within this sum it reports the GPU time
held in vain: that of gangs that lack more nodes than are free and so cannot start. A gang whose pods are still being bound can start.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks.gang_sides import GPUS, PERIOD, Side
from tests.cluster.rig.cluster import Rig


@dataclass
class Seen:
    """The state of one gang, as derived from the samples."""

    size: int
    whole: float | None = None
    ended: float | None = None
    partial: float = 0.0
    """Seconds in which the gang held only a part of its nodes."""
    stuck: float = 0.0
    """Seconds of `partial` in which the missing nodes were not available."""


class Contest:
    """The measurement of one submitter with one seed."""

    def __init__(
        self, rig: Rig, namespace: str, side: Callable[[Rig, str, Path, list[int]], Side], sizes: tuple[int, ...], seed: int
    ) -> None:
        self.rig, self.namespace, self.side = rig, namespace, side
        self.sizes = random.Random(seed).sample(sizes, len(sizes))
        self.nodes = len(rig.api.items("/api/v1/nodes"))
        self.samples = self.partly = self.stuck = 0
        self.held = self.in_vain = self.used = 0.0
        self.most = 0

    def run(self, folder: Path, hold: float, limit: float) -> dict[str, Any]:
        """Submit the gangs and sample until each has run for `hold` seconds, or for `limit` seconds at most; returns the figures."""
        side = self.side(self.rig, self.namespace, folder, self.sizes)
        gangs = {name: Seen(size) for name, size in zip(side.names, self.sizes, strict=True)}
        submitting = threading.Thread(target=side.submit_all, daemon=True)
        began = last = time.monotonic()
        submitting.start()
        while any(gang.ended is None for gang in gangs.values()) and last - began < limit:
            time.sleep(PERIOD)
            now = time.monotonic()
            self._sample(side, gangs, now, now - last, hold)
            last = now
        result = self._told(gangs, began, last)
        submitting.join(30)
        idle = side.idle()
        return result | ({} if idle is None else {"idle_gpu_min_by_meter": round(idle / 60, 1)})

    def _sample(self, side: Side, gangs: dict[str, Seen], now: float, seconds: float, hold: float) -> None:
        bound, alive = self._counted(side.label)
        partly = [name for name, gang in gangs.items() if gang.ended is None and 0 < bound[name] < gang.size]
        # This test does not depend on time: a scheduler that binds a gang slowly, pod by pod, still has a free node for each pod.
        stuck = [name for name in partly if gangs[name].size - bound[name] > self.nodes - bound.total()]
        self.samples += 1
        self.partly += bool(partly)
        self.stuck += bool(stuck)
        self.most = max(self.most, len(partly))
        for name, gang in gangs.items():
            if gang.ended is not None:
                continue
            if name in partly:
                gang.partial += seconds
                self.held += bound[name] * GPUS * seconds
            if name in stuck:
                gang.stuck += seconds
                self.in_vain += bound[name] * GPUS * seconds
            if alive[name] == gang.size:
                gang.whole = gang.whole or now
                self.used += gang.size * GPUS * seconds
            if gang.whole is not None and now - gang.whole >= hold:
                gang.ended = now
                threading.Thread(target=self._end, args=(f"{side.label}={name}",), daemon=True).start()

    def _end(self, selector: str) -> None:
        """End the gang's pods with exit code 0, in the same way for every submitter."""
        asked = f"/api/v1/namespaces/{self.namespace}/pods?labelSelector={quote(selector)}"
        for pod in self.rig.api.items(asked):
            self.rig.end_pod(self.namespace, pod["metadata"]["name"], 0)

    def _counted(self, label: str) -> tuple[Counter[str], Counter[str]]:
        """Count per gang the pods that hold a node and the pods that run. One list call gives a consistent view of all pods."""
        bound, alive = Counter[str](), Counter[str]()
        for pod in self.rig.pods(self.namespace):
            name, phase = pod["metadata"].get("labels", {}).get(label), pod["status"].get("phase")
            if name and pod["spec"].get("nodeName") and phase in ("Pending", "Running"):
                bound[name] += 1
                alive[name] += phase == "Running"
        return bound, alive

    def _told(self, gangs: dict[str, Seen], began: float, last: float) -> dict[str, Any]:
        done = [gang for gang in gangs.values() if gang.ended is not None]
        return {
            "finished": len(done),
            "makespan_s": round(last - began, 1),
            "samples": self.samples,
            "samples_with_a_partly_bound_gang": self.partly,
            "most_partly_bound_at_once": self.most,
            "longest_partly_bound_s": round(max(gang.partial for gang in gangs.values()), 1),
            "gpu_min_held_by_partial_gangs": round(self.held / 60, 1),
            "samples_with_a_stuck_gang": self.stuck,
            "longest_stuck_s": round(max(gang.stuck for gang in gangs.values()), 1),
            "gpu_min_held_in_vain": round(self.in_vain / 60, 1),
            "gpu_min_of_whole_gangs": round(self.used / 60, 1),
        }
