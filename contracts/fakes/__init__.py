"""In-memory fakes of all ports that access external systems. They are deterministic, and idempotent by name like the real adapters.

`Faults` is called before and after each external effect and may raise an error. `World.effects` counts how often each named effect was
executed, so that tests can detect repeated effects. The tests and the simulation use these fakes.
"""

from __future__ import annotations

from ratchet.contracts.fakes.compute import FakeCompute
from ratchet.contracts.fakes.data import FakeDatasets, FakeQuarantine, FakeSource
from ratchet.contracts.fakes.jobs import FakeExecutor, FakeTrainer
from ratchet.contracts.fakes.serving import (
    FakeBypassingRouter,
    FakeCheck,
    FakeClient,
    FakeEvaluator,
    FakeJudge,
    FakeMetrics,
    FakeProbedServer,
    FakeRegistry,
    FakeRewards,
    FakeRouter,
    FakeScalingServer,
    FakeServer,
    FakeSharingServer,
)
from ratchet.contracts.fakes.state import FakeClock, FakeWorld, Faults, MemoryArtifacts, MemoryLedger, fake_model, no_faults
from ratchet.contracts.fakes.teacher import FakeTeacher

__all__ = [
    "FakeBypassingRouter",
    "FakeCheck",
    "FakeClient",
    "FakeClock",
    "FakeCompute",
    "FakeDatasets",
    "FakeEvaluator",
    "FakeExecutor",
    "FakeJudge",
    "FakeMetrics",
    "FakeProbedServer",
    "FakeQuarantine",
    "FakeRegistry",
    "FakeRewards",
    "FakeRouter",
    "FakeScalingServer",
    "FakeServer",
    "FakeSharingServer",
    "FakeSource",
    "FakeTeacher",
    "FakeTrainer",
    "FakeWorld",
    "Faults",
    "MemoryArtifacts",
    "MemoryLedger",
    "fake_model",
    "no_faults",
]
