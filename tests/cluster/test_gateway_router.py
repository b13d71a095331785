"""Tests of the router that sets the weights of an HTTPRoute, on a real API server with Traefik as Gateway."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from ratchet.contracts.errors import Incomplete, Retryable
from ratchet.contracts.schema import stamped
from ratchet.contracts.serving import Endpoint, Pin, Route, RouterHeader
from ratchet.extend.testkit import RouterSuite, make_route
from ratchet.k8s.manifests.http_route import MANAGER
from ratchet.k8s.serving.bypass import BypassOptions
from ratchet.k8s.serving.gateway import HTTP_ROUTE, GatewayRouter, GatewayRouterOptions
from ratchet.k8s.serving.router import ClusterRouter, ClusterRouterOptions
from ratchet.runtime.serving.exchange import Exchange
from tests.cluster.bench import client
from tests.cluster.gangs import real
from tests.cluster.rig.build import RigError
from tests.cluster.rig.cluster import Rig
from tests.pods import exchange_of
from tests.s3 import S3
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

HOST = "line.example"
# An answer begins after 20 ms, as that of a model does at the earliest. Go's reverse proxy, and so Traefik, closes the body of a request
# when the answer begins. It then cuts the answer now and then if it has not seen the end of the body before, also while nothing changes.
SERVER = """
import json, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        time.sleep(0.02)
        self.send_response(200)
        if not body.get("stream"):
            answer = json.dumps({"version": sys.argv[1], "model": body["model"]}).encode()
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
            return
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in [*(b"data: %d\\n\\n" % n for n in range(15)), b"data: [DONE]\\n\\n"]:
            self.wfile.write(b"%x\\r\\n%s\\r\\n" % (len(piece), piece))
            self.wfile.flush()
            time.sleep(0.1)
        self.wfile.write(b"0\\r\\n\\r\\n")
    def log_message(self, *_):
        pass

ThreadingHTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
"""


class Users:
    """Clients of the Gateway."""

    def __init__(self, rig: Rig) -> None:
        self.url = f"{rig.web}/v1/chat/completions"
        self.client = httpx.Client(timeout=30, trust_env=False, headers={"host": HOST})

    def ask(self, **headers: str) -> str:
        """Return the version that answers; the status if none does."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        reply = self.client.post(self.url, json={"model": "line", "messages": []}, headers=named)
        return str(reply.json()["version"]) if reply.status_code == 200 else str(reply.status_code)

    def shares(self, requests: int) -> Counter[str]:
        return Counter(self.ask() for _ in range(requests))


@pytest.fixture
def namespace(gateway_rig: Rig, real_namespace: str) -> Iterator[str]:
    """A namespace with a Gateway and the servers of two versions."""
    port = int(gateway_rig.web.rpartition(":")[2])
    listener = {"name": "web", "protocol": "HTTP", "port": port, "allowedRoutes": {"namespaces": {"from": "Same"}}}
    parts: dict[str, Any] = {
        "GatewayClass traefik": {"controllerName": "traefik.io/gateway-controller"},
        "Gateway web": {"gatewayClassName": "traefik", "listeners": [listener]},
    }
    for key, spec in parts.items():
        kind, name = key.split()
        one = {"apiVersion": "gateway.networking.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        gateway_rig.apply(one, namespace=real_namespace)
    for tag in ("v-0", "v-1"):
        serve(gateway_rig, real_namespace, tag)
    until(lambda: {"v-0", "v-1"} <= _with_endpoint(gateway_rig, real_namespace), 60, 0.5)
    yield real_namespace
    gateway_rig.kubectl("delete", "httproutes,gateways", "--all", "-n", real_namespace)


def _with_endpoint(rig: Rig, namespace: str) -> set[str]:
    """Return the services that have a ready endpoint. A pod that runs has none yet, and the Gateway answers 503 for its share."""
    found = json.loads(rig.kubectl("get", "endpointslices", "-n", namespace, "-o", "json"))["items"]
    return {
        one["metadata"]["labels"]["kubernetes.io/service-name"]
        for one in found
        if any(endpoint["conditions"].get("ready") for endpoint in one.get("endpoints") or ())
    }


def serve(rig: Rig, namespace: str, name: str) -> None:
    pod = real(0, "/usr/bin/python3", "-uc", SERVER, name) | {"restartPolicy": "Always", "schedulerName": "volcano"}
    ready = {"tcpSocket": {"port": 8000}, "periodSeconds": 1}
    pod["containers"][0] |= {"readinessProbe": ready}
    labels = {"app": name}
    spec = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}
    rig.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}, namespace=namespace)
    door = {"clusterIP": "None", "selector": labels, "ports": [{"name": "http", "port": 8000}]}
    rig.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": door}, namespace=namespace)


def http_route(name: str, path: dict[str, str], service: str) -> dict[str, Any]:
    """Return an HTTPRoute with one rule, as the chart has it."""
    rule = {"matches": [{"path": path}], "backendRefs": [{"name": service, "port": 8000}]}
    spec = {"parentRefs": [{"name": "web"}], "hostnames": [HOST], "rules": [rule]}
    return {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def router(gateway_rig: Rig, namespace: str) -> GatewayRouter:
    options = GatewayRouterOptions(url=gateway_rig.web, gateway="web", hostnames=(HOST,), pins=True)
    made = GatewayRouter(lambda: client(gateway_rig), options)
    made.join("line", namespace, (10, 50, 90))
    return made


@pytest.fixture
def weighted(namespace: str) -> Callable[..., Route]:
    """A function that returns a route with these weights."""
    return lambda *weights: make_route(*weights, url=f"http://{{tag}}.{namespace}.svc:8000")


class TestGatewayRouter(RouterSuite):
    """The suite for all routers."""

    @pytest.fixture
    def backend_url(self, namespace: str) -> str:
        return f"http://{{tag}}.{namespace}.svc:8000"


def test_weights_streams_pins_drift_and_another_manager(
    gateway_rig: Rig, namespace: str, router: GatewayRouter, weighted: Callable[..., Route]
) -> None:
    users = Users(gateway_rig)
    router.set(weighted(90, 10))
    until(lambda: users.shares(20).keys() == {"v-0", "v-1"}, 30, 0.2)
    found = users.shares(600)
    print(f"90/10: {dict(found)}")
    assert found.total() == found["v-0"] + found["v-1"] == 600
    assert 30 <= found["v-1"] <= 90, "ten percent, within four standard deviations"

    _weights_change_under_streams(gateway_rig, router, weighted)
    until(lambda: 35 <= users.shares(100)["v-1"] <= 65, 20)
    _pins(users, router, weighted)
    _drift_is_repaired(gateway_rig, namespace, router, weighted, users)
    _another_manager_is_named(gateway_rig, namespace, router, weighted)


def _weights_change_under_streams(rig: Rig, router: GatewayRouter, weighted: Callable[..., Route]) -> None:
    """No answer of a stream, and none of a short request, fails while the weights change."""
    over, failures, streams = threading.Event(), list[str](), list[int]()

    def stream() -> None:
        with httpx.Client(timeout=30, trust_env=False, headers={"host": HOST}) as http:
            while not over.is_set():
                try:
                    reply = http.post(f"{rig.web}/v1/chat/completions", json={"model": "line", "messages": [], "stream": True})
                    if reply.status_code != 200 or not reply.text.endswith("[DONE]\n\n"):
                        failures.append(f"{reply.status_code} {reply.text[-40:]!r}")
                    streams.append(1)
                except httpx.HTTPError as error:
                    failures.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=stream, daemon=True) for _ in range(6)]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    for weights in ((50, 50), (10, 90), (0, 100), (100, 0), (50, 50)):
        router.set(weighted(*weights))
        time.sleep(2)
    over.set()
    for thread in threads:
        thread.join(30)
    print(f"{len(streams)} streams in {time.monotonic() - began:.1f} s over five changes of the weights, {len(failures)} failed")
    assert len(streams) > 20
    assert failures == []


def _pins(users: Users, router: GatewayRouter, weighted: Callable[..., Route]) -> None:
    name = RouterHeader.PIN.replace("-", "_")
    assert {users.ask(**{name: Pin.CANDIDATE}) for _ in range(20)} == {"v-1"}
    assert {users.ask(**{name: Pin.CHAMPION}) for _ in range(20)} == {"v-0"}
    router.set(weighted(100))
    until(lambda: users.shares(20) == {"v-0": 20}, 20)
    status = users.ask(**{name: Pin.CANDIDATE})
    print(f"a pin to the candidate without a candidate: HTTP {status}")
    assert status.startswith("5"), "without a candidate, no other version answers for it"
    router.set(weighted(90, 10))


def _drift_is_repaired(rig: Rig, namespace: str, router: GatewayRouter, weighted: Callable[..., Route], users: Users) -> None:
    """The object is deleted, and then other weights are written under the service's own name."""
    rig.kubectl("delete", "httproute", "ratchet-line", "-n", namespace)
    assert router.read("line") is None
    with pytest.raises(Incomplete, match="does not exist"):
        router.in_flight("line")
    router.set(weighted(90, 10))
    assert router.read("line") == weighted(90, 10)
    live = client(rig).get(HTTP_ROUTE, "ratchet-line", namespace)
    assert live is not None
    spec = json.loads(json.dumps(live["spec"]))
    spec["rules"][2]["backendRefs"][0]["weight"] = 1
    body = {
        "apiVersion": live["apiVersion"],
        "kind": "HTTPRoute",
        "metadata": {"name": "ratchet-line", "annotations": live["metadata"]["annotations"], "labels": live["metadata"]["labels"]},
        "spec": spec,
    }
    rig.kubectl("apply", "--server-side", f"--field-manager={MANAGER}", "-n", namespace, "-f", "-", text=json.dumps(body))
    assert router.read("line") is None
    with pytest.raises(Incomplete, match=r"spec\.rules differ"):
        router.in_flight("line")
    router.set(weighted(90, 10))
    assert router.read("line") == weighted(90, 10)
    with pytest.raises(Retryable, match="does not tell"):
        router.in_flight("line")


def _another_manager_is_named(rig: Rig, namespace: str, router: GatewayRouter, weighted: Callable[..., Route]) -> None:
    change = [{"op": "replace", "path": "/spec/rules/2/backendRefs/0/weight", "value": 7}]
    by = ("--type=json", "--field-manager=argocd-controller", "-n", namespace)
    rig.kubectl("patch", "httproute", "ratchet-line", *by, "-p", json.dumps(change))
    with pytest.raises(Incomplete, match=r"argocd-controller owns spec\.rules"):
        router.in_flight("line")
    with pytest.raises(Retryable, match=r'spec\.rules: conflict with "argocd-controller"') as raised:
        router.set(weighted(50, 50))
    print(raised.value)
    live = client(rig).get(HTTP_ROUTE, "ratchet-line", namespace)
    assert live is not None
    assert live["spec"]["rules"][2]["backendRefs"][0]["weight"] == 7, "what another manager wrote is not overwritten"
    names = [one["manager"] for one in live["metadata"]["managedFields"]]
    place = f"/metadata/managedFields/{names.index('argocd-controller')}"
    given_back = [{"op": "test", "path": f"{place}/manager", "value": "argocd-controller"}, {"op": "remove", "path": place}]
    rig.kubectl("patch", "httproute", "ratchet-line", "--type=json", "-n", namespace, "-p", json.dumps(given_back))
    router.set(weighted(50, 50))
    assert router.read("line") == weighted(50, 50), "after the fields were given back, the service repairs them"


def test_the_services_account_writes_its_own_route_and_no_other(gateway_rig: Rig, namespace: str) -> None:
    """The rule of the chart limits `create` by the name, which the request of a server-side apply has."""
    account = f"system:serviceaccount:{namespace}:service"
    rule = {"apiGroups": ["gateway.networking.k8s.io"], "resources": ["httproutes"], "resourceNames": ["ratchet-line"]}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "routes"}}
    bound = {**role, "kind": "RoleBinding", "subjects": [{"kind": "User", "name": account}]}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "routes"}
    gateway_rig.apply(
        {**role, "rules": [{**rule, "verbs": ["get", "create", "patch"]}]}, {**bound, "roleRef": reference}, namespace=namespace
    )

    def apply(name: str) -> None:
        body = json.dumps(http_route(name, {"type": "PathPrefix", "value": "/v1"}, "v-0"))
        as_service = ("--server-side", f"--field-manager={MANAGER}", f"--as={account}", "-n", namespace)
        gateway_rig.kubectl("apply", *as_service, "-f", "-", text=body)

    apply("ratchet-line")
    apply("ratchet-line")
    with pytest.raises(RigError, match="forbidden"):
        apply("another")
    with pytest.raises(RigError, match="forbidden"):
        gateway_rig.kubectl("delete", "httproute", "ratchet-line", "-n", namespace, f"--as={account}")


def test_while_all_routers_are_gone_the_champion_answers_directly(
    gateway_rig: Rig, namespace: str, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The routers are stand-ins whose reports the test writes; the Gateway, the API server and the S3 server are real."""
    for name, value in exchange_of(s3).items():
        monkeypatch.setenv(name, value)
    serve(gateway_rig, namespace, "prod-router")
    gateway_rig.apply(http_route("prod-line", {"type": "PathPrefix", "value": "/v1"}, "prod-router"), namespace=namespace)
    exchange = Exchange(s3.settings.url)
    options = BypassOptions(gateway="web", hostnames=(HOST,), service=f"{namespace}/prod-router", after=20)
    router = ClusterRouter(lambda: exchange, False, ClusterRouterOptions(url="http://gateway", bypass=options), lambda: datetime.now(UTC))
    router.join("line", namespace, lambda: client(gateway_rig))
    champion, users = Endpoint(tag="v-0", url=f"http://v-0.{namespace}.svc:8000", model="v-0"), Users(gateway_rig)

    def report() -> None:
        exchange.report("line", "router-0", stamped({"route": None, "in_flight": {}, "forwarded": None, "ended": False}))

    def scale(replicas: int) -> None:
        gateway_rig.kubectl("scale", "deployment", "prod-router", f"--replicas={replicas}", "-n", namespace)

    until(lambda: users.ask() == "prod-router", 60, 0.2)
    report()
    assert router.bypass(champion) == "", "the routers are there"
    scale(0)
    began = time.monotonic()
    done = until(lambda: router.bypass(champion), 60, 1.0)
    took = time.monotonic() - began
    until(lambda: users.ask() == "v-0", 60, 0.1)
    print(f"{done} ({took:.1f} s after the routers were removed)")
    assert took < 20 + 10
    assert "no router is ready" in done
    assert router.bypass(champion) == "", "nothing is done twice"
    with pytest.raises(Incomplete, match="without the router"):
        router.forwarded("line", datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC))
    other = Endpoint(tag="v-1", url=f"http://v-1.{namespace}.svc:8000", model="v-1")
    assert router.bypass(other) == ""
    until(lambda: users.ask() == "v-1", 60, 0.1, lambda: "a new champion answers instead")
    scale(1)

    def back() -> str:
        report()
        return router.bypass(other)

    done = until(back, 90, 1.0)
    assert "routers are ready again" in done
    until(lambda: users.ask() == "prod-router", 60, 0.1)
    assert Counter(users.ask() for _ in range(50)) == {"prod-router": 50}
    print(done)
