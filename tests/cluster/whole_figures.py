"""Figures of an installation in pods, each beside its baseline in one run: latency, start of a server, replicas of the router."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import httpx

from tests.cluster.whole import LINE, Whole
from tests.toy_line import TRAINING
from tests.waiting import until

REQUESTS = 300
DIRECT = "x-direct"
"""Header of requests that the Gateway sends to the model servers without the router."""


def added_by_the_router(whole: Whole) -> dict[str, float]:
    """Return the latencies in ms of requests through Gateway and router, and through the Gateway alone, asked in turns."""
    server = whole.ready("model")[0]["metadata"]["labels"]
    backend = {"name": server["app.kubernetes.io/name"], "port": 8000}
    match = {"path": {"type": "PathPrefix", "value": "/v1"}, "headers": [{"name": DIRECT, "value": "yes"}]}
    spec = {"parentRefs": [{"name": "web"}], "rules": [{"matches": [match], "backendRefs": [backend]}]}
    route = {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": "direct"}, "spec": spec}
    whole.rig.apply(route, namespace=whole.namespace)
    client = httpx.Client(timeout=30, trust_env=False)
    body = {"messages": [{"role": "user", "content": TRAINING[0]}], "max_tokens": 1}

    def ask(direct: bool) -> float:
        headers = {DIRECT: "yes"} if direct else {"x-session-id": "figures", "x-user-id": "figures"}
        model = server["ratchet.dev/version"] if direct else LINE
        began = time.perf_counter()
        reply = client.post(f"{whole.rig.web}/v1/chat/completions", json={**body, "model": model}, headers=headers)
        assert reply.status_code == 200, reply.text
        return (time.perf_counter() - began) * 1000

    def answers() -> bool:
        try:
            return ask(direct=True) > 0
        except (AssertionError, httpx.HTTPError):
            return False

    until(answers, 60, 0.5)
    taken: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * REQUESTS):
        taken[number % 2 == 0].append(ask(direct=number % 2 == 0))
    found = {}
    for name, times in (("gateway", taken[True]), ("router", taken[False])):
        cuts = statistics.quantiles(times, n=100)
        found[f"{name}_p50_ms"], found[f"{name}_p99_ms"] = round(cuts[49], 2), round(cuts[98], 2)
    found["p50_ratio"] = round(found["router_p50_ms"] / found["gateway_p50_ms"], 2)
    return found


def starts(whole: Whole) -> list[dict[str, float]]:
    """Return for each model server the seconds from the creation of its pod until it is ready, and those of its own start."""

    def at(text: str) -> datetime:
        return datetime.fromisoformat(text)

    found = []
    for pod in whole.ready("model"):
        status: dict[str, Any] = pod["status"]
        ready = next(at(one["lastTransitionTime"]) for one in status["conditions"] if one["type"] == "Ready")
        begun = at(status["containerStatuses"][0]["state"]["running"]["startedAt"])
        created = at(pod["metadata"]["creationTimestamp"])
        found.append({"pod": (ready - created).total_seconds(), "server": (ready - begun).total_seconds()})
    return found


def per_replica(whole: Whole, counts: tuple[int, ...] = (1, 2, 1, 2), seconds: float = 20, users: int = 8) -> list[dict[str, Any]]:
    """Return for each number of router replicas the requests a second of `users` at once, and what the replicas used.

    The model servers share the machine's cores, so the rate says more about them. `cpu_us_per_request` is the CPU time of all replicas
    without that which they use at rest, `cpu_at_rest` the share of a core that one replica uses without requests.
    """
    found = []
    for count in counts:
        whole.rig.kubectl("scale", "statefulset/demo-router", f"--replicas={count}", "-n", whole.namespace)
        # A replica that ends still answers for a while, and its CPU time would be missing.
        until(lambda count=count: len(whole.ready("router")) == len(_pods(whole)) == count, 240, 0.5, whole.story)  # type: ignore[misc]
        names = sorted(pod["metadata"]["name"] for pod in whole.ready("router"))
        _ask_for(whole, 3, users)  # a new replica opens its connections
        idle = _spent(whole, names, lambda: time.sleep(seconds / 2))
        rest = sum(idle.values()) / (seconds / 2)
        answers: list[int] = []
        used = _spent(whole, names, lambda answers=answers: answers.append(_ask_for(whole, seconds, users)))  # type: ignore[misc]
        found.append(
            {
                "replicas": count,
                "requests_per_second": round(answers[0] / seconds, 1),
                "cpu_us_per_request": round((sum(used.values()) - rest * seconds) / max(answers[0], 1) * 1e6),
                "cpu_share": [round(one / max(sum(used.values()), 1e-9), 2) for one in used.values()],
                "cpu_at_rest": round(rest / count, 3),
            }
        )
    return found


def _spent(whole: Whole, names: list[str], do: Callable[[], None]) -> dict[str, float]:
    """Return for each pod the CPU seconds that it used while `do` ran."""
    before = {name: _used(whole, name) for name in names}
    do()
    return {name: _used(whole, name) - before[name] for name in names}


def _pods(whole: Whole) -> list[str]:
    """Return the names of all router pods, also of those that end."""
    pods = whole.rig.pods(whole.namespace)
    return [pod["metadata"]["name"] for pod in pods if pod["metadata"]["labels"].get("app.kubernetes.io/component") == "router"]


def _ask_for(whole: Whole, seconds: float, users: int) -> int:
    """Let users ask for so long, each one after its own answers, and return the number of answers."""
    end, counts = time.monotonic() + seconds, [0] * users

    def ask(number: int) -> None:
        client = httpx.Client(timeout=30, trust_env=False)
        while time.monotonic() < end:
            reply = whole.ask(client, f"user-{number}-{counts[number]}", TRAINING[number % len(TRAINING)])
            counts[number] += reply.status_code == 200

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(users)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


def _used(whole: Whole, pod: str) -> float:
    """Return the CPU seconds of the processes of a pod's container."""
    look = "cat /proc/[0-9]*/stat"
    lines = whole.rig.kubectl("exec", "-n", whole.namespace, pod, "--", "sh", "-c", look, check=False).splitlines()
    fields = [line.rpartition(")")[2].split() for line in lines if "python" in line]
    return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")
