"""Tests that a gang is not submitted while its pool cannot hold all of it.

Otherwise the autoscaler would launch machines for a part of the gang, which would stand idle, be given back, and be launched again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.contracts.jobs.training import JobSpec, JobState, JobStatus
from ratchet.k8s.api.client import NODE_POOL
from ratchet.k8s.manifests.pod_objects import manifest
from ratchet.k8s.manifests.pools import dynamic_pool
from tests.cluster.bench import BOUGHT, Bench
from tests.cluster.rig.api import until
from tests.cluster.rig.cluster import KARPENTER, Rig

pytestmark = pytest.mark.slow
MOST = 3


@pytest.fixture(params=["static", "dynamic"])
def bench(request: pytest.FixtureRequest, karpenter_rig: Rig, karpenter_namespace: str, tmp_path: Path) -> Bench:
    """An executor with a pool of MOST machines, once static and once dynamic."""
    node_class = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "default"}}
    karpenter_rig.apply(node_class | {"spec": {"nodeRegistrationDelay": "0s"}})
    made = Bench(karpenter_rig, karpenter_namespace, tmp_path, BOUGHT, pool={"kind": request.param, "max_nodes": MOST})
    if request.param == "dynamic":
        made.cluster.apply(NODE_POOL, manifest(dynamic_pool(made.settings, BOUGHT)))
    return made


def running(status: JobStatus) -> bool:
    """Return whether the job is running."""
    return status.state is JobState.RUNNING


def gone(status: JobStatus) -> bool:
    """Return whether the job has ended."""
    return status.state is JobState.ENDED


def started(bench: Bench, spec: JobSpec) -> None:
    """Submit a gang and wait until it runs, also by the state of its Job, which follows that of its pods a little later."""
    bench.executor.submit(spec, 1)
    bench.until(spec, running)
    until(lambda: bench.gang()["status"]["state"]["phase"] == "Running", 30, "the state of the gang's Job")


def test_a_gang_that_does_not_fit_beside_a_running_one_comes_after_it(bench: Bench) -> None:
    first, second = bench.spec(nodes=2, plan="a"), bench.spec(nodes=2, plan="b")
    started(bench, first)
    with pytest.raises(Retryable, match=rf"running gangs have 2 of cluster\.pool\.max_nodes = {MOST}"):
        bench.executor.submit(second, 1)
    assert bench.gang()["metadata"]["labels"]["ratchet.dev/job"] == first.name, "the second gang must not be submitted"
    assert len(bench.rig.api.items(f"{KARPENTER}/nodeclaims")) == 2
    bench.executor.cancel(first.name)
    bench.until(first, gone)
    until(lambda: not bench.rig.pods(bench.namespace), 60, "the end of the first gang")
    bench.executor.submit(second, 1)
    bench.until(second, running)


def test_a_gang_that_fits_beside_a_running_one_does_not_wait_for_its_end(bench: Bench) -> None:
    first, second = bench.spec(nodes=2, plan="a"), bench.spec(nodes=1, plan="b")
    started(bench, first)
    bench.executor.submit(second, 1)
    bench.until(second, running)


def test_a_gang_larger_than_its_pool_is_refused(bench: Bench) -> None:
    with pytest.raises(ConfigError, match=r"more than cluster\.pool\.max_nodes"):
        bench.executor.submit(bench.spec(nodes=MOST + 1), 1)
    assert bench.rig.api.items(f"/apis/batch.volcano.sh/v1alpha1/namespaces/{bench.namespace}/jobs") == []
