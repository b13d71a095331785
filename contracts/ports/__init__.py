"""Ports: the interfaces through which the decision logic accesses everything external.

Every method with side effects is idempotent by name: a repeated call after a crash finds the result of the first call. Calls are
blocking. They raise the errors of contracts/errors.py (`Retryable`: try again later; `Permanent`: an operator must act).
Fakes are in contracts/fakes. The contract tests of the ports are in tests/contract/.
"""

from __future__ import annotations

from ratchet.contracts.ports.compute import Compute
from ratchet.contracts.ports.data import Datasets, Dialect, Quarantine, TraceSource
from ratchet.contracts.ports.decisions import Check, Evaluator, RolloutJudge
from ratchet.contracts.ports.jobs import Executor, Trainer
from ratchet.contracts.ports.progress import Progress
from ratchet.contracts.ports.rewards import RewardFunction, Rewards
from ratchet.contracts.ports.serving import (
    BypassingRouter,
    Metrics,
    ModelClient,
    ProbedServer,
    Registry,
    Router,
    ScalingServer,
    Server,
    SharingServer,
)
from ratchet.contracts.ports.state import Artifacts, Clock, Ledger
from ratchet.contracts.ports.teacher import Teacher

__all__ = [
    "Artifacts",
    "BypassingRouter",
    "Check",
    "Clock",
    "Compute",
    "Datasets",
    "Dialect",
    "Evaluator",
    "Executor",
    "Ledger",
    "Metrics",
    "ModelClient",
    "ProbedServer",
    "Progress",
    "Quarantine",
    "Registry",
    "RewardFunction",
    "Rewards",
    "RolloutJudge",
    "Router",
    "ScalingServer",
    "Server",
    "SharingServer",
    "Teacher",
    "TraceSource",
    "Trainer",
]
