"""Gang benchmark: recovery from the loss of a pod or a node, on a fixed set of nodes.

An independent observer measures the time until the gang is whole again, with the guardian and without it. gang_capacity.py measures the
same where an autoscaler launches machines.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ratchet.contracts.jobs.training import JobState, JobStatus
from tests.cluster.bench import Bench
from tests.cluster.interruptions import WANTED
from tests.cluster.rig.api import until
from tests.cluster.rig.cluster import Rig
from tests.cluster.watcher import Watcher

LIMIT, NEVER = 30.0, 1e9
"""The setting `cluster.half_alive` with the guardian active, and a value so large that the guardian never acts (seconds)."""


def running(status: JobStatus) -> bool:
    """Return whether the job is running."""
    return status.state is JobState.RUNNING


def recovery(rig: Rig, folder: Path, silent: bool, guarded: bool, window: float) -> dict[str, Any]:
    """Measure the recovery of a gang of three pods.

    `silent`: the node of one pod stops responding; otherwise one pod is evicted. `window`: seconds to observe at most.
    """
    with rig.namespace() as namespace, Watcher(rig, namespace, WANTED) as watcher:
        bench = Bench(rig, namespace, folder, half_alive=LIMIT if guarded else NEVER)
        rig.fake_nodes(WANTED + 1)
        spec = bench.spec(nodes=WANTED)
        bench.executor.submit(spec, 1)
        bench.until(spec, running)
        until(lambda: 0 in watcher.whole, 10, "a whole gang")
        pod = rig.pods(namespace)[0]
        began = time.monotonic()
        if silent:
            rig.silence(pod["spec"]["nodeName"])
        else:
            name = pod["metadata"]["name"]
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
            rig.api.call("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body)
        back = observed(bench, spec.name, lambda: max(watcher.whole) > 0, began + window)
        meter = bench.executor.meter(spec.name)
        return {
            "whole_after_s": round(watcher.whole[max(watcher.whole)] - began, 1) if back else None,
            "watched_s": round(time.monotonic() - began, 1),
            "half_alive_s": round(watcher.longest, 1),
            "idle_gpu_min": round(meter.idle / 60, 2),
            "lost_gpu_min": round(meter.lost / 60, 2),
            "preemptions": meter.preemptions,
        }


def observed(bench: Bench, name: str, holds: Callable[[], bool], end: float) -> bool:
    """Reconcile the job until the condition holds or the time `end` is reached; returns whether it holds.

    One more reconciliation at the end brings the meter up to date.
    """
    while not (held := holds()) and time.monotonic() < end:
        bench.executor.reconcile(name)
        time.sleep(0.2)
    time.sleep(1.2)
    bench.executor.reconcile(name)
    return held
