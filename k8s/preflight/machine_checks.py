"""Items about nodes, pools, network policies, rights and quotas, for `ratchet k8s doctor`. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, Literal

from ratchet.k8s.api.quantities import parse
from ratchet.k8s.manifests.policies import RENDER
from ratchet.k8s.preflight.chart_values import requested
from ratchet.k8s.preflight.cluster_facts import Unread
from ratchet.k8s.preflight.installation_facts import InstallationFacts, Wanted
from ratchet.k8s.preflight.items import INSTALL_PAGE, Item, missing, ok, unknown

_POLICY_ENGINES = re.compile(r"calico|cilium|anetd|antrea|weave-net|kube-router|ovnkube|canal")
"""DaemonSets that enforce network policies. GKE's Dataplane V2 is `anetd`."""


def about_machines(facts: InstallationFacts, wanted: Wanted) -> Iterator[Item]:
    """Yield the items about machines, and about the rights and quotas of this account and of the pods."""
    yield from _nodes(facts, wanted)
    yield from _pools(facts, wanted)
    yield from _network_policies(facts, wanted)
    yield from _rights(facts, wanted)
    yield from _quota(facts, wanted)
    yield from _monitoring(facts, wanted)
    yield from _outside(wanted)


def offered(facts: InstallationFacts, *names: str) -> Literal["yes", "no", "unknown"]:
    """Return whether the API server offers all of these groups (GROUPS)."""
    states = [facts.groups.get(name, Unread("")) for name in names]
    return "no" if False in states else "unknown" if any(isinstance(one, Unread) for one in states) else "yes"


def _nodes(facts: InstallationFacts, wanted: Wanted) -> Iterator[Item]:
    for line in wanted.lines:
        profile, loop = line.profile, line.loop
        if profile is None or loop is None or loop.cluster is None:
            continue
        about = f"nodes of {line.name}"
        asked = {profile.gpu_resource: str(profile.gpus)} if profile.gpus else {}
        asked |= profile.resources
        if isinstance(facts.nodes, Unread):
            yield unknown(about, f"this account may not look: {facts.nodes}")
            continue
        fitting = [one for one in facts.nodes if _has(one, asked, profile.labels)]
        what = ", ".join(f"{amount} {name}" for name, amount in asked.items()) or "any resources"
        if len(fitting) >= loop.training.nodes:
            yield ok(about, f"{len(fitting)} nodes offer {what}")
        elif loop.cluster.pool.kind != "none":
            maker = "Karpenter" if loop.cluster.pool.karpenter else "GKE"
            yield unknown(
                about,
                f"{len(fitting)} of {loop.training.nodes} nodes offer {what}; {maker} makes the others, if it can",
                f"ratchet k8s lint {line.name}",
            )
        else:
            yield missing(
                about, f"{len(fitting)} of {loop.training.nodes} nodes offer {what}",
                f"kubectl describe nodes; add nodes, or install the device plug-in of {profile.gpu_resource}",
            )  # fmt: skip


def _has(node: dict[str, Any], asked: dict[str, str], labels: dict[str, str]) -> bool:
    room, carried = node.get("status", {}).get("allocatable", {}), node["metadata"].get("labels", {})
    if any(carried.get(name) != value for name, value in labels.items()):
        return False
    return all(parse(room.get(name, "0")) >= parse(amount) for name, amount in asked.items())


def _pools(facts: InstallationFacts, wanted: Wanted) -> Iterator[Item]:
    pools = [line.loop.cluster.pool for line in wanted.lines if line.loop is not None and line.loop.cluster is not None]
    if not any(pool.karpenter for pool in pools):
        return
    if offered(facts, "karpenter") == "no":
        yield missing("Karpenter", "its resource definitions are missing", "https://karpenter.sh/docs/getting-started/")
        return
    if any(pool.kind == "static" for pool in pools):
        yield _static_capacity(facts)
    for one in () if isinstance(facts.node_classes, Unread) else facts.node_classes:
        name = one["metadata"]["name"]
        for state in one.get("status", {}).get("conditions") or ():
            if state["type"] != "Ready" and state["status"] == "False":
                yield missing(
                    f"EC2NodeClass {name}", f"{state['type']}: {state.get('message', '')}", f"kubectl describe ec2nodeclass {name}"
                )
        if any(state["type"] == "Ready" and state["status"] == "True" for state in one.get("status", {}).get("conditions") or ()):
            yield ok(f"EC2NodeClass {name}", "image, subnets, security groups and role were found")


def _static_capacity(facts: InstallationFacts) -> Item:
    about, how = "Karpenter's feature gate", "helm upgrade karpenter … --reuse-values --set settings.featureGates.staticCapacity=true"
    if isinstance(facts.karpenter, Unread) or not facts.karpenter:
        return unknown(about, "Karpenter's Deployment was not found, or this account may not look", how)
    for one in facts.karpenter:
        for container in one["spec"]["template"]["spec"]["containers"]:
            for variable in container.get("env") or ():
                if variable["name"] == "FEATURE_GATES" and "staticcapacity=true" in str(variable.get("value", "")).lower():
                    return ok(about, "StaticCapacity is on")
    return missing(about, 'cluster.pool.kind = "static" needs StaticCapacity, which is off', how)


def _network_policies(facts: InstallationFacts, wanted: Wanted) -> Iterator[Item]:
    if not wanted.values["networkPolicies"]["enabled"]:
        return
    about = "network policies"
    if isinstance(facts.daemons, Unread):
        yield unknown(about, f"this account may not look at DaemonSets: {facts.daemons}")
        return
    found = [one["metadata"]["name"] for one in facts.daemons if _POLICY_ENGINES.search(one["metadata"]["name"]) or _is_enforcing_vpc(one)]
    if found:
        yield ok(about, f"enforced by {', '.join(found)}")
    else:
        yield unknown(
            about, "no known engine enforces them; without one they have no effect",
            "docs/kubernetes/first-day-eks.md and first-day-gke.md",
        )  # fmt: skip


def _is_enforcing_vpc(daemon: dict[str, Any]) -> bool:
    """Return whether this is Amazon's VPC CNI with its policy agent switched on."""
    for container in daemon["spec"]["template"]["spec"]["containers"]:
        if container["name"] == "aws-eks-nodeagent" and "--enable-network-policy=true" in (container.get("args") or ()):
            return True
    return False


def _rights(facts: InstallationFacts, wanted: Wanted) -> Iterator[Item]:
    if isinstance(facts.denied, Unread):
        yield unknown("rights of this account", f"the server does not say: {facts.denied}")
    elif facts.denied:
        yield missing(
            "rights of this account", f"it may not {', '.join(facts.denied)}", f"{RENDER}, and use an account with its role", stops=False
        )
    else:
        yield ok("rights of this account", "all that the product uses")
    about = f"rights of {wanted.release}-service"
    if isinstance(facts.accounts, Unread):
        yield unknown("service accounts", f"this account may not look: {facts.accounts}")
    elif facts.service_denied is None:
        yield unknown(about, "the account does not exist; `helm install` makes it")
    elif isinstance(facts.service_denied, Unread):
        yield unknown(about, f"this account may not ask about others: {facts.service_denied}")
    elif facts.service_denied:
        yield missing(
            about,
            f"it may not {', '.join(facts.service_denied)}",
            f"helm upgrade {wanted.release} k8s/chart -n {wanted.namespace} --values values.yaml, for model servers; for training jobs set "
            f'cluster.account = "{wanted.namespace}/{wanted.release}-service" in the loop file, and {RENDER}',
        )
    else:
        yield ok(about, "all that model servers and training jobs need")
    names = set() if isinstance(facts.accounts, Unread) else {one["metadata"]["name"] for one in facts.accounts}
    bare = [part for part in ("service", "router", "receiver", "model") if not wanted.values["accounts"][part]]
    if bare and not wanted.values["bucket"]["secret"] and wanted.given:
        yield missing(
            "roles of the service accounts", f"bucket.secret is empty, and accounts.{', accounts.'.join(bare)} has no annotation of a role",
            "eksctl create iamserviceaccount, or a Workload Identity binding; then set accounts.*; or set bucket.secret", stops=False,
        )  # fmt: skip
    elif names and wanted.given:
        yield ok(
            "service accounts", ", ".join(sorted(name for name in names if name.startswith(wanted.release))) or "none of the release yet"
        )


def _quota(facts: InstallationFacts, wanted: Wanted) -> Iterator[Item]:
    if isinstance(facts.quotas, Unread):
        yield unknown("quota", f"this account may not look: {facts.quotas}")
        return
    try:
        asked = requested(wanted.values)
    except ValueError as error:
        yield missing("quota", f"a value is not a quantity: {error}", "k8s/chart/values.yaml")
        return
    installed = bool(facts.pods) and not isinstance(facts.pods, Unread)
    for quota in facts.quotas:
        name, hard = quota["metadata"]["name"], quota.get("status", {}).get("hard") or quota["spec"].get("hard", {})
        used = {} if installed else quota.get("status", {}).get("used", {})
        for resource, amount in hard.items():
            rest = parse(amount) - parse(used.get(resource, "0"))
            if asked.get(resource, Fraction(0)) > rest:
                yield missing(
                    "quota",
                    f"{name} leaves {float(rest):g} of the {float(asked[resource]):g} {resource} that the pods request",
                    f"kubectl edit resourcequota {name} -n {wanted.namespace}",
                )
                return
    yield ok("quota", f"{len(facts.quotas)} of them, with room for the pods of the chart" if facts.quotas else "none in the namespace")


def _monitoring(facts: InstallationFacts, wanted: Wanted) -> Iterator[Item]:
    if wanted.values["monitoring"]["serviceMonitor"] and offered(facts, "prometheus") == "no":
        yield missing(
            "monitoring", "the server knows no ServiceMonitor", "install the Prometheus operator, or set monitoring.serviceMonitor to false"
        )


def _outside(wanted: Wanted) -> Iterator[Item]:
    """Yield the items that no request to the cluster can show."""
    reserved = [line.name for line in wanted.lines if line.profile is not None and line.profile.provider == "aws"]
    if reserved:
        yield unknown(
            "capacity on AWS",
            "the quota of EC2 and reservations are not visible here",
            "aws ec2 describe-capacity-reservations; aws service-quotas list-service-quotas --service-code ec2",
        )
    if any(line.profile is not None and line.profile.provider == "gke" for line in wanted.lines):
        yield unknown("capacity on Google Cloud", "quota and reservations are not visible here", "gcloud compute reservations list")
    yield unknown("licence of the base model", "only a person can accept it", f"{INSTALL_PAGE}, step 6")
