"""A shipped fake for every port that reaches outside: in memory, deterministic, idempotent by name like the real ones.

`Faults` is called before and after each outside effect and may raise; `Counter` remembers how often each named effect
really happened, so that a test can see that nothing is done twice. Tests and the simulation build worlds from these.
"""

from __future__ import annotations

from contracts.fakes.data import FakeDatasets, FakeSource
from contracts.fakes.jobs import FakeExecutor, FakeTrainer
from contracts.fakes.serving import (
    FakeCheck,
    FakeClient,
    FakeEvaluator,
    FakeJudge,
    FakeMetrics,
    FakeRegistry,
    FakeRewards,
    FakeRouter,
    FakeServer,
)
from contracts.fakes.state import FakeClock, Faults, MemoryArtifacts, MemoryLedger, World, fake_model, no_faults

__all__ = [
    "FakeCheck",
    "FakeClient",
    "FakeClock",
    "FakeDatasets",
    "FakeEvaluator",
    "FakeExecutor",
    "FakeJudge",
    "FakeMetrics",
    "FakeRegistry",
    "FakeRewards",
    "FakeRouter",
    "FakeServer",
    "FakeSource",
    "FakeTrainer",
    "Faults",
    "MemoryArtifacts",
    "MemoryLedger",
    "World",
    "fake_model",
    "no_faults",
]
