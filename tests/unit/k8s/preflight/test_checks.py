"""Tests of all checks of the lint, from facts to findings, without a cluster."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.errors import Retryable
from ratchet.k8s.manifests.pod_objects import VolcanoJob, manifest
from ratchet.k8s.manifests.pools import SCHEDULER, dynamic_pool
from ratchet.k8s.manifests.render import Site
from ratchet.k8s.preflight.checks import Finding, find_problems, findings
from ratchet.k8s.preflight.cluster_facts import ClusterFacts, Unread
from ratchet.k8s.profiles.profile import load_profile
from tests.unit.k8s.samples import BUCKET, gang, job, settings

TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def node(name: str = "n", gpus: int = 8, taints: tuple[dict[str, str], ...] = (TAINT,), ready: str = "True", **spec: Any) -> dict[str, Any]:
    """Return a node with `gpus` GPUs as the server describes it."""
    room = {"cpu": "192", "memory": "1900Gi", "nvidia.com/gpu": str(gpus), "ephemeral-storage": "2Ti"}
    return {
        "metadata": {"name": name, "labels": {"zone": "a"}},
        "spec": {"taints": list(taints), **spec},
        "status": {"allocatable": room, "conditions": [{"type": "Ready", "status": ready}]},
    }


CLAIM = {"spec": {"accessModes": ["ReadWriteMany"]}, "status": {"phase": "Bound"}}
SOUND = ClusterFacts(
    queue={"status": {"state": "Open"}},
    scheduler=SCHEDULER,
    nodes=(node("a"), node("b")),
    claim=CLAIM,
    secrets={"reward-api": frozenset({"key"})},
)


def said(facts: ClusterFacts, gangs: list[VolcanoJob] | None = None, **changes: Any) -> list[str]:
    """Return the findings as text."""
    return [str(one) for one in findings(facts, settings(**changes), gangs or [gang(**changes)])]


def test_a_correct_cluster_has_no_findings() -> None:
    assert said(SOUND) == []


def quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """Return a ResourceQuota as the server describes it."""
    return {"metadata": {"name": "q"}, "spec": {"hard": hard, **spec}, "status": {"used": used or {}}}


def limits(**rule: Any) -> dict[str, Any]:
    """Return a LimitRange for containers as the server describes it."""
    return {"metadata": {"name": "r"}, "spec": {"limits": [{"type": "Container", **rule}]}}


ONE_FAULT: dict[str, tuple[dict[str, Any], str]] = {
    "no server": ({"unreachable": "it does not answer"}, r"^stop server: it does not answer; check KUBECONFIG"),
    "no rights": ({"denied": ("create jobs.batch.volcano.sh",)}, r"^stop rights: you may not create jobs\.batch\.volcano\.sh; apply"),
    "no namespace": ({"namespace": False}, r"^stop namespace: there is no namespace ratchet"),
    "namespace unread": ({"namespace": Unread("no")}, r"^note namespace: not checked: no$"),
    "no account": ({"account": False}, r"^stop service account: ratchet has no service account ratchet-job"),
    "account unread": ({"account": Unread("no")}, r"^note service account: not checked: no$"),
    "no volcano": ({"volcano": False}, r"^stop volcano: the server knows no batch\.volcano\.sh/v1alpha1; install Volcano"),
    "no queue": ({"queue": None}, r"^stop queue: there is no Volcano queue ratchet; apply"),
    "queue closed": ({"queue": {"status": {"state": "Closed"}}}, r"^stop queue: the queue ratchet is Closed; open it"),
    "a small queue": (
        {"queue": {"status": {"state": "Open"}, "spec": {"capability": {"nvidia.com/gpu": "8", "cpu": "999"}}}},
        r"^stop queue: ratchet may hold 8 of the 16 nvidia.com/gpu that rt-\S+ requests; raise cluster.pool.max_nodes",
    ),
    "no controllers": ({"queue": {}}, r"^stop volcano: no controller has processed the queue ratchet"),
    "queue unread": ({"queue": Unread("no")}, r"^note queue: not checked: no$"),
    "scheduler unread": ({"scheduler": Unread("no")}, r"^note scheduler: not checked: no$"),
    "scheduler elsewhere": ({"scheduler": None}, r"^note scheduler: there is no ConfigMap .* was not checked"),
    "no gang plugin": ({"scheduler": SCHEDULER.replace("name: gang", "name: drf")}, r"^stop scheduler: .*lacks the plugin gang"),
    "no allocate": ({"scheduler": SCHEDULER.replace("allocate, ", "")}, r"^stop scheduler: .*does not name the action allocate"),
    "enqueue": ({"scheduler": SCHEDULER.replace('"allocate', '"enqueue, allocate')}, r"^note scheduler: .*action enqueue: a gang larger"),
    "no claim": ({"claim": None}, r"^stop volume: ratchet has no PersistentVolumeClaim shared"),
    "claim unread": ({"claim": Unread("no")}, r"^note volume: not checked: no$"),
    "claim unbound": ({"claim": CLAIM | {"status": {"phase": "Pending"}}}, r"^stop volume: the claim shared is Pending"),
    "claim of one node": (
        {"claim": CLAIM | {"spec": {"accessModes": ["ReadWriteOnce"]}}},
        r"^stop volume: the claim shared is ReadWriteOnce, but service and jobs write to it from several nodes; make it ReadWriteMany",
    ),
    "no secret": ({"secrets": {"reward-api": None}}, r"^stop secrets: ratchet has no Secret reward-api; create it with the key key"),
    "no key": ({"secrets": {"reward-api": frozenset({"kay"})}}, r"^stop secrets: the Secret reward-api lacks the key key"),
    "secret unread": (
        {"secrets": {"reward-api": Unread("no")}},
        r"^note secrets: the Secret reward-api was not checked: no$",
    ),
    "quota": ({"quotas": (quota({"requests.cpu": "100"}, {"requests.cpu": "60"}),)}, r"^stop quota: q leaves 40 of the 64 cpu that rt-"),
    "quota of pods": ({"quotas": (quota({"pods": "1"}),)}, r"^stop quota: q leaves 1 of the 2 pods"),
    "quota of memory": ({"quotas": (quota({"limits.memory": "100Gi"}),)}, r"^stop quota: q leaves 100 GiB of the 512 GiB memory"),
    "limit range": ({"limits": (limits(max={"memory": "64Gi"}),)}, r"^stop limit range: r allows a container at most 64Gi memory"),
    "lower limit": ({"limits": (limits(min={"cpu": "64"}),)}, r"^stop limit range: r allows a container no less than 64 cpu"),
    "no nodes": (
        {"nodes": ()},
        r"^stop nodes: .*has 2 pods, each .* can hold at most 0: there are no nodes; add nodes",
    ),
    "one node": ({"nodes": (node(),)}, r"^stop nodes: .*can hold at most 1: 1 of 1 nodes fit"),
    "nodes not ready": ({"nodes": (node(ready="False"), node(ready="Unknown"))}, r"^stop nodes: .*no node is ready"),
    "nodes cordoned": ({"nodes": (node(unschedulable=True),) * 2}, r"^stop nodes: .*no node is ready"),
    "small nodes": ({"nodes": (node(gpus=4),) * 2}, r"^stop nodes: .*no node offers 8 nvidia.com/gpu \(has 4 nvidia.com/gpu\)"),
    "taints": (
        {"nodes": (node(taints=(TAINT, {"key": "team", "value": "x", "effect": "NoExecute"})),) * 2},
        r"^stop taints: .*the job does not tolerate team=x:NoExecute; add the taint to the profile",
    ),
    "a taint on one": (
        {"nodes": (node(), node(taints=({"key": "team", "effect": "NoSchedule"},)))},
        r"^stop taints: .*can hold at most 1: the job does not tolerate team:NoSchedule",
    ),
    "nodes unread": ({"nodes": Unread("no")}, r"^note nodes: not checked: no$"),
    "refused": ({"refused": ("task worker: no",)}, r"^stop pod template: task worker: no; fix"),
    "no dry runs": (
        {"dry_runs": False},
        r"^stop namespace: there is no namespace ratchet-dry-run, in which .*; apply",
    ),
    "denied": ({"denied_jobs": ("a gang: no",)}, r"^stop admission: a gang: no; apply the output of .* with every line of the namespace"),
}


@pytest.mark.parametrize("name", ONE_FAULT)
def test_each_fault_is_one_finding_of_one_line(name: str) -> None:
    changes, words = ONE_FAULT[name]
    (line,) = said(replace(SOUND, **changes))
    assert re.search(words, line), line
    assert "\n" not in line


@pytest.mark.parametrize(
    "harmless",
    [
        {"nodes": (node(taints=()), node(taints=({"key": "x", "effect": "PreferNoSchedule"},)))},
        {"nodes": (node(taints=(TAINT, {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"})), node())},
        {"quotas": (quota({"requests.cpu": "64", "pods": "2", "services": "0"}),)},
        {"quotas": (quota({"pods": "0"}, scopes=["BestEffort"]),)},
        {"limits": (limits(max={"memory": "256Gi"}, min={"cpu": "1"}),)},
        {"limits": ({"metadata": {"name": "r"}, "spec": {"limits": [{"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}]}},)},
        {"scheduler": 'actions: "allocate, backfill"\ntiers: [{plugins: [{"name": "gang"}]}]'},
    ],
)
def test_harmless_facts_have_no_findings(harmless: dict[str, Any]) -> None:
    assert said(replace(SOUND, **harmless)) == []


def test_with_a_bucket_the_claim_is_not_checked() -> None:
    assert said(replace(SOUND, claim=None), volume=BUCKET) == []
    (line,) = said(replace(SOUND, claim=None, bucket=Unread("cannot read s3://models/x: AccessDenied")), volume=BUCKET)
    assert re.search(r"^stop volume: cannot read s3://models/x: AccessDenied; .*rights to it", line)
    (line,) = said(SOUND, volume={"mount": "/ratchet", "bucket": {"url": "s3://models"}})
    assert re.search(r"^note volume: .*set cluster\.volume\.bucket\.disk", line)


def test_enqueue_stops_where_the_pool_can_be_empty() -> None:
    facts = replace(SOUND, scheduler=SCHEDULER.replace('"allocate', '"enqueue, allocate'), karpenter=True)
    (line,) = said(facts, profile="aws-p5en-efa", pool={"kind": "static"})
    assert line.startswith("stop scheduler: ")


def pool(**changes: Any) -> dict[str, Any]:
    """Return the rendered NodePool of a dynamic pool, for a profile with `changes`."""
    chosen = settings(profile="aws-p5en-efa", pool={"kind": "dynamic", "max_nodes": 2})
    return manifest(dynamic_pool(chosen, load_profile("aws-p5en-efa").model_copy(update=changes)))


def changed(found: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Return a copy of the object with other values in its spec."""
    other = copy.deepcopy(found)
    other["spec"] |= spec
    return other


DYNAMIC: dict[str, Any] = {"profile": "aws-p5en-efa", "pool": {"kind": "dynamic"}}
TAINTED = pool(taints=(*load_profile("aws-p5en-efa").taints, load_profile("aws-p5en-efa").taints[0].model_copy(update={"key": "team"})))


@pytest.mark.parametrize(
    ("pools", "words"),
    [
        ((), r"^stop pool: no NodePool makes nodes for rt-\S+; apply"),
        ((TAINTED,), r"^stop pool: .*\(ratchet-aws-p5en-efa: the job does not tolerate team:NoSchedule\)"),
        (
            (changed(pool(), limits={"nvidia.com/gpu": "8"}),),
            r"limit of nvidia.com/gpu is 8, but the gang's pods request 16 nvidia.com/gpu",
        ),
        ((changed(pool(), limits={"nodes": "1"}),), r"its limit of nodes is 1, .* request 2 nodes"),
        ((changed(pool(), replicas=2),), r"it is static"),
        (Unread("no"), r"^note pool: not checked: no"),
    ],
)
def test_a_dynamic_pool_must_fit_the_gang(pools: Any, words: str) -> None:
    (line,) = said(replace(SOUND, nodes=(), karpenter=True, pools=pools), **DYNAMIC)
    assert re.search(words, line), line


def test_one_fitting_pool_is_enough() -> None:
    assert said(replace(SOUND, nodes=(), karpenter=True, pools=(changed(pool(), replicas=2), pool())), **DYNAMIC) == []


def test_a_pool_needs_its_autoscaler_and_its_node_class() -> None:
    (line,) = said(replace(SOUND, nodes=()), **DYNAMIC)
    assert line.startswith("stop pool: cluster.pool.kind = dynamic, but the server knows no karpenter.sh/v1; install Karpenter")
    facts = replace(SOUND, nodes=(), karpenter=True, node_class=False)
    (line,) = said(facts, profile="aws-p5en-efa", pool={"kind": "static"})
    assert line.startswith("stop pool: the EC2NodeClass that the gang's pool refers to does not exist")


def test_labels_that_no_node_has_are_named() -> None:
    (line,) = said(replace(SOUND, nodes=(node(), node())), profile="gke-a3")
    assert "no node has the labels cloud.google.com/gke-accelerator=nvidia-h100-mega-80gb" in line


def test_all_pods_of_a_ray_gang_count_and_it_needs_its_token() -> None:
    gangs = [gang(spec=job(nodes=2, nemo=True))]
    facts = replace(SOUND, secrets={"reward-api": frozenset({"key"}), "ratchet-ray": frozenset({"tok"})})
    (line,) = said(facts, gangs)
    assert line.startswith("stop secrets: the Secret ratchet-ray lacks the key token")
    (line,) = said(replace(SOUND, nodes=(node(),), secrets=None), gangs)
    assert "has 2 pods, each on a separate node, but the nodes can hold at most 1" in line


def test_findings_that_stop_come_first() -> None:
    facts = replace(SOUND, scheduler=None, queue=None)
    assert [one.level for one in findings(facts, settings(), [gang()])] == ["stop", "note"]
    assert str(Finding("note", "a", "b")) == "note a: b"


class Away:
    """Stand-in for a server that does not respond."""

    def get(self, *_: object) -> None:
        """Raise Retryable, as for an unreachable server."""
        raise Retryable("the API server does not answer")


def site(**changes: Any) -> Site:
    """Return the site of a line on a cluster, with these changes to its settings."""
    chosen = settings(**changes)
    return Site("support", chosen, load_profile(chosen.profile), Path("/fsx/jobs"), Path("/fsx/artifacts"), max_restarts=3)


def test_faults_of_the_settings_are_found_without_a_server() -> None:
    chosen = site(profile="generic-gpu", pool={"kind": "static"}, cap_run=5.0)
    found = [str(one) for one in find_problems(Away(), chosen, [("dpo", job(gpus=16)), ("grpo", "too few GPUs")])]  # type: ignore[arg-type]
    assert [line.split(":")[0] for line in found] == ["stop pool", "stop caps", "stop dpo", "stop grpo", "stop server"]
    assert "too few GPUs" in found[3]


def test_every_finding_is_one_line() -> None:
    (line,) = said(replace(SOUND, unreachable="it says:\n  no\n"))
    assert line.startswith("stop server: it says: no; check")
