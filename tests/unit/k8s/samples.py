"""A line on a cluster for tests: settings, a job on torchrun, a job on NeMo RL, and their gangs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ratchet.contracts.jobs.cluster import ClusterSettings
from ratchet.contracts.jobs.training import JobSpec
from ratchet.contracts.serving import ModelVersion
from ratchet.k8s.manifests.gang_manifest import RenderContext, render
from ratchet.k8s.manifests.pod_objects import VolcanoJob
from ratchet.k8s.manifests.version_server import ServingSite
from ratchet.k8s.profiles.profile import Profile, load_profile

PLAN = "ab" * 32
BUCKET = {"mount": "/ratchet", "bucket": {"url": "s3://models/ratchet", "region": "eu-west-1", "disk": "800Gi"}}
"""A bucket in place of a shared volume."""


def version() -> ModelVersion:
    """Return a model version to be served."""
    reference = dict.fromkeys(("weights", "tokenizer", "chat_template", "generation_config", "others", "files"), "a" * 64)
    return ModelVersion.model_validate({"line": "support", "number": 3, "tag": "v-abc", "model": reference, "cycle": None})


def serving_site(**changes: Any) -> ServingSite:
    """Return how the model servers of a line run, with `changes`."""
    given: dict[str, Any] = {
        "namespace": "ratchet",
        "profile": load_profile("generic-gpu"),
        "image": "registry.example/vllm:1",
        "engine": "vllm",
        "fetch_image": "registry.example/ratchet:1",
        "artifacts": "s3://models/artifacts",
        "environment": (("AWS_REGION", "eu-west-1"),),
        "secrets": (("AWS_SECRET_ACCESS_KEY", "bucket/secret"),),
        "pull_secrets": ("registry",),
    }
    return ServingSite(**{**given, **changes})


def settings(**changes: Any) -> ClusterSettings:
    """Return the cluster settings with `changes`."""
    given: dict[str, Any] = {
        "image": "registry.example/train:1",
        "nemo_image": "registry.example/nemo:1",
        "volume": {"mount": "/fsx", "claim": "shared"},
        "secrets": {"REWARD_API_KEY": "reward-api/key"},
    }
    return ClusterSettings.model_validate(given | changes)


def job(nodes: int = 2, gpus: int = 8, nemo: bool = False) -> JobSpec:
    """Return the specification of a job on `nodes` nodes; `nemo` selects NeMo RL instead of torchrun."""
    environment = {"RATCHET_NODES": str(nodes), "RATCHET_GPUS": str(gpus)} | ({"RATCHET_BACKEND": "nemo-rl"} if nemo else {})
    return JobSpec(
        name="rt-0123456789abcdef-a1",
        plan=PLAN,
        attempt=1,
        command=("{python}", "-m", "ratchet.trainers.job.supervisor"),
        environment=environment,
        inputs={},
        plan_json="{}",
        grace_seconds=60,
        nodes=nodes,
        gpus=gpus,
    )


def gang(profile: str | Profile = "generic-gpu", spec: JobSpec | None = None, **changes: Any) -> VolcanoJob:
    """Return the rendered gang of `spec` on a profile, with `changes` to the settings."""
    found = load_profile(profile) if isinstance(profile, str) else profile
    chosen = settings(**({"profile": profile} if isinstance(profile, str) else {}) | changes)
    mount = Path(chosen.volume.mount)
    context = RenderContext("support", chosen, found, mount / "home/jobs" / PLAN, mount / "home/artifacts", max_restarts=10)
    return render(spec or job(gpus=found.gpus), context)
