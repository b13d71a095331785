"""Tests of the router in pods: real replicas and a real receiver, which share nothing but a bucket."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from ratchet.contracts.errors import Incomplete, Permanent, Retryable
from ratchet.contracts.schema import stamped
from ratchet.extend.testkit import RouterSuite
from ratchet.k8s.serving.router import SILENT_SECONDS, ClusterRouter, ClusterRouterOptions
from ratchet.materializer.receive.credentials import CredentialStore
from ratchet.router.replica.state import ROUTE_SECONDS
from ratchet.runtime.serving.exchange import Exchange, Intake, Published
from tests.pods import ReceiverPod, Replica, exchange_of, keys_of
from tests.s3 import S3
from tests.serving_site import Site, route
from tests.waiting import until

pytestmark = pytest.mark.slow  # real processes and a real S3 server


@pytest.fixture
def exchange(s3: S3, monkeypatch: pytest.MonkeyPatch) -> Exchange:
    for name, value in exchange_of(s3).items():
        monkeypatch.setenv(name, value)
    return Exchange(s3.settings.url)


def cluster_router(exchange: Exchange, later: float = 0.0) -> ClusterRouter:
    """Return the service's side, whose clock is `later` seconds ahead."""
    options = ClusterRouterOptions(url="http://gateway")
    return ClusterRouter(lambda: exchange, False, options, lambda: datetime.now(UTC) + timedelta(seconds=later))


@pytest.fixture
def router(exchange: Exchange) -> ClusterRouter:
    return cluster_router(exchange)


@pytest.fixture
def store(tmp_path: Path) -> CredentialStore:
    return CredentialStore(tmp_path / "service" / "credentials.json", lambda: datetime.now(UTC))


@pytest.fixture
def receiver(tmp_path: Path, s3: S3) -> Iterator[ReceiverPod]:
    pod = ReceiverPod(tmp_path / "receiver", s3)
    yield pod
    pod.end(signal.SIGKILL)


@pytest.fixture
def replica(tmp_path: Path, s3: S3, store: CredentialStore, receiver: ReceiverPod) -> Iterator[Callable[[str], Replica]]:
    """A function that returns the replica with a name, not started yet."""
    keys, made = keys_of(store, tmp_path / "keys"), []

    def make(name: str) -> Replica:
        made.append(Replica(tmp_path, keys, s3, name, receiver.port))
        return made[-1]

    yield make
    for pod in made:
        pod.end(signal.SIGKILL)


def ask(pod: Replica, session: str, **more: Any) -> httpx.Response:
    headers = {"x-session-id": session, "x-ratchet-consent": "true"}
    body = {"model": "helper", "messages": [{"role": "user", "content": "hi"}], **more}
    return httpx.post(f"{pod.url}/v1/chat/completions", json=body, headers=headers, timeout=30)


class TestClusterRouter(RouterSuite):
    """The suite for all routers."""


def sent(router: ClusterRouter) -> dict[str, int]:
    now = datetime.now(UTC)
    try:
        return dict(router.forwarded("line", now - timedelta(hours=1), now))
    except Incomplete:
        return {}


def test_replicas_follow_one_route_and_their_counts_add_up(
    router: ClusterRouter, replica: Callable[[str], Replica], site: Site, exchange: Exchange
) -> None:
    pods = [replica("router-0").start(wait=False), replica("router-1").start(wait=False)]
    a, b = site.backend("a", 50), site.backend("b", 50)
    assert not pods[0].is_ready(), "a replica without a route must not get users"
    router.set(route(a, b))
    until(lambda: all(pod.is_ready() for pod in pods))
    answers = {
        (session, pod.name): ask(pod, f"s{session}").json()["choices"][0]["message"]["content"] for session in range(12) for pod in pods
    }
    assert {answers[session, "router-0"] for session in range(12)} == {"from a", "from b"}
    assert all(answers[session, "router-0"] == answers[session, "router-1"] for session in range(12)), "a session stays with its version"
    until(lambda: sum(sent(router).values()) == 24, 20, why=lambda: sent(router))
    router.set(route(a.model_copy(update={"weight": 0}), b.model_copy(update={"weight": 100})))
    until(lambda: flying(router) == {}, 20)
    assert {ask(pod, f"s{session}").json()["choices"][0]["message"]["content"] for session in range(12) for pod in pods} == {"from b"}
    text = httpx.get(f"{pods[0].control}/metrics").text
    assert 'ratchet_router_recent_requests{line="line",version="b",outcome="ok"}' in text


def flying(router: ClusterRouter) -> dict[str, int] | None:
    try:
        return dict(router.in_flight("line"))
    except Incomplete:
        return None


def test_a_replica_that_ends_leaves_its_counts_and_one_that_is_silent_makes_them_incomplete(
    router: ClusterRouter, replica: Callable[[str], Replica], site: Site, exchange: Exchange
) -> None:
    a = site.backend("a", 100)
    router.set(route(a))
    first, second = replica("router-0").start(), replica("router-1").start()
    assert ask(first, "s").status_code == ask(second, "s").status_code == 200
    first.end()
    until(lambda: sent(router) == {"a": 2}, 20, why=lambda: sent(router))
    second.end(signal.SIGKILL)
    late = cluster_router(exchange, SILENT_SECONDS + 5)
    now = datetime.now(UTC) + timedelta(seconds=SILENT_SECONDS + 5)
    with pytest.raises(Incomplete, match="router-1"):
        late.forwarded("line", now - timedelta(hours=1), now)
    router.set(route(a, site.backend("b", 0)))
    with pytest.raises(Incomplete, match="router-1"):
        late.in_flight("line")
    assert cluster_router(exchange, ROUTE_SECONDS + 60).in_flight("line") == {}, "a replica whose route is too old sends nothing"
    second.start()
    until(lambda: flying(router) == {}, 20)


def test_without_replicas_the_counts_are_unknown(router: ClusterRouter, site: Site) -> None:
    router.set(route(site.backend("a", 100)))
    with pytest.raises(Retryable, match="no replica"):
        router.forwarded("line", datetime.now(UTC), datetime.now(UTC))


def test_a_route_without_weight_is_refused(router: ClusterRouter, site: Site) -> None:
    with pytest.raises(Permanent, match="weight above 0"):
        router.set(route(site.backend("a", 0)))


def test_traces_survive_a_killed_replica_and_a_refusing_bucket_and_arrive_once_in_the_spool(
    router: ClusterRouter,
    replica: Callable[[str], Replica],
    site: Site,
    exchange: Exchange,
    receiver: ReceiverPod,
    store: CredentialStore,
    s3: S3,
    tmp_path: Path,
) -> None:
    router.set(route(site.backend("a", 100)))
    pod = replica("router-0").start()
    assert ask(pod, "before the receiver").status_code == 200
    pod.end(signal.SIGKILL)
    receiver.start()
    unknown = httpx.post(f"{receiver.url}/v1/traces", headers={"authorization": "Bearer x", "content-type": "application/x-protobuf"})
    assert unknown.status_code == 503, "a sender drops a batch that is answered with 401, so the answer must not be 401 yet"
    exchange.publish("line", Published.CREDENTIALS, store.path.read_bytes())
    s3.stop()
    pod.start()
    assert ask(pod, "while the bucket is away").status_code == 200, "the last route is on the replica's volume"
    s3.start()
    until(lambda: len(exchange.waiting("line")) >= 1, 30)
    pod.end()
    spool = tmp_path / "spool"
    spool.mkdir()
    intake = Intake(exchange, "line", spool)
    until(lambda: intake.look(1 << 20) >= 0 and b"while the bucket is away" in b"".join(each(spool)), 30)
    assert b"".join(each(spool)).count(b"before the receiver") == 1
    for path in spool.iterdir():
        path.unlink()  # ingested
    assert intake.look(1 << 20) == 0
    assert exchange.waiting("line") == {}
    assert (
        httpx.post(f"{receiver.url}/v1/traces", headers={"authorization": "Bearer x", "content-type": "application/x-protobuf"}).status_code
        == 401
    )


def test_a_replica_waits_for_the_end_of_the_one_that_still_uses_its_volume(
    router: ClusterRouter, replica: Callable[[str], Replica], site: Site, tmp_path: Path
) -> None:
    """After a forced deletion of a pod, its process may still run when the next one starts."""
    router.set(route(site.backend("a", 100)))
    first = replica("router-0").start()
    second = replica("router-0").start(wait=False)
    time.sleep(2)
    assert not second.is_ready()
    assert ask(first, "s").status_code == 200
    first.end(signal.SIGKILL)
    until(second.is_ready)
    assert ask(second, "s").status_code == 200


def each(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.iterdir())]


def test_an_unreadable_account_is_named(router: ClusterRouter, exchange: Exchange, site: Site) -> None:
    router.set(route(site.backend("a", 100)))
    exchange.report("line", "router-9", stamped({"ended": False}))
    with pytest.raises(Retryable, match="router-9"):
        router.in_flight("line")
