"""Gangs whose machines come and go, with an autoscaler that brings pretending ones: how soon a gang is whole from no node at all, after the
loss of a machine, and where idle nodes fit a part of it; what is paid meanwhile, by an eye of its own and by our meter. With our guardian
and while it sleeps. Machines boot in no time here."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gang_recovery import NEVER, observed, running
from contracts.training import JobSpec, JobState
from k8s.client import NODE_POOL
from k8s.objects import manifest
from k8s.pools import dynamic_pool
from tests.cluster.bench import BOUGHT, Bench
from tests.cluster.rig.api import until
from tests.cluster.rig.cluster import KARPENTER, Rig
from tests.cluster.watcher import Watcher

GANG = 4
"""Pods of 8 GPUs, a machine each; the pool may hold no more."""
IDLE = 2
"""Machines that an earlier gang leaves."""
KINDS = ("static", "dynamic")
CLASS = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "default"}}


class Ground:
    """A namespace with an executor and a pool of one kind, and the eye on it."""

    def __init__(self, rig: Rig, namespace: str, watcher: Watcher, folder: Path, kind: str, half_alive: float) -> None:
        rig.apply(CLASS | {"spec": {"nodeRegistrationDelay": "0s"}})
        self.rig, self.namespace, self.watcher = rig, namespace, watcher
        self.bench = Bench(rig, namespace, folder, BOUGHT, half_alive=half_alive, pool={"kind": kind, "max_nodes": GANG})
        if kind == "dynamic":
            self.bench.cluster.apply(NODE_POOL, manifest(dynamic_pool(self.bench.settings, BOUGHT)))

    def timed(self, spec: JobSpec, act: Callable[[], None], restarts: int, window: float) -> dict[str, Any]:
        """What follows on `act` until the gang is whole after so many restarts, or for `window` seconds."""
        self.bench.executor.observe(spec.name)
        before = self.bench.executor.meter(spec.name)
        self.watcher.forget()
        began = time.monotonic()
        act()
        back = observed(self.bench, spec.name, lambda: max(self.watcher.whole, default=-1) >= restarts, began + window)
        idle, lost, now = self.watcher.idle, self.watcher.lost, time.monotonic()
        after = self.bench.executor.meter(spec.name)
        metered = {"idle_gpu_min": after.idle - before.idle, "lost_gpu_min": after.lost - before.lost}
        return {
            "whole_after_s": round(self.watcher.whole[max(self.watcher.whole)] - began, 1) if back else None,
            "watched_s": round(now - began, 1),
            "idle_gpu_min": round(idle / 60, 2),
            "lost_gpu_min": round(lost / 60, 2),
            "by_meter": {name: round(seconds / 60, 2) for name, seconds in metered.items()},
        }

    def from_zero(self, spec: JobSpec, window: float) -> dict[str, Any]:
        return self.timed(spec, lambda: self.bench.executor.submit(spec, 1), 0, window)

    def spot_loss(self, spec: JobSpec, window: float) -> dict[str, Any]:
        """Karpenter's interruption controller deletes the machine's NodeClaim, which drains the node."""
        claim = self.rig.api.items(f"{KARPENTER}/nodeclaims")[0]["metadata"]["name"]
        return self.timed(spec, lambda: self.rig.api.call("DELETE", f"{KARPENTER}/nodeclaims/{claim}"), 1, window)

    def leave_idle(self) -> None:
        """IDLE machines, by a gang that ran and was cancelled."""
        first = self.bench.spec(nodes=IDLE, plan="b")
        self.bench.executor.submit(first, 1)
        self.bench.until(first, running)
        self.bench.executor.cancel(first.name)
        self.bench.until(first, lambda status: status.state is JobState.ENDED)
        until(lambda: not self.rig.pods(self.namespace), 60, "the end of the first gang")


def life(rig: Rig, folder: Path, kind: str, half_alive: float, window: float) -> dict[str, Any]:
    """A gang from nothing, and then the loss of one of its machines."""
    with rig.namespace() as namespace, Watcher(rig, namespace, GANG) as watcher:
        ground = Ground(rig, namespace, watcher, folder, kind, half_alive)
        spec = ground.bench.spec(nodes=GANG)
        found = {"from_zero": ground.from_zero(spec, 90)}
        return found | ({"spot_loss": ground.spot_loss(spec, window)} if window else {})


def half_present(rig: Rig, folder: Path, half_alive: float, window: float) -> dict[str, Any]:
    """A gang finds machines for a part of it. Only where gangs share a pool: a static one's are the gang's own."""
    with rig.namespace() as namespace, Watcher(rig, namespace, GANG) as watcher:
        ground = Ground(rig, namespace, watcher, folder, "dynamic", half_alive)
        ground.leave_idle()
        return ground.from_zero(ground.bench.spec(nodes=GANG), window)


def capacity(rig: Rig, folder: Path, small: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """All of it; small: no losses, a guardian of less patience, and a shorter look at what stays as it is."""
    limit, window, blind = (10.0, 60.0, 8.0) if small else (30.0, 120.0, 90.0)
    found: dict[str, Any] = {"pods": GANG, "gpus_per_pod": 8, "idle_nodes_found": IDLE, "half_alive_limit_s": limit}
    for kind in KINDS:
        say(f"capacity: a {kind} pool")
        found[kind] = life(rig, folder / kind, kind, limit, 0 if small else window)
        if not small:
            say(f"capacity: a {kind} pool, guardian asleep")
            unguarded = life(rig, folder / f"{kind}-unguarded", kind, NEVER, blind)
            found[kind]["spot_loss_without_guardian"] = unguarded["spot_loss"]
    say("capacity: idle nodes for a part of a gang")
    found["dynamic"]["half_present"] = half_present(rig, folder / "half", limit, window)
    say("capacity: idle nodes for a part of a gang, guardian asleep")
    found["dynamic"]["half_present_without_guardian"] = half_present(rig, folder / "half-unguarded", NEVER, blind)
    return found
