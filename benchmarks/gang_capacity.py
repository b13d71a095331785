"""Gangs whose machines come and go, with an autoscaler that brings pretending ones: how soon a gang is whole from no node at all, after the
loss of a machine, and where idle nodes fit a part of it; what is paid meanwhile, by an eye of its own and by our meter. With our guardian
and while it sleeps. A machine takes seconds to become a node here, and minutes elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.gang_recovery import NEVER, observed, running
from benchmarks.gang_sides import stock_scheduler
from contracts.training import JobSpec, JobState
from k8s.client import NODE_POOL
from k8s.gang import GANG
from k8s.objects import manifest
from k8s.pools import dynamic_pool
from tests.cluster.bench import BOUGHT, Bench
from tests.cluster.gangs import JOBS, gang, pretended
from tests.cluster.rig.api import until
from tests.cluster.rig.cluster import KARPENTER, Rig
from tests.cluster.watcher import Watcher

PODS = 4
"""Pods of 8 GPUs, a machine each; the pool may hold no more."""
IDLE = 2
"""Machines that an earlier gang leaves."""
CLASS = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "default"}}


@dataclass(frozen=True)
class Terms:
    """How long things may take."""

    boot: int
    """Seconds from a machine's launch to its node."""
    half_alive: float
    """cluster.half_alive, where the guardian is awake."""
    window: float
    """Seconds to watch at most, with the guardian."""
    blind: float
    """And where it sleeps."""


FULL, SMALL = Terms(10, 30.0, 180.0, 90.0), Terms(1, 10.0, 90.0, 5.0)


class Ground:
    """A namespace with an executor and a pool of one kind, and the eye on it."""

    def __init__(self, rig: Rig, namespace: str, watcher: Watcher, folder: Path, kind: str, boot: int, half_alive: float) -> None:
        rig.apply(CLASS | {"spec": {"nodeRegistrationDelay": f"{boot}s"}})
        self.rig, self.namespace, self.watcher = rig, namespace, watcher
        self.bench = Bench(rig, namespace, folder, BOUGHT, half_alive=half_alive, pool={"kind": kind, "max_nodes": PODS})
        if kind == "dynamic":
            self.bench.cluster.apply(NODE_POOL, manifest(dynamic_pool(self.bench.settings, BOUGHT)))

    def timed(self, name: str, act: Callable[[], None], restarts: int, window: float) -> dict[str, Any]:
        """What follows on `act` until the gang is whole after so many restarts, or for `window` seconds."""
        self.bench.executor.observe(name)
        before = self.bench.executor.meter(name)
        self.watcher.forget()
        began = time.monotonic()
        act()
        back = observed(self.bench, name, lambda: max(self.watcher.whole, default=-1) >= restarts, began + window)
        paid, now = self.watcher.paid, time.monotonic()
        after = self.bench.executor.meter(name)
        metered = {"idle_gpu_min": after.idle - before.idle, "lost_gpu_min": after.lost - before.lost}
        return {
            "whole_after_s": round(self.watcher.whole[max(self.watcher.whole)] - began, 1) if back else None,
            "watched_s": round(now - began, 1),
            "idle_gpu_min": round(paid["idle"] / 60, 2),
            "lost_gpu_min": round(paid["lost"] / 60, 2),
            "by_meter": {name: round(seconds / 60, 2) for name, seconds in metered.items()},
        }

    def from_zero(self, spec: JobSpec, window: float) -> dict[str, Any]:
        return self.timed(spec.name, lambda: self.bench.executor.submit(spec, 1), 0, window)

    def spot_loss(self, spec: JobSpec, window: float) -> dict[str, Any]:
        """Karpenter's interruption controller deletes the machine's NodeClaim, which drains the node."""
        claim = self.rig.api.items(f"{KARPENTER}/nodeclaims")[0]["metadata"]["name"]
        return self.timed(spec.name, lambda: self.rig.api.call("DELETE", f"{KARPENTER}/nodeclaims/{claim}"), 1, window)

    def leave_idle(self) -> None:
        """IDLE machines, by a gang that ran and was cancelled."""
        first = self.bench.spec(nodes=IDLE, plan="b")
        self.bench.executor.submit(first, 1)
        self.bench.until(first, running)
        self.bench.executor.cancel(first.name)
        self.bench.until(first, lambda status: status.state is JobState.ENDED)
        until(lambda: not self.rig.pods(self.namespace), 60, "the end of the first gang")


def life(rig: Rig, folder: Path, kind: str, terms: Terms, guarded: bool, lost: bool) -> dict[str, Any]:
    """A gang from nothing, and then, if so, the loss of one of its machines."""
    with rig.namespace() as namespace, Watcher(rig, namespace, PODS) as watcher:
        ground = Ground(rig, namespace, watcher, folder, kind, terms.boot, terms.half_alive if guarded else NEVER)
        spec = ground.bench.spec(nodes=PODS)
        found = {"from_zero": ground.from_zero(spec, terms.window)}
        return found | ({"spot_loss": ground.spot_loss(spec, terms.window if guarded else terms.blind)} if lost else {})


def half_present(rig: Rig, folder: Path, terms: Terms, guarded: bool) -> dict[str, Any]:
    """A gang finds machines for a part of it. Only where gangs share a pool: a static one's are the gang's own."""
    with rig.namespace() as namespace, Watcher(rig, namespace, PODS) as watcher:
        ground = Ground(rig, namespace, watcher, folder, "dynamic", terms.boot, terms.half_alive if guarded else NEVER)
        ground.leave_idle()
        return ground.from_zero(ground.bench.spec(nodes=PODS), terms.window if guarded else terms.blind)


def volcano_alone(rig: Rig, folder: Path, terms: Terms) -> dict[str, Any]:
    """A gang from nothing as older guides have it: Volcano's own configuration, a growing pool, and nobody who watches."""
    with rig.namespace() as namespace, stock_scheduler(rig), Watcher(rig, namespace, PODS) as watcher:
        ground = Ground(rig, namespace, watcher, folder, "dynamic", terms.boot, NEVER)
        job = gang("gang", PODS, pretended(8))
        job["spec"]["tasks"][0]["template"]["metadata"] = {"labels": {GANG: "gang"}}
        path = f"{JOBS}/namespaces/{namespace}/jobs"
        found = ground.timed("gang", lambda: rig.api.call("POST", path, job), 0, terms.blind)
        del found["by_meter"]
        return found | {"pods": len(rig.pods(namespace)), "machines": len(rig.api.items(f"{KARPENTER}/nodeclaims"))}


def capacity(rig: Rig, folder: Path, small: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """All of it; small: no losses, a guardian of less patience, and a shorter look at what stays as it is."""
    terms, kinds = (SMALL, ("static",)) if small else (FULL, ("static", "dynamic"))
    found: dict[str, Any] = {"pods": PODS, "gpus_per_pod": 8, "idle_nodes_found": IDLE, **asdict(terms), "dynamic": {}}
    for kind in kinds:
        say(f"capacity: a {kind} pool")
        found[kind] = life(rig, folder / kind, kind, terms, guarded=True, lost=not small)
        if not small:
            say(f"capacity: a {kind} pool, guardian asleep")
            unguarded = life(rig, folder / f"{kind}-unguarded", kind, terms, guarded=False, lost=True)
            found[kind]["spot_loss_without_guardian"] = unguarded["spot_loss"]
    say("capacity: Volcano alone, from no node")
    found["dynamic"]["from_zero_volcano_alone"] = volcano_alone(rig, folder / "alone", terms)
    for guarded in (True, False):
        what = f"half_present{'' if guarded else '_without_guardian'}"
        say(f"capacity: {what}, idle nodes for a part of a gang")
        found["dynamic"][what] = half_present(rig, folder / what, terms, guarded)
    return found
