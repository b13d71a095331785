"""How soon a gang on nodes that stay is whole again after it lost a pod or a node, with our guardian and while it sleeps, by an eye of its
own. Where machines come and go: gang_capacity.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from contracts.training import JobState, JobStatus
from tests.cluster.bench import Bench
from tests.cluster.interruptions import WANTED
from tests.cluster.rig.api import until
from tests.cluster.rig.cluster import Rig
from tests.cluster.watcher import Watcher

LIMIT, NEVER = 30.0, 1e9
"""cluster.half_alive with the guardian, and where it sleeps."""


def running(status: JobStatus) -> bool:
    return status.state is JobState.RUNNING


def recovery(rig: Rig, folder: Path, silent: bool, guarded: bool, window: float) -> dict[str, Any]:
    """A gang of three loses a pod or a node; observed for `window` seconds after it at most."""
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
    """Whether it came to hold before `end`; one more look lets the meter count up to then."""
    while not (held := holds()) and time.monotonic() < end:
        bench.executor.observe(name)
        time.sleep(0.2)
    time.sleep(1.2)
    bench.executor.observe(name)
    return held
