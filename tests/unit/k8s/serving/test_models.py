"""Tests of model servers on a cluster, on an API server in memory whose Deployments the tests work."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.contracts.serving import ModelVersion, Outage
from ratchet.k8s.api.client import POD
from ratchet.k8s.manifests.serving import VERSION
from ratchet.k8s.manifests.version_server import replicas_for, server_labels, server_name, version_server
from ratchet.k8s.profiles.profile import load_profile
from ratchet.k8s.serving import models
from ratchet.k8s.serving.models import (
    BUDGET,
    DEPLOYMENT,
    POLICY,
    SERVICE,
    ClusterServer,
    ClusterServerOptions,
    open_cluster_server,
)
from ratchet.runtime.extensions import ExtensionKind, load
from tests.memory_cluster import MemoryCluster
from tests.unit.k8s.samples import serving_site

UNSCHEDULED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
NO_SECRET = {"reason": "CreateContainerConfigError"}
REFERENCE = dict.fromkeys(("weights", "tokenizer", "chat_template", "generation_config", "others", "files"), "a" * 64)


def version(number: int = 1, **model: Any) -> ModelVersion:
    reference = {**REFERENCE, "files": f"{number:064x}", **model}
    return ModelVersion.model_validate({"line": "shop", "number": number, "tag": f"shop-{number}", "model": reference, "cycle": None})


@pytest.fixture(autouse=True)
def artifacts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_ARTIFACTS_URL", "s3://models/artifacts")


class Bench:
    """Servers of the line `shop` on an API server, on which time passes only when the server waits."""

    def __init__(self, replicas: int = 4, **given: Any) -> None:
        self.cluster, self.now = MemoryCluster(), 0.0
        self.work: Callable[[], None] = self.answer
        given = options(gpus=0, load=100, replicas=replicas, **given)
        now = lambda: since(self.now)  # noqa: E731
        self.server = ClusterServer(lambda: self.cluster, ClusterServerOptions(**given), lambda: self.now, self.sleep, now)
        self.server.join("shop", Path())

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.work()

    def answer(self) -> None:
        """Let every server answer."""
        for one in self.deployments():
            replicas = one["spec"]["replicas"]
            self.status(one, {"readyReplicas": replicas, "updatedReplicas": replicas})

    def status(self, deployment: dict[str, Any], status: dict[str, Any]) -> None:
        self.cluster.put(DEPLOYMENT, {**deployment, "status": status})

    def deployments(self) -> list[dict[str, Any]]:
        return self.cluster.list(DEPLOYMENT, "ratchet").items

    def replicas(self) -> dict[str, int]:
        return {one["metadata"]["labels"]["ratchet.dev/version"]: one["spec"]["replicas"] for one in self.deployments()}

    def pod(self, of: ModelVersion, **status: Any) -> None:
        template = version_server(of, serving_site(gpus=0), 1)[0].model_dump(mode="json", by_alias=True)["spec"]["template"]
        meta = {"name": f"{server_name(of)}-x", "namespace": "ratchet", "labels": template["metadata"]["labels"]}
        self.cluster.put(POD, {"metadata": meta, "status": status})


def test_a_version_is_served_by_its_name_and_found_again() -> None:
    bench = Bench()
    first = bench.server.ensure(version(1))
    assert first.url == f"http://{server_name(version(1))}.ratchet.svc:8000"
    assert first.model == first.tag == "shop-1"
    assert bench.server.running() == [first]
    writes = len(bench.cluster.writes)
    other = ClusterServer(lambda: bench.cluster, ClusterServerOptions(**options()))
    other.join("help", Path())
    assert other.running() == []
    assert bench.server.ensure(version(1)) == first
    assert bench.replicas() == {"shop-1": 1}
    assert len(bench.cluster.writes) > writes, "a changed image of the loop file is applied, too"


@pytest.mark.parametrize("program", ["vllm", "/opt/engine/bin/vllm"])
def test_the_program_of_the_image_is_started(program: str) -> None:
    bench = Bench(executable=program)
    bench.server.ensure(version(1))
    [deployment] = bench.deployments()
    [server] = deployment["spec"]["template"]["spec"]["containers"]
    assert server["command"][:3] == [program, "serve", "/models/base"]


def test_servers_follow_the_share_of_the_sessions_and_the_other_version_is_not_touched() -> None:
    bench = Bench(replicas=4)
    bench.server.ensure(version(1))
    assert bench.server.scale(version(1), 100)
    champion = bench.deployments()[0]
    for share, expected in ((0, 1), (5, 1), (25, 1), (26, 2), (50, 2), (95, 4), (100, 4)):
        bench.server.scale(version(2), share)
        assert bench.replicas() == {"shop-1": 4, "shop-2": expected}
    assert not bench.server.scale(version(2), 100)
    found = next(one for one in bench.deployments() if one["metadata"]["name"] == champion["metadata"]["name"])
    assert (
        found["metadata"]["resourceVersion"]
        == bench.cluster.get(DEPLOYMENT, champion["metadata"]["name"], "ratchet")["metadata"]["resourceVersion"]
    )  # type: ignore[index]
    bench.server.ensure(version(2))
    assert bench.replicas()["shop-2"] == 4, "`ensure` keeps what `scale` has set"


@pytest.mark.parametrize(("share", "full", "expected"), [(0, 10, 1), (10, 10, 1), (10.1, 10, 2), (95, 10, 10), (100, 10, 10), (33.3, 3, 1)])
def test_the_number_of_servers_is_the_rounded_up_share(share: float, full: int, expected: int) -> None:
    assert replicas_for(share, full) == expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/2 nodes are available: 2 Insufficient memory.",
                    }
                ]
            },
            "Insufficient memory",
        ),
        (
            {"containerStatuses": [{"name": "server", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]},
            "the image cannot be pulled .no such image",
        ),
        (
            {
                "initContainerStatuses": [
                    {
                        "name": "fetch",
                        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                        "lastState": {"terminated": {"exitCode": 78, "message": "artifact 00ab is not in the bucket"}},
                    }
                ]
            },
            "container fetch.*exit code 78: artifact 00ab is not in the bucket",
        ),
        (
            {
                "containerStatuses": [
                    {
                        "name": "server",
                        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                        "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
                    }
                ]
            },
            "more memory than its limit",
        ),
        (
            {
                "containerStatuses": [
                    {"name": "server", "state": {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "x" not found'}}}
                ]
            },
            'secret "x" not found',
        ),
    ],
)
def test_an_obstacle_is_reported_within_a_minute(status: dict[str, Any], expected: str) -> None:
    bench = Bench()
    bench.work = lambda: bench.pod(version(1), **status)
    with pytest.raises(Retryable, match=expected):
        bench.server.ensure(version(1))
    assert 59 < bench.now < 63
    bench.work = bench.answer
    assert bench.server.ensure(version(1)).tag == "shop-1", "the Deployment stays, so that it goes on when there is room"


def test_without_waiting_a_known_obstacle_is_reported_until_a_server_answers() -> None:
    bench = Bench()
    assert bench.server.scale(version(1), 25, wait=False)
    assert not bench.server.scale(version(1), 25, wait=False), "its pod may start at any moment"
    bench.pod(version(1), conditions=[{**UNSCHEDULED, "message": "no node has 8 GPUs"}])
    with pytest.raises(Retryable, match=r"the model server of shop-1 cannot start: .*no node has 8 GPUs"):
        bench.server.scale(version(1), 25, wait=False)
    bench.pod(version(1), containerStatuses=[{"name": "server", "restartCount": 1, "state": {"running": {}}}])
    with pytest.raises(Retryable, match=r"its container has ended by itself; look at `kubectl logs"):
        bench.server.scale(version(1), 25, wait=False)
    bench.pod(version(1))
    (pod,) = bench.cluster.list(POD, "ratchet").items
    bench.cluster.put(POD, {**pod, "metadata": {**pod["metadata"], "creationTimestamp": since(-161.0).isoformat()}})
    with pytest.raises(Retryable, match=r"it does not answer after 161 s; .*, or raise serving\.options\.load"):
        bench.server.scale(version(1), 25, wait=False)
    bench.answer()
    assert not bench.server.scale(version(1), 25, wait=False)
    assert bench.now == 0, "nothing has waited"


def test_a_reached_quota_is_reported() -> None:
    bench = Bench()
    refused = {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: gpus"}]}
    bench.work = lambda: bench.status(bench.deployments()[0], refused)
    with pytest.raises(Retryable, match="exceeded quota: gpus"):
        bench.server.ensure(version(1))


def test_a_short_obstacle_and_a_pod_that_ends_are_no_failure() -> None:
    bench = Bench()

    def work() -> None:
        bench.pod(version(1), **({"conditions": [{**UNSCHEDULED, "message": "wait"}]} if bench.now < 40 else {}))
        if bench.now > 70:
            bench.answer()

    bench.work = work
    assert bench.server.ensure(version(1)).tag == "shop-1"


def test_a_server_that_only_takes_long_has_its_time() -> None:
    bench = Bench()
    bench.work = lambda: None
    with pytest.raises(Retryable, match=r"0 of 1 model servers of shop-1 answer after 160 s"):
        bench.server.ensure(version(1))


def test_servers_of_a_former_template_do_not_count() -> None:
    bench = Bench()

    def work() -> None:
        one = bench.deployments()[0]
        status = {"readyReplicas": 1, "updatedReplicas": 1, "observedGeneration": 1}
        bench.status({**one, "metadata": {**one["metadata"], "generation": 2}}, status)

    bench.work = work
    with pytest.raises(Retryable, match="0 of 1"):
        bench.server.ensure(version(1))


def test_stop_deletes_everything_of_one_version() -> None:
    bench = Bench()
    bench.server.ensure(version(1))
    bench.server.ensure(version(2))
    bench.server.stop("shop-1")
    bench.server.stop("shop-1")
    assert bench.replicas() == {"shop-2": 1}
    for kind in (SERVICE, BUDGET, POLICY):
        assert all(server_name(version(2)) in one["metadata"]["name"] for one in bench.cluster.list(kind, "ratchet").items)


def test_an_adapter_is_refused() -> None:
    adapter = version(1).model_copy(update={"model": version(1).model.model_copy(update={"parent": "b" * 64})})
    with pytest.raises(ConfigError, match="merged"):
        Bench().server.ensure(adapter)


def options(**changes: Any) -> dict[str, Any]:
    return {"namespace": "ratchet", "image": "vllm:1", "fetch_image": "ratchet:1", **changes}


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    def opened(**changes: Any) -> Any:
        return load(ExtensionKind.SERVER, "kubernetes").create(tmp_path, None, "shop", options=options(**changes), where="serving.options")

    assert opened().capabilities.scales
    with pytest.raises(ConfigError, match=r"secret/key"):
        opened(secrets={"AWS_SECRET_ACCESS_KEY": "a-value"})
    with pytest.raises(ConfigError, match="replicas"):
        opened(replicas=0)
    with pytest.raises(ConfigError, match=r"serving\.options\.profile"):
        opened(profile="unknown").join("shop", tmp_path)


def test_without_a_bucket_a_loop_file_is_valid_and_no_server_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A team's CI checks the loop file without the environment of the cluster."""
    monkeypatch.delenv("RATCHET_ARTIFACTS_URL")
    bench = Bench()
    assert bench.server.running() == []
    with pytest.raises(ConfigError, match="RATCHET_ARTIFACTS_URL"):
        bench.server.ensure(version(1))


def test_a_server_that_does_not_fit_the_profile_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not fit"):
        version_server(version(1), serving_site(gpus=9, profile=load_profile("generic-gpu")), 1)


def test_open_cluster_server_needs_no_cluster(tmp_path: Path) -> None:
    assert open_cluster_server(tmp_path, None, "shop", **options()) is not None  # type: ignore[arg-type]


def since(seconds: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


class Watched:
    """A version whose pods a test sets, and whose Service takes connections while `is_open`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bench = Bench()
        self.bench.server.ensure(version())
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.is_open = True
        monkeypatch.setattr(models, "server_url", lambda *_: f"http://127.0.0.1:{self.port}")
        self.bench.work = lambda: None

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1]) if self.is_open else 1

    def pods(self, *names: str, at: float = 0, **status: Any) -> None:
        """Let these pods be the ready ones, since `at`."""
        for pod in self.bench.cluster.list(POD, "ratchet").items:
            self.bench.cluster.delete(POD, pod["metadata"]["name"], "ratchet")
        for name in names:
            labels = {**server_labels("shop"), VERSION: version().tag, "app.kubernetes.io/name": server_name(version())}
            condition = {"type": "Ready", "status": "True", "lastTransitionTime": since(at).isoformat()}
            meta = {"name": name, "namespace": "ratchet", "uid": name, "labels": labels}
            self.bench.cluster.put(POD, {"metadata": meta, "status": {"conditions": [condition], **status}})

    def look(self, at: float) -> Outage | None:
        self.bench.now = at
        return self.bench.server.newest_outage(version())


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    one = Watched(monkeypatch)
    yield one
    one.listener.close()


def test_a_version_that_takes_no_connection_is_away_since_it_was_last_seen(watched: Watched) -> None:
    watched.pods("a")
    assert watched.look(100) is None
    watched.is_open = False
    assert watched.look(130) == Outage(since=since(100))
    assert watched.look(160) == Outage(since=since(100))
    watched.is_open = True
    assert watched.look(190) is None, "the same pod was there all the time"


def test_an_outage_between_two_looks_is_told_once(watched: Watched) -> None:
    watched.pods("a")
    watched.look(100)
    watched.pods("b", at=120)
    assert watched.look(130) == Outage(since=since(100), until=since(130))
    assert watched.look(160) is None
    watched.pods("b", at=170)  # it was not ready meanwhile
    assert watched.look(190) == Outage(since=since(160), until=since(190))


def test_an_outage_before_the_first_look_is_known_from_the_scaling(watched: Watched) -> None:
    watched.pods("a")
    watched.bench.answer()
    watched.bench.now = 90
    watched.bench.server.scale(version(), 1)
    watched.pods("b", at=100)
    assert watched.look(110) == Outage(since=since(90), until=since(110))


def test_more_servers_and_servers_that_move_one_after_the_other_are_no_outage(watched: Watched) -> None:
    watched.pods("a")
    for at, pods in ((100, ("a",)), (130, ("a", "b", "c")), (160, ("b", "c")), (190, ("c", "d")), (220, ("d",))):
        watched.pods(*pods)
        assert watched.look(at) is None


def test_a_service_that_was_not_there_before_knows_of_no_outage_that_is_over(watched: Watched) -> None:
    watched.pods("b", at=120)
    assert watched.look(130) is None
    watched.is_open = False
    watched.bench.server._seen.clear()
    assert watched.look(160) == Outage(since=since(160))


@pytest.mark.parametrize(
    ("status", "is_outage"),
    [
        ({"containerStatuses": [{"restartCount": 1}]}, False),
        ({"containerStatuses": [{"restartCount": 0, "state": {"terminated": {"reason": "OOMKilled"}}}]}, False),
        ({"containerStatuses": [{"restartCount": 0, "state": {"running": {}}}]}, True),
        ({"containerStatuses": [{"restartCount": 1, "lastState": {"terminated": {"reason": "Error", "exitCode": 1}}}]}, False),
        ({"containerStatuses": [{"restartCount": 1, "lastState": {"terminated": {"reason": "Unknown", "exitCode": 255}}}]}, True),
        ({"containerStatuses": [{"restartCount": 2, "lastState": {"terminated": {"reason": "Unknown", "exitCode": 255}}}]}, False),
        ({"containerStatuses": [{"state": {"terminated": {}}}], "conditions": [{"type": "DisruptionTarget", "status": "True"}]}, True),
    ],
)
def test_a_server_that_ended_by_itself_is_no_outage(watched: Watched, status: dict[str, Any], is_outage: bool) -> None:
    watched.pods("a")
    watched.look(100)
    watched.pods("a", **status)
    watched.is_open = False
    assert (watched.look(130) is not None) is is_outage


def test_a_name_that_is_not_resolved_and_an_api_server_that_is_away(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    watched.pods("a")
    watched.look(100)
    watched.bench.cluster.away = True
    with pytest.raises(Retryable):
        watched.look(130)
    monkeypatch.setattr(models, "server_url", lambda *_: "http://no-such-host.invalid:80")
    assert watched.look(160) == Outage(since=since(100))
