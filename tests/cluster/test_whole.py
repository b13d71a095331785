"""Tests of an installation whose parts all run in the cluster: from `helm install` to a promoted model, behind a real Gateway."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from ratchet.contracts.serving import RouterHeader
from ratchet.k8s.manifests.serving import VERSION
from tests import markers
from tests.cluster.faults import counted, faults, is_counted, run, upgrade, upgraded
from tests.cluster.whole import LINE, PERSON, Whole
from tests.cluster.whole_figures import added_by_the_router, per_replica, starts
from tests.real_vllm import vllm_program
from tests.soak_results import record
from tests.toy_line import TRAINING
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def prepared(
    whole: Whole, bypass: bool = False, seconds: float = 300, change: Callable[[dict[str, Any]], None] = lambda _values: None
) -> None:
    """Install everything, adopt the model, and wait until users get answers through the Gateway. A model server has `seconds` to start.

    `change` may change the values of the chart.
    """
    whole.install(bypass=bypass, change=change)
    whole.wait_ready("prefect", 1)
    whole.wait_ready("receiver", 1)
    whole.wait_ready("service", 1)
    whole.ratchet("adopt", f"/lines/{LINE}/loop.toml", str(whole.model), "--by", "ada")
    whole.told("the model is adopted")
    whole.wait_ready("model", 1, seconds)
    whole.wait_ready("router", 2)
    client = httpx.Client(timeout=30, trust_env=False)
    until(lambda: answer(whole, client) == "no", 240, 1.0, whole.story)
    whole.told("users get answers through the Gateway")


def token_of(whole: Whole, role: str = "feedback") -> str:
    """Return a token with this role, by default that with which people rate answers."""
    file = whole.ratchet("token", "add", LINE, role, "--name", "people").strip().splitlines()[-1]
    return whole.rig.kubectl("exec", "-n", whole.namespace, whole.service_pod, "--", "cat", file)


def test_a_cycle_from_traces_on_s3_to_a_promotion_with_every_part_in_the_cluster(whole: Whole, tmp_path: Path) -> None:
    whole.s3.client.put_bucket_versioning(Bucket=whole.s3.bucket, VersioningConfiguration={"Status": "Enabled"})
    prepared(whole)
    client = httpx.Client(timeout=30, trust_env=False)
    address = whole.ready("prefect")[0]["status"]["podIP"]
    page = client.get(f"http://{address}:4200/", auth=("ratchet", "a-password-of-this-test"), follow_redirects=True)
    assert page.status_code == 200
    assert "<title>Prefect" in page.text, "people approve in the UI"
    with whole.users(token_of(whole)) as traffic:
        until(lambda: len(whole.route()["backends"]) == 2, 1200, 0.5, whole.story)
        candidate = f"{VERSION}={whole.route()['backends'][1]['tag']}"
        whole.rig.kubectl("delete", "pod", "-n", whole.namespace, "-l", candidate, "--grace-period=0", "--force")
        whole.told("the candidate's only server is lost at the begin of its rollout")
        until(lambda: "promoted" in whole.ratchet("history", LINE, check=False), 1800, 3.0, whole.story)
        whole.told("the candidate is promoted")
        assert "the step begins again" in whole.ratchet("logs", f"{LINE}/1"), "the time without a server is no evidence"
        until(lambda: answer(whole, client) == "yes", 240, 1.0, whole.story)
        began = time.monotonic()
        whole.ratchet("rollback", LINE, "--by", "ada")
        until(lambda: answer(whole, client) == "no", 240, 0.2, whole.story)
        whole.told(f"every user is on the former version {time.monotonic() - began:.1f} s after `ratchet rollback` began")
    assert traffic.failures == [], f"no request fails because of a weight change, a promotion or a rollback\n{whole.story()}"
    assert len(traffic.answers) > 30
    places = {key.partition("/")[0] for key in whole.marked(tmp_path / "before")}
    assert places >= {"artifacts", "jobs"}, places
    receipt = whole.ratchet("erase", "--user", markers.user(PERSON))
    assert "the bucket of jobs" in receipt
    assert whole.marked(tmp_path / "after") == set(), "no version of any object has a text of the erased person"
    whole.told("a person is erased from all buckets")


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_the_real_vllm_serves_champion_and_candidate_of_a_cycle_in_the_cluster(whole: Whole) -> None:
    folder = whole.folder / "vllm"
    folder.mkdir()
    whole.vllm = vllm_program(folder)
    began = time.monotonic()
    prepared(whole, seconds=1200)
    client = httpx.Client(timeout=60, trust_env=False)
    with whole.users(token_of(whole)) as traffic:
        until(lambda: "promoted" in whole.ratchet("history", LINE, check=False), 1500, 3.0, whole.story)
        promoted = time.monotonic() - began
        whole.told("the candidate is promoted")
        until(lambda: answer(whole, client) == "yes", 240, 1.0, whole.story)
        back = time.monotonic()
        whole.ratchet("rollback", LINE, "--by", "ada")
        until(lambda: answer(whole, client) == "no", 240, 0.2, whole.story)
        back = time.monotonic() - back
        whole.told(f"every user is on the former version {back:.1f} s after `ratchet rollback` began")
    assert traffic.failures == []
    assert len(traffic.answers) > 30
    figures = {"promoted_s": round(promoted), "rollback_s": round(back, 1), "answers": len(traffic.answers), "failed": 0}
    record("cluster_vllm", figures)


def test_a_gateway_serves_a_line_without_routers_and_the_service_repairs_its_route(whole: Whole) -> None:
    whole.install(replicas=1, by_gateway=True)
    whole.wait_ready("prefect", 1)
    whole.wait_ready("service", 1)
    assert "decides by up to 100 mirrored prompts" in whole.ratchet("check", f"/lines/{LINE}/loop.toml", check=False)
    whole.ratchet("adopt", f"/lines/{LINE}/loop.toml", str(whole.model), "--by", "ada")
    client = httpx.Client(timeout=30, trust_env=False)
    until(lambda: answer(whole, client) == "no", 300, 1.0, whole.story)
    whole.told("users get answers through the Gateway")
    reply = whole.ask(client, "ann", TRAINING[0]).json()
    assert reply["model"] == LINE, "the server answers to the model name of the line"
    assert whole.ready("router") == []

    def route(*command: str, check: bool = True) -> str:
        return whole.rig.kubectl(*command, "-n", whole.namespace, check=check)

    began = time.monotonic()
    route("delete", "httproute", f"ratchet-{LINE}")
    until(lambda: route("get", "httproute", f"ratchet-{LINE}", "-o", "name", check=False), 240, 0.5, whole.story)
    until(lambda: answer(whole, client) == "no", 240, 0.5, whole.story)
    whole.told(f"a deleted route is repaired after {time.monotonic() - began:.1f} s")
    until(lambda: f"routed {LINE} to" in route("logs", "demo-service-0", "--tail=-1"), 240, 1.0, whole.story)
    change = '[{"op": "add", "path": "/spec/hostnames", "value": ["elsewhere.example"]}]'
    route("patch", "httproute", f"ratchet-{LINE}", "--type=json", "--field-manager=argocd-controller", "-p", change)
    until(lambda: "argocd-controller owns spec.hostnames" in route("logs", "demo-service-0", "--tail=-1"), 240, 1.0, whole.story)
    assert "elsewhere.example" in route("get", "httproute", f"ratchet-{LINE}", "-o", "yaml"), "it is not overwritten"
    whole.told("another field manager is named")


@pytest.mark.soak
def test_the_champion_answers_while_all_routers_are_gone_and_the_routers_afterwards(whole: Whole) -> None:
    prepared(whole, bypass=True)
    client = httpx.Client(timeout=30, trust_env=False)

    def through() -> str:
        """Return by which way a request is answered: only the routers name a trace. Empty if it is not answered."""
        reply = whole.ask(client, f"look-{time.monotonic_ns()}", TRAINING[0])
        return ("router" if RouterHeader.TRACE in reply.headers else "direct") if reply.status_code == 200 else ""

    def scale(replicas: int) -> None:
        whole.rig.kubectl("scale", "statefulset", "demo-router", f"--replicas={replicas}", "-n", whole.namespace)

    assert through() == "router"
    pods = [pod["metadata"]["name"] for pod in whole.ready("router")]
    scale(0)
    whole.rig.kubectl("delete", "pods", *pods, "-n", whole.namespace, "--grace-period=0", "--force")
    began = time.monotonic()
    until(lambda: through() == "direct", 240, 0.5, whole.story)
    whole.told(f"the champion answers directly {time.monotonic() - began:.1f} s after all routers were killed")
    scale(2)
    until(lambda: through() == "router", 240, 0.5, whole.story)
    ways = [through() for _ in range(20)]
    whole.told(f"the routers answer again {time.monotonic() - began:.1f} s after they were killed")
    assert set(ways) == {"router"}
    log = whole.rig.kubectl("logs", "demo-service-0", "--tail=-1", "-n", whole.namespace)
    assert "no router is ready" in log
    assert "routers are ready again" in log


def answer(whole: Whole, client: httpx.Client) -> str:
    """Return the answer that a new user gets; empty if there is none."""
    try:
        reply = whole.ask(client, f"look-{time.monotonic_ns()}", TRAINING[0])
    except httpx.HTTPError:
        return ""
    return reply.json()["choices"][0]["message"]["content"] if reply.status_code == 200 else ""


@pytest.mark.soak
def test_a_rollout_survives_a_quota_an_upgrade_and_a_second_service(whole: Whole) -> None:
    prepared(whole)
    client, figures = httpx.Client(timeout=30, trust_env=False), dict[str, float]()
    with whole.users(token_of(whole)) as traffic:
        until(lambda: trained(whole), 600, 0.2, whole.story)
        fill(whole)
        until(lambda: len(whole.model_deployments()) == 2, 300, 0.2, whole.story)
        began = time.monotonic()
        until(lambda: "exceeded quota" in whole.ratchet("status", LINE, check=False), 120, 1.0, whole.story)
        figures["quota_told"] = time.monotonic() - began
        whole.told(f"the status names the reached quota after {figures['quota_told']:.0f} s")
        whole.rig.kubectl("delete", "resourcequota/full", "-n", whole.namespace)

        until(lambda: len(whole.route()["backends"]) == 2, 300, 0.2, whole.story)
        whole.told("the rollout is open")
        began = time.monotonic()
        upgrade(whole)
        until(lambda: upgraded(whole), 300, 0.5, whole.story)
        figures["upgraded"] = time.monotonic() - began
        whole.told(f"every pod is replaced after {figures['upgraded']:.0f} s")
        until(lambda: "promoted" in whole.ratchet("history", LINE, check=False), 1800, 3.0, whole.story)
        whole.told("the candidate is promoted")

        whole.rig.kubectl("scale", "statefulset/demo-service", "--replicas=2", "-n", whole.namespace)
        until(
            lambda: "served by another installation" in whole.rig.kubectl("logs", "-n", whole.namespace, "demo-service-1", check=False),
            120,
            1.0,
            whole.story,
        )
        whole.told("the second service says that another one has the lines")
        whole.rig.kubectl("scale", "statefulset/demo-service", "--replicas=1", "-n", whole.namespace)
        until(lambda: answer(whole, client) == "yes", 240, 1.0, whole.story)
    assert traffic.failures == []
    record("cluster_rollout", {"answers": len(traffic.answers), "failed": len(traffic.failures), **figures})
    assert figures["quota_told"] < 60


def fill(whole: Whole) -> None:
    """Set a quota of pods that is used up. The test cluster has no controller that counts, so its status is set here."""
    hard = {"pods": "1"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "full"}, "spec": {"hard": hard}}
    whole.rig.apply(quota, namespace=whole.namespace)
    path = f"/api/v1/namespaces/{whole.namespace}/resourcequotas/full/status"
    whole.rig.api.patch(path, {"status": {"hard": hard, "used": hard}})


def trained(whole: Whole) -> bool:
    """Whether a pod of a training job has succeeded."""
    return any("ratchet.dev/gang" in pod["metadata"]["labels"] for pod in whole.rig.pods(whole.namespace, "Succeeded"))


@pytest.mark.soak
def test_two_replicas_of_the_router_share_the_requests(whole: Whole) -> None:
    prepared(whole)
    figures = per_replica(whole)
    whole.told(str(figures))
    record("cluster_replicas", {"replicas": figures})
    assert min(share for one in figures if one["replicas"] == 2 for share in one["cpu_share"]) > 0.2, "both replicas work"


@pytest.mark.soak
def test_faults_lose_no_answered_request_and_store_none_twice(whole: Whole) -> None:
    prepared(whole)
    figures = {"latency": added_by_the_router(whole), "starts": starts(whole)}
    whole.told(str(figures))
    with whole.users(token_of(whole)) as traffic:
        until(lambda: len(traffic.answers) > 20, 120)
        rows = run(whole, traffic, faults())
    answered = set(traffic.traces)
    until(lambda: is_counted(whole, answered), 120, 3.0, lambda: str(counted(whole, answered)))
    missing, refused, twice = counted(whole, answered)
    lost = max(0, missing - refused)  # the model answers nothing now and then, and a trace without an answer is quarantined
    whole.told(f"{len(answered)} answers, {refused} of them in quarantine, {lost} traces lost, {twice} stored twice")
    record("cluster_faults", {"faults": rows, "answers": len(answered), "quarantined": refused, "lost": lost, "twice": twice, **figures})
    assert (lost, twice) == (0, 0)
    assert "champion" in whole.ratchet("history", LINE)
