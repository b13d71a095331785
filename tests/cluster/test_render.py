"""What we render against the servers' own rules, and the lint against faults that were planted: on a real API server with the real resource
definitions of Volcano, Karpenter and its AWS provider."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kubernetes import client, config

from contracts.errors import Permanent
from contracts.serving import ModelVersion
from contracts.training import JobState
from k8s.client import JOB, NETWORK_POLICY, POD, QUEUE, SECRET, Cluster, Kind, KubernetesCluster
from k8s.environment import Extras, render_environment
from k8s.gang import RATCHET
from k8s.lint import findings
from k8s.look import ACCOUNT, CLAIM, CONFIG_MAP, look, pod_of
from k8s.network import opening
from k8s.objects import Shape, VolcanoJob, manifest
from k8s.policies import CONTROLLER, JOB_ACCOUNT, SCHEDULER_CONFIG, SCHEDULER_KEY, VOLCANO_NAMESPACE, rights, wide_rights
from k8s.pools import Account, static_pool
from k8s.profile import Profile, known, load_profile
from k8s.serving import Server, judge_fleet, version_server
from tests.cluster.bench import Bench
from tests.cluster.rig import build
from tests.cluster.rig.api import until
from tests.cluster.rig.cluster import REPO, Rig
from tests.unit.k8s import ground

pytestmark = pytest.mark.slow

KINDS = {
    "Namespace": Kind("v1", "namespaces", namespaced=False),
    "ServiceAccount": ACCOUNT,
    "Role": Kind("rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": Kind("rbac.authorization.k8s.io/v1", "rolebindings"),
    "ClusterRole": Kind("rbac.authorization.k8s.io/v1", "clusterroles", namespaced=False),
    "ClusterRoleBinding": Kind("rbac.authorization.k8s.io/v1", "clusterrolebindings", namespaced=False),
    "NetworkPolicy": NETWORK_POLICY,
    "Queue": QUEUE,
    "ConfigMap": CONFIG_MAP,
    "PersistentVolumeClaim": CLAIM,
    "EC2NodeClass": Kind("karpenter.k8s.aws/v1", "ec2nodeclasses", namespaced=False),
    "NodePool": Kind("karpenter.sh/v1", "nodepools", namespaced=False),
    "Job": JOB,
    "Deployment": Kind("apps/v1", "deployments"),
    "Service": Kind("v1", "services"),
    "PodDisruptionBudget": Kind("policy/v1", "poddisruptionbudgets"),
    "HorizontalPodAutoscaler": Kind("autoscaling/v2", "horizontalpodautoscalers"),
}


@pytest.fixture(scope="module")
def full(rig: Rig) -> Rig:
    """The rig with the resource definitions of all that we render, and the namespace of Volcano as an installation has it."""
    build.build(["aws"], print)
    rig.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(build.need("aws")))
    rig.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(build.need("aws")))
    rig.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": VOLCANO_NAMESPACE}})
    return rig


@pytest.fixture(scope="module")
def cluster(full: Rig) -> KubernetesCluster:
    return KubernetesCluster(config.new_client_from_config(str(full.kubeconfig)))


class Corner:
    """A namespace of the rig prepared as a loop file asks, sound until something is broken."""

    def __init__(self, rig: Rig, cluster: Cluster, name: str) -> None:
        self.rig, self.cluster, self.name, self.profile = rig, cluster, name, "generic-gpu"
        self.pool: dict[str, object] = {"kind": "none"}
        self.volume: dict[str, object] = {"mount": "/fsx", "claim": "shared"}

    @property
    def changes(self) -> dict[str, object]:
        return {"namespace": self.name, "queue": self.name, "pool": self.pool, "volume": self.volume}

    def gang(self) -> VolcanoJob:
        return ground.gang(self.profile, **self.changes)

    def prepare(self) -> None:
        for rendered in render_environment(ground.settings(profile=self.profile, **self.changes), load_profile(self.profile)):
            self.apply(rendered.shape)
        for name, key in (("reward-api", "key"), ("ratchet-ray", "token")):
            secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": self.name}, "stringData": {key: "x"}}
            self.cluster.apply(SECRET, secret)
        if "claim" in self.volume:
            self.rig.api.patch(f"/api/v1/namespaces/{self.name}/persistentvolumeclaims/shared/status", {"status": {"phase": "Bound"}})
        until(lambda: (self.cluster.get(QUEUE, self.name) or {}).get("status", {}).get("state") == "Open", 20, "the queue's opening")

    def apply(self, shape: Shape, dry_run: bool = False) -> None:
        body = manifest(shape)
        self.cluster.apply(KINDS[body["kind"]], body, dry_run)

    def lint(self, cluster: Cluster | None = None, gang: VolcanoJob | None = None) -> list[str]:
        """`level about: text; remedy` of each finding."""
        settings = ground.settings(profile=self.profile, **self.changes)
        gangs = [gang] if gang else [self.gang(), ground.gang(self.profile, ground.job(nemo=True), **self.changes)]
        return [str(one) for one in findings(look(cluster or self.cluster, settings, gangs), settings, gangs)]

    def acting_as(self, account: str) -> Cluster:
        """The API server as one of the namespace's service accounts sees it."""
        token = self.rig.kubectl("create", "token", account, "--namespace", self.name).strip()
        known = client.Configuration(host=self.rig.site.server, api_key={"BearerToken": f"Bearer {token}"})
        known.ssl_ca_cert = str(self.rig.site.pki / "ca.crt")
        return KubernetesCluster(client.ApiClient(known))


@pytest.fixture
def corner(full: Rig, cluster: KubernetesCluster, namespace: str) -> Iterator[Corner]:
    yield Corner(full, cluster, namespace)
    for kind, name in ((QUEUE, namespace), (CONFIG_MAP, SCHEDULER_CONFIG)):
        cluster.delete(kind, name, VOLCANO_NAMESPACE if kind.namespaced else None)
    full.kubectl("delete", "clusterroles,clusterrolebindings", f"{CONTROLLER}-{namespace}", "--ignore-not-found")
    full.kubectl("delete", "nodepools,ec2nodeclasses", "--all")


@pytest.mark.parametrize("name", known())
@pytest.mark.parametrize("kind", ["none", "static", "dynamic"])
def test_every_rendered_object_is_what_the_server_takes(corner: Corner, name: str, kind: str) -> None:
    profile = load_profile(name)
    if kind != "none" and profile.provider != "aws":
        profile = profile.model_copy(update={"node_class": "karpenter.kwok.sh/KWOKNodeClass/default", "node_annotations": {"a/b": "c"}})
    settings = ground.settings(profile=name, namespace=corner.name, pool={"kind": kind, "zone": "us-east-1a"})
    account = Account(cluster="prod", ami="al2023@v20260901", placement_group="near", reservations=("cr-0123456789abcdef0",))
    corner.apply(render_environment(settings, profile)[0].shape)  # the rest is checked within a namespace of this security level
    tried = [rendered.shape for rendered in render_environment(settings, profile, Extras(account, storage_class="fsx"))]
    gangs = [ground.gang(profile, ground.job(gpus=profile.gpus, nemo=nemo), namespace=corner.name) for nemo in (False, True)]
    tried += [*gangs, opening("a-gang", corner.name), *([static_pool("a-gang", 2, settings, profile)] if kind == "static" else [])]
    for shape in tried:
        corner.apply(shape, dry_run=True)
    for gang in gangs:
        for task in gang.spec.tasks:
            corner.cluster.create(POD, pod_of(gang, task.name), dry_run=True)
    assert len(tried) > 14


def test_servers_are_what_the_server_takes(corner: Corner) -> None:
    settings, profile = ground.settings(namespace=corner.name, profile="generic-gpu"), load_profile("generic-gpu")
    corner.apply(render_environment(settings, profile)[0].shape)
    reference = dict.fromkeys(("weights", "tokenizer", "chat_template", "generation_config", "files"), "a" * 64)
    version = ModelVersion.model_validate({"line": "support", "number": 3, "tag": "v-abc", "model": reference, "cycle": None})
    server = Server(image="vllm:1", gpus=2, most=4, metric="vllm_requests_waiting")
    made = (
        *judge_fleet(Path("/fsx/judge"), settings, profile, server),
        *version_server(version, Path("/fsx/m"), settings, profile, Server("vllm:1")),
    )
    for shape in made:
        corner.apply(shape, dry_run=True)
    assert [shape.model_dump()["kind"] for shape in made].count("Deployment") == 2


def test_a_misspelt_field_is_refused(corner: Corner) -> None:
    body = manifest(corner.gang())
    body["spec"]["minAvailible"] = 2
    with pytest.raises(Permanent, match="minAvailible"):
        corner.cluster.create(JOB, body, dry_run=True)


def test_the_printed_sheet_is_taken_by_kubectl(corner: Corner, tmp_path: Path) -> None:
    loop = loop_file(corner, tmp_path, 'profile = "aws-p5en-efa"', pool='kind = "static"')
    said = ratchet(corner, "render", str(loop), "--eks", "prod", "--ami", "al2023@v20260901")
    assert said.returncode == 0, said.stderr
    space = re.search(r"---\n(# Namespace.*?)\n---", said.stdout, re.DOTALL)
    assert space
    corner.rig.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", text=space[1])
    taken = corner.rig.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", text=said.stdout)
    assert len(taken.splitlines()) == said.stdout.count("\nkind: ") == 19
    assert "Secret reward-api with the key key" in said.stdout


def test_the_service_may_do_what_it_must_and_nothing_else(corner: Corner) -> None:
    corner.pool = {"kind": "static"}
    corner.profile = "aws-p5en-efa"
    settings = ground.settings(profile=corner.profile, **corner.changes)
    for rendered in render_environment(settings, load_profile(corner.profile)):
        corner.apply(rendered.shape)
    inside, outside = rights(), wide_rights(settings)
    within = {granted for rule in (*inside, *outside) for granted in _granted(rule)}
    wide = {granted for rule in outside for granted in _granted(rule)}
    until(
        lambda: _may(corner, CONTROLLER, corner.name) == within,
        10,
        "the rights",
        lambda: str(_may(corner, CONTROLLER, corner.name) ^ within),
    )
    assert _may(corner, CONTROLLER, "default") == wide
    assert _may(corner, CONTROLLER, VOLCANO_NAMESPACE) == wide | {("configmaps", "get")}
    assert _may(corner, JOB_ACCOUNT, corner.name) == set()
    for verb, what in (("get", "secrets"), ("get", "configmaps"), ("create", "roles.rbac.authorization.k8s.io"), ("delete", "nodes")):
        assert _can(corner, CONTROLLER, verb, what) == "no", f"{verb} {what}"
    assert _can(corner, CONTROLLER, "create", "pods", "--subresource=exec") == "no"
    assert _can(corner, CONTROLLER, "create", "jobs.batch.volcano.sh") == "yes"


def test_the_service_runs_a_gang_with_its_own_rights_under_the_rendered_queue(corner: Corner) -> None:
    corner.volume = {"mount": "/tmp", "host_path": True}
    corner.prepare()
    corner.rig.fake_nodes(2, taints=[{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}])
    service, gang = corner.acting_as(CONTROLLER), corner.gang()
    stopping = [line for line in corner.lint(service, gang) if line.startswith("stop")]
    assert stopping == []
    for task in gang.spec.tasks:
        service.create(POD, pod_of(gang, task.name), dry_run=True)
    service.apply(NETWORK_POLICY, manifest(opening(gang.metadata.name or "", corner.name)))
    service.create(JOB, manifest(gang))
    until(lambda: len(corner.rig.pods(corner.name, "Running")) == 2, 30, "the gang", lambda: _story(corner))
    assert len(service.list(POD, corner.name).items) == 2
    service.delete(JOB, gang.metadata.name or "", corner.name)


def test_the_executor_needs_no_more_than_the_rendered_rights(corner: Corner, tmp_path: Path) -> None:
    corner.volume = {"mount": str(tmp_path), "host_path": True}
    corner.prepare()
    corner.rig.fake_nodes(2)
    bench = Bench(corner.rig, corner.name, tmp_path, queue=corner.name)
    bench.cluster = corner.acting_as(CONTROLLER)
    bench.executor = bench.restarted()
    spec = bench.spec(nodes=2)
    bench.executor.submit(spec, 1)
    bench.until(spec, lambda status: status.state is JobState.RUNNING)
    bench.end(spec, 1, "preempted")
    corner.rig.end_pod(corner.name, corner.rig.pods(corner.name)[0]["metadata"]["name"], 75)
    bench.until(spec, lambda status: status.state is JobState.RUNNING and status.incarnation == 2)
    assert bench.executor.live() == [spec.name]
    bench.executor.cancel(spec.name)
    bench.until(spec, lambda status: status.state is JobState.ENDED)
    assert bench.executor.live() == []


def test_no_gang_outgrows_its_queue(corner: Corner) -> None:
    corner.volume, corner.pool = {"mount": "/tmp", "host_path": True}, {"kind": "none", "max_nodes": 1}
    corner.prepare()
    corner.rig.fake_nodes(2)
    gang = corner.gang()
    corner.cluster.create(JOB, manifest(gang))
    until(lambda: len(corner.rig.pods(corner.name)) == 2, 20, "the gang's pods")
    time.sleep(2)
    assert corner.rig.pods(corner.name, "Running") == []
    assert any(line.startswith(f"stop queue: {corner.name} may hold 8 of the 16 nvidia.com/gpu") for line in corner.lint())


def test_lint_is_silent_where_nothing_is_wrong(corner: Corner) -> None:
    corner.prepare()
    corner.rig.fake_nodes(2, taints=[{"key": "nvidia.com/gpu", "effect": "NoSchedule"}])
    assert corner.lint() == []


def test_the_service_may_look_at_all_but_secrets(corner: Corner) -> None:
    corner.prepare()
    corner.rig.fake_nodes(2)
    found = corner.lint(corner.acting_as(CONTROLLER))
    assert [line.split(":")[0] for line in found] == ["note namespace", "note secrets", "note secrets"]
    refused = corner.lint(corner.acting_as(JOB_ACCOUNT))
    assert refused[0].startswith("stop rights: you may not create jobs.batch.volcano.sh, ")


def _drop_queue(corner: Corner) -> None:
    corner.cluster.delete(QUEUE, corner.name)


def _enqueue(corner: Corner) -> None:
    found = corner.cluster.get(CONFIG_MAP, SCHEDULER_CONFIG, VOLCANO_NAMESPACE)
    assert found
    text = found["data"][SCHEDULER_KEY].replace('"allocate', '"enqueue, allocate')
    meta = {"name": SCHEDULER_CONFIG, "namespace": VOLCANO_NAMESPACE}
    corner.cluster.apply(CONFIG_MAP, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {SCHEDULER_KEY: text}})
    corner.pool = {"kind": "dynamic"}


def _taint(corner: Corner) -> None:
    for node in corner.rig.api.items("/api/v1/nodes"):
        corner.rig.kubectl("taint", "nodes", node["metadata"]["name"], "team=other:NoSchedule")


def _shrink(corner: Corner) -> None:
    corner.rig.delete_nodes(corner.rig.api.items("/api/v1/nodes")[0]["metadata"]["name"])


def _smaller(corner: Corner) -> None:
    corner.rig.delete_nodes(*(node["metadata"]["name"] for node in corner.rig.api.items("/api/v1/nodes")))
    corner.rig.fake_nodes(2, gpus=4, prefix="small")


def _no_secret(corner: Corner) -> None:
    corner.cluster.delete(SECRET, "reward-api", corner.name)


def _no_key(corner: Corner) -> None:
    corner.rig.kubectl("patch", "secret", "reward-api", "--namespace", corner.name, "--type=json", '-p=[{"op":"remove","path":"/data"}]')


def _no_claim(corner: Corner) -> None:
    corner.cluster.delete(CLAIM, "shared", corner.name)
    corner.rig.kubectl("patch", "pvc", "shared", "--namespace", corner.name, "-p", '{"metadata":{"finalizers":null}}', check=False)


def _unbound(corner: Corner) -> None:
    corner.rig.api.patch(f"/api/v1/namespaces/{corner.name}/persistentvolumeclaims/shared/status", {"status": {"phase": "Pending"}})


def _no_account(corner: Corner) -> None:
    corner.cluster.delete(ACCOUNT, JOB_ACCOUNT, corner.name)


def _quota(corner: Corner) -> None:
    spec = {"hard": {"requests.nvidia.com/gpu": "8", "requests.cpu": "1000"}}
    corner.rig.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"}, "spec": spec}, namespace=corner.name)


def _limits(corner: Corner) -> None:
    spec = {"limits": [{"type": "Container", "max": {"memory": "64Gi"}}]}
    corner.rig.apply({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "low"}, "spec": spec}, namespace=corner.name)


def _strict(corner: Corner) -> None:
    corner.rig.kubectl("label", "namespace", corner.name, "pod-security.kubernetes.io/enforce=restricted", "--overwrite")
    corner.volume = {"mount": "/tmp", "host_path": True}


FAULTS: list[tuple[Callable[[Corner], None], str]] = [
    (_drop_queue, r"stop queue: there is no Volcano queue t-"),
    (_enqueue, r"stop scheduler: .* names the action enqueue, and the pool can be empty"),
    (_taint, r"stop taints: .*team=other:NoSchedule.*; name the taint in the profile"),
    (_shrink, r"stop nodes: .* has 2 pods, each with a node of its own, and there can never be more than 1: 1 of 1 nodes fit"),
    (_smaller, r"stop nodes: .*no node offers 8 nvidia.com/gpu \(has 4 nvidia.com/gpu\)"),
    (_no_secret, r"stop secrets: t-\w+ has no Secret reward-api; make it, with the key key"),
    (_no_key, r"stop secrets: the Secret reward-api lacks the key key"),
    (_no_claim, r"stop volume: t-\w+ has no PersistentVolumeClaim shared"),
    (_unbound, r"stop volume: the claim shared is Pending"),
    (_no_account, r"stop service account: t-\w+ has no service account ratchet-job"),
    (_quota, r"stop quota: small leaves 8 of the 16 nvidia.com/gpu"),
    (_limits, r"stop limit range: low lets a container have at most 64Gi memory of the 256 GiB memory"),
    (_strict, r"stop pod template: .*violates PodSecurity"),
]


@pytest.mark.parametrize(("fault", "words"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_lint_finds_a_planted_fault(corner: Corner, fault: Callable[[Corner], None], words: str) -> None:
    corner.prepare()
    corner.rig.fake_nodes(2)
    fault(corner)
    found = corner.lint()
    assert any(re.search(words, line) for line in found), "\n".join(found)


def test_lint_finds_a_template_that_would_hang(corner: Corner) -> None:
    """The Job's own definition accepts it."""
    corner.prepare()
    corner.rig.fake_nodes(2)
    gang = corner.gang()
    (task,) = gang.spec.tasks
    spec = task.template.spec
    wrong = tuple(one.model_copy(update={"effect": "NoSchedule", "toleration_seconds": 15}) for one in spec.tolerations)
    template = task.template.model_copy(update={"spec": spec.model_copy(update={"tolerations": wrong})})
    tasks = (task.model_copy(update={"template": template}),)
    bad = gang.model_copy(update={"spec": gang.spec.model_copy(update={"tasks": tasks})})
    corner.cluster.create(JOB, manifest(bad), dry_run=True)
    (found,) = corner.lint(gang=bad)
    assert re.search(r"stop pod template: .*tolerationSeconds|effect must be 'NoExecute'", found)


def test_a_dynamic_pool_that_refuses_the_gang_is_found(corner: Corner) -> None:
    corner.profile, corner.pool = "aws-p5en-efa", {"kind": "dynamic", "max_nodes": 2}
    corner.prepare()
    assert corner.lint() == []
    corner.pool = {"kind": "dynamic", "max_nodes": 1}
    for rendered in render_environment(ground.settings(profile=corner.profile, **corner.changes), load_profile(corner.profile)):
        corner.apply(rendered.shape)
    assert any(re.search(r"stop pool: no NodePool .* its limit of nvidia.com/gpu is 8", line) for line in corner.lint())


def test_the_command_says_it_and_ends_with_1(corner: Corner, tmp_path: Path) -> None:
    loop = loop_file(corner, tmp_path, 'profile = "generic-gpu"')
    said = ratchet(corner, "lint", str(loop))
    assert said.returncode == 1
    assert "service account: " in said.stdout
    corner.prepare()
    corner.rig.fake_nodes(2)
    said = ratchet(corner, "lint", str(loop))
    assert (said.returncode, said.stdout) == (0, "nothing is known that would stop a gang\n"), said.stdout + said.stderr
    gone = ratchet(corner, "lint", str(loop), KUBECONFIG=str(tmp_path / "none"))
    assert gone.returncode == 2
    assert "kubeconfig" in gone.stderr


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
"""A machine that the rig's autoscaler can buy."""


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_a_rendered_pool_brings_a_gangs_nodes_out_of_nothing(karpenter_rig: Rig, karpenter_namespace: str, kind: str) -> None:
    rig, space = karpenter_rig, karpenter_namespace
    corner = Corner(rig, KubernetesCluster(config.new_client_from_config(str(rig.kubeconfig))), space)
    node_class = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "default"}}
    rig.apply(node_class, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": VOLCANO_NAMESPACE}})
    changes = {
        "namespace": space,
        "queue": space,
        "volume": {"mount": "/tmp", "host_path": True},
        "pool": {"kind": kind, "zone": "us-east-1a", "max_nodes": 3},
    }
    settings = ground.settings(**changes)
    for rendered in render_environment(settings, BOUGHT):
        corner.apply(rendered.shape)
    gang, service = ground.gang(BOUGHT, **changes), corner.acting_as(CONTROLLER)
    name = gang.metadata.name or ""
    try:
        if kind == "static":
            service.apply(KINDS["NodePool"], manifest(static_pool(name, 2, settings, BOUGHT)))
        until(lambda: (service.get(QUEUE, space) or {}).get("status", {}).get("state") == "Open", 20, "the queue's opening")
        service.create(JOB, manifest(gang))
        until(lambda: len(rig.pods(space, "Running")) == 2, 60, "the gang", lambda: _story(corner))
        nodes = rig.api.items("/api/v1/nodes")
        assert {node["metadata"]["labels"]["topology.kubernetes.io/zone"] for node in nodes} == {"us-east-1a"}
        assert {node["metadata"]["labels"]["karpenter.sh/capacity-type"] for node in nodes} == {"spot"}
        assert len(nodes) == len(service.list(Kind("karpenter.sh/v1", "nodeclaims", namespaced=False), labels=RATCHET).items) == 2
        assert len({pod["spec"]["nodeName"] for pod in rig.pods(space, "Running")}) == 2
    finally:
        for found, what, where in ((JOB, name, space), (KINDS["NodePool"], name, None), (QUEUE, space, None)):
            corner.cluster.delete(found, what, where)
        rig.kubectl("delete", "clusterroles,clusterrolebindings", f"{CONTROLLER}-{space}", "--ignore-not-found")


def loop_file(corner: Corner, folder: Path, *lines: str, pool: str = 'kind = "none"') -> Path:
    path = folder / "loop.toml"
    path.write_text(
        f"""
[line]
name = "support"
served_model = "support"
[[sources]]
name = "receiver"
kind = "receiver"
[[rewards]]
name = "exact_match"
[training]
methods = ["dpo"]
nodes = 2
gpus = 8
[cluster]
namespace = "{corner.name}"
queue = "{corner.name}"
image = "registry.example/train:1"
volume = {{ mount = "/fsx", claim = "shared" }}
pool = {{ {pool} }}
secrets = {{ REWARD_API_KEY = "reward-api/key" }}
{chr(10).join(lines)}
"""
    )
    return path


def ratchet(corner: Corner, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"KUBECONFIG": str(corner.rig.kubeconfig)} | environment
    return subprocess.run(
        [sys.executable, "-m", "flows.cli.main", "k8s", *words], cwd=REPO, env=env, capture_output=True, text=True, check=False, timeout=120
    )


def _granted(rule: object) -> set[tuple[str, str]]:
    group = rule.api_groups[0]
    return {(f"{resource}.{group}" if group else resource, verb) for resource in rule.resources for verb in rule.verbs}


def _user(corner: Corner, account: str) -> str:
    return f"--as=system:serviceaccount:{corner.name}:{account}"


def _may(corner: Corner, account: str, namespace: str) -> set[tuple[str, str]]:
    """(resource, verb) of all that it may, as kubectl lists it, but for what every account may: ask about itself, read the API's pages."""
    listed = corner.rig.kubectl("auth", "can-i", "--list", "--namespace", namespace, _user(corner, account))
    found = set()
    for line in listed.splitlines()[1:]:
        name, verbs = line.split()[0], re.search(r"\[([a-z* ]*)\]$", line)
        if verbs and not line.startswith(" ") and not name.startswith(("self", "[")):
            found |= {(name, verb) for verb in verbs[1].split()}
    return found


def _can(corner: Corner, account: str, verb: str, *what: str) -> str:
    words = ("auth", "can-i", verb, *what, "--namespace", corner.name, _user(corner, account))
    return corner.rig.kubectl(*words, check=False).strip()


def _story(corner: Corner) -> str:
    return corner.rig.kubectl("get", "podgroups,pods,events", "--namespace", corner.name, "-o", "wide", check=False)
