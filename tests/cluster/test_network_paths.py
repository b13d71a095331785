"""With all network policies of the chart, of `ratchet k8s render --admin` and of the service, every part reaches only what it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ratchet.k8s.manifests.environment import render_environment
from ratchet.k8s.manifests.network import gang_network_policy
from ratchet.k8s.manifests.pod_objects import manifest
from ratchet.k8s.manifests.serving import PORT
from ratchet.k8s.manifests.version_server import version_server
from ratchet.k8s.profiles.profile import load_profile
from tests.cluster.network_paths import End, Policies, pod_end
from tests.unit.k8s import samples

pytestmark = pytest.mark.slow
BUCKET, METADATA, OUTSIDE = End(address="52.216.1.1"), End(address="169.254.169.254"), End(address="93.184.1.1")
DNS = End("kube-system", {"k8s-app": "kube-dns"})
GATEWAY = End("gateways", {"app": "gateway"})
APPLICATION = End("apps", {"app": "shop"})
HEAD = End("rays", {"ray.io/node-type": "head"})
"""Head of a Ray cluster that the chart does not start."""
STRANGER = End("ratchet", {"app": "other"})


@pytest.fixture(params=["ratchet", "models"])
def parts(request: pytest.FixtureRequest, rendered: Callable[..., list[dict[str, Any]]]) -> tuple[dict[str, End], Policies]:
    """The ends of an installation in the namespace `ratchet`, with model servers there or in a namespace of their own."""
    models = str(request.param)
    settings, profile = (
        samples.settings(account="ratchet/prod-service", volume=samples.BUCKET, nemo_image=None),
        load_profile("generic-gpu"),
    )
    ray = {"workers": 2, "secret": "ratchet-ray", "existing": {"namespace": "rays", "labels": HEAD.labels}}
    chart = rendered(service={"modelsNamespace": models} if models != "ratchet" else {}, ray=ray)
    environment = [manifest(one.shape) for one in render_environment(settings, profile)]
    serving = [manifest(shape) for shape in version_server(samples.version(), samples.serving_site(namespace=models), 1)]
    gang = samples.gang("generic-gpu", volume=samples.BUCKET, nemo_image=None)
    policy = manifest(gang_network_policy(gang.metadata.name or "", "ratchet", settings.volume.bucket))
    ends = {one["metadata"]["name"]: pod_end(one, "ratchet") for one in chart if one["kind"] in ("Deployment", "StatefulSet")}
    ends["model"] = next(pod_end(one, models) for one in serving if one["kind"] == "Deployment")
    ends["job"] = End("ratchet", dict(gang.spec.tasks[0].template.metadata.labels))
    return ends, Policies([*chart, *environment, *serving, policy], "ratchet")


def test_every_part_reaches_what_it_needs(parts: tuple[dict[str, End], Policies]) -> None:
    ends, policies = parts
    service, router, receiver, prefect = (ends[f"prod-{name}"] for name in ("service", "router", "receiver", "prefect"))
    needed = {
        "router to a model server": (router, ends["model"], PORT),
        "service to a model server": (service, ends["model"], PORT),
        "model server to the bucket": (ends["model"], BUCKET, 443),
        "router to the bucket": (router, BUCKET, 443),
        "receiver to the bucket": (receiver, BUCKET, 443),
        "service to the database": (service, End(address="10.0.3.4"), 5432),
        "service to Prefect": (service, prefect, 4200),
        "service to the router": (service, router, 8080),
        "router to the receiver": (router, receiver, 4318),
        "Gateway to the router": (GATEWAY, router, 8080),
        "application to the receiver": (APPLICATION, receiver, 4318),
        "job to a job of its gang": (ends["job"], ends["job"], 29500),
        "job to the bucket": (ends["job"], BUCKET, 443),
        "service to the head of Ray": (service, ends["prod-ray-head"], 10001),
        "service to the head of another Ray cluster": (service, HEAD, 10001),
        "Ray worker to the head": (ends["prod-ray-worker"], ends["prod-ray-head"], 6379),
        "Ray head to a process of a worker": (ends["prod-ray-head"], ends["prod-ray-worker"], 12345),
        "Ray worker to another one": (ends["prod-ray-worker"], ends["prod-ray-worker"], 6381),
    }
    assert [name for name, path in needed.items() if not policies.allow(*path)] == []
    assert [name for name, end in ends.items() if not policies.allow(end, DNS, 53, "UDP")] == []


def test_nothing_reaches_more(parts: tuple[dict[str, End], Policies]) -> None:
    ends, policies = parts
    service, router, prefect, model, job = (ends[name] for name in ("prod-service", "prod-router", "prod-prefect", "model", "job"))
    head, worker = ends["prod-ray-head"], ends["prod-ray-worker"]
    refused = {
        "a stranger to a model server": (STRANGER, model, PORT),
        "the Gateway to a model server": (GATEWAY, model, PORT),
        "a stranger to the service": (GATEWAY, service, 8080),
        "a stranger to Prefect": (GATEWAY, prefect, 4200),
        "a model server to the database": (model, End(address="10.0.3.4"), 5432),
        "a model server to the service": (model, service, 8080),
        "a job to the service": (job, service, 8080),
        "a job to Prefect": (job, prefect, 4200),
        "a job to the router": (job, router, 8080),
        "a job to an address outside, on another port": (job, OUTSIDE, 22),
        "a stranger to the head of Ray": (STRANGER, head, 10001),
        "a router to the head of Ray": (router, head, 10001),
        "a router to the head of another Ray cluster": (router, HEAD, 10001),
        "a job to the head of Ray": (job, head, 10001),
        "the service to the store of the head of Ray": (service, head, 6379),
        "a Ray worker to the bucket": (worker, BUCKET, 443),
        "a Ray worker to the database": (worker, End(address="10.0.3.4"), 5432),
        "a Ray worker to the service": (worker, service, 8080),
        "a Ray worker to Prefect": (worker, prefect, 4200),
        **{f"{name} to the metadata of the machine": (end, METADATA, 80) for name, end in ends.items()},
    }
    assert [name for name, path in refused.items() if policies.allow(*path)] == []
