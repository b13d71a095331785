"""Tests of the list of the first day, from facts to items, without a cluster."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import resources
from typing import Any

import pytest
import yaml

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.loop import Loop
from ratchet.k8s.preflight.chart_values import image_of, merged, requested, secret_keys, service_target
from ratchet.k8s.preflight.cluster_facts import Unread
from ratchet.k8s.preflight.installation_facts import (
    GROUPS,
    MODEL_RIGHTS,
    BucketFacts,
    ExchangeFacts,
    InstallationFacts,
    LedgerFacts,
    LineFile,
    Wanted,
    collect_installation,
)
from ratchet.k8s.preflight.items import Item
from ratchet.k8s.preflight.release_checks import checklist
from ratchet.k8s.profiles.profile import load_profile
from tests.memory_cluster import MemoryCluster
from tests.s3 import S3
from tests.unit.k8s.preflight.test_checks import node
from tests.unit.k8s.samples import BUCKET, settings

NOW = datetime(2026, 9, 1, 12, tzinfo=UTC)
CHART = resources.files("ratchet.k8s") / "chart"
GIVEN: dict[str, Any] = {
    "image": {"repository": "registry.example/team/ratchet", "digest": f"sha256:{'ab' * 32}"},
    "lines": [{"name": "support", "routerPort": 8080, "receiverPort": 4318, "loop": "…"}],
    "bucket": {"exchange": "s3://exchange/x", "artifacts": "s3://artifacts/a", "secret": "bucket"},
    "ledger": {"secret": "db"},
    "prefect": {"secret": "login", "database": {"secret": "db", "key": "prefect"}},
    "gateway": {"name": "web", "namespace": "gateways"},
    "service": {"secrets": {"KEY": "judge/key"}},
}


def values(**changes: Any) -> dict[str, Any]:
    return merged(yaml.safe_load((CHART / "values.yaml").read_text()), {**GIVEN, **changes})


def loop(**changes: Any) -> Loop:
    given = {
        "line": {"name": "support", "served_model": "support"},
        "sources": [{"name": "receiver", "kind": "receiver"}],
        "rewards": [{"name": "exact_match"}],
        "training": {"methods": ["dpo"], "nodes": 2, "gpus": 8},
        "cluster": settings(nemo_image=None).model_dump(),
        "serving": {"kind": "kubernetes", "router": "kubernetes", "options": {"image": "vllm/vllm-openai:v1", "fetch_image": "ratchet:1"}},
    }
    return Loop.model_validate(given | changes)


def wanted(given: bool = True, line: LineFile | None = None, **changes: Any) -> Wanted:
    file = line or LineFile("support", loop(), load_profile("generic-gpu"))
    return Wanted("prod", "ratchet", values(**changes) if given else merged(values(), {}), given, "0.1.0", (file,))


def pod(part: str, name: str, ready: str = "True", **status: Any) -> dict[str, Any]:
    labels = {"app.kubernetes.io/component": part}
    return {"metadata": {"name": name, "labels": labels}, "status": {"conditions": [{"type": "Ready", "status": ready}], **status}}


def claim(name: str, mode: str = "ReadWriteOncePod") -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"accessModes": [mode]}, "status": {"phase": "Bound"}}


def daemon(name: str, container: str = "c", *arguments: str) -> dict[str, Any]:
    spec = {"containers": [{"name": container, "args": list(arguments)}]}
    return {"metadata": {"name": name}, "spec": {"template": {"spec": spec}}}


def storage(name: str, provisioner: str, usual: bool) -> dict[str, Any]:
    mark = {"storageclass.kubernetes.io/is-default-class": str(usual).lower()}
    return {"metadata": {"name": name, "annotations": mark}, "provisioner": provisioner}


def gateway(programmed: str = "True", routes: str = "All") -> dict[str, Any]:
    listeners = [{"allowedRoutes": {"namespaces": {"from": routes}}}]
    return {"spec": {"listeners": listeners}, "status": {"conditions": [{"type": "Programmed", "status": programmed, "message": "no"}]}}


SOUND = InstallationFacts(
    now=NOW,
    version="v1.35.0",
    groups=dict.fromkeys(GROUPS, True),
    volcano=({"metadata": {"name": "volcano-scheduler"}, "status": {"readyReplicas": 1}},),
    gateway=gateway(),
    classes=(storage("gp3", "ebs.csi.aws.com", usual=True),),
    drivers=({"metadata": {"name": "ebs.csi.aws.com"}},),
    secrets={
        "bucket": frozenset({"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}),
        "db": frozenset({"url", "prefect"}),
        "login": frozenset({"auth"}),
        "judge": frozenset({"key"}),
        "ratchet-keys": frozenset({"user-keys.json", "anchor.key", "support.router", "support.span-keys.json"}),
    },
    nodes=(node("a"), node("b")),
    daemons=(daemon("calico-node"),),
    pods=(pod("service", "prod-service-0"), pod("router", "prod-router-0")),
    claims=(claim("shared", "ReadWriteMany"), claim("state-prod-router-0")),
    accounts=({"metadata": {"name": "prod-service"}},),
    service_denied=(),
    buckets={"exchange": BucketFacts("s3://exchange/x"), "artifacts": BucketFacts("s3://artifacts/a", "Enabled")},
    exchange={"support": ExchangeFacts(0, None, {"prod-router-0": NOW}, routed=True)},
    ledger=LedgerFacts("postgres", "Postgres 16.2 answers"),
)


def items(facts: InstallationFacts, given: bool = True, line: LineFile | None = None, **changes: Any) -> list[Item]:
    return checklist(facts, wanted(given, line, **changes))


def test_nothing_is_missing_in_a_sound_installation() -> None:
    assert [one for one in items(SOUND) if one.state == "missing"] == []
    assert {one.about for one in items(SOUND) if one.state == "unknown"} == {"Volcano's queue", "licence of the base model"}


ONE_FAULT: dict[str, tuple[dict[str, Any], str, str, bool]] = {
    "no server": ({"unreachable": "it does not answer"}, "API server", "it does not answer", True),
    "an old server": ({"version": "v1.29.3-eks"}, "API server", "v1.29.3-eks is older than 1.30", True),
    "no namespace": ({"namespace": False}, "namespace", "there is no namespace ratchet", True),
    "no volcano": ({"groups": {**SOUND.groups, "volcano": False}}, "Volcano", "its resource definitions are missing", True),
    "volcano waits": ({"volcano": ({"metadata": {"name": "s"}, "status": {}},)}, "Volcano", "no pod is ready of s", True),
    "no gateway API": ({"groups": {**SOUND.groups, "gateway": False}}, "Gateway API", "its resource definitions are missing", True),
    "no gateway": ({"gateway": None}, "Gateway", "there is no Gateway web in gateways", True),
    "gateway not programmed": ({"gateway": gateway("False")}, "Gateway", "web is not programmed: no", True),
    "gateway takes no routes": ({"gateway": gateway(routes="Same")}, "Gateway", "no listener of web takes routes of the namespace", True),
    "no default class": (
        {"classes": (storage("gp3", "x", usual=False),)},
        "storage class of the service",
        "the cluster has no default",
        True,
    ),
    "a class without CSI": ({"drivers": ()}, "storage class of the router", "ReadWriteOncePod needs one", False),
    "the shared claim": ({"claims": (claim("shared"),)}, "shared volume of support", "the claim shared is ReadWriteOncePod", True),
    "no claim": ({"claims": ()}, "shared volume of support", "there is no claim shared", True),
    "no Secret": ({"secrets": {**SOUND.secrets, "db": None}}, "Secret db", "ratchet has no Secret db", True),
    "no key": (
        {"secrets": {**SOUND.secrets, "ratchet-keys": frozenset({"anchor.key"})}},
        "Secret ratchet-keys",
        "it lacks support.router, support.span-keys.json, user-keys.json",
        True,
    ),
    "no GPUs": ({"nodes": (node("a", gpus=4), node("b"))}, "nodes of support", "1 of 2 nodes offer 8 nvidia.com/gpu", True),
    "rights": ({"denied": ("create jobs in ratchet",)}, "rights of this account", "it may not create jobs in ratchet", False),
    "rights of the service": ({"service_denied": ("get pods",)}, "rights of prod-service", "it may not get pods", True),
    "quota": (
        {"quotas": ({"metadata": {"name": "q"}, "spec": {"hard": {"requests.memory": "1Gi"}}},)},
        "quota",
        "q leaves 1.07374e+09 of the",
        True,
    ),
    "no bucket": ({"buckets": {**SOUND.buckets, "exchange": Unread("no such bucket")}}, "bucket of the exchange", "no such bucket", True),
    "unconditional": (
        {"buckets": {**SOUND.buckets, "artifacts": BucketFacts("s3://a", conditional=False)}},
        "writes to the artifacts",
        "the store ignores If-None-Match",
        True,
    ),
    "versions": (
        {"buckets": {**SOUND.buckets, "exchange": BucketFacts("s3://a", "Enabled")}},
        "versioning of the exchange",
        "it is on",
        False,
    ),
    "former versions": (
        {"buckets": {**SOUND.buckets, "artifacts": BucketFacts("s3://a", "Enabled", former="AccessDenied")}},
        "former versions in the artifacts",
        "an erasure cannot delete them: AccessDenied",
        False,
    ),
    "SQLite": ({"ledger": LedgerFacts("other", "it is not in Postgres, but sqlite")}, "ledger", "not in Postgres", True),
    "no pods": ({"pods": ()}, "pods", "the release prod has none in ratchet", False),
    "a pod waits": (
        {
            "pods": (
                pod(
                    "router",
                    "prod-router-0",
                    "False",
                    containerStatuses=[{"name": "router", "state": {"waiting": {"reason": "ImagePullBackOff"}}}],
                ),
            )
        },
        "pods of the router",
        "the image cannot be pulled",
        True,
    ),
    "a lonely volume": (
        {"claims": (*SOUND.claims, claim("state-prod-router-2"))},  # type: ignore[misc]
        "volumes of routers",
        "no pod uses state-prod-router-2",
        False,
    ),
    "requests wait": (
        {"exchange": {"support": ExchangeFacts(7, NOW - timedelta(hours=3), {}, routed=True)}},
        "exchange of support",
        "7 requests wait, the oldest for 3 h",
        False,
    ),
    "a silent router": (
        {"exchange": {"support": ExchangeFacts(0, None, {"prod-router-1": NOW - timedelta(seconds=90)}, routed=True)}},
        "routers of support",
        "silent: prod-router-1 for 90 s",
        False,
    ),
    "no model": ({"exchange": {"support": ExchangeFacts()}}, "model of support", "has no model yet", False),
}


@pytest.mark.parametrize("fault", ONE_FAULT)
def test_each_fault_is_one_missing_item_with_its_remedy(fault: str) -> None:
    changes, about, words, stops = ONE_FAULT[fault]
    found = [one for one in items(replace(SOUND, **changes)) if one.state == "missing"]
    (item,) = [one for one in found if one.about == about]
    assert words in item.text
    assert item.remedy
    assert item.stops is stops


UNREAD = (
    "namespace", "volcano", "gateway", "classes", "nodes", "daemons", "pods", "claims", "accounts", "denied", "service_denied", "quotas",
)  # fmt: skip


@pytest.mark.parametrize("name", UNREAD)
def test_what_may_not_be_read_is_unknown_and_stops_nothing(name: str) -> None:
    found = items(replace(SOUND, **{name: Unread("403: forbidden")}))
    assert any(one.state == "unknown" and "forbidden" in one.text for one in found)
    assert not [one for one in found if one.stops]


def test_a_secret_that_may_not_be_read_is_unknown() -> None:
    found = items(replace(SOUND, secrets={**SOUND.secrets, "db": Unread("403: forbidden")}))
    assert [(one.state, one.text) for one in found if one.about == "Secret db"] == [
        ("unknown", "this account may not look: 403: forbidden")
    ]


def test_an_invalid_loop_file_stops_and_is_named() -> None:
    found = items(SOUND, line=LineFile("support", problem="serving.router is local"))
    (item,) = [one for one in found if one.about == "loop file support"]
    assert (item.state, item.text, item.stops) == ("missing", "serving.router is local", True)


def test_a_line_that_the_values_do_not_have_is_missing() -> None:
    found = items(SOUND, lines=[{"name": "other", "routerPort": 1, "receiverPort": 2, "loop": ""}])
    assert [(one.about, one.state) for one in found if one.about == "loop file other"] == [("loop file other", "unknown")]
    assert any(one.text == "the values have no line of this name" for one in found)


@pytest.mark.parametrize(
    ("image", "state"),
    [({"tag": "latest"}, "missing"), ({"tag": "1.2"}, "ok"), ({"digest": f"sha256:{'0' * 64}"}, "ok")],
)
def test_an_image_has_a_digest_or_a_fixed_tag(image: dict[str, str], state: str) -> None:
    found = items(SOUND, image={"repository": "host:5000/ratchet", **image})
    assert [one.state for one in found if one.about == "image of the control plane"] == [state]


def test_static_pools_need_the_feature_gate() -> None:
    spec = settings(nemo_image=None, pool={"kind": "static"}).model_dump()
    line = LineFile("support", loop(cluster=spec), load_profile("generic-gpu"))
    gates = {"containers": [{"name": "c", "env": [{"name": "FEATURE_GATES", "value": "StaticCapacity=true"}]}]}
    on = {"metadata": {"name": "karpenter"}, "spec": {"template": {"spec": gates}}}
    off = {"metadata": {"name": "karpenter"}, "spec": {"template": {"spec": {"containers": [{"name": "c"}]}}}}
    states = {}
    for name, deployments in (("on", (on,)), ("off", (off,)), ("none", ())):
        found = items(replace(SOUND, karpenter=deployments), line=line)
        states[name] = [one.state for one in found if one.about == "Karpenter's feature gate"]
    assert states == {"on": ["ok"], "off": ["missing"], "none": ["unknown"]}


def test_amazons_network_plugin_counts_only_with_its_agent_switched_on() -> None:
    for argument, state in (("--enable-network-policy=true", "ok"), ("--enable-network-policy=false", "unknown")):
        found = items(replace(SOUND, daemons=(daemon("aws-node", "aws-eks-nodeagent", argument),)))
        assert [one.state for one in found if one.about == "network policies"] == [state]


def test_without_values_nothing_is_said_to_be_missing_in_them() -> None:
    found = checklist(replace(SOUND, buckets={}, exchange={}), replace(wanted(), values=merged(values(), {}), given=False))
    assert [one for one in found if one.state == "missing"] == []


def test_the_chart_names_these_secrets_and_keys() -> None:
    assert secret_keys(values(), ["support"]) == {name: set(keys) for name, keys in SOUND.secrets.items() if isinstance(keys, frozenset)}
    server = {"url": "http://prefect/api", "secret": "login", "database": {"secret": "", "key": "url"}}
    assert secret_keys(values(prefect=server), ["support"])["db"] == {"url"}
    assert secret_keys(values(ray={"workers": 1, "secret": "ray"}), ["support"])["ray"] == {"token"}


def test_the_requests_of_all_pods_are_added() -> None:
    asked = requested(values())
    assert asked["pods"] == 6
    assert asked["requests.cpu"] == asked["cpu"] == 1 + 2 * 0.5 + 2 * 0.25 + 0.25
    assert asked["persistentvolumeclaims"] == 3
    with_ray = requested(values(ray={"workers": 3}))
    assert with_ray["pods"] == 6 + 3 + 1
    assert with_ray["requests.cpu"] == asked["requests.cpu"] + 3 * 1 + 0.5


TWO: dict[str, Any] = {
    "service": {"replicas": 2},
    "mlflow": {"url": "http://mlflow"},
    "bucket": {**GIVEN["bucket"], "anchors": "s3://anchors/a"},
}
IN_BUCKET = LineFile("support", loop(cluster=settings(nemo_image=None, volume=BUCKET).model_dump()), load_profile("generic-gpu"))
ROOM = (node("a", taints=()), node("b", taints=()))
SPACIOUS = replace(SOUND, nodes=ROOM)


def about_the_second(facts: InstallationFacts = SPACIOUS, line: LineFile = IN_BUCKET, **changes: Any) -> list[tuple[str, str, bool]]:
    found = items(facts, line=line, **{**TWO, **changes})
    return [(one.state, one.text, one.stops) for one in found if one.about == "second service pod"]


def test_a_second_service_pod_needs_two_nodes_and_no_volume() -> None:
    assert about_the_second() == [("ok", "2 nodes; MLflow, anchors and run folders are on no volume", False)]
    assert about_the_second(service={"replicas": 1}) == []
    [(state, text, stops)] = about_the_second(mlflow={}, bucket=GIVEN["bucket"])
    assert (state, stops) == ("missing", True)
    assert "no mlflow.url and no bucket.anchors" in text
    for on_disk in (loop(), loop(cluster=None)):
        [(state, text, stops)] = about_the_second(line=LineFile("support", on_disk, load_profile("generic-gpu")))
        assert (state, text.partition(",")[0], stops) == ("missing", "support: no [cluster.volume.bucket]", True)


@pytest.mark.parametrize(
    ("nodes", "changes", "state"),
    [
        (ROOM[:1], {}, "missing"),
        ((ROOM[0], node("b", taints=(), unschedulable=True)), {}, "missing"),
        ((ROOM[0], node("b")), {}, "missing"),
        ((ROOM[0], node("b")), {"tolerations": [{"operator": "Exists"}]}, "ok"),
        (ROOM, {"nodeSelector": {"zone": "b"}}, "missing"),
        (ROOM, {"nodeSelector": {"zone": "a"}}, "ok"),
        (Unread("403: forbidden"), {}, "unknown"),
    ],
)
def test_the_nodes_of_two_service_pods(nodes: Any, changes: dict[str, Any], state: str) -> None:
    assert [(one[0], one[2]) for one in about_the_second(replace(SOUND, nodes=nodes), **changes)] == [(state, False)]


def test_two_service_pods_have_no_volume_and_are_reached_by_their_deployment() -> None:
    one, two = requested(values()), requested(values(**TWO))
    assert two["pods"] == one["pods"] + 1
    assert two["requests.cpu"] == one["requests.cpu"] + 1
    assert two["persistentvolumeclaims"] == one["persistentvolumeclaims"] - 1
    assert two["requests.storage"] == 2 * 2**30
    assert service_target(values(), "prod") == "prod-service-0"
    assert service_target(values(**TWO), "prod") == "deploy/prod-service"
    found = items(replace(SOUND, classes=(), ledger=LedgerFacts()), **TWO)
    assert not [item for item in found if item.about == "storage class of the service"]
    assert [item.remedy for item in found if item.about == "ledger"] == [
        "kubectl exec -n ratchet deploy/prod-service -- python3 -m ratchet.flows.cli.main doctor"
    ]


def test_the_image_without_a_tag_has_that_of_the_chart() -> None:
    assert image_of(values(image={"repository": "r"}), "0.1.0") == "r:0.1.0"
    assert image_of(values(image={"repository": ""}), "0.1.0") == ""


def test_a_wrong_type_in_the_values_is_named() -> None:
    with pytest.raises(ConfigError, match="the value bucket must be a table"):
        values(bucket="s3://exchange")
    with pytest.raises(ConfigError, match=r"the value router\.volume must be a table"):
        values(router={"volume": 3})


def test_the_rights_over_model_servers_are_those_that_the_chart_grants() -> None:
    text = (CHART / "templates" / "accounts.yaml").read_text().partition("kind: Role\n")[2].partition("---")[0]
    granted = [yaml.safe_load(line.strip().removeprefix("- ")) for line in text.splitlines() if line.strip().startswith("- { apiGroups")]
    assert granted == [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in MODEL_RIGHTS]


@pytest.mark.slow
def test_a_bucket_is_probed_with_one_object_that_is_deleted(s3: S3) -> None:
    place = {"exchange": s3.settings.url, "artifacts": "s3://no-such-bucket/a", "endpoint": s3.settings.endpoint, "region": "us-east-1"}
    s3.client.put_object(Bucket=s3.bucket, Key="some/where/spool/support/r1", Body=b"x")
    s3.client.put_bucket_versioning(Bucket=s3.bucket, VersioningConfiguration={"Status": "Suspended"})
    cluster = MemoryCluster()
    cluster.away = True
    found = collect_installation(cluster, wanted(bucket={**place, "secret": ""}), NOW, LedgerFacts())
    assert found.unreachable == "the API server does not answer"
    assert found.buckets["exchange"] == BucketFacts(s3.settings.url, "Suspended", conditional=True)
    assert "NoSuchBucket" in str(found.buckets["artifacts"])
    kept = s3.client.list_object_versions(Bucket=s3.bucket)
    assert ([one["Key"] for one in kept["Versions"]], "DeleteMarkers" in kept) == (["some/where/spool/support/r1"], False)
    line = found.exchange["support"]
    assert isinstance(line, ExchangeFacts)
    assert (line.waiting, line.oldest is not None, line.routed) == (1, True, False)


def test_pods_of_routers_are_not_counted_where_a_gateway_routes_all_lines() -> None:
    lines = [{"name": "support", "receiverPort": 4318, "loop": "x", "router": "gateway"}]
    assert requested(values(lines=lines))["pods"] == 4
    assert requested(values(lines=[*lines, {"name": "search", "routerPort": 8080}]))["pods"] == 6
