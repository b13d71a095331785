"""Settings of a loop file, which configures one model line. flows/config reads it from TOML.

The docstring of each field documents the setting. Unknown keys are errors. Times are in seconds unless the name states another unit.
Shares are in [0, 1]. Rollout weights are percentages. File paths are relative to the loop file.
"""

from __future__ import annotations

from contracts.loop.datasets import HoldoutSettings, ProbeSettings, RewardSettings, SnapshotSettings
from contracts.loop.gate import GateSettings
from contracts.loop.line import Approvals, ApprovalSettings, LineSettings, TriggerSettings
from contracts.loop.loop_file import Loop
from contracts.loop.privacy import NameSettings, PersonalData, PrivacySettings
from contracts.loop.rollout import RolloutSettings
from contracts.loop.serving import ServingSettings
from contracts.loop.traces import GovernanceSettings, QuarantineSettings, RetentionSettings, SourceSettings
from contracts.loop.training import SearchSettings, TrainingSettings

__all__ = [
    "ApprovalSettings",
    "Approvals",
    "GateSettings",
    "GovernanceSettings",
    "HoldoutSettings",
    "LineSettings",
    "Loop",
    "NameSettings",
    "PersonalData",
    "PrivacySettings",
    "ProbeSettings",
    "QuarantineSettings",
    "RetentionSettings",
    "RewardSettings",
    "RolloutSettings",
    "SearchSettings",
    "ServingSettings",
    "SnapshotSettings",
    "SourceSettings",
    "TrainingSettings",
    "TriggerSettings",
]
