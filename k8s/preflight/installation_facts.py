"""Collects the facts that decide whether an installation by the chart can start, and whether one that exists is whole.

`installation_checks.py`, `machine_checks.py` and `release_checks.py` interpret them. Objects that this account may not read are recorded as
such. Of Secrets, the names of the keys are kept, and no value.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Literal

from ratchet.contracts.errors import Fenced, Permanent, Retryable
from ratchet.contracts.jobs.cluster import BucketSettings
from ratchet.contracts.loop import Loop
from ratchet.contracts.schema import unstamped
from ratchet.k8s.api.client import NODE, POD, Cluster, Kind, Object
from ratchet.k8s.manifests.cluster_objects import AccessRule
from ratchet.k8s.manifests.policies import VOLCANO_NAMESPACE, rights, wide_rights
from ratchet.k8s.preflight.chart_values import Values, secret_keys
from ratchet.k8s.preflight.cluster_facts import (
    CLAIM,
    EC2_NODE_CLASS,
    NAMESPACE,
    QUOTA,
    Unread,
    denied_by,
    offers,
    read_or_reason,
    secret_key_names,
)
from ratchet.k8s.profiles.profile import Profile
from ratchet.runtime.bucket import Bucket
from ratchet.runtime.serving.exchange import Exchange, Published

Objects = tuple[Object, ...]
DEPLOYMENT = Kind("apps/v1", "deployments")
DAEMON_SET = Kind("apps/v1", "daemonsets")
SERVICE_ACCOUNT = Kind("v1", "serviceaccounts")
STORAGE_CLASS = Kind("storage.k8s.io/v1", "storageclasses", namespaced=False)
CSI_DRIVER = Kind("storage.k8s.io/v1", "csidrivers", namespaced=False)
GATEWAY = Kind("gateway.networking.k8s.io/v1", "gateways")
GROUPS: dict[str, tuple[str, str]] = {
    "volcano": ("batch.volcano.sh", "v1alpha1"),
    "volcano queues": ("scheduling.volcano.sh", "v1beta1"),
    "gateway": ("gateway.networking.k8s.io", "v1"),
    "karpenter": ("karpenter.sh", "v1"),
    "karpenter aws": ("karpenter.k8s.aws", "v1"),
    "prometheus": ("monitoring.coreos.com", "v1"),
}
"""Name -> API group and version that other software adds to the server."""
MODEL_RIGHTS = (
    AccessRule(api_groups=("apps",), resources=("deployments",), verbs=("get", "list", "create", "patch", "delete")),
    AccessRule(api_groups=("",), resources=("services",), verbs=("get", "create", "patch", "delete")),
    AccessRule(api_groups=("policy",), resources=("poddisruptionbudgets",), verbs=("get", "create", "patch", "delete")),
    AccessRule(api_groups=("networking.k8s.io",), resources=("networkpolicies",), verbs=("get", "create", "patch", "delete")),
    AccessRule(api_groups=("",), resources=("pods",), verbs=("get", "list")),
)
"""Rights of the service over model servers, as the chart grants them (templates/accounts.yaml)."""


@dataclass(frozen=True)
class LineFile:
    """A loop file of the installation, as it was read."""

    name: str
    """Name of the line, or the path of a file that is not valid."""
    loop: Loop | None = None
    profile: Profile | None = None
    """Machine profile of its training jobs, if it has a section [cluster]."""
    problem: str = ""
    """Why the file is not valid, or cannot serve in pods."""


@dataclass(frozen=True)
class Wanted:
    """An installation by the chart, as its values and loop files describe it."""

    release: str
    namespace: str
    values: Values
    """Values of the chart, with its defaults."""
    given: bool
    """Whether values were given. The defaults alone name neither images nor Secrets."""
    app_version: str
    """Tag of the image if the values name none."""
    lines: tuple[LineFile, ...] = ()

    @property
    def line_names(self) -> tuple[str, ...]:
        """Names of the lines in the values, or of the loop files without values."""
        return tuple(str(one["name"]) for one in self.values["lines"]) or tuple(one.name for one in self.lines if one.loop)

    @property
    def models_namespace(self) -> str:
        """Namespace of the model servers."""
        return str(self.values["service"]["modelsNamespace"] or self.namespace)


@dataclass(frozen=True)
class BucketFacts:
    """Answers of a bucket."""

    url: str
    versioning: str | Unread = "Off"
    """Enabled, Suspended or Off."""
    conditional: bool | Unread = True
    """Whether it refuses to write an object again with If-None-Match, and to replace another one with If-Match.

    The test writes one object and deletes it.
    """
    former: str | Unread = ""
    """Why former versions of objects cannot be deleted; empty if they can, or if the store keeps none."""


@dataclass(frozen=True)
class ExchangeFacts:
    """What one line has in the exchange."""

    waiting: int = 0
    oldest: datetime | None = None
    """When the oldest waiting request came."""
    replicas: Mapping[str, datetime] = field(default_factory=dict)
    """Replica of the router that has not ended -> when it told something last."""
    routed: bool = False
    """Whether the service has published a route, which it does when the line has a model."""


@dataclass(frozen=True)
class LedgerFacts:
    """Known facts about the ledger. Its URL is in a Secret, so only a pod or a shell that has it in RATCHET_LEDGER_URL can look."""

    state: Literal["postgres", "other", "away", "unknown"] = "unknown"
    detail: str = ""


@dataclass(frozen=True)
class InstallationFacts:
    """Facts as server, buckets and database reported them. None means that an object does not exist."""

    now: datetime
    unreachable: str = ""
    """Error message if the API server cannot be reached. In that case all facts of the cluster are unknown."""
    version: str = ""
    groups: Mapping[str, bool | Unread] = field(default_factory=dict)
    """Name of GROUPS -> whether the server offers it."""
    namespace: bool | Unread = True
    volcano: Objects | Unread = ()
    """Deployments of Volcano."""
    gateway: Object | Unread | None = None
    classes: Objects | Unread = ()
    """Storage classes."""
    drivers: Objects | Unread = ()
    """CSI drivers."""
    secrets: Mapping[str, frozenset[str] | Unread | None] = field(default_factory=dict)
    """Secret -> names of its keys."""
    nodes: Objects | Unread = ()
    node_classes: Objects | Unread = ()
    """EC2NodeClasses of Karpenter."""
    karpenter: Objects | Unread = ()
    """Deployments with Karpenter's label."""
    daemons: Objects | Unread = ()
    """DaemonSets of all namespaces."""
    pods: Objects | Unread = ()
    """Pods of the release."""
    claims: Objects | Unread = ()
    """Volume claims of the namespace."""
    accounts: Objects | Unread = ()
    """Service accounts of the release's namespace."""
    denied: tuple[str, ...] | Unread = ()
    """Rights that the product uses and this account lacks, as `verb resource`."""
    service_denied: tuple[str, ...] | Unread | None = None
    """The same of the service's account, for model servers; None if the account does not exist."""
    quotas: Objects | Unread = ()
    buckets: Mapping[str, BucketFacts | Unread] = field(default_factory=dict)
    """`exchange` and `artifacts`, if the values name them."""
    exchange: Mapping[str, ExchangeFacts | Unread] = field(default_factory=dict)
    """Line -> its documents in the exchange."""
    ledger: LedgerFacts = LedgerFacts()


def collect_installation(cluster: Cluster, wanted: Wanted, now: datetime, ledger: LedgerFacts) -> InstallationFacts:
    """Collect the facts of the cluster and of the buckets. Only the test of conditional writes changes anything, for a moment."""
    buckets = dict(_buckets(wanted.values))
    exchange = {line: read_or_reason(partial(_of_line, wanted.values, line)) for line in wanted.line_names} if "exchange" in buckets else {}
    try:
        version = cluster.version()
    except (Retryable, Permanent) as error:
        return InstallationFacts(now=now, unreachable=str(error), buckets=buckets, exchange=exchange, ledger=ledger)
    space, release = wanted.namespace, wanted.release
    groups = {name: read_or_reason(partial(offers, cluster, *group)) for name, group in GROUPS.items()}
    gateway = wanted.values["gateway"]
    accounts = _all(cluster, SERVICE_ACCOUNT, space)
    return InstallationFacts(
        now=now,
        buckets=buckets,
        exchange=exchange,
        ledger=ledger,
        version=version,
        groups=groups,
        namespace=read_or_reason(lambda: cluster.get(NAMESPACE, space) is not None),
        volcano=_all(cluster, DEPLOYMENT, VOLCANO_NAMESPACE),
        gateway=read_or_reason(lambda: cluster.get(GATEWAY, gateway["name"], gateway["namespace"] or space)) if gateway["name"] else None,
        classes=_all(cluster, STORAGE_CLASS, None),
        drivers=_all(cluster, CSI_DRIVER, None),
        secrets={
            name: read_or_reason(partial(secret_key_names, cluster, name, space)) for name in secret_keys(wanted.values, wanted.line_names)
        },
        nodes=_all(cluster, NODE, None),
        node_classes=_all(cluster, EC2_NODE_CLASS, None) if groups["karpenter aws"] is True else (),
        karpenter=_all(cluster, DEPLOYMENT, None, {"app.kubernetes.io/name": "karpenter"}) if groups["karpenter"] is True else (),
        daemons=_all(cluster, DAEMON_SET, None),
        pods=_all(cluster, POD, space, {"app.kubernetes.io/name": release}),
        claims=_all(cluster, CLAIM, space),
        accounts=accounts,
        denied=read_or_reason(lambda: tuple(_denied(cluster, wanted))),
        service_denied=_service_denied(cluster, wanted, accounts),
        quotas=_all(cluster, QUOTA, space),
    )


def _all(cluster: Cluster, kind: Kind, namespace: str | None, labels: Mapping[str, str] | None = None) -> Objects | Unread:
    return read_or_reason(lambda: tuple(cluster.list(kind, namespace, labels).items))


def _denied(cluster: Cluster, wanted: Wanted, account: str | None = None) -> Iterator[str]:
    """Yield the rights of the service that this account, or a service account given as NAMESPACE:NAME, does not have."""
    asked: list[tuple[AccessRule, str | None]] = [(rule, wanted.models_namespace) for rule in MODEL_RIGHTS]
    for line in wanted.lines:
        if line.loop is not None and line.loop.cluster is not None:
            asked += [(rule, line.loop.cluster.namespace) for rule in rights()]
            asked += [(rule, None) for rule in wide_rights(line.loop.cluster)]
    for rule, where in dict.fromkeys(asked):
        yield from (f"{word} in {where or 'all namespaces'}" for word in denied_by(cluster, rule, where, account))


def _service_denied(cluster: Cluster, wanted: Wanted, accounts: Objects | Unread) -> tuple[str, ...] | Unread | None:
    name = f"{wanted.release}-service"
    if isinstance(accounts, Unread) or not any(one["metadata"]["name"] == name for one in accounts):
        return None
    return read_or_reason(lambda: tuple(_denied(cluster, wanted, f"{wanted.namespace}:{name}")))


def _buckets(values: Values) -> Iterator[tuple[str, BucketFacts | Unread]]:
    for name in ("exchange", "artifacts"):
        if url := values["bucket"][name]:
            yield name, read_or_reason(partial(_probe, str(url), values["bucket"]["endpoint"] or None, values["bucket"]["region"] or None))


def _probe(url: str, endpoint: str | None, region: str | None) -> BucketFacts:
    try:
        bucket = Bucket(BucketSettings(url=url, endpoint=endpoint, region=region))
    except ValueError:
        raise Permanent(f"{url} is not a URL of the form s3://BUCKET/PREFIX") from None
    bucket.get("of-no-importance")
    key = f"doctor/{secrets.token_hex(8)}"
    conditional = read_or_reason(partial(_refuses_a_second_write, bucket, key))
    former = read_or_reason(lambda: bucket.delete_former(key, lambda _: True).left)
    return BucketFacts(url, read_or_reason(bucket.versioning), conditional, former)


def _refuses_a_second_write(bucket: Bucket, key: str) -> bool:
    try:
        bucket.put_new(key, b"first")
        bucket.put_new(key, b"second")
        bucket.put_in_term(key, b"third", 2)
        with suppress(Fenced):
            bucket.put_in_term(key, b"fourth", 1)
        return bucket.get(key) == b"third" and not _replaces_another(bucket, key)
    finally:
        bucket.delete(key)


def _replaces_another(bucket: Bucket, key: str) -> bool:
    """Return whether the store replaces an object that has another content than the writer has read."""
    with suppress(Retryable):
        bucket.put_in_term(key, b"fifth", 3, tag='"0"')
        return True
    return False


def _of_line(values: Values, line: str) -> ExchangeFacts:
    place: dict[str, Any] = values["bucket"]
    exchange = Exchange(place["exchange"], place["endpoint"] or None, place["region"] or None)
    waiting, oldest = exchange.backlog(line)
    told = {name: at for name, (account, at) in exchange.reports(line).items() if not _has_ended(account)}
    return ExchangeFacts(waiting, oldest, told, exchange.published(line, Published.ROUTE) is not None)


def _has_ended(account: bytes) -> bool:
    try:
        return bool(unstamped(account, "account of a replica")["ended"])
    except (ValueError, LookupError, TypeError, Permanent):
        return False  # an account that cannot be read counts as one of a replica that exists
