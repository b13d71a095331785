"""Who submits competing gangs: plain Jobs under kube-scheduler, Volcano Jobs as older guides show them, and our executor. Knows how each
asks for a gang; refuses to know what is made of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from contracts.errors import Retryable
from contracts.training import JobSpec
from k8s.gang import JOB_NAME
from tests.cluster.bench import Bench
from tests.cluster.gangs import JOBS, gang, pretended
from tests.cluster.rig.cluster import Rig

PERIOD = 0.2
"""Seconds: Volcano's cycle on the test cluster."""
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
"""Volcano's scheduler, as its installation sets it up."""
SCHEDULER = "vc-scheduler"


def plain_job(name: str, size: int) -> dict[str, Any]:
    """`size` pods that know nothing of each other, as a batch/v1 Job."""
    template = {"metadata": {"labels": {NAME: name}}, "spec": pretended(GPUS)}
    spec = {"parallelism": size, "completions": size, "completionMode": "Indexed", "backoffLimit": 0, "template": template}
    return {"metadata": {"name": name}, "spec": spec}


@contextmanager
def stock_scheduler(rig: Rig) -> Iterator[None]:
    """Volcano's own configuration in place of ours, for as long as it lasts."""
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
    """Who submits gangs."""

    label: str
    """Of a pod: its gang's name."""
    names: list[str]

    def submit_all(self) -> None:
        """Returns when all have been accepted."""

    def idle(self) -> float | None:
        """GPU-seconds of nodes held by gangs that could not start, by the side's own meter."""


class Plain:
    """All Jobs at once; kube-scheduler places pod by pod."""

    label = NAME

    def __init__(self, rig: Rig, namespace: str, _folder: Path, sizes: list[int]) -> None:
        self.rig, self.path = rig, BATCH.format(namespace)
        self.names = [f"gang-{number}" for number in range(len(sizes))]
        self.sizes = sizes

    def submit_all(self) -> None:
        for name, size in zip(self.names, self.sizes, strict=True):
            self.rig.api.call("POST", self.path, plain_job(name, size))

    def idle(self) -> float | None:
        return None


class Volcano:
    """All Volcano Jobs at once, and nobody who watches over them."""

    label = VOLCANO_NAME

    def __init__(self, rig: Rig, namespace: str, _folder: Path, sizes: list[int]) -> None:
        self.rig, self.path = rig, f"{JOBS}/namespaces/{namespace}/jobs"
        self.names = [f"gang-{number}" for number in range(len(sizes))]
        self.sizes = sizes

    def submit_all(self) -> None:
        for name, size in zip(self.names, self.sizes, strict=True):
            self.rig.api.call("POST", self.path, gang(name, size, pretended(GPUS)))

    def idle(self) -> float | None:
        return None


class Ratchet:
    """Our executor: Volcano places whole gangs, and one gang waits at a time."""

    label = JOB_NAME

    def __init__(self, rig: Rig, namespace: str, folder: Path, sizes: list[int]) -> None:
        self.bench = Bench(rig, namespace, folder)
        self.specs: list[JobSpec] = [self.bench.spec(nodes=size, attempt=number) for number, size in enumerate(sizes, 1)]
        self.names = [spec.name for spec in self.specs]

    def submit_all(self) -> None:
        for spec in self.specs:
            while True:
                try:
                    self.bench.executor.submit(spec, 1)
                    break
                except Retryable:
                    time.sleep(PERIOD)
                    self.bench.executor.observe(self.specs[0].name)  # the motor does: it lets guardian and meters run
        time.sleep(1)
        self.bench.executor.observe(spec.name)

    def idle(self) -> float | None:
        return sum(self.bench.executor.meter(name).idle for name in self.names)
