"""Tests of the rendered objects against a real API server with the resource definitions of Volcano, Karpenter and its AWS provider."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from kubernetes import config

from ratchet.contracts.errors import Permanent
from ratchet.contracts.jobs.training import JobState
from ratchet.k8s.api.client import JOB, NETWORK_POLICY, POD, QUEUE, Kind, KubernetesCluster
from ratchet.k8s.manifests.admission import admission_rules
from ratchet.k8s.manifests.environment import Extras, extras, render_environment
from ratchet.k8s.manifests.gang_manifest import RATCHET
from ratchet.k8s.manifests.network import gang_network_policy
from ratchet.k8s.manifests.pod_objects import manifest
from ratchet.k8s.manifests.policies import CONTROLLER, JOB_ACCOUNT, VOLCANO_NAMESPACE, dry_run_rights, rights, wide_rights
from ratchet.k8s.manifests.pools import Account, static_pool
from ratchet.k8s.manifests.ray_job import ray_job, ray_job_policy
from ratchet.k8s.manifests.serving import ModelServer, judge_fleet
from ratchet.k8s.manifests.version_server import version_server
from ratchet.k8s.preflight.cluster_facts import pod_of
from ratchet.k8s.profiles.profile import Profile, known, load_profile
from tests.cluster.bench import Bench
from tests.cluster.prepared_namespace import KINDS, PreparedNamespace, loop_file, ratchet
from tests.cluster.rig.api import until
from tests.cluster.rig.cluster import Rig
from tests.unit.k8s import samples

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", known())
@pytest.mark.parametrize("kind", ["none", "static", "dynamic"])
def test_every_rendered_object_is_what_the_server_takes(prepared: PreparedNamespace, name: str, kind: str) -> None:
    profile = load_profile(name)
    if kind != "none" and profile.provider != "aws":
        profile = profile.model_copy(update={"node_class": "karpenter.kwok.sh/KWOKNodeClass/default", "node_annotations": {"a/b": "c"}})
    settings = samples.settings(
        profile=name, namespace=prepared.name, pool={"kind": kind, "capacity": "reserved", "zones": ["us-east-1a", "us-east-1b"]}
    )
    account = Account(cluster="prod", ami="al2023@v20260901", placement_group="near", reservations=("cr-0123456789abcdef0",))
    for rendered in render_environment(settings, profile)[:2]:  # the namespaces, whose security level applies to the other objects
        prepared.apply(rendered.shape)
    tried = [rendered.shape for rendered in render_environment(settings, profile, Extras(account, storage_class="fsx"))]
    gangs = [samples.gang(profile, samples.job(gpus=profile.gpus, nemo=nemo), namespace=prepared.name) for nemo in (False, True)]
    gangs.append(samples.gang(profile, samples.job(gpus=profile.gpus), namespace=prepared.name, volume=samples.BUCKET))
    bucket = samples.settings(volume=samples.BUCKET).volume.bucket
    tried += [*gangs, gang_network_policy("a-gang", prepared.name), gang_network_policy("b-gang", prepared.name, bucket)]
    tried += [static_pool("a-gang", 2, settings, profile)] if kind == "static" else []
    for shape in tried:
        prepared.apply(shape, dry_run=True)
    for gang in gangs:
        for task in gang.spec.tasks:
            prepared.cluster.create(POD, pod_of(gang, task.name, f"{prepared.name}-dry-run"), dry_run=True)
    assert len(tried) > 14


def test_a_volume_on_lustre_is_what_the_server_takes(prepared: PreparedNamespace) -> None:
    settings = samples.settings(profile="gke-a3", namespace=prepared.name, pool={"kind": "none", "zones": ["us-east4-a", "us-east4-b"]})
    made = [one.shape for one in render_environment(settings, load_profile("gke-a3"), extras(lustre="250"))]
    prepared.apply(made[0])
    tried = [shape for shape in made if shape.model_dump()["kind"] in ("StorageClass", "PersistentVolumeClaim")]
    for shape in tried:
        prepared.apply(shape, dry_run=True)
    assert len(tried) == 2


def test_a_ray_job_is_what_the_server_of_kuberay_takes(prepared: PreparedNamespace, crds: Callable[[str], Path]) -> None:
    rig = prepared.rig
    rig.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(crds("kuberay")))
    rig.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(crds("kuberay")))
    made = samples.gang("generic-gpu", samples.job(nodes=3, nemo=True), namespace=prepared.name)
    prepared.apply(ray_job_policy(made), dry_run=True)
    prepared.apply(ray_job(made), dry_run=True)
    for task in made.spec.tasks:
        pod = manifest(ray_job(made).spec.ray_cluster_spec.head_group_spec.template)
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {**pod["metadata"], "name": task.name}, "spec": pod["spec"]}
        prepared.cluster.create(POD, {**body, "metadata": {**body["metadata"], "namespace": prepared.name}}, dry_run=True)


def test_the_server_refuses_a_reservation_that_nobody_has_named(prepared: PreparedNamespace) -> None:
    profile = load_profile("aws-p5en-efa")
    settings = samples.settings(profile="aws-p5en-efa", namespace=prepared.name, pool={"kind": "dynamic", "capacity": "reserved"})
    made = {one.shape.model_dump()["kind"]: one.shape for one in render_environment(settings, profile, Extras(Account(cluster="prod")))}
    with pytest.raises(Permanent, match="capacityReservationSelectorTerms"):
        prepared.apply(made["EC2NodeClass"], dry_run=True)


def test_servers_are_what_the_server_takes(prepared: PreparedNamespace) -> None:
    settings, profile = samples.settings(namespace=prepared.name, profile="generic-gpu"), load_profile("generic-gpu")
    prepared.apply(render_environment(settings, profile)[0].shape)
    server = ModelServer(image="vllm:1", gpus=2, most=4, metric="vllm_requests_waiting")
    made = (
        *judge_fleet(Path("/fsx/judge"), settings, profile, server),
        *version_server(samples.version(), samples.serving_site(namespace=prepared.name, profile=profile), 2),
    )
    for shape in made:
        prepared.apply(shape, dry_run=True)
    assert [shape.model_dump()["kind"] for shape in made].count("Deployment") == 2


def test_a_misspelt_field_is_refused(prepared: PreparedNamespace) -> None:
    body = manifest(prepared.gang())
    body["spec"]["minAvailible"] = 2
    with pytest.raises(Permanent, match="minAvailible"):
        prepared.cluster.create(JOB, body, dry_run=True)


def test_the_printed_sheet_is_taken_by_kubectl(prepared: PreparedNamespace, tmp_path: Path) -> None:
    loop = loop_file(prepared, tmp_path, 'profile = "aws-p5en-efa"', pool='kind = "static"')
    said = ratchet(prepared, "render", str(loop), "--eks", "prod", "--ami", "al2023@v20260901")
    assert said.returncode == 0, said.stderr
    spaces = re.findall(r"---\n(# Namespace.*?)\n(?=---)", said.stdout, re.DOTALL)
    prepared.rig.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", text="\n---\n".join(spaces))
    taken = prepared.rig.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", text=said.stdout)
    assert len(taken.splitlines()) == said.stdout.count("\nkind: ") == 31
    assert "Secret reward-api with the key key" in said.stdout


def test_the_service_may_do_what_it_must_and_nothing_else(prepared: PreparedNamespace) -> None:
    prepared.pool = {"kind": "static"}
    prepared.profile = "aws-p5en-efa"
    settings = samples.settings(profile=prepared.profile, **prepared.changes)
    for rendered in render_environment(settings, load_profile(prepared.profile)):
        prepared.apply(rendered.shape)
    inside, outside = rights(), wide_rights(settings)
    within = {granted for rule in (*inside, *outside) for granted in _granted(rule)}
    wide = {granted for rule in outside for granted in _granted(rule)}
    until(
        lambda: _may(prepared, CONTROLLER, prepared.name) == within,
        10,
        "the rights to take effect",
        lambda: str(_may(prepared, CONTROLLER, prepared.name) ^ within),
    )
    tries = {granted for rule in dry_run_rights() for granted in _granted(rule)}
    assert _may(prepared, CONTROLLER, f"{prepared.name}-dry-run") == wide | tries
    assert _may(prepared, CONTROLLER, "default") == wide
    assert _may(prepared, CONTROLLER, VOLCANO_NAMESPACE) == wide | {("configmaps", "get")}
    assert _may(prepared, JOB_ACCOUNT, prepared.name) == set()
    for verb, what in (
        ("create", "pods"),
        ("get", "secrets"),
        ("get", "configmaps"),
        ("create", "roles.rbac.authorization.k8s.io"),
        ("delete", "nodes"),
    ):
        assert _can(prepared, CONTROLLER, verb, what) == "no", f"{verb} {what}"
    assert _can(prepared, CONTROLLER, "create", "pods", "--subresource=exec") == "no"
    assert _can(prepared, CONTROLLER, "create", "jobs.batch.volcano.sh") == "yes"


def test_the_service_runs_a_gang_with_its_own_rights_under_the_rendered_queue(prepared: PreparedNamespace) -> None:
    prepared.volume = {"mount": "/tmp", "host_path": True}
    prepared.prepare()
    prepared.rig.fake_nodes(2, taints=[{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}])
    service, gang = prepared.acting_as(CONTROLLER), prepared.gang()
    stopping = [line for line in prepared.lint(service, gang) if line.startswith("stop")]
    assert stopping == []
    for task in gang.spec.tasks:
        service.create(POD, pod_of(gang, task.name, f"{prepared.name}-dry-run"), dry_run=True)
    service.apply(NETWORK_POLICY, manifest(gang_network_policy(gang.metadata.name or "", prepared.name)))
    service.create(JOB, manifest(gang))
    until(lambda: len(prepared.rig.pods(prepared.name, "Running")) == 2, 30, "the gang", lambda: _story(prepared))
    assert len(service.list(POD, prepared.name).items) == 2
    service.delete(JOB, gang.metadata.name or "", prepared.name)


def test_the_executor_needs_no_more_than_the_rendered_rights(prepared: PreparedNamespace, tmp_path: Path) -> None:
    prepared.volume = {"mount": str(tmp_path), "host_path": True}
    prepared.prepare()
    prepared.rig.fake_nodes(2)
    bench = Bench(prepared.rig, prepared.name, tmp_path, queue=prepared.name)
    for rule in admission_rules([(bench.settings, bench.profile)]):
        prepared.apply(rule)
    bench.cluster = prepared.acting_as(CONTROLLER)
    bench.executor = bench.restarted()
    spec = bench.spec(nodes=2)

    def submitted() -> bool:
        with suppress(Permanent):  # until the API server has loaded the rules for this image
            bench.executor.submit(spec, 1)
            return True
        return False

    until(submitted, 30, "the rules to take effect")
    bench.until(spec, lambda status: status.state is JobState.RUNNING)
    bench.end(spec, 1, "preempted")
    prepared.rig.end_pod(prepared.name, prepared.rig.pods(prepared.name)[0]["metadata"]["name"], 75)
    bench.until(spec, lambda status: status.state is JobState.RUNNING and status.incarnation == 2)
    assert bench.executor.live() == [spec.name]
    bench.executor.cancel(spec.name)
    bench.until(spec, lambda status: status.state is JobState.ENDED)
    until(bench.collected, 90, "the end of all objects")


def test_no_gang_outgrows_its_queue(prepared: PreparedNamespace) -> None:
    prepared.volume, prepared.pool = {"mount": "/tmp", "host_path": True}, {"kind": "none", "max_nodes": 1}
    prepared.prepare()
    prepared.rig.fake_nodes(2)
    gang = prepared.gang()
    prepared.cluster.create(JOB, manifest(gang))
    until(lambda: len(prepared.rig.pods(prepared.name)) == 2, 20, "the gang's pods")
    time.sleep(2)
    assert prepared.rig.pods(prepared.name, "Running") == []
    assert any(line.startswith(f"stop queue: {prepared.name} may hold 8 of the 16 nvidia.com/gpu") for line in prepared.lint())


BOUGHT = Profile(
    provider="any",
    instance_types=("p5en.48xlarge",),
    gpus=8,
    cpu="176",
    memory="1600Gi",
    taints=load_profile("aws-p5en-efa").taints,
    node_class="karpenter.kwok.sh/KWOKNodeClass/default",
    node_annotations={"kwok.x-k8s.io/node": "fake"},
)
"""A machine that the test cluster's autoscaler can launch."""


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_a_rendered_pool_brings_a_gangs_nodes_out_of_nothing(karpenter_rig: Rig, karpenter_namespace: str, kind: str) -> None:
    rig, space = karpenter_rig, karpenter_namespace
    prepared = PreparedNamespace(rig, KubernetesCluster(config.new_client_from_config(str(rig.kubeconfig))), space)
    node_class = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "default"}}
    rig.apply(node_class, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": VOLCANO_NAMESPACE}})
    changes = {
        "namespace": space,
        "queue": space,
        "volume": {"mount": "/tmp", "host_path": True},
        "pool": {"kind": kind, "zone": "us-east-1a", "max_nodes": 3},
    }
    settings = samples.settings(**changes)
    for rendered in render_environment(settings, BOUGHT):
        prepared.apply(rendered.shape)
    gang, service = samples.gang(BOUGHT, **changes), prepared.acting_as(CONTROLLER)
    name = gang.metadata.name or ""
    try:
        if kind == "static":
            service.apply(KINDS["NodePool"], manifest(static_pool(name, 2, settings, BOUGHT)))
        until(lambda: (service.get(QUEUE, space) or {}).get("status", {}).get("state") == "Open", 20, "the queue to open")
        service.create(JOB, manifest(gang))
        until(lambda: len(rig.pods(space, "Running")) == 2, 60, "the gang", lambda: _story(prepared))
        nodes = rig.api.items("/api/v1/nodes")
        assert {node["metadata"]["labels"]["topology.kubernetes.io/zone"] for node in nodes} == {"us-east-1a"}
        assert {node["metadata"]["labels"]["karpenter.sh/capacity-type"] for node in nodes} == {"spot"}
        assert len(nodes) == len(service.list(Kind("karpenter.sh/v1", "nodeclaims", namespaced=False), labels=RATCHET).items) == 2
        assert len({pod["spec"]["nodeName"] for pod in rig.pods(space, "Running")}) == 2
    finally:
        for found, what, where in ((JOB, name, space), (KINDS["NodePool"], name, None), (QUEUE, space, None)):
            prepared.cluster.delete(found, what, where)
        rig.kubectl("delete", "clusterroles,clusterrolebindings", f"{CONTROLLER}-{space}", "--ignore-not-found")


def _granted(rule: object) -> set[tuple[str, str]]:
    group = rule.api_groups[0]
    return {(f"{resource}.{group}" if group else resource, verb) for resource in rule.resources for verb in rule.verbs}


def _user(prepared: PreparedNamespace, account: str) -> str:
    return f"--as=system:serviceaccount:{prepared.name}:{account}"


def _may(prepared: PreparedNamespace, account: str, namespace: str) -> set[tuple[str, str]]:
    """Return the (resource, verb) pairs that the account is allowed, as kubectl lists them.

    The rights that every account has are left out: to query its own rights and to read the API's discovery documents.
    """
    listed = prepared.rig.kubectl("auth", "can-i", "--list", "--namespace", namespace, _user(prepared, account))
    found = set()
    for line in listed.splitlines()[1:]:
        name, verbs = line.split()[0], re.search(r"\[([a-z* ]*)\]$", line)
        if verbs and not line.startswith(" ") and not name.startswith(("self", "[")):
            found |= {(name, verb) for verb in verbs[1].split()}
    return found


def _can(prepared: PreparedNamespace, account: str, verb: str, *what: str) -> str:
    words = ("auth", "can-i", verb, *what, "--namespace", prepared.name, _user(prepared, account))
    return prepared.rig.kubectl(*words, check=False).strip()


def _story(prepared: PreparedNamespace) -> str:
    return prepared.rig.kubectl("get", "podgroups,pods,events", "--namespace", prepared.name, "-o", "wide", check=False)
