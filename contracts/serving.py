"""Types for serving: model versions, endpoints, routes, and the evidence from live traffic."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from contracts.evaluation import Interval
from contracts.ids import Digest
from contracts.model import Frozen, ModelRef


class ModelVersion(Frozen):
    """A registered model version. Version 0 is the adopted model."""

    line: str
    number: int
    """Version number within the line, assigned by the ledger."""
    tag: str
    model: ModelRef
    cycle: str | None
    """Id of the cycle that trained the version. None for an adopted model."""
    plan: Digest | None = None
    """Id of the training plan. None for an adopted model."""


class Endpoint(Frozen):
    """Address of a running model server."""

    tag: str
    url: str
    """Base URL of the OpenAI-compatible API, without /v1."""
    model: str
    """Model name to use in requests."""


class RouterHeader(StrEnum):
    """HTTP header of a request to the router, or of its response."""

    SESSION = "x-session-id"
    """Session of the user. All its requests are answered by one version."""
    USER = "x-user-id"
    CONSENT = "x-ratchet-consent"
    """Whether the content of the request and of its answer may be recorded: `true` or `false`."""
    REGION = "x-ratchet-region"
    SLICE = "x-ratchet-slice"
    VERSION = "x-ratchet-version"
    """In a response: tag of the version that answered."""
    TRACE = "x-ratchet-trace"
    """In a response: ids of the trace and the span, separated by a colon. Feedback refers to them."""


class Capabilities(Frozen):
    """Features of a server. `ratchet check` rejects settings that need missing features, before a cycle starts."""

    sampling: bool
    """Whether requests can set the temperature."""
    seed: bool
    """Whether requests can set a seed."""
    logprobs: bool
    """Whether responses can contain log-probabilities."""


class Backend(Frozen):
    """One model version in a route, with its traffic weight."""

    tag: str
    url: str
    model: str
    weight: float = Field(ge=0, le=100)
    """Percentage of sessions."""


class Route(Frozen):
    """Routing configuration of a line."""

    line: str
    served_model: str
    """Model name in client requests."""
    backends: tuple[Backend, ...]
    annotation: str
    """Name of the object that set the route: a rollout step or an adoption."""


class Arm(Frozen):
    """Evidence for one version in a time window."""

    tag: str
    requests: int
    errors: int
    latency_p50_ms: float | None
    latency_p95_ms: float | None
    rated: tuple[tuple[int, float], ...]
    """(number of ratings, sum of ratings) per user, without user ids. Users are the clusters of the statistical tests."""


class Evidence(Frozen):
    """Evidence for both versions in the same time window of a rollout step."""

    since: datetime
    until: datetime
    champion: Arm
    candidate: Arm


class StepResult(StrEnum):
    """Result of judging the evidence of a step."""

    ADVANCE = "advance"
    WAIT = "wait"
    ROLL_BACK = "roll_back"


class StepJudgement(Frozen):
    """Judgement of one rollout step, with its figures."""

    result: StepResult
    reasons: tuple[str, ...]
    requests: int = 0
    """Number of requests of both versions in the fresh window."""
    candidate_requests: int = 0
    """Number of requests of the candidate in the fresh window."""
    quality: Interval | None = None
    """Mean rating of the candidate minus that of the champion. The interval is a confidence sequence, valid at every evaluation."""
    errors: Interval | None = None
    """Error share of the candidate minus that of the champion, as a confidence sequence."""
