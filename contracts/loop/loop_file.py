"""All sections of a loop file together."""

from __future__ import annotations

from pydantic import model_validator

from ratchet.contracts.jobs.cluster import ClusterSettings
from ratchet.contracts.loop.compute import ComputeSettings
from ratchet.contracts.loop.datasets import HoldoutSettings, ProbeSettings, RewardSettings, SignalSettings, SnapshotSettings
from ratchet.contracts.loop.gate import GateSettings
from ratchet.contracts.loop.line import Approvals, LineSettings, TriggerSettings
from ratchet.contracts.loop.privacy import PrivacySettings
from ratchet.contracts.loop.rollout import RolloutSettings
from ratchet.contracts.loop.serving import ServingSettings
from ratchet.contracts.loop.teacher import TeacherSettings
from ratchet.contracts.loop.traces import GovernanceSettings, QuarantineSettings, RetentionSettings, SourceSettings
from ratchet.contracts.loop.training import TrainingSettings
from ratchet.contracts.model import Frozen


class Loop(Frozen):
    """All settings of one loop file."""

    line: LineSettings
    sources: tuple[SourceSettings, ...]
    governance: GovernanceSettings = GovernanceSettings()
    privacy: PrivacySettings = PrivacySettings()
    retention: RetentionSettings = RetentionSettings()
    quarantine: QuarantineSettings = QuarantineSettings()
    rewards: tuple[RewardSettings, ...]
    holdout: HoldoutSettings = HoldoutSettings()
    snapshot: SnapshotSettings = SnapshotSettings()
    signals: SignalSettings = SignalSettings()
    teacher: TeacherSettings | None = None
    """Another model that is asked for missing right answers. None: none is asked, and nothing is sent."""
    probe: ProbeSettings = ProbeSettings()
    training: TrainingSettings = TrainingSettings()
    gate: GateSettings = GateSettings()
    rollout: RolloutSettings = RolloutSettings()
    approvals: Approvals = Approvals()
    serving: ServingSettings = ServingSettings()
    trigger: TriggerSettings = TriggerSettings()
    compute: ComputeSettings = ComputeSettings()
    cluster: ClusterSettings | None = None
    """Kubernetes cluster for training jobs. None: jobs run on the local machine."""

    @model_validator(mode="after")
    def _names_once(self) -> Loop:
        for what, names in (("sources", [s.name for s in self.sources]), ("rewards", [r.name for r in self.rewards])):
            twice = {name for name in names if names.count(name) > 1}
            if twice:
                raise ValueError(f"{what}: {', '.join(sorted(twice))} is listed twice")
        return self

    @model_validator(mode="after")
    def _teacher_gets_masked_texts(self) -> Loop:
        if self.teacher is not None and not self.privacy.mask and self.teacher.unmasked == "refused":
            raise ValueError(
                'teacher: privacy.mask is empty, so personal data would be sent as it is; mask it, or set teacher.unmasked = "acknowledged"'
            )
        return self
