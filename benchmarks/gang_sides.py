"""The submitters of the gang benchmark: plain Jobs under kube-scheduler, Volcano Jobs as older guides show them, and Ratchet's executor."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from ratchet.contracts.errors import Retryable
from ratchet.contracts.jobs.training import JobSpec
from ratchet.k8s.manifests.gang_manifest import JOB_NAME
from tests.cluster.bench import Bench
from tests.cluster.gangs import JOBS, gang, pretended
from tests.cluster.rig.cluster import Rig

PERIOD = 0.2
"""Seconds between two samples; equal to Volcano's scheduling period on the test cluster."""
GPUS = 8
BATCH = "/apis/batch/v1/namespaces/{}/jobs"
NAME = "benchmark/gang"
VOLCANO_NAME = "volcano.sh/job-name"
STOCK = {
    "actions": "enqueue, allocate, backfill",
    "tiers": [
        {"plugins": [{"name": name} for name in ("priority", "gang", "conformance")]},
        {"plugins": [{"name": name} for name in ("overcommit", "drf", "predicates", "proportion", "nodeorder", "binpack")]},
    ],
}
"""The default scheduler configuration of Volcano's installation."""
SCHEDULER = "vc-scheduler"


def plain_job(name: str, size: int) -> dict[str, Any]:
    """Return a batch/v1 Job of `size` independent pods."""
    template = {"metadata": {"labels": {NAME: name}}, "spec": pretended(GPUS)}
    spec = {"parallelism": size, "completions": size, "completionMode": "Indexed", "backoffLimit": 0, "template": template}
    return {"metadata": {"name": name}, "spec": spec}


@contextmanager
def stock_scheduler(rig: Rig) -> Iterator[None]:
    """Run Volcano's scheduler with its default configuration instead of Ratchet's, until the context ends."""
    conf = rig.site.root / f"{SCHEDULER}.conf"
    ours = conf.read_text()
    conf.write_text(json.dumps(STOCK))
    rig.restart(SCHEDULER)
    try:
        yield
    finally:
        conf.write_text(ours)
        rig.restart(SCHEDULER)


class Side(Protocol):
    """A submitter of competing gangs."""

    label: str
    """The pod label that holds the name of the gang."""
    names: list[str]

    def submit_all(self) -> None:
        """Submit all gangs and return when the cluster has accepted them."""

    def idle(self) -> float | None:
        """Return the GPU-seconds of nodes held by gangs that could not start, or None if the submitter has no meter."""


class Plain:
    """Submits all batch/v1 Jobs at once; kube-scheduler places pod by pod."""

    label = NAME

    def __init__(self, rig: Rig, namespace: str, _folder: Path, sizes: list[int]) -> None:
        self.rig, self.path = rig, BATCH.format(namespace)
        self.names = [f"gang-{number}" for number in range(len(sizes))]
        self.sizes = sizes

    def submit_all(self) -> None:
        """Create one batch/v1 Job per gang."""
        for name, size in zip(self.names, self.sizes, strict=True):
            self.rig.api.call("POST", self.path, plain_job(name, size))

    def idle(self) -> float | None:
        """Return None, because this submitter has no meter."""
        return None


class Volcano:
    """Submits all Volcano Jobs at once, without a guardian."""

    label = VOLCANO_NAME

    def __init__(self, rig: Rig, namespace: str, _folder: Path, sizes: list[int]) -> None:
        self.rig, self.path = rig, f"{JOBS}/namespaces/{namespace}/jobs"
        self.names = [f"gang-{number}" for number in range(len(sizes))]
        self.sizes = sizes

    def submit_all(self) -> None:
        """Create one Volcano Job per gang."""
        for name, size in zip(self.names, self.sizes, strict=True):
            self.rig.api.call("POST", self.path, gang(name, size, pretended(GPUS)))

    def idle(self) -> float | None:
        """Return None, because this submitter has no meter."""
        return None


class Ratchet:
    """Submits gangs through Ratchet's executor: Volcano places complete gangs, and only one gang waits at a time."""

    label = JOB_NAME

    def __init__(self, rig: Rig, namespace: str, folder: Path, sizes: list[int]) -> None:
        self.bench = Bench(rig, namespace, folder)
        self.specs: list[JobSpec] = [self.bench.spec(nodes=size, attempt=number) for number, size in enumerate(sizes, 1)]
        self.names = [spec.name for spec in self.specs]

    def submit_all(self) -> None:
        """Submit each gang through the executor, repeating while it asks to retry because another gang waits."""
        for spec in self.specs:
            while True:
                try:
                    self.bench.executor.submit(spec, 1)
                    break
                except Retryable:
                    time.sleep(PERIOD)
                    self.bench.executor.reconcile(self.specs[0].name)  # as the service does; it runs guardian and meters
        time.sleep(1)
        self.bench.executor.reconcile(spec.name)

    def idle(self) -> float | None:
        """Return the idle GPU-seconds of all gangs by the executor's meter."""
        return sum(self.bench.executor.meter(name).idle for name in self.names)
