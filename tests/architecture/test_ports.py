"""Tests that every port has a fake, and that the fake and the real classes have the methods and signatures of the port."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any, Protocol

import pytest

import ratchet.contracts.fakes
import ratchet.contracts.ports

MODULES = [
    importlib.import_module(f"ratchet.contracts.ports.{module.name}") for module in pkgutil.iter_modules(ratchet.contracts.ports.__path__)
]
PORTS = {
    name: port
    for module in MODULES
    for name, port in vars(module).items()
    if inspect.isclass(port) and port.__module__ == module.__name__ and Protocol in port.__mro__
}
CLASSES: dict[str, list[str]] = {
    "Clock": ["contracts.fakes:FakeClock", "flows.composition.ports:SystemClock"],
    "Ledger": ["contracts.fakes:MemoryLedger", "flows.ledger.sql:SqlLedger"],
    "Artifacts": ["contracts.fakes:MemoryArtifacts", "runtime.artifacts:FolderArtifacts", "runtime.bucket_artifacts:BucketArtifacts"],
    "TraceSource": [
        "contracts.fakes:FakeSource", "materializer.receive.sources:SpoolSource", "materializer.receive.files.source:FileSource",
        "materializer.receive.langfuse.export:BlobExport", "materializer.receive.langfuse.api:LangfuseApi",
    ],
    "Dialect": [
        "materializer.dialects.otlp:OtlpDialect", "materializer.dialects.jsonl:JsonlDialect",
        "materializer.dialects.exports.litellm:LitellmDialect", "materializer.dialects.exports.langfuse_export:LangfuseDialect",
    ],
    "RewardFunction": ["rewards.verifiable:ExactMatch", "rewards.verifiable:FinalNumber", "rewards.feedback:UserFeedback"],
    "Quarantine": ["contracts.fakes:FakeQuarantine", "materializer.quarantine.replay:LakeQuarantine"],
    "Datasets": ["contracts.fakes:FakeDatasets", "materializer.datasets:LakeDatasets"],
    "Trainer": ["contracts.fakes:FakeTrainer", "trainers.backends.trl:DPO", "trainers.backends.trl:GRPO", "trainers.backends.trl:SFT"],
    "Executor": ["contracts.fakes:FakeExecutor", "local.executor:LocalExecutor", "k8s.gangs.executor:KubernetesExecutor"],
    "Server": ["contracts.fakes:FakeServer", "local.server:EmbeddedServer"],
    "ProbedServer": ["contracts.fakes:FakeProbedServer", "k8s.serving.models:ClusterServer"],
    "ScalingServer": ["contracts.fakes:FakeScalingServer", "k8s.serving.models:ClusterServer"],
    "SharingServer": ["contracts.fakes:FakeSharingServer", "local.server:EmbeddedServer", "local.server:VllmServer"],
    "Teacher": ["contracts.fakes:FakeTeacher", "materializer.teacher.client:HttpTeacher"],
    "ModelClient": ["contracts.fakes:FakeClient", "gates.model_client:HttpModelClient"],
    "Evaluator": ["contracts.fakes:FakeEvaluator", "gates.evaluation.evaluator:PairedEvaluator"],
    "Check": [
        "contracts.fakes:FakeCheck", "gates.checks:Coverage", "gates.checks:Quality", "gates.checks:Slices", "gates.checks:Agreement",
        "gates.checks:Length",
    ],
    "Registry": ["contracts.fakes:FakeRegistry", "gates.registry:MlflowRegistry", "gates.registry_process:ProcessRegistry"],
    "Router": [
        "contracts.fakes:FakeRouter", "local.router:LocalRouter", "k8s.serving.router:ClusterRouter", "k8s.serving.gateway:GatewayRouter",
    ],
    "BypassingRouter": ["contracts.fakes:FakeBypassingRouter", "k8s.serving.router:ClusterRouter"],
    "Metrics": ["contracts.fakes:FakeMetrics", "materializer.metrics:LakeMetrics"],
    "RolloutJudge": ["contracts.fakes:FakeJudge", "gates.rollout_judge:EvidenceJudge"],
    "Compute": [
        "contracts.fakes:FakeCompute", "runtime.compute.inline:InlineCompute", "runtime.compute.processes:ProcessCompute",
        "runtime.compute.ray_cluster:RayCompute",
    ],
    "Rewards": ["contracts.fakes:FakeRewards", "rewards.scorer_set:ScorerSet"],
}  # fmt: skip
"""Port -> classes, as modules below `ratchet`."""
WITHOUT_FAKE = {"RewardFunction", "Dialect"}
"""Ports without a fake: their real classes are pure and fast, so tests use them directly."""


def test_every_port_is_listed_and_has_a_fake() -> None:
    assert set(CLASSES) == set(PORTS)
    for port, classes in CLASSES.items():
        assert port in WITHOUT_FAKE or classes[0].startswith("contracts.fakes:"), port


def test_every_port_can_be_imported_from_the_package() -> None:
    assert {name: getattr(ratchet.contracts.ports, name) for name in ratchet.contracts.ports.__all__ if name != "Progress"} == PORTS


def _load(where: str) -> Any:
    module, name = where.split(":")
    return getattr(importlib.import_module(f"ratchet.{module}"), name)


def _methods(port: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(port).items() if inspect.isfunction(value) and not name.startswith("_")}


@pytest.mark.parametrize(("port", "where"), [(port, where) for port, classes in CLASSES.items() for where in classes])
def test_a_class_can_be_called_as_its_port_says(port: str, where: str) -> None:
    made = _load(where)
    for name, promised in _methods(PORTS[port]).items():
        method = getattr(made, name, None)
        assert method is not None, f"{where} has no {name}"
        assert list(_parameters(method)) == list(_parameters(promised)), f"{where}.{name}"
        assert _parameters(method) == _parameters(promised), f"{where}.{name}: other defaults"
    for name in getattr(PORTS[port], "__annotations__", {}):
        assert _has(made, name), f"{where} has no {name}"


def _parameters(method: Any) -> dict[str, tuple[Any, Any]]:
    return {name: (p.kind, p.default) for name, p in inspect.signature(method).parameters.items()}


def _has(made: Any, name: str) -> bool:
    """Return whether the class or one of its bases has the class attribute or property, or assigns it to `self`."""
    if any(hasattr(cls, name) or name in vars(cls).get("__annotations__", {}) for cls in made.__mro__):
        return True
    sources = [inspect.getsource(cls) for cls in made.__mro__ if cls is not object]
    return any(f"self.{name} =" in source or f"self.{name}:" in source for source in sources)
