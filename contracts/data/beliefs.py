"""Whether a judge is believed, with the measurements. A judge that is not believed has weight zero."""

from __future__ import annotations

from pydantic import Field

from ratchet.contracts.ids import Digest
from ratchet.contracts.model import Count, Frozen


class JudgeBelief(Frozen):
    """Result of the probes of a judge and of its comparison with people's labels."""

    name: str
    """Name of the reward."""
    judge: Digest
    """Digest of the endpoint, the model, the rubric and the messages."""
    model: str
    """Name of the model."""
    believed: bool
    reason: str
    """Why the judge is believed or not, with the figures."""
    labels: Count = 0
    """Number of answers with people's labels that the judge graded."""
    agreement: float | None = Field(default=None, ge=0, le=1)
    """Probability that the judge ranks a right answer above a wrong one; 0.5 without any relation. None: not measured."""
    low: float | None = Field(default=None, ge=0, le=1)
    """Lower bound of `agreement` at confidence level 0.95."""
    high: float | None = Field(default=None, ge=0, le=1)
    """Upper bound of `agreement` at confidence level 0.95."""
    probes: Count = 0
    """Number of probes that were asked."""
    accepted: Count = 0
    """Number of probes that the judge did not reject."""
    tokens: Count = 0
    """Tokens that the judge used for the line in the 24 hours before the measurement."""
