"""Types for serving: model versions, endpoints, routes, and the evidence from live traffic."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, model_validator

from ratchet.contracts.evaluation import Interval
from ratchet.contracts.ids import Digest
from ratchet.contracts.model import Count, Extended, Finite, Frozen, Magnitude, ModelRef


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
    host: str = ""
    """Tag of the version into whose process this one is loaded as an adapter. Empty: it has a process of its own."""


class Outage(Frozen):
    """A time in which the process that champion and candidate share did not run, or in which no server of the candidate could be
    reached."""

    since: AwareDatetime
    """Last moment at which the process is known to have run, or a server to have answered."""
    until: AwareDatetime | None = None
    """Moment at which both versions answered again. None: they do not answer yet."""

    @model_validator(mode="after")
    def _in_order(self) -> Outage:
        if self.until is not None and self.until < self.since:
            raise ValueError("the outage ends before it begins")
        return self


class RouterHeader(StrEnum):
    """HTTP header of a request to the router, or of its response."""

    SESSION = "x-session-id"
    """Session of the user. All its requests are answered by one version."""
    USER = "x-user-id"
    CONSENT = "x-ratchet-consent"
    """Whether the content of the request and of its answer may be recorded: `true` or `false`."""
    CONSENT_THIRD_PARTY = "x-ratchet-consent-third-party"
    """Whether the request may be sent to a teacher outside of the installation: `true` or `false`."""
    REGION = "x-ratchet-region"
    CONFIDENTIALITY = "x-ratchet-confidentiality"
    SLICE = "x-ratchet-slice"
    VERSION = "x-ratchet-version"
    """In a response: tag of the version that answered, if the router is set to name it."""
    TRACE = "x-ratchet-trace"
    """In a response: ids of the trace and the span, separated by a colon. Feedback refers to them."""
    PIN = "x-ratchet-pin"
    """Version that must answer: `champion` or `candidate`. For testers; the request is evidence of no version."""


class Pin(StrEnum):
    """Value of the header x-ratchet-pin."""

    CHAMPION = "champion"
    CANDIDATE = "candidate"


class Capabilities(Frozen):
    """Features of a server. `ratchet check` rejects settings that need missing features, before a cycle starts."""

    sampling: bool
    """Whether requests can set the temperature."""
    seed: bool
    """Whether requests can set a seed."""
    logprobs: bool
    """Whether responses can contain log-probabilities."""
    adapters: bool = False
    """Whether a version can be an adapter, which is served together with its base model (`ModelRef.parent`)."""
    scales: bool = False
    """Whether the number of servers of a version follows its share of the sessions. The server then has the method `scale`."""
    sharing: bool = False
    """Whether an adapter can be loaded into the running process of its base model, which is another version (`SharingServer`)."""
    probes: bool = False
    """Whether the server can say when a version did not answer (`ProbedServer`). Its machine may have been lost, which says nothing about
    the version."""


class Backend(Frozen):
    """One model version in a route, with its traffic weight."""

    tag: str
    url: str
    model: str
    weight: float = Field(ge=0, le=100)
    """Percentage of sessions."""


Unit = Literal["session", "user"]
"""Unit that a rollout assigns to a version. The other one replaces it in a request that does not name it."""


class Route(Extended):
    """Routing configuration of a line."""

    LATER = ("former_names",)

    line: str
    served_model: str
    """Model name in client requests."""
    backends: tuple[Backend, ...]
    """The line's champion first. It answers if the server of another version fails."""
    annotation: str
    """Name of the object that set the route: a rollout step or an adoption."""
    salt: str = ""
    """Random text of the rollout, part of the hash that assigns sessions to versions. Empty if only one version is served."""
    unit: Unit = "session"
    """Whether a session or a user stays with one version."""
    former_names: tuple[str, ...] = ()
    """Former model names of the line, which client requests may still use."""

    @property
    def names(self) -> tuple[str, ...]:
        """All model names that client requests may use, the present one first."""
        return (self.served_model, *self.former_names)


_ROUNDING = 1e-6
LATENCY_BASE = 1.1
"""Ratio of the limits of two neighbouring buckets of latencies."""


def latency_bucket(ms: float) -> int:
    """Return the bucket of a latency in milliseconds. Bucket n contains the latencies from LATENCY_BASE^n to below LATENCY_BASE^(n+1)."""
    return math.floor(math.log(max(ms, 1e-3)) / math.log(LATENCY_BASE))


def latency_buckets(latencies: Iterable[float]) -> tuple[tuple[int, int], ...]:
    """Return the pairs (bucket, number of answers) of latencies in milliseconds, in ascending order (see `latency_bucket`)."""
    counts: dict[int, int] = {}
    for ms in latencies:
        bucket = latency_bucket(ms)
        counts[bucket] = counts.get(bucket, 0) + 1
    return tuple(sorted(counts.items()))


class Arm(Frozen):
    """Evidence for one version in a time window."""

    tag: str
    requests: Count
    """Number of requests that were sent to the version, with any outcome."""
    errors: Count
    """Number of requests that failed."""
    refused: Count
    """Number of requests that the version's server rejected as invalid (400, 413, 415 or 422). They are not errors."""
    sessions: Count
    """Number of distinct sessions. A request without a session counts for its user's session, one without both is a session of its own."""
    users: Count | None = None
    """Number of distinct users. A request without a user counts for its session, one without both is a user of its own. None: not counted;
    a rollout with `unit = "user"` then waits."""
    latency_p50_ms: Magnitude | None
    latency_p95_ms: Magnitude | None
    rated: tuple[tuple[Annotated[int, Field(ge=1)], Finite], ...]
    """(number of ratings, sum of ratings) per user, without user ids. Users are the clusters of the statistical tests. Each rating is in
    [0, 1]."""
    raters: tuple[str, ...] = ()
    """For each entry of `rated`, a name of its user that is no user id, the same one for both versions and in all windows. Empty: unknown;
    each entry then counts as a person of its own, and a decision takes more ratings."""
    latencies: tuple[tuple[int, Annotated[int, Field(ge=1)]], ...] = ()
    """(bucket, number of successful answers) per bucket of the latency, as `latency_buckets` returns them. Empty: not measured; a rollout
    then waits."""
    cut: Count = 0
    """Number of answers that are known to have ended at a limit of tokens instead of their end. It is shown and not tested, because clients
    set the limits."""

    @property
    def served(self) -> int:
        """Number of requests that were not refused."""
        return self.requests - self.refused

    @model_validator(mode="after")
    def _consistent(self) -> Arm:
        if max(self.errors + self.refused, self.sessions) > self.requests:
            raise ValueError(f"{self.tag}: more errors, refusals or sessions than the {self.requests} requests")
        if self.cut + self.errors + self.refused > self.requests:
            raise ValueError(f"{self.tag}: more cut answers than answers")
        if self.users is not None and self.users > self.requests:
            raise ValueError(f"{self.tag}: more users than the {self.requests} requests")
        if self.raters and (len(self.raters) != len(self.rated) or len(set(self.raters)) != len(self.raters)):
            raise ValueError(f"{self.tag}: the raters are not one name per user")
        if sum(n for _, n in self.latencies) > self.requests:
            raise ValueError(f"{self.tag}: more latencies than the {self.requests} requests")
        if any(not -_ROUNDING <= total <= n + _ROUNDING for n, total in self.rated):
            raise ValueError(f"{self.tag}: the ratings of a user are not in [0, 1]")
        p50, p95 = self.latency_p50_ms, self.latency_p95_ms
        if (p50 is None) != (p95 is None) or (p50 is not None and p95 is not None and p50 > p95 + _ROUNDING):
            raise ValueError(f"{self.tag}: the median of the latency is missing or above the 95th percentile")
        return self


class Evidence(Frozen):
    """Evidence for both versions in the same time window of a rollout step."""

    since: AwareDatetime
    until: AwareDatetime
    champion: Arm
    candidate: Arm

    @model_validator(mode="after")
    def _two_arms_in_a_window(self) -> Evidence:
        if self.since > self.until:
            raise ValueError("the window of the evidence ends before it begins")
        if self.champion.tag == self.candidate.tag:
            raise ValueError(f"both arms have the tag {self.champion.tag}")
        return self


class Stratum(Frozen):
    """Evidence of one weight of a rollout. The share of the sessions is constant within it."""

    share: float = Field(ge=0, le=100)
    """Percentage of sessions that the route gives to the candidate."""
    fresh: Evidence
    """Evidence of the whole window, for exposure, errors and latency."""
    mature: Evidence
    """Evidence for quality, without the traces that are younger than `rollout.maturity`."""


class StepResult(StrEnum):
    """Result of judging the evidence of a step."""

    ADVANCE = "advance"
    WAIT = "wait"
    ROLL_BACK = "roll_back"


class SequentialTest(Frozen):
    """State of a sequential probability ratio test: no difference against a loss of the margin. It is valid at every evaluation."""

    estimate: Finite
    """Candidate minus champion."""
    error: Magnitude
    """Standard error of the estimate."""
    margin: Magnitude
    equal: Finite
    """Evidence of equality: log-likelihood ratio of no difference against a loss of the margin."""
    equal_at: Finite
    """Evidence of equality from which a loss of the margin is excluded, with error `rollout.beta`."""
    harm: Finite
    """Evidence of harm: log-likelihood ratio of a loss against no difference. For shares, a mixture of losses of the margin and more."""
    harm_at: Finite
    """Evidence of harm from which the candidate is rolled back, with this metric's part of `rollout.alpha`."""
    n: Count
    """Number of ratings, requests or answers of both versions, or of mirrored pairs."""
    people: Magnitude | None = None
    """Effective number of raters of the version that has fewer: users with equal numbers of ratings that would be as informative. For
    mirrored pairs, the effective number of people whose prompts were asked. None for other metrics."""


class StepJudgement(Frozen):
    """Judgement of one rollout step, with its figures."""

    result: StepResult
    reasons: tuple[str, ...]
    unavailable: bool = False
    """Whether the evidence could not be read. The reason says why."""
    requests: Count = 0
    """Number of requests of both versions in the fresh window."""
    candidate_requests: Count = 0
    """Number of requests of the candidate in the fresh window."""
    quality: Interval | None = None
    """Mean rating of the candidate minus that of the champion over all steps. The interval is that of this evaluation alone; decisions use
    `tests`."""
    errors: Interval | None = None
    """Error share of the candidate minus that of the champion, as `quality`."""
    refusals: Interval | None = None
    """Share of refused requests of the candidate minus that of the champion, as `quality`."""
    tests: dict[str, SequentialTest] = Field(default_factory=dict)
    """The tests over all steps so far: `ratings`, `errors`, `refused`, `slow`, and `mirrored` if the rollout asks prompts again."""
