"""Gangs of mixed sizes that want more nodes than there are: submitted by one side or the other, sampled several times a second, ended when
they have run whole for their time. It counts what is held by gangs that hold only a part of what they need, and of that apart what is held
in vain: a gang that lacks more nodes than are free cannot start, one that is being bound has them before it."""

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
    """A gang, as the samples show it."""

    size: int
    whole: float | None = None
    ended: float | None = None
    partial: float = 0.0
    """Seconds in which it held a part of its nodes."""
    stuck: float = 0.0
    """Seconds of these in which the others were not to be had."""


class Contest:
    """One side's."""

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
        """Until all have run for `hold` seconds, or `limit` is over."""
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
        # No clock in it: whoever binds a gang pod by pod, however slowly, has taken care that there is a node for each.
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
        """Its processes end well, on both sides alike."""
        asked = f"/api/v1/namespaces/{self.namespace}/pods?labelSelector={quote(selector)}"
        for pod in self.rig.api.items(asked):
            self.rig.end_pod(self.namespace, pod["metadata"]["name"], 0)

    def _counted(self, label: str) -> tuple[Counter[str], Counter[str]]:
        """Per gang: pods that hold a node, and pods that run. One list is one moment."""
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
