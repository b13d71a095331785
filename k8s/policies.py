"""Who may do what in a line's namespace: its pod-security level, the two service accounts and their rights, and which pods may speak to
which. Knows rights; refuses to know jobs. What one gang needs between its own pods, its executor opens for as long as it lives.
"""

from __future__ import annotations

from typing import Literal

from contracts.cluster import ClusterSettings
from k8s.cluster_objects import (
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
    Rule,
    Selector,
    ServiceAccount,
    Subject,
)
from k8s.gang import PART_OF, RATCHET
from k8s.objects import Meta, Shape
from k8s.profile import Profile

CONTROLLER, JOB_ACCOUNT = "ratchet-controller", "ratchet-job"
VOLCANO_NAMESPACE, SCHEDULER_CONFIG, SCHEDULER_KEY = "volcano-system", "volcano-scheduler-configmap", "volcano-scheduler.conf"
"""Where a Volcano that was installed as its project describes keeps its scheduler's configuration."""
COMPONENT = "app.kubernetes.io/component"
SERVICE = {**RATCHET, COMPONENT: "service"}
"""Labels of the pods of our own service, where it runs in the cluster."""
DNS_PORT = 53
NODE_LOCAL_DNS = "169.254.20.10/32"

Level = Literal["restricted", "baseline", "privileged"]


def security_level(settings: ClusterSettings, profile: Profile) -> Level:
    """The strictest pod-security level that admits the profile's pods. Baseline lies between, but none of our needs ends there:
    host paths, the host's network and capabilities such as IPC_LOCK are all beyond it; being root alone is not."""
    if profile.privileged or profile.host_network or profile.mounts or profile.capabilities or settings.volume.host_path:
        return "privileged"
    return "baseline" if profile.root else "restricted"


def namespace(settings: ClusterSettings, profile: Profile) -> Namespace:
    level = security_level(settings, profile)
    words = {f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "warn")}
    return Namespace(metadata=Meta(name=settings.namespace, labels={**RATCHET, **words, "pod-security.kubernetes.io/audit": "restricted"}))


def accounts(settings: ClusterSettings) -> tuple[ServiceAccount, ServiceAccount]:
    """Our service's, and the jobs', which has no right and no token."""
    return (
        ServiceAccount(metadata=_meta(CONTROLLER, settings.namespace), automount_service_account_token=True),
        ServiceAccount(metadata=_meta(JOB_ACCOUNT, settings.namespace), automount_service_account_token=False),
    )


def rights() -> tuple[Rule, ...]:
    """Of our service, in its namespace. It may not read Secrets."""
    return (
        _rule("batch.volcano.sh", ("jobs",), "create", "get", "list", "watch", "delete"),
        _rule("scheduling.volcano.sh", ("podgroups",), "get", "list", "watch"),
        # `create` is for trying a pod template with a dry run. Rights do not tell a dry run from a real one, so it could make pods, too.
        _rule("", ("pods",), "create", "get", "list", "watch", "delete"),
        _rule("", ("pods/log",), "get"),
        _rule("", ("events",), "get", "list", "watch"),
        _rule("networking.k8s.io", ("networkpolicies",), "create", "get", "list", "patch", "delete"),
        _rule("", ("persistentvolumeclaims", "resourcequotas", "limitranges", "serviceaccounts"), "get", "list"),
    )


def wide_rights(settings: ClusterSettings) -> tuple[Rule, ...]:
    """Of our service, over the whole cluster: it looks at nodes and queues; a pool's nodes it may also give back, and static pools are its
    own to make."""
    found = [_rule("", ("nodes",), "get", "list", "watch"), _rule("scheduling.volcano.sh", ("queues",), "get", "list", "watch")]
    if settings.pool.kind != "none":
        found.append(_rule("", ("pods",), "list"))  # of all namespaces: a node that runs somebody's pod is not idle
        found.append(_rule("karpenter.sh", ("nodeclaims",), "get", "list", "watch", "delete"))
        own = ("create", "patch", "delete") if settings.pool.kind == "static" else ()
        found.append(_rule("karpenter.sh", ("nodepools",), "get", "list", "watch", *own))
    return tuple(found)


def roles(settings: ClusterSettings) -> tuple[Shape, ...]:
    """Rights and what gives them to our service. The cluster-wide ones are named by the namespace: two installations are two grants."""
    wide = f"{CONTROLLER}-{settings.namespace}"
    conf = (Rule(api_groups=("",), resources=("configmaps",), resource_names=(SCHEDULER_CONFIG,), verbs=("get",)),)
    return (
        Role(kind="Role", metadata=_meta(CONTROLLER, settings.namespace), rules=rights()),
        _bind(settings, "Role", CONTROLLER, settings.namespace),
        Role(kind="ClusterRole", metadata=_meta(wide, None), rules=wide_rights(settings)),
        _bind(settings, "ClusterRole", wide, None),
        Role(kind="Role", metadata=_meta(wide, VOLCANO_NAMESPACE), rules=conf),
        _bind(settings, "Role", wide, VOLCANO_NAMESPACE),
    )


def network(settings: ClusterSettings) -> tuple[NetworkPolicy, ...]:
    """Nothing to nothing, then names, then our own service outwards. Volumes are the nodes' traffic, which policies do not touch."""
    names = Egress(
        to=(
            Peer(namespace_selector=Selector(), pod_selector=Selector(match_labels={"k8s-app": "kube-dns"})),
            Peer(ip_block=IpBlock(cidr=NODE_LOCAL_DNS)),
        ),
        ports=(PolicyPort(protocol="UDP", port=DNS_PORT), PolicyPort(port=DNS_PORT)),
    )
    return (
        _policy(settings, "ratchet-deny", NetworkPolicySpec(pod_selector=Selector(), policy_types=("Ingress", "Egress"))),
        _policy(settings, "ratchet-names", NetworkPolicySpec(pod_selector=Selector(), policy_types=("Egress",), egress=(names,))),
        _policy(
            settings,
            "ratchet-service",
            NetworkPolicySpec(pod_selector=Selector(match_labels=SERVICE), policy_types=("Egress",), egress=(Egress(),)),
        ),
    )


def open_server(settings: ClusterSettings, name: str, labels: dict[str, str], port: int) -> tuple[NetworkPolicy, NetworkPolicy]:
    """A server of ours is reached by our own pods: its door, and their way to it."""
    ports = (PolicyPort(port=port),)
    ours, its = Selector(match_labels={PART_OF: RATCHET[PART_OF]}), Selector(match_labels=labels)
    door = NetworkPolicySpec(
        pod_selector=its, policy_types=("Ingress",), ingress=(Ingress(sources=(Peer(pod_selector=ours),), ports=ports),)
    )
    way = NetworkPolicySpec(pod_selector=ours, policy_types=("Egress",), egress=(Egress(to=(Peer(pod_selector=its),), ports=ports),))
    return _policy(settings, name, door), _policy(settings, f"to-{name}", way)


def _policy(settings: ClusterSettings, name: str, spec: NetworkPolicySpec) -> NetworkPolicy:
    return NetworkPolicy(metadata=_meta(name, settings.namespace), spec=spec)


def _rule(group: str, resources: tuple[str, ...], *verbs: str) -> Rule:
    return Rule(api_groups=(group,), resources=resources, verbs=verbs)


def _bind(settings: ClusterSettings, kind: Literal["Role", "ClusterRole"], name: str, where: str | None) -> RoleBinding:
    return RoleBinding(
        kind="RoleBinding" if kind == "Role" else "ClusterRoleBinding",
        metadata=_meta(name, where),
        role_ref=RoleRef(kind=kind, name=name),
        subjects=(Subject(name=CONTROLLER, namespace=settings.namespace),),
    )


def _meta(name: str, where: str | None) -> Meta:
    return Meta(name=name, namespace=where, labels=dict(RATCHET))
