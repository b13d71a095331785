"""A seeded series of interruptions of one gang, with the assertions that must hold after each recovery.

The seed determines the interrupted pods and the progress of training in between. Cluster and executor are real; the trainer's checkpoints
and the ledger's decisions to accept them are simulated.
"""

from __future__ import annotations

import random
import time
from dataclasses import asdict, dataclass
from typing import Any

from ratchet.contracts.jobs.training import JobSpec, JobStatus, ResumePoint
from ratchet.contracts.schema import parse
from ratchet.k8s.manifests.gang_manifest import GANG, VERSION
from ratchet.runtime.jobs.job_protocol import RunFile
from tests.cluster.bench import Bench
from tests.cluster.rig.api import until
from tests.cluster.rig.cluster import KARPENTER
from tests.cluster.watcher import Watcher

EVICTED, DELETED, NODE, SILENT, CLAIM = "pod evicted", "pod deleted", "node deleted", "node silent", "node claim deleted"
WANTED = 3
PODS = "/api/v1/namespaces/{}/pods"


@dataclass(frozen=True)
class Interruption:
    """One interruption and its recovery."""

    number: int
    kind: str
    pod: str
    node: str
    whole_after_s: float
    """Seconds from the interruption until the next incarnation is whole; for a silent node, 12 s of it pass before it is NotReady."""
    half_alive_s: float
    """Seconds in which the gang was half alive, as measured by the independent observer."""
    resumed_at: int
    """The step from which the next incarnation resumed."""
    lost_steps: int
    """Steps that the trainer had taken after the last accepted checkpoint."""

    def told(self) -> dict[str, Any]:
        """Return the fields as a dictionary."""
        return asdict(self)


def dealt(kinds: tuple[str, ...], count: int, seed: int) -> list[str]:
    """Return `count` kinds in rounds; each round has every kind once, in random order."""
    draw, found = random.Random(seed), []
    while len(found) < count:
        found += draw.sample(kinds, len(kinds))
    return found[:count]


class Life:
    """The series of interruptions of one gang of WANTED pods.

    Call `begin` once and `suffer` for each interruption. Both raise AssertionError if an expectation fails.
    """

    def __init__(self, bench: Bench, watcher: Watcher, seed: int) -> None:
        self.bench, self.rig, self.watcher, self.draw = bench, bench.rig, watcher, random.Random(seed)
        self.spec: JobSpec = bench.spec(nodes=WANTED)
        self.past: list[Interruption] = []
        self.pinned: ResumePoint | None = None
        self.lost = 0

    def begin(self) -> None:
        """Submit the gang, wait until it is whole, and simulate its first training steps."""
        self.bench.executor.submit(self.spec, 1)
        self._whole(0)
        self._train(1, 0)

    def suffer(self, kind: str) -> Interruption:
        """Interrupt a random pod or its node, wait until the gang is whole again, and check the recovery."""
        number, victim = len(self.past) + 1, self.draw.choice(self.pods())
        name, node = victim["metadata"]["name"], victim["spec"]["nodeName"]
        pinned, lost = self.pinned, self.lost
        assert pinned is not None
        self.watcher.forget()
        began = time.monotonic()
        self._strike(kind, name, node)
        status = self._whole(number)
        took = self.watcher.whole[number] - began
        assert status.incarnation == number + 1, status
        self._nothing_but_the_gang(number)
        resumed = parse(ResumePoint, (self.bench.executor.folders.run(self.spec) / RunFile.RESUME).read_bytes())
        assert resumed == pinned, "the gang must resume from the newest accepted step"
        half = self.watcher.longest
        assert half <= self.bench.settings.half_alive, f"{kind}: half alive for {half:.1f} s, longer than the limit"
        self._train(number + 1, resumed.step)
        if kind == SILENT:
            self.rig.delete_nodes(node)
        self.past.append(Interruption(number, kind, name, node, round(took, 1), round(half, 1), resumed.step, lost))
        return self.past[-1]

    def pods(self) -> list[dict[str, Any]]:
        """Return the pods of the gang."""
        return [pod for pod in self.rig.pods(self.bench.namespace) if GANG in pod["metadata"].get("labels", {})]

    def _strike(self, kind: str, pod: str, node: str) -> None:
        path = f"{PODS.format(self.bench.namespace)}/{pod}"
        if kind == EVICTED:
            meta = {"name": pod}
            self.rig.api.call("POST", f"{path}/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta})
        elif kind == DELETED:
            self.rig.api.call("DELETE", path)
        elif kind == CLAIM:
            claims = self.rig.api.items(f"{KARPENTER}/nodeclaims")
            (claim,) = [c["metadata"]["name"] for c in claims if c.get("status", {}).get("nodeName") == node]
            self.rig.api.call("DELETE", f"{KARPENTER}/nodeclaims/{claim}")
        else:
            self.rig.delete_nodes(node) if kind == NODE else self.rig.silence(node)
            self.rig.fake_nodes(1, prefix=f"spare-{len(self.past)}")  # a new name: with the old one, the old pods would run again

    def _whole(self, restarts: int) -> JobStatus:
        """Observe the job until the independent observer has seen the incarnation whole.

        With the patience of the test cluster, this ends before the limit of a test, so that a failure shows the pods.
        """
        return self.bench.until(
            self.spec, lambda status: restarts in self.watcher.whole and status.incarnation > restarts and not status.reason, 60
        )

    def _nothing_but_the_gang(self, restarts: int) -> None:
        """Assert that there is one Job with its own pods only, and that Volcano and the executor count every restart once."""
        space = self.bench.namespace
        until(lambda: len(self.pods()) == WANTED, 20, "the end of older pods", lambda: self.rig.kubectl("get", "pods", "-n", space))
        job = self.bench.gang()
        for pod in self.pods():
            assert pod["metadata"]["annotations"][VERSION] == str(restarts), pod["metadata"]
            assert [owner["uid"] for owner in pod["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
        assert job["status"]["retryCount"] == restarts, "Volcano must restart the gang once for each interruption"
        self.bench.until(self.spec, lambda _: self.bench.executor.meter(self.spec.name).preemptions >= restarts, 10)
        assert self.bench.executor.meter(self.spec.name).preemptions == restarts

    def _train(self, incarnation: int, resumed: int) -> None:
        """Simulate training: one accepted checkpoint, up to five further steps, and output of the previous incarnation.

        The last one simulates an old process that still writes behind a network split; it must not affect the status.
        """
        step = resumed + self.draw.randint(1, 10)
        point = self.bench.step(self.spec, incarnation, step)
        self.bench.executor.pin(self.spec, point)
        self.pinned, self.lost = point, self.draw.randint(0, 5)
        if self.lost:
            self.bench.step(self.spec, incarnation, step + self.lost)
        if incarnation > 1:
            self.bench.tell(self.spec, incarnation - 1, "progress", step + 1000)
        status = self.bench.executor.observe(self.spec.name)
        assert (status.incarnation, status.step) == (incarnation, step + self.lost), "output of an older incarnation must be ignored"
