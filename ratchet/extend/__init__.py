"""What an extension may import from Ratchet: ports, types, settings and errors.

`ratchet.extend.job` adds the names of the job protocol, which a trainer needs, and `ratchet.extend.testkit` the rules of the ports as
tests, with fakes. All other modules of Ratchet may change at any time. The pages below docs/extending show one extension of each kind.
"""

from __future__ import annotations

from ratchet.contracts.data.datasets import Facts, RawBatch, Unread
from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.contracts.data.records import FeedbackKind, Tier
from ratchet.contracts.data.senders import Role, Sender
from ratchet.contracts.errors import ConfigError, Permanent, RatchetError, Rejected, Retryable
from ratchet.contracts.evaluation import CheckResult, Comparison, EvalReport, Result
from ratchet.contracts.ids import canonical, digest, digest_file, job_name
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import Adjustment, Attempt, JobSpec, Method, TrainingPlan
from ratchet.contracts.loop import GateSettings, SourceSettings
from ratchet.contracts.model import ModelRef, model_ref
from ratchet.contracts.ports import Artifacts, Check, Dialect, Metrics, RewardFunction, Router, Server, SharingServer, TraceSource, Trainer
from ratchet.contracts.schema import parse, stamped
from ratchet.contracts.serving import Arm, Backend, Capabilities, Endpoint, Evidence, ModelVersion, Outage, Route, latency_buckets

__all__ = [
    "Adjustment",
    "Arm",
    "Artifacts",
    "Attempt",
    "Backend",
    "Capabilities",
    "Check",
    "CheckResult",
    "Comparison",
    "ConfigError",
    "Decoded",
    "Dialect",
    "Endpoint",
    "EvalReport",
    "Evidence",
    "Facts",
    "FeedbackKind",
    "GateSettings",
    "JobSpec",
    "Limits",
    "Method",
    "Metrics",
    "ModelRef",
    "ModelVersion",
    "Outage",
    "Outcome",
    "Permanent",
    "RatchetError",
    "RawBatch",
    "Rejected",
    "Result",
    "Retryable",
    "RewardFunction",
    "Role",
    "Route",
    "Router",
    "Sender",
    "Server",
    "SharingServer",
    "SourceSettings",
    "Tier",
    "TraceSource",
    "Trainer",
    "TrainingPlan",
    "Unread",
    "canonical",
    "digest",
    "digest_file",
    "job_name",
    "latency_buckets",
    "model_ref",
    "parse",
    "stamped",
]
