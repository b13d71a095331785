"""Tests of `ratchet k8s lint` against deliberate faults on a real API server."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ratchet.k8s.api.client import JOB, QUEUE, SECRET
from ratchet.k8s.manifests.environment import render_environment
from ratchet.k8s.manifests.pod_objects import manifest
from ratchet.k8s.manifests.policies import CONTROLLER, JOB_ACCOUNT, SCHEDULER_CONFIG, SCHEDULER_KEY, VOLCANO_NAMESPACE
from ratchet.k8s.preflight.cluster_facts import ACCOUNT, CLAIM, CONFIG_MAP
from ratchet.k8s.profiles.profile import load_profile
from tests.cluster.prepared_namespace import PreparedNamespace, loop_file, ratchet
from tests.unit.k8s import samples

pytestmark = pytest.mark.slow


def test_lint_is_silent_where_nothing_is_wrong(prepared: PreparedNamespace) -> None:
    prepared.prepare()
    prepared.rig.fake_nodes(2, taints=[{"key": "nvidia.com/gpu", "effect": "NoSchedule"}])
    assert prepared.lint() == []


def test_the_service_may_look_at_all_but_secrets(prepared: PreparedNamespace) -> None:
    prepared.prepare()
    prepared.rig.fake_nodes(2)
    found = prepared.lint(prepared.acting_as(CONTROLLER))
    assert [line.split(":")[0] for line in found] == ["note namespace", "note secrets", "note secrets"]
    refused = prepared.lint(prepared.acting_as(JOB_ACCOUNT))
    assert refused[0].startswith("stop rights: you may not create jobs.batch.volcano.sh, ")


def _drop_queue(prepared: PreparedNamespace) -> None:
    prepared.cluster.delete(QUEUE, prepared.name)


def _enqueue(prepared: PreparedNamespace) -> None:
    found = prepared.cluster.get(CONFIG_MAP, SCHEDULER_CONFIG, VOLCANO_NAMESPACE)
    assert found
    text = found["data"][SCHEDULER_KEY].replace('"allocate', '"enqueue, allocate')
    meta = {"name": SCHEDULER_CONFIG, "namespace": VOLCANO_NAMESPACE}
    prepared.cluster.apply(CONFIG_MAP, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {SCHEDULER_KEY: text}})
    prepared.pool = {"kind": "dynamic"}


def _taint(prepared: PreparedNamespace) -> None:
    for node in prepared.rig.api.items("/api/v1/nodes"):
        prepared.rig.kubectl("taint", "nodes", node["metadata"]["name"], "team=other:NoSchedule")


def _shrink(prepared: PreparedNamespace) -> None:
    prepared.rig.delete_nodes(prepared.rig.api.items("/api/v1/nodes")[0]["metadata"]["name"])


def _smaller(prepared: PreparedNamespace) -> None:
    prepared.rig.delete_nodes(*(node["metadata"]["name"] for node in prepared.rig.api.items("/api/v1/nodes")))
    prepared.rig.fake_nodes(2, gpus=4, prefix="small")


def _no_secret(prepared: PreparedNamespace) -> None:
    prepared.cluster.delete(SECRET, "reward-api", prepared.name)


def _no_key(prepared: PreparedNamespace) -> None:
    prepared.rig.kubectl(
        "patch", "secret", "reward-api", "--namespace", prepared.name, "--type=json", '-p=[{"op":"remove","path":"/data"}]'
    )


def _no_claim(prepared: PreparedNamespace) -> None:
    prepared.cluster.delete(CLAIM, "shared", prepared.name)
    prepared.rig.kubectl("patch", "pvc", "shared", "--namespace", prepared.name, "-p", '{"metadata":{"finalizers":null}}', check=False)


def _unbound(prepared: PreparedNamespace) -> None:
    prepared.rig.api.patch(f"/api/v1/namespaces/{prepared.name}/persistentvolumeclaims/shared/status", {"status": {"phase": "Pending"}})


def _no_account(prepared: PreparedNamespace) -> None:
    prepared.cluster.delete(ACCOUNT, JOB_ACCOUNT, prepared.name)


def _quota(prepared: PreparedNamespace) -> None:
    spec = {"hard": {"requests.nvidia.com/gpu": "8", "requests.cpu": "1000"}}
    prepared.rig.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"}, "spec": spec}, namespace=prepared.name)


def _limits(prepared: PreparedNamespace) -> None:
    spec = {"limits": [{"type": "Container", "max": {"memory": "64Gi"}}]}
    prepared.rig.apply({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "low"}, "spec": spec}, namespace=prepared.name)


def _strict(prepared: PreparedNamespace) -> None:
    prepared.rig.kubectl("label", "namespace", prepared.name, "pod-security.kubernetes.io/enforce=restricted", "--overwrite")
    prepared.volume = {"mount": "/tmp", "host_path": True}


FAULTS: list[tuple[Callable[[PreparedNamespace], None], str]] = [
    (_drop_queue, r"stop queue: there is no Volcano queue t-"),
    (_enqueue, r"stop scheduler: .* names the action enqueue, and the pool can be empty"),
    (_taint, r"stop taints: .*team=other:NoSchedule.*; add the taint to the profile"),
    (_shrink, r"stop nodes: .* has 2 pods, each on a separate node, but the nodes can hold at most 1: 1 of 1 nodes fit"),
    (_smaller, r"stop nodes: .*no node offers 8 nvidia.com/gpu \(has 4 nvidia.com/gpu\)"),
    (_no_secret, r"stop secrets: t-\w+ has no Secret reward-api; create it with the key key"),
    (_no_key, r"stop secrets: the Secret reward-api lacks the key key"),
    (_no_claim, r"stop volume: t-\w+ has no PersistentVolumeClaim shared"),
    (_unbound, r"stop volume: the claim shared is Pending"),
    (_no_account, r"stop service account: t-\w+ has no service account ratchet-job"),
    (_quota, r"stop quota: small leaves 8 of the 16 nvidia.com/gpu"),
    (_limits, r"stop limit range: low allows a container at most 64Gi memory of the 256 GiB memory"),
    (_strict, r"stop pod template: .*violates PodSecurity"),
]


@pytest.mark.parametrize(("fault", "words"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_lint_finds_a_planted_fault(prepared: PreparedNamespace, fault: Callable[[PreparedNamespace], None], words: str) -> None:
    prepared.prepare()
    prepared.rig.fake_nodes(2)
    fault(prepared)
    found = prepared.lint()
    assert any(re.search(words, line) for line in found), "\n".join(found)


def test_lint_finds_a_template_that_would_hang(prepared: PreparedNamespace) -> None:
    """The API server accepts the Volcano Job, although its pods would be refused."""
    prepared.prepare()
    prepared.rig.fake_nodes(2)
    gang = prepared.gang()
    (task,) = gang.spec.tasks
    spec = task.template.spec
    wrong = tuple(one.model_copy(update={"effect": "NoSchedule", "toleration_seconds": 15}) for one in spec.tolerations)
    template = task.template.model_copy(update={"spec": spec.model_copy(update={"tolerations": wrong})})
    tasks = (task.model_copy(update={"template": template}),)
    bad = gang.model_copy(update={"spec": gang.spec.model_copy(update={"tasks": tasks})})
    prepared.cluster.create(JOB, manifest(bad), dry_run=True)
    (found,) = prepared.lint(gang=bad)
    assert re.search(r"stop pod template: .*tolerationSeconds|effect must be 'NoExecute'", found)


def test_a_dynamic_pool_that_refuses_the_gang_is_found(prepared: PreparedNamespace) -> None:
    prepared.profile, prepared.pool = "aws-p5en-efa", {"kind": "dynamic", "max_nodes": 2}
    prepared.prepare()
    assert prepared.lint() == []
    prepared.pool = {"kind": "dynamic", "max_nodes": 1}
    for rendered in render_environment(samples.settings(profile=prepared.profile, **prepared.changes), load_profile(prepared.profile)):
        prepared.apply(rendered.shape)
    assert any(re.search(r"stop pool: no NodePool .* its limit of nvidia.com/gpu is 8", line) for line in prepared.lint())


def test_the_command_says_it_and_ends_with_1(prepared: PreparedNamespace, tmp_path: Path) -> None:
    loop = loop_file(prepared, tmp_path, 'profile = "generic-gpu"')
    said = ratchet(prepared, "lint", str(loop))
    assert said.returncode == 1
    assert "service account: " in said.stdout
    prepared.prepare()
    prepared.rig.fake_nodes(2)
    said = ratchet(prepared, "lint", str(loop))
    assert (said.returncode, said.stdout) == (0, "no problems found that would stop a gang\n"), said.stdout + said.stderr
    gone = ratchet(prepared, "lint", str(loop), KUBECONFIG=str(tmp_path / "none"))
    assert gone.returncode == 2
    assert "kubeconfig" in gone.stderr
