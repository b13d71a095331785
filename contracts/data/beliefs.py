"""Whether a judge, a signal or a teacher is believed, with the measurements. One that is not believed has weight zero."""

from __future__ import annotations

from pydantic import Field

from ratchet.contracts.data.records import Signal
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


class SignalBelief(Frozen):
    """How far a signal agrees with the ratings of the same answers, and whether it labels answers without a rating."""

    signal: Signal
    answers: Count
    """Number of answers that have the signal and may be trained on."""
    rated: Count
    """Number of them that also have ratings, which are not neutral on average."""
    people: Count
    """Number of users who asked for the rated ones."""
    agreeing: Count
    """Number of the rated ones whose ratings say the same as the signal."""
    agreement: float | None = Field(default=None, ge=0, le=1)
    """Share of the rated ones whose ratings say the same as the signal. None: there is none."""
    low: float = Field(default=0.0, ge=0, le=1)
    """Lower bound of `agreement` (materializer/labels/signals/agreement.py). It is the probability that a label of the signal gets."""
    high: float = Field(default=1.0, ge=0, le=1)
    """Upper bound of `agreement`."""
    others: float | None = Field(default=None, ge=0, le=1)
    """Share of the rated answers without the signal whose ratings say what the signal would say. None: there is none."""
    gain: float = Field(default=-1.0, ge=-1, le=1)
    """Lower bound of `agreement` - `others`. A signal that says nothing about the answer has 0 or less."""
    used: bool
    """Whether it labels answers that nothing else scores."""
    reason: str
    """Why it is used or not, with the figures."""
    labels: Count = 0
    """Number of answers whose reward comes from this signal."""


class TeacherBelief(Frozen):
    """How far a teacher agrees in one slice with right answers from people, and what became of its answers there."""

    version: str
    """Version of the teacher, as `teacher_version` names it; its first 16 characters."""
    slice: str | None
    compared: Count
    """Number of clusters of near-duplicate questions with a right answer from people or the application, and one of the teacher."""
    agreeing: Count
    """Number of them in which all answers of the teacher agree."""
    low: float = Field(default=0.0, ge=0, le=1)
    """Lower bound of the agreement at level 0.975. It is the probability that an answer is right which no scorer confirms."""
    high: float = Field(default=1.0, ge=0, le=1)
    """Upper bound of the agreement at level 0.975."""
    used: bool
    """Whether answers count that no scorer confirms."""
    refuted: bool = False
    """Whether answers do not even count if a scorer confirms them that knows no right answer."""
    reason: str
    """Why they count or not, with the figures."""
    confirmed: Count = 0
    """Number of answers that a scorer of the line confirms."""
    believed: Count = 0
    """Number of answers that count because of the agreement."""
    refused: Count = 0
    """Number of answers that do not count, those to questions whose right answer is known included."""
