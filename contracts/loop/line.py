"""Settings of the model line itself: its name, when a cycle opens, and who approves."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ratchet.contracts.loop.field_types import Name, Positive, Seconds
from ratchet.contracts.model import Frozen


class LineSettings(Frozen):
    """Settings of the model line."""

    name: Name
    """Name of the line: lower-case letters, digits and hyphens, at most 40."""
    served_model: str
    """Model name in client requests. The router serves the line under this name."""
    start_from: Literal["auto", "champion", "base", "held"] = "auto"
    """Start model of each training: the current champion, or the base model (version 0). held: the newest candidate that the gate held
    against the current champion with a higher mean score, if there is one; otherwise the champion. auto: the base model as long as SFT is
    among `training.methods`, every training that led to the champion was one by SFT, and `retention.traces` and `retention.feedback` have
    no limit, because each training then learns from all evidence that the line ever had; otherwise the champion. A candidate is always
    compared with the champion."""
    salt: str = "ratchet"
    """Salt of the hash that assigns prompts to the holdout. Do not change it after the line's first run: training and holdout prompts
    would mix."""
    seed: int = 0
    """Base seed for probes and training. Training adds the cycle number."""


def _cron(value: str | None) -> str | None:
    if value is not None and len(value.split()) != 5:
        raise ValueError(f"cron {value!r} has {len(value.split())} fields; 5 are required: minute hour day month weekday")
    return value


class TriggerSettings(Frozen):
    """Conditions that open a cycle automatically."""

    cron: Annotated[str | None, AfterValidator(_cron)] = None
    """Schedule as a cron expression with five fields. A scheduled cycle opens if there is at least one new trace. None: no schedule."""
    timezone: str = "UTC"
    """IANA time zone of the schedule."""
    new_traces: Positive = 1000
    """Number of new traces since the last cycle's snapshot that opens a cycle."""
    min_interval: float = Field(default=3600, ge=0)
    """Minimum seconds between the openings of two cycles."""


class ApprovalSettings(Frozen):
    """Settings of one request for approval."""

    mode: Literal["person", "auto"] = "person"
    """person: an operator must approve. auto: approval is automatic, and the ledger records this."""
    expires: Seconds = 3 * 86_400
    """Timeout of the request in seconds. If it is unanswered after that, the cycle expires."""


class Approvals(Frozen):
    """Settings of the two requests for approval."""

    training: ApprovalSettings = ApprovalSettings()
    """Approval before the training."""
    rollout: ApprovalSettings = ApprovalSettings()
    """Approval before the rollout."""
