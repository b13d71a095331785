"""Tests of a gang as a RayJob of KubeRay."""

from __future__ import annotations

import pytest

from ratchet.contracts.errors import ConfigError
from ratchet.k8s.manifests.pod_objects import manifest
from ratchet.k8s.manifests.ray_job import ray_job, ray_job_policy
from ratchet.k8s.manifests.render import as_yaml
from tests.unit.k8s.golden import agrees
from tests.unit.k8s.samples import gang, job


def test_a_ray_job_matches_its_golden_file() -> None:
    made = gang("generic-gpu", job(nodes=3, nemo=True))
    agrees("ray-job.yaml", "---\n".join(as_yaml(one) for one in (ray_job_policy(made), ray_job(made))))


def test_the_pods_are_those_of_the_gang_without_the_parts_that_kuberay_adds() -> None:
    made = gang("generic-gpu", job(nodes=3, nemo=True))
    spec = manifest(ray_job(made))["spec"]["rayClusterSpec"]
    head, workers = spec["headGroupSpec"]["template"]["spec"], spec["workerGroupSpecs"][0]
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"] == 2
    for pod in (head, workers["template"]["spec"]):
        container = pod["containers"][0]
        assert container["command"] == []
        assert not {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "MASTER_ADDR"} & {one["name"] for one in container["env"]}
        assert {"name": "RATCHET_RESTARTS", "value": "0"} in container["env"]
        assert "ray" not in {one["name"] for one in pod["volumes"]} | {one["name"] for one in container["volumeMounts"]}
    assert head["containers"][0]["resources"] == manifest(made)["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["resources"]


def test_one_node_needs_no_workers() -> None:
    assert ray_job(gang("generic-gpu", job(nodes=1, nemo=True))).spec.ray_cluster_spec.worker_group_specs == ()


def test_a_gang_of_torchrun_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a RayJob needs a job on Ray, which is one on NeMo RL"):
        ray_job(gang("generic-gpu"))
