"""Access rules of a line's namespace: pod-security level, service accounts and their rights, and allowed network traffic.

This module does not depend on jobs. The executor allows the traffic between the pods of one gang, for the lifetime of the gang.
"""

from __future__ import annotations

from typing import Literal

from ratchet.contracts.jobs.cluster import ClusterSettings
from ratchet.k8s.manifests.cluster_objects import (
    AccessRule,
    Egress,
    Ingress,
    IpBlock,
    Namespace,
    NetworkPolicy,
    NetworkPolicySpec,
    Peer,
    PolicyPort,
    Role,
    RoleBinding,
    RoleRef,
    Selector,
    ServiceAccount,
    Subject,
)
from ratchet.k8s.manifests.gang_manifest import PART_OF, RATCHET
from ratchet.k8s.manifests.pod_objects import Meta, Shape
from ratchet.k8s.profiles.profile import Profile

RENDER = "apply the output of `ratchet k8s render --admin`"
"""Remedy for objects that an administrator applies."""
CONTROLLER, JOB_ACCOUNT = "ratchet-controller", "ratchet-job"
VOLCANO_NAMESPACE, SCHEDULER_CONFIG, SCHEDULER_KEY = "volcano-system", "volcano-scheduler-configmap", "volcano-scheduler.conf"
"""Location of the scheduler's configuration in a default installation of Volcano."""
COMPONENT = "app.kubernetes.io/component"
MODEL_SERVER = "model"
"""Component of the model servers of versions."""
SERVICE = {**RATCHET, COMPONENT: "service"}
"""Labels of the service's own pods, if it runs in the cluster."""
DNS_PORT = 53
NODE_LOCAL_DNS = "169.254.20.10/32"

SYSTEM_NAMESPACE = "kube-system"
"""Namespace of the cluster's DNS servers."""

Level = Literal["restricted", "baseline", "privileged"]


def security_level(settings: ClusterSettings, profile: Profile) -> Level:
    """Return the strictest pod-security level that admits the profile's pods.

    Root alone needs `baseline`, and so do pods on NeMo RL, which run as root. Host paths, the host's network, privileged pods and extra
    capabilities such as IPC_LOCK need `privileged`.
    """
    if profile.privileged or profile.host_network or profile.mounts or profile.capabilities or settings.volume.host_path:
        return "privileged"
    return "baseline" if profile.root or settings.nemo_image else "restricted"


def dry_run_namespace(settings: ClusterSettings) -> str:
    """Return the namespace in which pod templates are tried. It holds no Secrets and never stores a pod (see `admission.py`)."""
    return f"{settings.namespace}-dry-run"


def namespaces(settings: ClusterSettings, profile: Profile) -> tuple[Namespace, Namespace]:
    """Return the line's namespace and the one for dry runs, both with the same pod-security labels."""
    level = security_level(settings, profile)
    mode_labels = {f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "warn")}
    labels = {**RATCHET, **mode_labels, "pod-security.kubernetes.io/audit": "restricted"}
    return Namespace(metadata=Meta(name=settings.namespace, labels=labels)), Namespace(
        metadata=Meta(name=dry_run_namespace(settings), labels=labels)
    )


def service_account(settings: ClusterSettings) -> tuple[str, str]:
    """Return namespace and name of the service's account."""
    namespace, _, name = (settings.account or f"{settings.namespace}/{CONTROLLER}").partition("/")
    return namespace, name


def controller_account(settings: ClusterSettings) -> ServiceAccount:
    """Return the account of the service, for installations in which no other system creates it."""
    return ServiceAccount(metadata=_meta(CONTROLLER, settings.namespace), automount_service_account_token=True)


def job_accounts(settings: ClusterSettings) -> tuple[ServiceAccount, ServiceAccount]:
    """Return the account of the jobs, which has no rights and no token, and its copy for dry runs."""
    return (
        ServiceAccount(metadata=_meta(JOB_ACCOUNT, settings.namespace), automount_service_account_token=False),
        ServiceAccount(metadata=_meta(JOB_ACCOUNT, dry_run_namespace(settings)), automount_service_account_token=False),
    )


def rights() -> tuple[AccessRule, ...]:
    """Return the rules of the service in its namespace. They do not include access to Secrets."""
    return (
        _rule("batch.volcano.sh", ("jobs",), "create", "get", "list", "watch", "delete"),
        _rule("scheduling.volcano.sh", ("podgroups",), "get", "list", "watch"),
        _rule("bus.volcano.sh", ("commands",), "create"),
        _rule("", ("pods",), "get", "list", "watch", "delete"),
        _rule("", ("pods/log",), "get"),
        _rule("", ("events",), "get", "list", "watch"),
        _rule("networking.k8s.io", ("networkpolicies",), "create", "get", "list", "patch", "delete"),
        _rule("", ("persistentvolumeclaims", "resourcequotas", "limitranges", "serviceaccounts"), "get", "list"),
    )


def dry_run_rights() -> tuple[AccessRule, ...]:
    """Return the rules of the service in the namespace for dry runs. RBAC cannot distinguish a dry run; admission does."""
    return (_rule("", ("pods",), "create"),)


def wide_rights(settings: ClusterSettings) -> tuple[AccessRule, ...]:
    """Return the cluster-wide rules of the service.

    It reads nodes and queues. With a pool it also reads the pods of all namespaces and may delete NodeClaims. With static pools it may
    also create, change and delete NodePools.
    """
    found = [_rule("", ("nodes",), "get", "list", "watch"), _rule("scheduling.volcano.sh", ("queues",), "get", "list", "watch")]
    if settings.pool.karpenter:
        found.append(_rule("", ("pods",), "list"))  # in all namespaces, because a node with any other pod is not idle
        found.append(_rule("karpenter.sh", ("nodeclaims",), "get", "list", "watch", "delete"))
        own = ("create", "patch", "delete") if settings.pool.kind == "static" else ()
        found.append(_rule("karpenter.sh", ("nodepools",), "get", "list", "watch", *own))
    return tuple(found)


def roles(settings: ClusterSettings) -> tuple[Shape, ...]:
    """Return the service's roles and role bindings.

    Names of cluster-wide objects contain the namespace, so that two installations do not share a grant.
    """
    wide = f"{CONTROLLER}-{settings.namespace}"
    conf = (AccessRule(api_groups=("",), resources=("configmaps",), resource_names=(SCHEDULER_CONFIG,), verbs=("get",)),)
    return (
        Role(kind="Role", metadata=_meta(CONTROLLER, settings.namespace), rules=rights()),
        _bind(settings, "Role", CONTROLLER, settings.namespace),
        Role(kind="Role", metadata=_meta(CONTROLLER, dry_run_namespace(settings)), rules=dry_run_rights()),
        _bind(settings, "Role", CONTROLLER, dry_run_namespace(settings)),
        Role(kind="ClusterRole", metadata=_meta(wide, None), rules=wide_rights(settings)),
        _bind(settings, "ClusterRole", wide, None),
        Role(kind="Role", metadata=_meta(wide, VOLCANO_NAMESPACE), rules=conf),
        _bind(settings, "Role", wide, VOLCANO_NAMESPACE),
    )


def network(settings: ClusterSettings) -> tuple[NetworkPolicy, NetworkPolicy]:
    """Return the namespace's network policies: deny all traffic, and allow DNS.

    Network policies do not apply to volumes, because the nodes mount them.
    """
    names = Egress(
        to=(
            Peer(
                namespace_selector=Selector(match_labels={"kubernetes.io/metadata.name": SYSTEM_NAMESPACE}),
                pod_selector=Selector(match_labels={"k8s-app": "kube-dns"}),
            ),
            Peer(ip_block=IpBlock(cidr=NODE_LOCAL_DNS)),
        ),
        ports=(PolicyPort(protocol="UDP", port=DNS_PORT), PolicyPort(port=DNS_PORT)),
    )
    return (
        _policy(settings.namespace, "ratchet-deny", NetworkPolicySpec(pod_selector=Selector(), policy_types=("Ingress", "Egress"))),
        _policy(settings.namespace, "ratchet-names", NetworkPolicySpec(pod_selector=Selector(), policy_types=("Egress",), egress=(names,))),
    )


def service_network(settings: ClusterSettings) -> NetworkPolicy:
    """Return the network policy that allows all outgoing traffic of the service's pods, for installations without the chart."""
    spec = NetworkPolicySpec(pod_selector=Selector(match_labels=SERVICE), policy_types=("Egress",), egress=(Egress(),))
    return _policy(settings.namespace, "ratchet-service", spec)


def open_server(namespace: str, name: str, labels: dict[str, str], port: int) -> tuple[NetworkPolicy, NetworkPolicy]:
    """Return two policies that allow traffic from Ratchet's pods to a server: ingress at the server and egress at the pods."""
    ports = (PolicyPort(port=port),)
    ours, its = Selector(match_labels={PART_OF: RATCHET[PART_OF]}), Selector(match_labels=labels)
    door = NetworkPolicySpec(
        pod_selector=its, policy_types=("Ingress",), ingress=(Ingress(sources=(Peer(pod_selector=ours),), ports=ports),)
    )
    way = NetworkPolicySpec(pod_selector=ours, policy_types=("Egress",), egress=(Egress(to=(Peer(pod_selector=its),), ports=ports),))
    return _policy(namespace, name, door), _policy(namespace, f"to-{name}", way)


def _policy(namespace: str, name: str, spec: NetworkPolicySpec) -> NetworkPolicy:
    return NetworkPolicy(metadata=_meta(name, namespace), spec=spec)


def _rule(group: str, resources: tuple[str, ...], *verbs: str) -> AccessRule:
    return AccessRule(api_groups=(group,), resources=resources, verbs=verbs)


def _bind(settings: ClusterSettings, kind: Literal["Role", "ClusterRole"], name: str, where: str | None) -> RoleBinding:
    namespace, account = service_account(settings)
    return RoleBinding(
        kind="RoleBinding" if kind == "Role" else "ClusterRoleBinding",
        metadata=_meta(name, where),
        role_ref=RoleRef(kind=kind, name=name),
        subjects=(Subject(name=account, namespace=namespace),),
    )


def _meta(name: str, where: str | None) -> Meta:
    return Meta(name=name, namespace=where, labels=dict(RATCHET))
