"""Figures of an installation in pods, each beside its baseline in the same run: latency of the router, start of a model server."""

from __future__ import annotations

import statistics
import time
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
