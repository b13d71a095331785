"""A namespace of the test cluster with the objects that `ratchet k8s render` prints for a loop file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kubernetes import client

from ratchet.k8s.api.client import JOB, NETWORK_POLICY, QUEUE, SECRET, Cluster, Kind, KubernetesCluster
from ratchet.k8s.manifests.environment import render_environment
from ratchet.k8s.manifests.pod_objects import Shape, VolcanoJob, manifest
from ratchet.k8s.preflight.checks import findings
from ratchet.k8s.preflight.cluster_facts import ACCOUNT, CLAIM, CONFIG_MAP, collect_facts
from ratchet.k8s.profiles.profile import load_profile
from tests.cluster.rig.api import until
from tests.cluster.rig.cluster import REPO, Rig
from tests.unit.k8s import samples

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
    "StorageClass": Kind("storage.k8s.io/v1", "storageclasses", namespaced=False),
    "ValidatingAdmissionPolicy": Kind("admissionregistration.k8s.io/v1", "validatingadmissionpolicies", namespaced=False),
    "ValidatingAdmissionPolicyBinding": Kind("admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings", namespaced=False),
    "EC2NodeClass": Kind("karpenter.k8s.aws/v1", "ec2nodeclasses", namespaced=False),
    "NodePool": Kind("karpenter.sh/v1", "nodepools", namespaced=False),
    "Job": JOB,
    "RayJob": Kind("ray.io/v1", "rayjobs"),
    "Deployment": Kind("apps/v1", "deployments"),
    "Service": Kind("v1", "services"),
    "PodDisruptionBudget": Kind("policy/v1", "poddisruptionbudgets"),
    "HorizontalPodAutoscaler": Kind("autoscaling/v2", "horizontalpodautoscalers"),
}


class PreparedNamespace:
    """A namespace with all objects that a loop file needs. `prepare` creates them without any fault; tests then break single objects."""

    def __init__(self, rig: Rig, cluster: Cluster, name: str) -> None:
        self.rig, self.cluster, self.name, self.profile = rig, cluster, name, "generic-gpu"
        self.pool: dict[str, object] = {"kind": "none"}
        self.volume: dict[str, object] = {"mount": "/fsx", "claim": "shared"}

    @property
    def changes(self) -> dict[str, object]:
        """The cluster settings that are specific to this namespace."""
        return {"namespace": self.name, "queue": self.name, "pool": self.pool, "volume": self.volume}

    def gang(self) -> VolcanoJob:
        """Return the rendered Volcano Job of a test job in this namespace."""
        return samples.gang(self.profile, **self.changes)

    def prepare(self) -> None:
        """Create the rendered objects and the secrets, bind the volume claim, and wait until the queue is open."""
        for rendered in render_environment(samples.settings(profile=self.profile, **self.changes), load_profile(self.profile)):
            self.apply(rendered.shape)
        for name, key in (("reward-api", "key"), ("ratchet-ray", "token")):
            secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": self.name}, "stringData": {key: "x"}}
            self.cluster.apply(SECRET, secret)
        if "claim" in self.volume:
            self.rig.api.patch(f"/api/v1/namespaces/{self.name}/persistentvolumeclaims/shared/status", {"status": {"phase": "Bound"}})
        until(lambda: (self.cluster.get(QUEUE, self.name) or {}).get("status", {}).get("state") == "Open", 20, "the queue to open")

    def apply(self, shape: Shape, dry_run: bool = False) -> None:
        """Apply one rendered object; with `dry_run` the API server only validates it."""
        body = manifest(shape)
        self.cluster.apply(KINDS[body["kind"]], body, dry_run)

    def lint(self, cluster: Cluster | None = None, gang: VolcanoJob | None = None) -> list[str]:
        """Run the lint and return each finding in the form `level about: text; remedy`."""
        settings = samples.settings(profile=self.profile, **self.changes)
        gangs = [gang] if gang else [self.gang(), samples.gang(self.profile, samples.job(nemo=True), **self.changes)]
        return [str(one) for one in findings(collect_facts(cluster or self.cluster, settings, gangs), settings, gangs)]

    def acting_as(self, account: str) -> Cluster:
        """Return a client that has the rights of a service account of this namespace."""
        token = self.rig.kubectl("create", "token", account, "--namespace", self.name).strip()
        known = client.Configuration(host=self.rig.site.server, api_key={"BearerToken": f"Bearer {token}"})
        known.ssl_ca_cert = str(self.rig.site.pki / "ca.crt")
        return KubernetesCluster(client.ApiClient(known))


def loop_file(prepared: PreparedNamespace, folder: Path, *lines: str, pool: str = 'kind = "none"') -> Path:
    """Write a loop file for this namespace, with extra `lines` in its `[cluster]` section, and return its path."""
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
namespace = "{prepared.name}"
queue = "{prepared.name}"
image = "registry.example/train:1"
volume = {{ mount = "/fsx", claim = "shared" }}
pool = {{ {pool} }}
secrets = {{ REWARD_API_KEY = "reward-api/key" }}
{chr(10).join(lines)}
"""
    )
    return path


def ratchet(prepared: PreparedNamespace, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `ratchet k8s` with these arguments and environment variables against the test cluster."""
    env = os.environ | {"KUBECONFIG": str(prepared.rig.kubeconfig)} | environment
    return subprocess.run(
        [sys.executable, "-m", "ratchet.flows.cli.main", "k8s", *words],
        cwd=REPO,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
