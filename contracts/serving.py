"""Versions that serve, the weights between them, and the evidence from live traffic."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from contracts.evaluation import Interval
from contracts.ids import Digest
from contracts.model import Frozen, ModelRef


class ModelVersion(Frozen):
    """A version that the registry knows. Version 0 is the adopted one."""

    line: str
    number: int
    """Counted by the ledger, per line."""
    tag: str
    model: ModelRef
    cycle: str | None
    """None for an adoption."""
    plan: Digest | None = None


class Endpoint(Frozen):
    """A running model server."""

    tag: str
    url: str
    """Base of the OpenAI API, without /v1."""
    model: str
    """The model name to send."""


class Capabilities(Frozen):
    """What a server can do. What it cannot is refused at `ratchet check`, never discovered in a cycle."""

    sampling: bool
    """temperature per request"""
    seed: bool
    logprobs: bool


class Backend(Frozen):
    """One arm of a route."""

    tag: str
    url: str
    model: str
    weight: float = Field(ge=0, le=100)
    """Percent of sessions."""


class Route(Frozen):
    """What the router does. `annotation` names the object that asked for it (a rollout's step, an adoption)."""

    line: str
    served_model: str
    """The name that clients ask for."""
    backends: tuple[Backend, ...]
    annotation: str


class Arm(Frozen):
    """One version's evidence in one window."""

    tag: str
    requests: int
    errors: int
    latency_p50_ms: float | None
    latency_p95_ms: float | None
    rated: tuple[tuple[int, float], ...]
    """(ratings, sum of ratings) per user: the clusters that tests run on; no user ids."""


class Evidence(Frozen):
    """Both arms, in the same step and window, of traces older than the feedback's maturity lag."""

    since: datetime
    until: datetime
    champion: Arm
    candidate: Arm


class StepResult(StrEnum):
    """What a step's evidence says."""

    ADVANCE = "advance"
    WAIT = "wait"
    ROLL_BACK = "roll_back"


class StepJudgement(Frozen):
    """The judge's word on one step, with its figures."""

    result: StepResult
    reasons: tuple[str, ...]
    requests: int = 0
    """Of both arms, in the fresh window."""
    candidate_requests: int = 0
    quality: Interval | None = None
    """candidate minus champion mean rating, a confidence sequence (valid at every look)."""
    errors: Interval | None = None
    """candidate minus champion error share."""
