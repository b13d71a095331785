"""Attacks with the service's own account on a real API server that has the rendered roles and admission rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ratchet.contracts.errors import Permanent
from ratchet.k8s.api.client import JOB, NETWORK_POLICY, NODE_CLAIM, NODE_POOL, POD, Cluster, Object
from ratchet.k8s.manifests.environment import Extras, render_environment
from ratchet.k8s.manifests.network import gang_network_policy
from ratchet.k8s.manifests.pod_objects import manifest
from ratchet.k8s.manifests.policies import CONTROLLER
from ratchet.k8s.manifests.pools import static_pool
from ratchet.k8s.manifests.version_server import version_server
from ratchet.k8s.preflight.cluster_facts import pod_of
from ratchet.k8s.profiles.profile import load_profile
from tests.cluster.prepared_namespace import PreparedNamespace
from tests.cluster.rig.api import until
from tests.unit.k8s import samples

pytestmark = pytest.mark.slow
Change = Callable[[dict[str, Any]], object]


def refusal(send: Callable[[], object]) -> str:
    """Return the message with which the API server refuses a request; empty if it accepts it."""
    try:
        send()
    except Permanent as error:
        return str(error)
    return ""


def guarded(prepared: PreparedNamespace) -> Cluster:
    """Prepare the namespace, wait until all its rules are in force, and return a client with the rights of the service.

    The API server learns of the rules one after another, in the order in which they were created. The rule of dry runs is created before
    that of networks, so it needs no wait of its own.
    """
    prepared.prepare()
    service = prepared.acting_as(CONTROLLER)
    job = manifest(prepared.gang())
    job["spec"]["queue"] = "another"
    network = manifest(gang_network_policy("a-gang", prepared.name))
    network["spec"]["egress"] = [{}]
    refused = {
        "not a queue of these lines": lambda: service.create(JOB, job, dry_run=True),
        "must name the peers": lambda: service.apply(NETWORK_POLICY, network, dry_run=True),
    }
    if prepared.pool["kind"] != "none":
        settings = samples.settings(profile=prepared.profile, **prepared.changes)
        pool = manifest(static_pool("a-gang", 2, settings, load_profile(prepared.profile))) | {"metadata": {"name": "nobodys"}}
        refused["only objects with the label"] = lambda: service.apply(NODE_POOL, pool, dry_run=True)
    for reason, send in refused.items():
        until(lambda reason=reason, send=send: reason in refusal(send), 30, f"the rule to take effect: {reason}")  # type: ignore[misc]
    return service


def _container(change: Change) -> Change:
    return lambda pod: change(pod["containers"][0])


def _secret(name: str, key: str) -> Object:
    return {"name": "STOLEN", "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}


ATTACKS: dict[str, tuple[Change, str]] = {
    "a Secret as files": (lambda pod: pod["volumes"].append({"name": "x", "secret": {"secretName": "registry"}}), "a volume is none"),
    "a projected Secret": (
        lambda pod: pod["volumes"].append({"name": "x", "projected": {"sources": [{"secret": {"name": "registry"}}]}}),
        "a volume is none",
    ),
    "a token": (
        lambda pod: pod["volumes"].append({"name": "x", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}),
        "a volume is none",
    ),
    "another claim": (
        lambda pod: pod["volumes"].append({"name": "x", "persistentVolumeClaim": {"claimName": "ledger"}}), "a volume is none"
    ),
    "a path of the node": (lambda pod: pod["volumes"].append({"name": "x", "hostPath": {"path": "/"}}), "a volume is none"),
    "a Secret as a variable": (_container(lambda one: one["env"].append(_secret("registry", "token"))), "a variable is from a Secret"),
    "another key": (_container(lambda one: one["env"].append(_secret("reward-api", "admin"))), "a variable is from a Secret"),
    "all keys of a Secret": (_container(lambda one: one.update(envFrom=[{"secretRef": {"name": "registry"}}])), "a variable is from"),
    "another image": (_container(lambda one: one.update(image="evil.example/train:1")), "the image is not from"),
    "a longer image name": (_container(lambda one: one.update(image="registry.example/train-evil:1")), "the image is not from"),
    "the service's account": (lambda pod: pod.update(serviceAccountName=CONTROLLER), "a pod must run as ratchet-job"),
    "the default account": (lambda pod: pod.pop("serviceAccountName"), "a pod must run as ratchet-job"),
    "a mounted token": (lambda pod: pod.update(automountServiceAccountToken=True), "a pod must run as ratchet-job"),
    "the node's network": (lambda pod: pod.update(hostNetwork=True), "a pod must not name its node"),
    "the node's processes": (lambda pod: pod.update(hostPID=True), "a pod must not name its node"),
    "a chosen node": (lambda pod: pod.update(nodeName="control-plane"), "a pod must not name its node"),
    "another container": (lambda pod: pod.update(initContainers=[pod["containers"][0] | {"name": "x"}]), "a pod must not name its node"),
    "privileges": (_container(lambda one: one["securityContext"].update(privileged=True)), "a container must drop all"),
    "a capability": (
        _container(lambda one: one["securityContext"]["capabilities"].update(add=["SYS_ADMIN"])), "a container must drop all"
    ),
    "kept capabilities": (_container(lambda one: one["securityContext"].pop("capabilities")), "a container must drop all"),
}  # fmt: skip


def test_a_job_of_the_service_can_be_nothing_but_a_gang(prepared: PreparedNamespace) -> None:
    service = guarded(prepared)
    for gang in (prepared.gang(), samples.gang(prepared.profile, samples.job(nemo=True), **prepared.changes)):
        assert refusal(lambda gang=gang: service.create(JOB, manifest(gang), dry_run=True)) == ""
    wrong = []
    for name, (change, reason) in ATTACKS.items():
        body = manifest(prepared.gang())
        change(body["spec"]["tasks"][0]["template"]["spec"])
        if reason not in (answer := refusal(lambda body=body: service.create(JOB, body, dry_run=True))):
            wrong.append(f"{name}: {answer or 'accepted'}")
    body = manifest(prepared.gang())
    body["spec"]["volumes"] = [{"mountPath": "/x", "volumeClaimName": "ledger"}]
    assert "volumes of the Job itself" in refusal(lambda: service.create(JOB, body, dry_run=True))
    body = manifest(prepared.gang())
    body["spec"]["plugins"] = {"ssh": []}
    assert "only the plugins" in refusal(lambda: service.create(JOB, body, dry_run=True))
    assert wrong == []


def test_the_service_stores_no_pod(prepared: PreparedNamespace) -> None:
    service = guarded(prepared)
    here, tries = (pod_of(prepared.gang(), "worker", space) for space in (prepared.name, f"{prepared.name}-dry-run"))
    assert 'cannot create resource "pods"' in refusal(lambda: service.create(POD, here))
    assert 'cannot create resource "pods"' in refusal(lambda: service.create(POD, here, dry_run=True))
    assert refusal(lambda: service.create(POD, tries, dry_run=True)) == ""
    assert "dry runs only" in refusal(lambda: service.create(POD, tries))


def test_the_service_opens_no_network(prepared: PreparedNamespace) -> None:
    service = guarded(prepared)
    gang = manifest(gang_network_policy("a-gang", prepared.name))
    assert refusal(lambda: service.apply(NETWORK_POLICY, gang)) == ""
    gang["spec"]["egress"] = [{}]
    assert "must name the peers" in refusal(lambda: service.apply(NETWORK_POLICY, gang))
    base = prepared.cluster.get(NETWORK_POLICY, "ratchet-deny", prepared.name)
    assert base
    changed = {key: base[key] for key in ("apiVersion", "kind", "spec")} | {
        "metadata": {"name": "ratchet-deny", "namespace": prepared.name}
    }
    changed["spec"] = changed["spec"] | {"policyTypes": ["Ingress"]}
    assert "only the network policies of gangs and of model servers" in refusal(lambda: service.apply(NETWORK_POLICY, changed))
    assert "only the network policies of gangs and of model servers" in refusal(
        lambda: service.delete(NETWORK_POLICY, "ratchet-deny", prepared.name)
    )
    assert refusal(lambda: service.delete(NETWORK_POLICY, "a-gang", prepared.name)) == ""
    made = version_server(samples.version(), samples.serving_site(namespace=prepared.name), 1)
    doors = [body for body in map(manifest, made) if body["kind"] == "NetworkPolicy"]
    assert [refusal(lambda body=body: service.apply(NETWORK_POLICY, body)) for body in doors] == ["", ""]  # type: ignore[misc]
    doors[0]["spec"]["ingress"] = [{}]
    assert "must name the peers" in refusal(lambda: service.apply(NETWORK_POLICY, doors[0]))
    doors[1]["spec"]["egress"][0]["to"].append({"ipBlock": {"cidr": "0.0.0.0/0"}})
    assert "only the network policies" in refusal(lambda: service.apply(NETWORK_POLICY, doors[1]))
    for name in [body["metadata"]["name"] for body in doors]:
        assert refusal(lambda name=name: service.delete(NETWORK_POLICY, name, prepared.name)) == ""  # type: ignore[misc]


def test_the_service_touches_no_pool_of_others(prepared: PreparedNamespace) -> None:
    prepared.profile, prepared.pool = "aws-p5en-efa", {"kind": "static"}
    service = guarded(prepared)
    settings = samples.settings(profile=prepared.profile, **prepared.changes)
    own = manifest(static_pool("a-gang", 2, settings, load_profile(prepared.profile)))
    others = own | {"metadata": {"name": "others", "labels": {"app.kubernetes.io/part-of": "ratchet"}}}
    refused = "only objects with the label ratchet.dev/namespace"
    assert refused in refusal(lambda: service.apply(NODE_POOL, others))
    prepared.cluster.apply(NODE_POOL, others)
    assert refused in refusal(lambda: service.apply(NODE_POOL, others | {"metadata": own["metadata"] | {"name": "others"}}))
    assert refused in refusal(lambda: service.delete(NODE_POOL, "others"))
    assert refusal(lambda: service.apply(NODE_POOL, own)) == ""
    assert refusal(lambda: service.delete(NODE_POOL, "a-gang")) == ""
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "x"}
    claim = {"apiVersion": NODE_CLAIM.api, "kind": "NodeClaim", "metadata": {"name": "others"}}
    prepared.cluster.apply(NODE_CLAIM, claim | {"spec": {"nodeClassRef": reference, "requirements": []}})
    assert refused in refusal(lambda: service.delete(NODE_CLAIM, "others"))
    prepared.cluster.delete(NODE_CLAIM, "others")


def test_lines_that_share_a_namespace_are_rendered_together(prepared: PreparedNamespace) -> None:
    service = guarded(prepared)
    changes = prepared.changes | {"image": "registry.example/other:2", "secrets": {"KEY": "other/key"}}
    other = samples.gang(prepared.profile, **changes)
    assert "a variable is from a Secret" in refusal(lambda: service.create(JOB, manifest(other), dry_run=True))
    both = Extras(others=((samples.settings(profile=prepared.profile, **changes), load_profile(prepared.profile)),))
    for rendered in render_environment(
        samples.settings(profile=prepared.profile, **prepared.changes), load_profile(prepared.profile), both
    ):
        prepared.apply(rendered.shape)
    until(lambda: refusal(lambda: service.create(JOB, manifest(other), dry_run=True)) == "", 30, "the new rules to take effect")
    assert refusal(lambda: service.create(JOB, manifest(prepared.gang()), dry_run=True)) == ""
