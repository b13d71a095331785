"""Settings of a loop file, which configures one model line. flows/config reads it from TOML.

The docstring of each field documents the setting. Unknown keys are errors. Times are in seconds unless the name states another unit.
Shares are in [0, 1]. Rollout weights are percentages. File paths are relative to the loop file.
"""

from __future__ import annotations

from ratchet.contracts.loop.compute import ComputeSettings
from ratchet.contracts.loop.datasets import HoldoutSettings, ProbeSettings, RewardSettings, SignalSettings, SnapshotSettings
from ratchet.contracts.loop.gate import GateSettings, LmEvalSettings, SafetySettings, SuiteSettings
from ratchet.contracts.loop.line import Approvals, ApprovalSettings, LineSettings, TriggerSettings
from ratchet.contracts.loop.loop_file import Loop
from ratchet.contracts.loop.privacy import NameSettings, PersonalData, PrivacySettings
from ratchet.contracts.loop.rollout import RolloutSettings
from ratchet.contracts.loop.serving import ServingSettings
from ratchet.contracts.loop.teacher import TeacherSettings, TermsSettings
from ratchet.contracts.loop.traces import GovernanceSettings, QuarantineSettings, RetentionSettings, SourceSettings
from ratchet.contracts.loop.training import SearchSettings, TrainingSettings

__all__ = [
    "ApprovalSettings",
    "Approvals",
    "ComputeSettings",
    "GateSettings",
    "GovernanceSettings",
    "HoldoutSettings",
    "LineSettings",
    "LmEvalSettings",
    "Loop",
    "NameSettings",
    "PersonalData",
    "PrivacySettings",
    "ProbeSettings",
    "QuarantineSettings",
    "RetentionSettings",
    "RewardSettings",
    "RolloutSettings",
    "SafetySettings",
    "SearchSettings",
    "ServingSettings",
    "SignalSettings",
    "SnapshotSettings",
    "SourceSettings",
    "SuiteSettings",
    "TeacherSettings",
    "TermsSettings",
    "TrainingSettings",
    "TriggerSettings",
]
