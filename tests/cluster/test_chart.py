"""Tests of the Helm chart: its objects, its refusals, and that a real API server accepts it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.chart import LOOP, STANDBY, VALUES
from tests.cluster.rig.cluster import Rig
from tests.waiting import until

pytestmark = pytest.mark.slow


def pods_of(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return name -> pod template of the workloads."""
    return {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in objects if one["kind"] in ("Deployment", "StatefulSet")}


def test_the_chart_is_clean(helm: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = helm("lint", values=VALUES)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_pod_is_restricted_and_sees_only_its_own_keys(rendered: Callable[..., list[dict[str, Any]]]) -> None:
    pods = pods_of(rendered())
    assert set(pods) == {"prod-service", "prod-receiver", "prod-router", "prod-prefect"}
    for name, pod in pods.items():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is (name == "prod-service"), "only the service speaks with the API server"
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert container["resources"]["requests"]
            assert container["livenessProbe"]
    keys = {name: [item["key"] for v in pod["volumes"] for item in v.get("secret", {}).get("items", ())] for name, pod in pods.items()}
    assert keys["prod-router"] == ["support.router", "support.span-keys.json"]
    assert keys["prod-receiver"] == keys["prod-prefect"] == []
    assert "user-keys.json" in keys["prod-service"]


@pytest.mark.parametrize("changes", [{}, STANDBY])
def test_no_value_of_a_secret_is_rendered(rendered: Callable[..., list[dict[str, Any]]], changes: dict[str, Any]) -> None:
    objects = rendered(**{**changes, "bucket": {**VALUES["bucket"], **changes.get("bucket", {}), "secret": "bucket"}})
    assert not [one for one in objects if one["kind"] == "Secret"]
    for name, pod in pods_of(objects).items():
        for variable in pod["containers"][0]["env"]:
            is_secret = re.search("SECRET|AUTH|LEDGER|CATALOG|DATABASE|ACCESS_KEY", variable["name"])
            assert bool(is_secret) == ("secretKeyRef" in variable.get("valueFrom", {})), f"{name}: {variable['name']}"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"bucket": {"exchange": "https://bucket", "artifacts": "s3://artifacts/a"}}, "exchange"),
        ({"ledger": {"secret": ""}}, "secret"),
        ({"lake": {"warehouse": "/lakes", "catalog": {"secret": "ratchet-db"}}}, "warehouse"),
        ({"lake": {"warehouse": "s3://lakes/l", "catalog": {"secret": ""}}}, "secret"),
        ({"lines": []}, "lines"),
        ({"lines": [{**VALUES["lines"][0], "routerPort": 80}]}, "routerPort"),
        ({"lines": [{**VALUES["lines"][0], "lopp": ""}]}, "lopp"),
        ({"service": {"replicas": 3}}, "replicas"),
        ({"service": {"replicas": 0}}, "replicas"),
        ({**STANDBY, "mlflow": {"url": ""}}, "mlflow.url is empty"),
        ({**STANDBY, "bucket": VALUES["bucket"]}, "bucket.anchors is empty"),
        ({**STANDBY, "bucket": {**STANDBY["bucket"], "artifacts": ""}}, "artifacts"),
        ({"bucket": {**VALUES["bucket"], "anchors": "/mnt/anchors"}}, "anchors"),
        ({"service": {"secrets": {"KEY": "a-value"}}}, "KEY"),
        ({"prefect": {}}, "prefect.database.secret"),
        ({"ray": {"workers": 2}}, "ray.secret"),
        ({"ray": {"replicas": 2}}, "replicas"),
    ],
)
def test_wrong_values_are_refused_with_their_place(
    helm: Callable[..., subprocess.CompletedProcess[str]], changes: dict[str, Any], problem: str
) -> None:
    done = helm("template", "prod", values={**VALUES, **changes})
    assert done.returncode != 0
    assert problem in done.stderr


def test_each_line_has_its_ports_and_its_loop_file(rendered: Callable[..., list[dict[str, Any]]]) -> None:
    lines = [*VALUES["lines"], {"name": "search", "routerPort": 8081, "receiverPort": 4319, "loop": LOOP, "files": {"golden.jsonl": "{}"}}]
    objects = rendered(lines=lines, gateway={"name": "web", "hostnames": {"search": ["search.example"]}})
    services = {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "Service"}
    ports = {name: [port["port"] for port in spec.get("ports", ())] for name, spec in services.items()}
    assert ports["prod-router"] == [8080, 8081]
    assert ports["prod-receiver"] == [4318, 4319]
    told = {one["name"]: one.get("value") for one in pods_of(objects)["prod-service"]["containers"][0]["env"]}["RATCHET_RECEIVER_URL"]
    assert told == "support=http://prod-receiver.ratchet.svc:4318 search=http://prod-receiver.ratchet.svc:4319"
    routes = {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "HTTPRoute"}
    assert routes["prod-search"]["hostnames"] == ["search.example"]
    assert routes["prod-search"]["rules"][0]["backendRefs"] == [{"name": "prod-router", "port": 8081}]
    files = {one["metadata"]["name"]: set(one["data"]) for one in objects if one["kind"] == "ConfigMap"}
    assert files == {"prod-line-support": {"loop.toml"}, "prod-line-search": {"loop.toml", "golden.jsonl"}}


def service_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the workload of the service."""
    [found] = [one for one in objects if one["metadata"]["name"] == "prod-service" and one["kind"] in ("Deployment", "StatefulSet")]
    return found


def environment_of(workload: dict[str, Any]) -> dict[str, Any]:
    """Return name -> value, or source of the value, of the variables of the first container."""
    container = workload["spec"]["template"]["spec"]["containers"][0]
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


def test_one_service_pod_is_a_stateful_set_whose_fixed_fields_never_change(rendered: Callable[..., list[dict[str, Any]]]) -> None:
    """Kubernetes refuses a change of these fields, so `helm upgrade` from an earlier chart would fail."""
    service = service_of(rendered())
    assert service["kind"] == "StatefulSet"
    names = {"app.kubernetes.io/name": "prod", "app.kubernetes.io/component": "service"}
    assert {name: value for name, value in service["spec"].items() if name not in ("replicas", "template")} == {
        "serviceName": "prod-service",
        "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Retain", "whenDeleted": "Retain"},
        "selector": {"matchLabels": names},
        "volumeClaimTemplates": [
            {
                "metadata": {"name": "home", "labels": names},
                "spec": {"accessModes": ["ReadWriteOncePod"], "resources": {"requests": {"storage": "50Gi"}}},
            }
        ],
    }
    assert service["spec"]["replicas"] == 1
    given = environment_of(service)
    assert given["RATCHET_POD"] == {"fieldRef": {"fieldPath": "metadata.uid"}}
    assert not {"RATCHET_STANDBY", "RATCHET_ANCHORS"} & given.keys()
    assert environment_of(service_of(rendered(bucket=STANDBY["bucket"])))["RATCHET_ANCHORS"] == "s3://anchors/n"


def test_two_service_pods_are_a_deployment_without_a_volume_on_two_nodes(rendered: Callable[..., list[dict[str, Any]]]) -> None:
    objects = rendered(**{**STANDBY, "service": {"replicas": 2, "volume": {"size": "7Gi"}}})
    service, alone = service_of(objects), service_of(rendered())
    spec, pod = service["spec"], service["spec"]["template"]["spec"]
    assert (service["kind"], spec["replicas"]) == ("Deployment", 2)
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    assert spec["selector"] == alone["spec"]["selector"]
    given = environment_of(service)
    assert (given["RATCHET_STANDBY"], given["RATCHET_ANCHORS"]) == ("true", "s3://anchors/n")
    assert (given["MLFLOW_TRACKING_URI"], given["RATCHET_ARTIFACTS_URL"]) == ("http://mlflow.example", "s3://artifacts/a")
    assert given["RATCHET_POD"] == {"fieldRef": {"fieldPath": "metadata.uid"}}
    assert [one for one in pod["volumes"] if one["name"] == "home"] == [{"name": "home", "emptyDir": {"sizeLimit": "7Gi"}}]
    rules = pod["affinity"]["podAntiAffinity"]
    [apart], [spread] = (rules[f"{kind}DuringSchedulingIgnoredDuringExecution"] for kind in ("required", "preferred"))
    assert apart == {"topologyKey": "kubernetes.io/hostname", "labelSelector": spec["selector"]}
    assert spread["podAffinityTerm"] == {"topologyKey": "topology.kubernetes.io/zone", "labelSelector": spec["selector"]}
    [budget] = [one["spec"] for one in objects if one["kind"] == "PodDisruptionBudget" and one["metadata"]["name"] == "prod-service"]
    assert budget == {"maxUnavailable": 1, "selector": spec["selector"]}
    [headless] = [one["spec"] for one in objects if one["kind"] == "Service" and one["metadata"]["name"] == "prod-service"]
    assert headless["clusterIP"] == "None"


def test_both_kinds_of_the_service_have_the_same_pod_but_for_its_home(rendered: Callable[..., list[dict[str, Any]]]) -> None:
    two, one = service_of(rendered(**STANDBY)), service_of(rendered(mlflow=STANDBY["mlflow"], bucket=STANDBY["bucket"]))
    pod, other = (workload["spec"]["template"] for workload in (two, one))
    pod["spec"]["volumes"].remove({"name": "home", "emptyDir": {"sizeLimit": "50Gi"}})
    pod["spec"]["containers"][0]["env"].remove({"name": "RATCHET_STANDBY", "value": "true"})
    assert pod == other


def test_the_notes_name_a_pod_that_exists(helm: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    for changes, there, absent in (({}, " prod-service-0 --", "deploy/"), (STANDBY, " deploy/prod-service --", "service-0")):
        done = helm("install", "prod", "--dry-run=client", values={**VALUES, **changes})
        notes = done.stdout.partition("NOTES:")[2]
        assert notes.count(there) == 2, done.stderr
        assert absent not in notes


def test_an_upgrade_replaces_the_kind_of_the_service_and_keeps_its_volume(
    rig: Rig, namespace: str, helm: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """The claim stays while there are two pods, and the StatefulSet finds it again."""

    def upgraded(**changes: Any) -> set[str]:
        """Install or upgrade, and return the objects of the service as KIND/NAME."""
        command = ("upgrade", "prod", "--install", "--namespace", namespace, "--kubeconfig", str(rig.kubeconfig))
        done = helm(*command, values={**VALUES, **changes})
        assert done.returncode == 0, done.stderr
        found = rig.kubectl("get", "statefulset,deployment,pdb,service,pvc", "-n", namespace, "-o", "name").split()
        return {one for one in found if one.partition("/")[2] in ("prod-service", "home-prod-service-0")}

    def has_pods(count: int) -> bool:
        chosen = "app.kubernetes.io/name=prod,app.kubernetes.io/component=service"
        return len(rig.kubectl("get", "pods", "-n", namespace, "-l", chosen, "-o", "name").split()) == count

    always = {"service/prod-service", "persistentvolumeclaim/home-prod-service-0"}
    upgraded()
    until(lambda: has_pods(1), 60)
    assert upgraded() == always | {"statefulset.apps/prod-service"}
    claim = rig.kubectl("get", "pvc", "home-prod-service-0", "-n", namespace, "-o", "jsonpath={.metadata.uid}")
    assert upgraded(**STANDBY) == always | {"deployment.apps/prod-service", "poddisruptionbudget.policy/prod-service"}
    until(lambda: has_pods(2), 60)
    assert upgraded() == always | {"statefulset.apps/prod-service"}
    until(lambda: has_pods(1), 60)
    assert rig.kubectl("get", "pvc", "home-prod-service-0", "-n", namespace, "-o", "jsonpath={.metadata.uid}") == claim


@pytest.mark.parametrize("changes", [{}, STANDBY])
def test_a_real_api_server_takes_every_object(
    rig: Rig, namespace: str, rendered: Callable[..., list[dict[str, Any]]], crds: Callable[[str], Path], changes: dict[str, Any]
) -> None:
    rig.kubectl("apply", "--server-side", "-f", str(crds("gateway")))
    rig.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(crds("gateway")))
    on = {"enabled": True, "maxReplicas": 5, "cpu": 70}
    ray = {"workers": 2, "secret": "ratchet-ray", "existing": {"labels": {"ray.io/node-type": "head"}}}
    objects = rendered(gateway={"name": "web"}, router={"autoscaling": on}, receiver={"autoscaling": on}, ray=ray, **changes)
    for one in objects:
        if one["metadata"].get("namespace") == "ratchet":
            one["metadata"]["namespace"] = namespace
        text = yaml.safe_dump(one)
        rig.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-n", namespace, "-f", "-", text=text)
    assert len(objects) > 20


def test_the_rule_for_model_servers_refuses_what_they_do_not_need(
    rig: Rig, namespace: str, rendered: Callable[..., list[dict[str, Any]]]
) -> None:
    """The rule is tried as the service's account, which may create Deployments."""
    objects = rendered()
    for one in objects:
        if one["kind"] in ("ServiceAccount", "Role", "RoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
            text = yaml.safe_dump(one)
            for before in ("namespace: ", "serviceaccount:", "kubernetes.io/metadata.name: "):
                text = text.replace(f"{before}ratchet", f"{before}{namespace}")
            rig.kubectl("apply", "--server-side", "-n", namespace, "-f", "-", text=text)
    account = f"system:serviceaccount:{namespace}:prod-service"

    def deployed(**pod: Any) -> str:
        spec = {
            "serviceAccountName": "ratchet-model",
            "automountServiceAccountToken": False,
            "volumes": [{"name": "tmp", "emptyDir": {}}],
            **pod,
        }
        spec.setdefault("containers", [{"name": "server", "image": "x", "securityContext": {"privileged": False}}])
        labels = {"app.kubernetes.io/component": "model"}
        template = {"metadata": {"labels": labels}, "spec": spec}
        body = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "m", "labels": labels},
            "spec": {"selector": {"matchLabels": labels}, "template": template},
        }
        try:
            rig.kubectl("create", "--dry-run=server", "-n", namespace, "--as", account, "-f", "-", text=yaml.safe_dump(body))
        except Exception as error:
            return str(error)
        return ""

    def refused() -> bool:
        return "mounts no Secret" in deployed(volumes=[{"name": "keys", "secret": {"secretName": "ratchet-keys"}}])

    until(refused, 120)  # the API server reads new rules after some seconds
    assert deployed() == ""
    key = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "ratchet-keys", "key": "anchor.key"}}}
    assert "reads no Secret" in deployed(containers=[{"name": "s", "image": "x", "securityContext": {}, "env": [key]}])
    assert "runs as ratchet-model" in deployed(serviceAccountName="default")
    assert "not privileged" in deployed(containers=[{"name": "s", "image": "x", "securityContext": {"privileged": True}}])
    rig.kubectl("delete", "validatingadmissionpolicies,validatingadmissionpolicybindings", "--all")


def names_of(objects: list[dict[str, Any]], kind: str) -> set[str]:
    return {one["metadata"]["name"] for one in objects if one["kind"] == kind}


def route_rules(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rules of the service's account about HTTPRoutes."""
    return [rule for one in objects if one["kind"] == "Role" for rule in one["rules"] if rule["resources"] == ["httproutes"]]


def test_a_line_with_a_gateway_has_no_router_and_its_route_is_the_services_alone(rendered: Callable[..., list[dict[str, Any]]]) -> None:
    plain = {"name": "search", "receiverPort": 4319, "loop": LOOP, "router": "gateway"}
    both = rendered(lines=[*VALUES["lines"], plain], gateway={"name": "web"})
    assert names_of(both, "HTTPRoute") == {"prod-support"}
    command = next(one for one in both if one["kind"] == "StatefulSet" and one["metadata"]["name"] == "prod-router")
    assert "search" not in str(command["spec"]["template"]["spec"]["containers"][0]["command"]), "it would wait for a route for ever"
    assert [(one["resourceNames"], one["verbs"]) for one in route_rules(both)] == [(["ratchet-search"], ["get", "create", "patch"])]
    assert "prod-gateway" in names_of(both, "NetworkPolicy")
    alone = rendered(lines=[plain])
    assert "prod-router" not in names_of(alone, "StatefulSet") | names_of(alone, "Service")
    assert not names_of(alone, "HTTPRoute"), "the service writes it"


def test_the_bypass_is_off_and_allows_one_named_route_per_line(rendered: Callable[..., list[dict[str, Any]]]) -> None:
    assert route_rules(rendered(gateway={"name": "web"})) == []
    assert "prod-gateway" not in names_of(rendered(), "NetworkPolicy")
    objects = rendered(gateway={"name": "web", "bypass": True})
    [rule] = route_rules(objects)
    assert (rule["resourceNames"], rule["verbs"]) == (["ratchet-support-bypass"], ["get", "create", "patch", "delete"])
    assert "prod-endpoints" in names_of(objects, "Role")


def test_a_line_without_a_port_is_refused_unless_a_gateway_routes_it(helm: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    bare = {"name": "support", "receiverPort": 4318, "loop": LOOP}
    assert helm("template", "prod", values={**VALUES, "lines": [bare]}).returncode != 0
    done = helm("template", "prod", values={**VALUES, "lines": [{**bare, "router": "gatway"}]})
    assert done.returncode != 0
    assert "router" in done.stderr


def test_without_workers_of_ray_nothing_of_it_is_rendered(rendered: Callable[..., list[dict[str, Any]]]) -> None:
    assert "ray" not in yaml.safe_dump_all(rendered()).lower().replace("array", "")


def test_pods_of_ray_are_restricted_and_know_only_their_token(rendered: Callable[..., list[dict[str, Any]]]) -> None:
    objects = rendered(ray={"workers": 3, "secret": "ratchet-ray", "cpus": 4})
    pods = pods_of(objects)
    for name in ("prod-ray-head", "prod-ray-worker"):
        [container] = pods[name]["containers"]
        assert pods[name]["securityContext"]["runAsNonRoot"] is True
        assert pods[name]["automountServiceAccountToken"] is False
        assert container["image"] == pods["prod-service"]["containers"][0]["image"], "workers with other code are refused"
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        secrets = [one["valueFrom"]["secretKeyRef"] for one in container["env"] if "secretKeyRef" in one.get("valueFrom", {})]
        assert secrets == [{"name": "ratchet-ray", "key": "token"}]
        assert not [volume for volume in pods[name]["volumes"] if "emptyDir" not in volume]
    worker = next(one for one in objects if one["metadata"]["name"] == "prod-ray-worker")
    assert worker["spec"]["replicas"] == 3
    command = pods["prod-ray-worker"]["containers"][0]["command"]
    assert {"--address=prod-ray.ratchet.svc:6379", "--num-cpus=4"} <= set(command)
    assert "--num-cpus=0" in pods["prod-ray-head"]["containers"][0]["command"], "no task runs beside the only head"


def test_the_service_alone_proves_to_a_ray_cluster_who_it_is(rendered: Callable[..., list[dict[str, Any]]]) -> None:
    pods = pods_of(rendered(ray={"secret": "rays", "key": "auth_token", "existing": {"labels": {"ray.io/node-type": "head"}}}))
    assert "prod-ray-head" not in pods
    for name, pod in pods.items():
        given = {one["name"]: one for one in pod["containers"][0]["env"] if one["name"].startswith("RAY_")}
        token = {"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": {"name": "rays", "key": "auth_token"}}}
        mode = {"name": "RAY_AUTH_MODE", "value": "token"}
        assert list(given.values()) == ([mode, token] if name == "prod-service" else [])


def test_prefect_copies_its_ui_to_a_place_that_it_can_write(rendered: Callable[..., list[dict[str, Any]]]) -> None:
    """Otherwise the server starts without a UI, so that nobody can approve in it."""
    [container] = pods_of(rendered())["prod-prefect"]["containers"]
    given = {one["name"]: one.get("value", "") for one in container["env"]}
    written = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    assert any(given["PREFECT_SERVER_UI_STATIC_DIRECTORY"].startswith(f"{path}/") for path in written)
    assert given["PREFECT_SERVER_UI_API_URL"] == "/api", "the browser reaches the server by a name that the server does not know"
