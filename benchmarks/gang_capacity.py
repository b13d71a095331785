"""Gang benchmark with an autoscaler that launches simulated machines.

Measures the time until a gang is whole (all its pods run) in three situations: from no node, after the loss of a machine, and where idle
nodes fit only a part of the gang. Also measures the GPU time paid meanwhile, once by an independent observer and once by Ratchet's meter.
Each situation is measured with the guardian and without it. Machines boot in seconds here; real machines need minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.gang_recovery import NEVER, observed, running
from benchmarks.gang_sides import stock_scheduler
from ratchet.contracts.jobs.training import JobSpec, JobState
from ratchet.k8s.api.client import NODE_POOL
from ratchet.k8s.manifests.gang_manifest import GANG
from ratchet.k8s.manifests.pod_objects import manifest
from ratchet.k8s.manifests.pools import dynamic_pool
from tests.cluster.bench import BOUGHT, Bench
from tests.cluster.gangs import JOBS, gang, pretended
from tests.cluster.rig.api import until
from tests.cluster.rig.cluster import KARPENTER, Rig
from tests.cluster.watcher import Watcher

PODS = 4
"""Pods of the gang. Each has 8 GPUs and needs one machine; this is also the maximum size of the pool."""
IDLE = 2
"""Idle machines that an earlier gang leaves behind."""
CLASS = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "default"}}


@dataclass(frozen=True)
class Terms:
    """Durations of one measurement, in seconds."""

    boot: int
    """Time from a machine's launch to the registration of its node."""
    half_alive: float
    """The setting `cluster.half_alive` where the guardian is active."""
    window: float
    """The longest time to observe with the guardian."""
    blind: float
    """The longest time to observe without the guardian."""


FULL, SMALL = Terms(10, 30.0, 180.0, 90.0), Terms(1, 10.0, 90.0, 5.0)


class Ground:
    """A namespace with an executor, a pool of one kind, and an independent observer."""

    def __init__(self, rig: Rig, namespace: str, watcher: Watcher, folder: Path, kind: str, boot: int, half_alive: float) -> None:
        rig.apply(CLASS | {"spec": {"nodeRegistrationDelay": f"{boot}s"}})
        self.rig, self.namespace, self.watcher = rig, namespace, watcher
        self.bench = Bench(rig, namespace, folder, BOUGHT, half_alive=half_alive, pool={"kind": kind, "max_nodes": PODS})
        if kind == "dynamic":
            self.bench.cluster.apply(NODE_POOL, manifest(dynamic_pool(self.bench.settings, BOUGHT)))

    def timed(self, name: str, act: Callable[[], None], restarts: int, window: float) -> dict[str, Any]:
        """Run `act` and measure until the gang is whole after `restarts` restarts, or for `window` seconds at most."""
        self.bench.executor.reconcile(name)
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
        """Submit a gang and measure until it is whole for the first time."""
        return self.timed(spec.name, lambda: self.bench.executor.submit(spec, 1), 0, window)

    def spot_loss(self, spec: JobSpec, window: float) -> dict[str, Any]:
        """Delete the NodeClaim of one machine and measure until the gang is whole again.

        Karpenter's interruption controller does the same for a spot interruption; the deletion drains the node.
        """
        claim = self.rig.api.items(f"{KARPENTER}/nodeclaims")[0]["metadata"]["name"]
        return self.timed(spec.name, lambda: self.rig.api.call("DELETE", f"{KARPENTER}/nodeclaims/{claim}"), 1, window)

    def leave_idle(self) -> None:
        """Leave IDLE machines idle: submit a smaller gang, wait until it runs, and cancel it."""
        first = self.bench.spec(nodes=IDLE, plan="b")
        self.bench.executor.submit(first, 1)
        self.bench.until(first, running)
        self.bench.executor.cancel(first.name)
        self.bench.until(first, lambda status: status.state is JobState.ENDED)
        until(lambda: not self.rig.pods(self.namespace), 60, "the end of the first gang")


def life(rig: Rig, folder: Path, kind: str, terms: Terms, guarded: bool, lost: bool) -> dict[str, Any]:
    """Measure the start of a gang from no node and, if `lost`, the loss of one of its machines."""
    with rig.namespace() as namespace, Watcher(rig, namespace, PODS) as watcher:
        ground = Ground(rig, namespace, watcher, folder, kind, terms.boot, terms.half_alive if guarded else NEVER)
        spec = ground.bench.spec(nodes=PODS)
        found = {"from_zero": ground.from_zero(spec, terms.window)}
        return found | ({"spot_loss": ground.spot_loss(spec, terms.window if guarded else terms.blind)} if lost else {})


def half_present(rig: Rig, folder: Path, terms: Terms, guarded: bool) -> dict[str, Any]:
    """Measure a gang that finds idle machines for only a part of its pods.

    This applies to a dynamic pool, which gangs share; the machines of a static pool belong to one gang.
    """
    with rig.namespace() as namespace, Watcher(rig, namespace, PODS) as watcher:
        ground = Ground(rig, namespace, watcher, folder, "dynamic", terms.boot, terms.half_alive if guarded else NEVER)
        ground.leave_idle()
        return ground.from_zero(ground.bench.spec(nodes=PODS), terms.window if guarded else terms.blind)


def volcano_alone(rig: Rig, folder: Path, terms: Terms) -> dict[str, Any]:
    """Measure the start of a gang from no node as older guides set it up.

    That setup has Volcano's default configuration, a dynamic pool, and no guardian.
    """
    with rig.namespace() as namespace, stock_scheduler(rig), Watcher(rig, namespace, PODS) as watcher:
        ground = Ground(rig, namespace, watcher, folder, "dynamic", terms.boot, NEVER)
        job = gang("gang", PODS, pretended(8))
        job["spec"]["tasks"][0]["template"]["metadata"] = {"labels": {GANG: "gang"}}
        path = f"{JOBS}/namespaces/{namespace}/jobs"
        found = ground.timed("gang", lambda: rig.api.call("POST", path, job), 0, terms.blind)
        del found["by_meter"]
        return found | {"pods": len(rig.pods(namespace)), "machines": len(rig.api.items(f"{KARPENTER}/nodeclaims"))}


def capacity(rig: Rig, folder: Path, small: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Run all measurements of this file.

    `small` leaves out the loss of a machine, and uses a shorter `half_alive` limit and shorter observation times.
    """
    terms, kinds = (SMALL, ("static",)) if small else (FULL, ("static", "dynamic"))
    found: dict[str, Any] = {"pods": PODS, "gpus_per_pod": 8, "idle_nodes_found": IDLE, **asdict(terms), "dynamic": {}}
    for kind in kinds:
        say(f"capacity: a {kind} pool")
        found[kind] = life(rig, folder / kind, kind, terms, guarded=True, lost=not small)
        if not small:
            say(f"capacity: a {kind} pool, without the guardian")
            unguarded = life(rig, folder / f"{kind}-unguarded", kind, terms, guarded=False, lost=True)
            found[kind]["spot_loss_without_guardian"] = unguarded["spot_loss"]
    say("capacity: Volcano alone, from no node")
    found["dynamic"]["from_zero_volcano_alone"] = volcano_alone(rig, folder / "alone", terms)
    for guarded in (True, False):
        what = f"half_present{'' if guarded else '_without_guardian'}"
        say(f"capacity: {what}, idle nodes for a part of a gang")
        found["dynamic"][what] = half_present(rig, folder / what, terms, guarded)
    return found
