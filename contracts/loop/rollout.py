"""Settings of the rollout."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from ratchet.contracts.loop.field_types import Percent, Positive, Seconds
from ratchet.contracts.model import Frozen
from ratchet.contracts.serving import Unit


class RolloutSettings(Frozen):
    """Settings of the rollout of an accepted candidate."""

    steps: tuple[Percent, ...] = (5, 25, 50, 100)
    """Traffic weights of the candidate in percent. They must increase and end at 100. Decisions on ratings are fastest at 50. A line with
    tens of thousands of requests a day can begin with 1."""
    unit: Unit = "session"
    """What stays with one version during a rollout. session: all requests of a session; a user's sessions are compared with each other.
    user: all requests of a user; decisions need far more users. A request that does not name it is assigned by the other one."""
    margin: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Non-inferiority margin of the mean rating; with `mirror`, also of the mean reward of mirrored prompts. It is decided at the largest
    weight below 100."""
    error_margin: Annotated[float, Field(gt=0, lt=1)] = 0.02
    """Maximum increase of the error share, and of the share of refused requests. At the largest weight below 100, the rollout advances only
    if a larger increase of the error share is excluded."""
    latency_ratio: Annotated[float, Field(gt=1)] = 1.5
    """Maximum latency ratio, candidate to champion. The candidate is rolled back if both the median and the 95th percentile exceed it."""
    slow_margin: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Maximum increase of the share of slow answers: those that take longer than `latency_ratio` times the champion's 95th percentile. At
    the largest weight below 100, the rollout advances only if a larger increase is excluded."""
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """Probability of a false rollback, over all metrics, evaluations and steps."""
    beta: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """Probability that a version worse than the margin is promoted, over all evaluations."""
    min_people: Positive = 30
    """Minimum effective number of raters of each version before ratings decide anything. Users with unequal numbers of ratings count as
    fewer."""
    mirror: Annotated[int, Field(ge=0)] = 0
    """Maximum number of users' prompts per rollout that the service asks again at both versions, and scores with the scorers for new
    answers. With it, the paired rewards decide `margin` instead of the ratings, so that a line with few raters can decide. Ratings still
    roll back. Only prompts that may be used for evaluation are asked. Users do not see the answers, and nothing is trained on them. Each
    prompt costs two requests and their scoring. 0: none."""
    min_requests: Positive = 100
    """Minimum number of requests of each version in each step before the rollout advances. The champion needs none if the route gives it
    no sessions. Refused requests do not count."""
    min_seconds: float = Field(default=600, ge=0)
    """Minimum duration of each step in seconds before the rollout advances."""
    max_seconds: Seconds = 7 * 86_400
    """Maximum duration of a step in seconds. A step that is undecided after it is inconclusive and rolls back."""
    maturity: float = Field(default=60, ge=0)
    """Age of a trace in seconds after which its feedback counts as complete."""
    holdback: Annotated[float, Field(ge=0, le=50)] = 5
    """Percentage of sessions that stay on the champion during the last step, so that both arms remain comparable. 0: none."""
    dark: Seconds = 300
    """Seconds until the trace of a request must be in the lake. The rollout rolls back if the router sent requests to a version and no
    trace of them is in the lake after this time, or if the metrics or the router's counts are unavailable for this time. Without requests,
    the rollout waits."""
    metrics: str = "lake"
    """Entry point name of the installed metrics (group `ratchet.metrics`) that measure live traffic. lake: the ingested traces and
    feedback."""
    metrics_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the metrics, which validate them."""

    @model_validator(mode="after")
    def _rising_to_100(self) -> RolloutSettings:
        if not self.steps or list(self.steps) != sorted(set(self.steps)) or self.steps[-1] != 100:
            raise ValueError(f"rollout.steps must increase and end at 100, got {list(self.steps)}")
        return self
